"""Channels: which pchannels and vchannels there are. The KV is the only truth; the maps are copies for other processes.

Files:

* pchannels: the records of pchannels and of their checkpoints in the KV
* directory: the records of vchannels in the KV, in memory and as they are saved; the names that a vchannel may have, and where it lies
* unknown: what a reader of a vchannel that does not exist is told
* vchannel_map: the file that shows a pchannel's vchannels to other processes: its bytes, and what all maps together say
* map_keeper: when these files are written
"""

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
from wal.channels.map_keeper import VChannelMapKeeper
from wal.channels.pchannels import (
    CheckpointRecord,
    PChannelMeta,
    check_count,
    create_pchannel,
    load_checkpoint,
    load_pchannels,
    new_incarnation,
    pchannel_names,
    raise_term,
    save_checkpoint,
)
from wal.channels.unknown import UnknownVChannels, existing_vchannels
from wal.channels.vchannel_map import MapPlace, VChannelMap, VChannelMaps, VChannelView, read_map

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
