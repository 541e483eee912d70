"""Message streams: packs of messages with hash keys and timestamps, over channels of Pulsar, RocksMQ, a log or memory.

Files:

* types:      the types of messages and their numbers
* position:   MsgPosition, where a message is in its channel
* ts_msg:     TsMsg, what every message has, and its form on the wire
* messages:   the classes of messages
* dispatcher: UnmarshalDispatcher, which chooses by the type what reads a message
* pack:       MsgPack, the messages that are produced or consumed together
* repack:     which message, or which of its rows, goes to which producer
* integers:   the check of integers that have a width on the wire
* medium:     the seam that a system implements to carry messages
* sending:    the broadcast of a medium that has none of its own
* errors:     the errors that only message streams raise
"""

from wal.installation import install_hint

try:
    import google.protobuf  # noqa: F401
except ImportError as _missing:
    raise ImportError(
        f"message streams need protobuf, which is not installed: {install_hint('wire')}", name=_missing.name
    ) from _missing
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
from wal.msgstream.errors import PartialSendError
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
from wal.msgstream.position import MsgPosition
from wal.msgstream.repack import RepackFunc, default_repack, delete_repack, insert_repack
from wal.msgstream.sending import send_to_each
from wal.msgstream.ts_msg import TsMsg
from wal.msgstream.types import EarlierMsgType, MsgType

__all__ = [
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
    "MsgPack",
    "MsgPosition",
    "MsgType",
    "OpaqueMsg",
    "Outgoing",
    "PartialSendError",
    "ProtoUDFactory",
    "ProtoUnmarshalDispatcher",
    "Received",
    "RepackFunc",
    "TimeTickMsg",
    "TsMsg",
    "UnmarshalDispatcher",
    "UnmarshalDispatcherFactory",
    "UnmarshalFunc",
    "default_repack",
    "delete_repack",
    "insert_repack",
    "send_to_each",
]
