"""Messages, their types, ids and properties; knows no other room."""

from wal.message.broadcast_header import BroadcastHeader, ResourceKey
from wal.message.message import ImmutableMessage, ImmutableTxnMessage, Message, Origin, TimeTickMessage
from wal.message.message_id import FORM_JOURNAL, FORM_PULSAR, MessageID
from wal.message.packed import Natural, PackedPosition, packed, unpacked
from wal.message.properties import (
    RESERVED_PREFIX,
    Reserved,
    check_properties,
    decode_properties,
    encode_properties,
    properties_size,
)
from wal.message.txn_context import TxnContext
from wal.message.types import MessageType, TypeProperties, type_properties

__all__ = [
    "FORM_JOURNAL",
    "FORM_PULSAR",
    "RESERVED_PREFIX",
    "BroadcastHeader",
    "ImmutableMessage",
    "ImmutableTxnMessage",
    "Message",
    "MessageID",
    "MessageType",
    "Natural",
    "Origin",
    "PackedPosition",
    "Reserved",
    "ResourceKey",
    "TimeTickMessage",
    "TxnContext",
    "TypeProperties",
    "check_properties",
    "decode_properties",
    "encode_properties",
    "packed",
    "properties_size",
    "type_properties",
    "unpacked",
]
