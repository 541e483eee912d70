"""Channels: which pchannels and vchannels there are, as the KV says.

Files:

* In the KV: directory, pchannel_meta, checkpoint_record; copies for other processes: vchannel_map (bytes), map_keeper
  (writes), map_view (reads); unknown (what a reader of no vchannel is told)
"""

from wal.channels.checkpoint_record import CheckpointRecord, load_checkpoint
from wal.channels.directory import (
    VCHANNEL_NAME_BYTES_MAX,
    Change,
    VChannelDirectory,
    VChannelInfo,
    check_vchannel,
    check_vchannels,
    common_place,
    place,
    unsaved_records,
)
from wal.channels.map_keeper import MapPlace, VChannelMapKeeper
from wal.channels.map_view import VChannelMaps, VChannelView
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
from wal.channels.unknown import UnknownVChannels, existing_vchannels
from wal.channels.vchannel_map import VChannelMap, read_map

__all__ = [
    "VCHANNEL_NAME_BYTES_MAX",
    "Change",
    "CheckpointRecord",
    "MapPlace",
    "PChannelMeta",
    "UnknownVChannels",
    "VChannelDirectory",
    "VChannelInfo",
    "VChannelMap",
    "VChannelMapKeeper",
    "VChannelMaps",
    "VChannelView",
    "check_count",
    "check_vchannel",
    "check_vchannels",
    "common_place",
    "create_pchannel",
    "existing_vchannels",
    "load_checkpoint",
    "load_pchannels",
    "new_incarnation",
    "pchannel_names",
    "place",
    "raise_term",
    "read_map",
    "save_checkpoint",
    "unsaved_records",
]
