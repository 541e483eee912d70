"""Transactions in Milvus' form, in which a client sends each of them message by message. Pure.

The type of a message says what it does; the reserved property `_tx` says to which transaction it belongs:

    _t 900   begins one on its vchannel; `_h` is the base64 of a BeginTxnHeader with the keepalive
    _tx      the base64 of the TxnContext that the begin was answered with: the message is a body
    _t 901   with `_tx`: commits it; `_h` may be there, empty or with the vchannel
    _t 902   with `_tx`: rolls it back; `_h` may be there, empty
"""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.message import Message, MessageType
from wal.message.codec import message_from_wire
from wal.message.properties import Reserved
from wal.message.wire_fields import from_base64, refused, txn_from_proto
from wal.message.wire_pb2 import BeginTxnHeader, CommitTxnHeader, TxnContext
from wal.message.wire_pb2 import Message as Wire


class TxnMessage(msgspec.Struct, frozen=True):
    """A message that begins or ends a transaction, or a body; the type of `message` says which.

    The message that begins it has the `txn_id` 0, and only its `keepalive_s` counts; 0.0 means the log's setting.
    """

    message: Message
    txn_id: int
    keepalive_s: float


def is_of_txn(wire: Wire) -> bool:
    """Returns whether a message in Milvus' form belongs to a transaction."""
    properties = wire.properties
    return Reserved.TXN_CONTEXT in properties or properties.get(Reserved.TYPE) in _TYPES


def txn_message_from_wire(wire: Wire) -> TxnMessage:
    """Returns a message of a transaction. Raises InvalidArgumentError for a field that it must not have, or that cannot be decoded."""
    properties = dict(wire.properties)
    context, header = properties.pop(Reserved.TXN_CONTEXT, None), properties.pop(Reserved.HEADER, None)
    message = message_from_wire(Wire(payload=wire.payload, properties=properties))
    kind = message.message_type
    if kind in _ENDS_AND_BEGIN and (message.payload or message.properties):
        raise InvalidArgumentError(
            f"a {kind.name} has {len(message.payload)} bytes of payload and {len(message.properties)} properties of the user's, which "
            "the log would not keep: put them into a body"
        )
    if kind == MessageType.BEGIN_TXN:
        if context is not None:
            raise refused(Reserved.TXN_CONTEXT, context, "none on a message that begins a transaction: its answer has it")
        milliseconds = from_base64(header or "", Reserved.HEADER, BeginTxnHeader).keepalive_milliseconds
        return TxnMessage(message, 0, milliseconds / 1000)
    txn = txn_from_proto(from_base64(context, Reserved.TXN_CONTEXT, TxnContext))
    if header is not None:
        named = from_base64(header, Reserved.HEADER, CommitTxnHeader).vchannels
        if kind not in _ENDS_AND_BEGIN or list(named) not in ([], [message.vchannel]):
            raise refused(Reserved.HEADER, header, "none on a body, and on an end no vchannels but its own")
    return TxnMessage(message, txn.txn_id, 0.0)


_ENDS_AND_BEGIN: Final = (MessageType.BEGIN_TXN, MessageType.COMMIT_TXN, MessageType.ROLLBACK_TXN)
_TYPES: Final = frozenset(str(int(kind)) for kind in _ENDS_AND_BEGIN)
