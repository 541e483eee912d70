"""Messages: their types, ids and properties, before and after an append. This room imports no other room.

A user appends a `Message`, and reads `ImmutableMessage`s, each with a `MessageID`: pchannel, position of its frame, index in the frame. The
table in `types.py` has the meaning of each type to the log. A `Lineage` decides which ids of an earlier incarnation are still valid.
`codec.py` has the form in which messages travel on a wire.
"""

from wal.message.append_result import (
    AppendResult,
    CopyOutcomes,
    ForgottenResult,
    MixedCopies,
    ScheduledMessage,
    ScheduledResult,
    TxnContext,
)
from wal.message.broadcast_header import BroadcastHeader, ResourceKey
from wal.message.lineage import Lineage, Restore
from wal.message.message import ImmutableMessage, ImmutableTxnMessage, Message, Origin, TimeTickMessage
from wal.message.message_id import FORM_JOURNAL, FORM_PULSAR, LogPosition, MessageID, Natural, PackedPosition, packed, unpacked
from wal.message.properties import (
    RESERVED_PREFIX,
    Reserved,
    check_properties,
    decode_properties,
    encode_properties,
    properties_count,
    properties_size,
)
from wal.message.types import MessageType, TypeProperties, type_properties

__all__ = [
    "FORM_JOURNAL",
    "FORM_PULSAR",
    "RESERVED_PREFIX",
    "AppendResult",
    "BroadcastHeader",
    "CopyOutcomes",
    "ForgottenResult",
    "ImmutableMessage",
    "ImmutableTxnMessage",
    "Lineage",
    "LogPosition",
    "Message",
    "MessageID",
    "MessageType",
    "MixedCopies",
    "Natural",
    "Origin",
    "PackedPosition",
    "Reserved",
    "ResourceKey",
    "Restore",
    "ScheduledMessage",
    "ScheduledResult",
    "TimeTickMessage",
    "TxnContext",
    "TypeProperties",
    "check_properties",
    "decode_properties",
    "encode_properties",
    "packed",
    "properties_count",
    "properties_size",
    "type_properties",
    "unpacked",
]
