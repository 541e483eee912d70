"""Channels: the pchannels and vchannels of a log. The KV is the only source of truth; the maps are copies for other processes.

Files:

* pchannels:    the records of pchannels and of their checkpoints in the KV
* owners:       the owner of a channel: its texts and their bounds
* vchannels:    the names of vchannels, the pchannel of each, and the warning for a reader of an unknown one
* directory:    the records of vchannels in the KV, in memory and as saved
* service:      channels, which are vchannels with a generated name and an owner: the checks and the meaning of their calls
* vchannel_map: the file that shows a pchannel's vchannels to other processes: its bytes, and the view of all maps together
* map_keeper:   decides when these files are written
"""

from wal.channels.directory import (
    Change,
    VChannelDirectory,
    unsaved_records,
)
from wal.channels.map_keeper import VChannelMapKeeper
from wal.channels.owners import OwnerDescription, check_owner
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
    renew_incarnations,
    save_checkpoint,
)
from wal.channels.service import (
    CHANNELS_MAX,
    ChannelDescription,
    admit_channels,
    channels_named,
    check_channel_count,
    check_channel_names,
    describe_channels,
)
from wal.channels.vchannel_map import MapPlace, VChannelMap, VChannelMaps, VChannelView, read_map
from wal.channels.vchannels import (
    SHOWN_MAX,
    UNKNOWN_S,
    VCHANNEL_NAME_BYTES_MAX,
    UnknownVChannels,
    VChannelInfo,
    check_vchannel,
    check_vchannels,
    common_place,
    existing_vchannels,
    place,
)

__all__ = [
    "CHANNELS_MAX",
    "SHOWN_MAX",
    "UNKNOWN_S",
    "VCHANNEL_NAME_BYTES_MAX",
    "Change",
    "ChannelDescription",
    "CheckpointRecord",
    "MapPlace",
    "OwnerDescription",
    "PChannelMeta",
    "UnknownVChannels",
    "VChannelDirectory",
    "VChannelInfo",
    "VChannelMap",
    "VChannelMapKeeper",
    "VChannelMaps",
    "VChannelView",
    "admit_channels",
    "channels_named",
    "check_channel_count",
    "check_channel_names",
    "check_count",
    "check_owner",
    "check_vchannel",
    "check_vchannels",
    "common_place",
    "create_pchannel",
    "describe_channels",
    "existing_vchannels",
    "load_checkpoint",
    "load_pchannels",
    "new_incarnation",
    "pchannel_names",
    "place",
    "raise_term",
    "read_map",
    "renew_incarnations",
    "save_checkpoint",
    "unsaved_records",
]
