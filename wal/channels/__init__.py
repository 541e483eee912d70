"""Channels: which pchannels and vchannels there are, as the KV says."""

from wal.channels.checkpoint_record import CheckpointRecord, load_checkpoint
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
    save_checkpoint,
)

__all__ = [
    "VCHANNEL_NAME_BYTES_MAX",
    "Change",
    "CheckpointRecord",
    "PChannelMeta",
    "VChannelDirectory",
    "VChannelInfo",
    "check_count",
    "check_vchannel",
    "create_pchannel",
    "load_checkpoint",
    "load_pchannels",
    "new_incarnation",
    "pchannel_names",
    "place",
    "raise_term",
    "save_checkpoint",
]
