"""Wire fields: writes each system field of a message into a property of its wire form, and reads those that clients send.

Numbers are base 36 (types base 10), structures base64 of protobuf. A value that this module would not have written is refused with an
InvalidArgumentError that names the key of the property. Pure functions; `codec` builds messages from them.
"""

from __future__ import annotations

import base64
import math
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from wal.errors import InvalidArgumentError
from wal.message import wire_pb2
from wal.message.append_result import TxnContext
from wal.message.broadcast_header import BroadcastHeader
from wal.message.properties import Reserved


def type_number(fields: dict[str, str]) -> int:
    """Returns the number of the type, which may be unknown to this version."""
    text = fields.get(Reserved.TYPE, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and str(int(text)) == text and int(text) <= _TYPE_MAX):
        raise refused(Reserved.TYPE, text, f"a number of a type in base 10, at most {_TYPE_MAX}")
    return int(text)


def base36(value: int) -> str:
    """Returns the text of an unsigned 64-bit number."""
    if not 0 <= value < 1 << 64:
        raise InvalidArgumentError(f"{value} has no wire form: a number from 0 to 2**64 - 1 is needed")
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"


_P = TypeVar("_P", bound=Proto)


def from_base64(text: str | None, key: str, kind: type[_P]) -> _P:
    """Returns the protobuf of this key, whose property is `text`."""
    proto = kind()
    try:
        if text is None:
            raise ValueError("it is missing")
        proto.ParseFromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        raise refused(key, text or "", f"base64 of a {kind.DESCRIPTOR.name} ({error})") from error
    return proto


def to_base64(proto: Proto) -> str:
    """Returns the property that `from_base64` reads."""
    return base64.b64encode(proto.SerializeToString(deterministic=True)).decode()


def txn_to_proto(context: TxnContext) -> wire_pb2.TxnContext:
    """Returns the protobuf of a context, with its keepalive in whole milliseconds; an infinite one is -1."""
    keepalive = context.keepalive
    if not 0 <= context.txn_id < 1 << 63 or not (keepalive >= 0 and (keepalive < 1 << 50 or math.isinf(keepalive))):
        raise InvalidArgumentError(f"{context} has no wire form: txn_id and keepalive must not be negative, and fit in 63 bits")
    milliseconds = _NEVER_EXPIRES if math.isinf(keepalive) else round(keepalive * 1000)
    return wire_pb2.TxnContext(txn_id=context.txn_id, keepalive_milliseconds=milliseconds)


def txn_from_proto(proto: wire_pb2.TxnContext) -> TxnContext:
    """Returns the context; negative numbers are refused."""
    milliseconds = proto.keepalive_milliseconds
    if proto.txn_id < 0 or milliseconds < _NEVER_EXPIRES:
        raise refused(Reserved.TXN_CONTEXT, f"{proto.txn_id}, {milliseconds} ms", "numbers that are not negative")
    return TxnContext(proto.txn_id, math.inf if milliseconds == _NEVER_EXPIRES else milliseconds / 1000)


def broadcast_to_proto(header: BroadcastHeader) -> wire_pb2.BroadcastHeader:
    """Returns the protobuf of a header, with all its resource keys."""
    if not 0 <= header.broadcast_id < 1 << 64:
        raise InvalidArgumentError(f"broadcast id {header.broadcast_id} has no wire form: 0 to 2**64 - 1 is needed")
    return wire_pb2.BroadcastHeader(
        broadcast_id=header.broadcast_id,
        vchannels=header.vchannels,
        resource_keys=[wire_pb2.ResourceKey(domain=key.domain, key=key.key, shared=key.shared) for key in header.resource_keys],
        ack_sync_up=header.needs_ack,
    )


def refused(key: str, value: str, expected: str) -> InvalidArgumentError:
    """Returns the error for a property that is not as expected."""
    text = value if len(value) <= 100 else value[:100] + "…"
    return InvalidArgumentError(f"property {key!r} of a message on the wire is {text!r}: expected {expected}")


_TYPE_MAX: Final = 0xFFFF
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NEVER_EXPIRES: Final = -1
