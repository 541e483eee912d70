"""Message streams: packs of messages with hash keys and timestamps, over channels of Pulsar, RocksMQ, a log or memory.

A `MsgStream` distributes the messages of a pack over its channels by their hash keys, and passes them to the producers of its `Medium`, the
interface of every system in `media`. A consuming stream has two actors for each channel: one receives and decodes pages, the other
acknowledges. A `TtMsgStream` feeds the pages to a `TickAligner` and returns one pack for each time tick. `migrate` copies streams into a
log.
"""

from wal.runtime.installation import Needed

with Needed("message streams need", "wire"):
    import google.protobuf  # noqa: F401
from wal.streams.msgstream.channel_service import ChannelService
from wal.streams.msgstream.dispatcher import (
    MarshalFunc,
    MarshalType,
    MemUDFactory,
    ProtoUDFactory,
    ProtoUnmarshalDispatcher,
    UnmarshalDispatcher,
    UnmarshalDispatcherFactory,
    UnmarshalFunc,
)
from wal.streams.msgstream.errors import PartialSendError, ProduceError
from wal.streams.msgstream.factory import (
    MemoryMsgStreamFactory,
    MsgStreamFactory,
    PulsarMsgStreamFactory,
    RmqMsgStreamFactory,
    WalMsgStreamFactory,
)
from wal.streams.msgstream.medium import Medium, MediumConsumer, MediumProducer, Outgoing, Received, send_to_each
from wal.streams.msgstream.messages import (
    CreateCollectionMsg,
    CreatePartitionMsg,
    DeleteMsg,
    DropCollectionMsg,
    DropPartitionMsg,
    InsertMsg,
    OpaqueMsg,
    TimeTickMsg,
)
from wal.streams.msgstream.page import OnRefused, Refused
from wal.streams.msgstream.producers import RepackFunc, default_repack, delete_repack, insert_repack
from wal.streams.msgstream.stream import ChannelStatistics, MsgStream, MsgStreamStatistics
from wal.streams.msgstream.ts_msg import MsgPack, MsgPosition, TsMsg
from wal.streams.msgstream.tt_stream import TtMsgStream
from wal.streams.msgstream.types import EarlierMsgType, MsgType

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
