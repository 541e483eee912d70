"""Ext: the optional fields of a record, as tag, length and value.

    tag u16 | length u32 | value …      one after the other, each tag at most once, ascending

A reader must understand an even tag (else FormatError), and may skip an odd one.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Final

from wal.errors import CorruptionError, FormatError


class ExtTag(enum.IntEnum):
    """The fields that a record can carry, each with the form of its value."""

    TXN = 2
    """On COMMIT rows: txn_id u64 | keepalive in ms u64 | bodies in this run u32 | bodies in all runs u32."""
    IDEMPOTENCY_KEY = 4
    """UTF-8."""
    PRODUCER_KEY = 6
    """sequence u64 | name of the producer in UTF-8."""
    BROADCAST = 8
    """BroadcastHeader as MessagePack, see `BroadcastHeader.to_bytes`."""
    TRACE = 9
    """Trace context as text; may be skipped."""
    REPLICATE = 12
    CIPHER = 14


_TAG: Final = struct.Struct("<HI")
_TXN: Final = struct.Struct("<QQII")
_SEQUENCE: Final = struct.Struct("<Q")
_PRODUCER: Final = struct.Struct("<HIQ")
"""The tag and the length of a producer's key, and its sequence."""
_KNOWN: Final = {int(tag): tag for tag in ExtTag}


def encode_ext(fields: Mapping[ExtTag, bytes]) -> bytes:
    """Returns the bytes of these fields; empty without fields."""
    return b"".join(part for tag in sorted(fields) for part in (_TAG.pack(tag, len(fields[tag])), fields[tag]))


def decode_ext(data: bytes) -> dict[ExtTag, bytes]:
    """Returns the known fields. Raises CorruptionError for damage, FormatError for an unknown even tag."""
    fields: dict[ExtTag, bytes] = {}
    at = 0
    previous = -1
    while at < len(data):
        if at + _TAG.size > len(data):
            raise CorruptionError("the ext of a record is cut short", expected="tag u16 and length u32")
        tag, length = _TAG.unpack_from(data, at)
        at += _TAG.size
        if at + length > len(data) or tag <= previous:
            raise CorruptionError(f"the ext of a record is malformed at tag {tag}", expected="ascending tags within the ext")
        if (field := _KNOWN.get(tag)) is not None:
            fields[field] = data[at : at + length]
        elif tag % 2 == 0:
            raise FormatError(f"a record has the field {tag}, which this version must understand and does not: upgrade to read it")
        previous = tag
        at += length
    return fields


def encode_txn(*, txn_id: int, keepalive_ms: int, bodies: int, bodies_total: int) -> bytes:
    """Returns the ext of a COMMIT row."""
    return _TAG.pack(ExtTag.TXN, _TXN.size) + _TXN.pack(txn_id, keepalive_ms, bodies, bodies_total)


def encode_broadcast(header: bytes) -> bytes:
    """Returns the ext of a SHARED row."""
    return _TAG.pack(_BROADCAST, len(header)) + header


def decode_txn(fields: Mapping[ExtTag, bytes]) -> tuple[int, int, int, int]:
    """Returns `(txn_id, keepalive_ms, bodies, bodies_total)` of a COMMIT row; raises CorruptionError if they are missing."""
    value = fields.get(ExtTag.TXN, b"")
    if len(value) != _TXN.size:
        raise CorruptionError("a commit row carries no transaction", expected=f"field {ExtTag.TXN:d} of {_TXN.size} bytes")
    txn_id, keepalive_ms, bodies, bodies_total = _TXN.unpack(value)
    if bodies > bodies_total:
        raise CorruptionError(f"a commit row counts {bodies} bodies in its run", expected=f"at most {bodies_total}")
    return txn_id, keepalive_ms, bodies, bodies_total


def encode_key(key: str, *, sequence: int | None = None) -> bytes:
    """Returns the ext of an idempotency key, or with a `sequence` that of a producer's key; it may follow the ext of a COMMIT row."""
    if sequence is None:
        value = key.encode()
        length = len(value)
        return (KEY_TAGS[length] if length < len(KEY_TAGS) else _TAG.pack(_IDEMPOTENCY_KEY, length)) + value
    value = key.encode()
    return _PRODUCER.pack(_PRODUCER_KEY, _SEQUENCE.size + len(value), sequence) + value


def decode_key(ext: bytes) -> tuple[str, int | None] | None:
    """Returns `(key, None)`, `(producer, sequence)`, or None for an ext without a key. Raises CorruptionError for damage.

    It reads only the tags up to the key's, because recovery calls it for every record with an ext.
    """
    at, end = 0, len(ext)
    try:
        while at < end:
            tag, length = _TAG.unpack_from(ext, at)
            at += _TAG.size
            value = ext[at : at + length]
            if len(value) != length:
                raise CorruptionError(f"the ext of a record is cut short at tag {tag}", expected=f"{length} bytes")
            if tag == _IDEMPOTENCY_KEY:
                return value.decode(), None
            if tag == _PRODUCER_KEY:
                return value[_SEQUENCE.size :].decode(), _SEQUENCE.unpack_from(value)[0]
            if tag > _PRODUCER_KEY:
                return None
            at += length
    except (UnicodeDecodeError, struct.error) as error:
        raise CorruptionError(f"the idempotency key of a record is damaged: {error}", expected="a tag, a length, UTF-8") from error
    return None


_BROADCAST: Final = int(ExtTag.BROADCAST)
_IDEMPOTENCY_KEY: Final = int(ExtTag.IDEMPOTENCY_KEY)
_PRODUCER_KEY: Final = int(ExtTag.PRODUCER_KEY)
KEY_TAGS: Final = tuple([_TAG.pack(_IDEMPOTENCY_KEY, length) for length in range(256)])
"""The tag and the length of a key, by the length; callers' keys are never longer."""
