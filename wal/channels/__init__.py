"""Channels: which pchannels and vchannels there are, as the KV says."""

from wal.channels.directory import (
    VCHANNEL_NAME_BYTES_MAX,
    Change,
    VChannelDirectory,
    VChannelInfo,
    check_vchannel,
    place,
)
from wal.channels.pchannel_meta import (
    PChannelMeta,
    check_count,
    create_pchannel,
    load_pchannels,
    new_incarnation,
    pchannel_names,
    raise_term,
)

__all__ = [
    "VCHANNEL_NAME_BYTES_MAX",
    "Change",
    "PChannelMeta",
    "VChannelDirectory",
    "VChannelInfo",
    "check_count",
    "check_vchannel",
    "create_pchannel",
    "load_pchannels",
    "new_incarnation",
    "pchannel_names",
    "place",
    "raise_term",
]
