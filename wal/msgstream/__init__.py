"""Message streams: packs of messages with hash keys and timestamps, over channels of Pulsar, RocksMQ, a log or memory.

Files:

* types:      the types of messages and their numbers
* position:   MsgPosition, where a message is in its channel
* ts_msg:     TsMsg, what every message has, and its form on the wire
* unread:     fields of received messages that are converted when they are first read
* messages:   the classes of messages
* dispatcher: UnmarshalDispatcher, which chooses by the type what reads a message
* pack:       MsgPack, the messages that are produced or consumed together
* repack:     which message, or which of its rows, goes to which producer
* integers:   the check of integers that have a width on the wire
* medium:     the seam that a system implements to carry messages
* sending:    sending to several channels at once
* errors:     the errors that only message streams raise
* stream:     MsgStream: packs, produced to some channels and consumed from others
* tt_stream:  TtMsgStream: one pack for each time tick
* factory:    the factories of streams, one for each medium
* aligner:    TickAligner, which cuts the messages of several channels at their ticks. Pure
* producers:  the channels that a stream writes to
* subscriptions, subscription: the channels that a stream consumes; one of them
* reader:     the actor that receives and decodes the messages of a channel
* acker:      the actor that acknowledges the messages of a channel
* page:       messages that were received together, decoded. Pure
* delivered:  a pack that was handed over, with what its acknowledgement covers
* options:    the options of streams, checked
* refused:    a received message that is not delivered
* statistics: the statistics of a stream
* names:      the checks of names
* channel_service: names of channels and their owners, in a KV
* media:      the systems that carry messages; a folder
* migrate:    copying streams into a log, and moving their consumers
* old_position: where a migrated message was before. Pure
"""

from wal.installation import install_hint

try:
    import google.protobuf  # noqa: F401
except ImportError as _missing:
    raise ImportError(
        f"message streams need protobuf, which is not installed: {install_hint('wire')}", name=_missing.name
    ) from _missing
from wal.msgstream.channel_service import ChannelService
from wal.msgstream.dispatcher import (
    MarshalFunc,
    MarshalType,
    MemUDFactory,
    ProtoUDFactory,
    ProtoUnmarshalDispatcher,
    UnmarshalDispatcher,
    UnmarshalDispatcherFactory,
    UnmarshalFunc,
)
from wal.msgstream.errors import PartialSendError, ProduceError
from wal.msgstream.factory import (
    MemoryMsgStreamFactory,
    MsgStreamFactory,
    PulsarMsgStreamFactory,
    RmqMsgStreamFactory,
    WalMsgStreamFactory,
)
from wal.msgstream.medium import Medium, MediumConsumer, MediumProducer, Outgoing, Received
from wal.msgstream.messages import (
    CreateCollectionMsg,
    CreatePartitionMsg,
    DeleteMsg,
    DropCollectionMsg,
    DropPartitionMsg,
    InsertMsg,
    OpaqueMsg,
    TimeTickMsg,
)
from wal.msgstream.pack import MsgPack
from wal.msgstream.page import OnRefused, Refused
from wal.msgstream.position import MsgPosition
from wal.msgstream.producers import RepackFunc, default_repack, delete_repack, insert_repack, send_to_each
from wal.msgstream.stream import ChannelStatistics, MsgStream, MsgStreamStatistics
from wal.msgstream.ts_msg import TsMsg
from wal.msgstream.tt_stream import TtMsgStream
from wal.msgstream.types import EarlierMsgType, MsgType

__all__ = [
    "ChannelService",
    "ChannelStatistics",
    "CreateCollectionMsg",
    "CreatePartitionMsg",
    "DeleteMsg",
    "DropCollectionMsg",
    "DropPartitionMsg",
    "EarlierMsgType",
    "InsertMsg",
    "MarshalFunc",
    "MarshalType",
    "Medium",
    "MediumConsumer",
    "MediumProducer",
    "MemUDFactory",
    "MemoryMsgStreamFactory",
    "MsgPack",
    "MsgPosition",
    "MsgStream",
    "MsgStreamFactory",
    "MsgStreamStatistics",
    "MsgType",
    "OnRefused",
    "OpaqueMsg",
    "Outgoing",
    "PartialSendError",
    "ProduceError",
    "ProtoUDFactory",
    "ProtoUnmarshalDispatcher",
    "PulsarMsgStreamFactory",
    "Received",
    "Refused",
    "RepackFunc",
    "RmqMsgStreamFactory",
    "TimeTickMsg",
    "TsMsg",
    "TtMsgStream",
    "UnmarshalDispatcher",
    "UnmarshalDispatcherFactory",
    "UnmarshalFunc",
    "WalMsgStreamFactory",
    "default_repack",
    "delete_repack",
    "insert_repack",
    "send_to_each",
]
