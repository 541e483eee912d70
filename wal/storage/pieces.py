"""The pieces of the state in a recovery checkpoint, whichever table they belong to. Pure.

    piece       length u32, little-endian | MessagePack of an array, its first element the kind of the piece
    0 header    [0, version]: the first piece, and the first one of each table's state
    1 keys      2 producers      4 runs of keys: `idempotency/state`       3 copies: `copies`      5 last events: `last_events`
    6 cursors   `cursor_table`      7 scheduled messages: `schedule`

A table reads its own kinds and skips the others. An unknown kind comes from a newer version, with state that this version would lose: it
raises FormatError.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from wal.errors import FormatError

VERSION: Final = 1


class PieceKind(enum.IntEnum):
    """The kind of a piece."""

    HEADER = 0
    KEYS = 1
    PRODUCERS = 2
    COPIES = 3
    KEY_RUNS = 4
    LAST_EVENTS = 5
    CURSORS = 6
    SCHEDULES = 7


def encode_header() -> bytes:
    """Returns the piece that comes before a table's own."""
    return encode_piece(PieceKind.HEADER, [VERSION])


def encode_piece(kind: PieceKind, fields: Sequence[Any]) -> bytes:
    """Returns a piece of this kind."""
    data = _encoder.encode([int(kind), *fields])
    return _LENGTH.pack(len(data)) + data


def split_pieces(blob: bytes) -> Iterator[tuple[PieceKind, memoryview]]:
    """Yields the kind of each piece and its bytes, not decoded, without the headers.

    Raises FormatError for a newer version, ValueError or struct.error for bytes that are not a sequence of pieces.
    """
    view = memoryview(blob)
    at = 0
    while at < len(blob):
        (length,) = _LENGTH.unpack_from(blob, at)
        start, at = at + _LENGTH.size, at + _LENGTH.size + length
        if at > len(blob) or length < 2 or not _ARRAY <= view[start] <= _ARRAY_END:
            raise ValueError("a piece is incomplete, or is not a piece")
        kind, data = view[start + 1], view[start:at]
        if start == _LENGTH.size and kind != PieceKind.HEADER:
            raise ValueError("the first piece is not a header")
        if kind not in _KINDS:
            raise FormatError(f"the checkpoint has pieces of kind {kind}: upgrade to read them")
        if kind == PieceKind.HEADER:
            _, version = msgspec.msgpack.decode(data)
            if version != VERSION:
                raise FormatError(f"the checkpoint has version {version}: upgrade to read it")
            continue
        yield PieceKind(kind), data


_LENGTH: Final = struct.Struct("<I")
_ARRAY: Final = 0x90
_ARRAY_END: Final = 0x9F
"""The first byte of an array of up to 15 elements; the next byte is the kind."""
_KINDS: Final = frozenset(map(int, PieceKind))
_encoder: Final = msgspec.msgpack.Encoder()
