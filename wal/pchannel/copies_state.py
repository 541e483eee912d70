"""The broadcasts with copies in a log, as rows and as bytes in a recovery checkpoint. Pure.

Owns the rows that the table keeps and the form of their pieces (see `pieces`):

    3 copies    [3, sets of vchannels, sets of copies, rows]
    row         [broadcast id, number of its set of vchannels, resource keys, needs_ack, parts]
    part        [position, index, tick, number of its set of copies, 1 for aborts else 0]

A set of vchannels is a list of names; a set of copies is a list of names and one of incarnations; each is in the order of the broadcast.
Most broadcasts go to the same vchannels, so a piece holds only the sets that no earlier piece has held; sets are numbered in the order
they appear.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from wal.errors import CorruptionError
from wal.frame import RunName
from wal.message import BroadcastHeader, Natural, PackedPosition, ResourceKey, packed, unpacked
from wal.pchannel.pieces import PieceKind, encode_header, encode_piece, split_pieces

__all__ = [
    "CopiesPart",
    "ListedBroadcast",
    "NamePool",
    "decode_copies",
    "encode_copies",
]

PIECE_NAMES: Final = 1024
"""A piece is cut when its new sets have this many vchannels, or its rows this many parts."""


class CopiesPart(msgspec.Struct, frozen=True, gc=False):
    """The copies of a broadcast in one frame, or, with `aborts`, the messages about its abort.

    Number k of `names` has the index `index` + k and the tick `tick` + k.
    """

    position: int
    index: int
    tick: int
    names: tuple[RunName, ...]
    aborts: bool


class ListedBroadcast(msgspec.Struct, frozen=True, gc=False):
    """A broadcast that is not over, and the parts of it in this log, in their order."""

    header: BroadcastHeader
    parts: tuple[CopiesPart, ...]


def encode_copies(broadcasts: Sequence[ListedBroadcast]) -> Iterator[bytes]:
    """Yields the pieces. The rows must not change during the iteration."""
    yield encode_header()
    vchannels = _Sets()
    copies = _Sets()
    rows: list[Any] = []
    weight = 0
    for listed in broadcasts:
        header = listed.header
        parts = [
            [packed(part.position), part.index, part.tick, copies.number(part.names), int(part.aborts)]
            for part in listed.parts
        ]
        rows.append(
            [header.broadcast_id, vchannels.number(header.vchannels), header.resource_keys, header.needs_ack, parts]
        )
        weight += 1 + len(parts)
        if weight + vchannels.size + copies.size >= PIECE_NAMES:
            yield _piece(vchannels, copies, rows)
            rows, weight = [], 0
    if rows:
        yield _piece(vchannels, copies, rows)


def decode_copies(blob: bytes, pool: NamePool) -> list[ListedBroadcast]:
    """Returns the rows of a blob in their order, with the names of the pool.

    Raises CorruptionError for bytes that are no such blob, FormatError for a blob of a newer version.
    """
    try:
        return _decode(blob, pool)
    except (struct.error, msgspec.MsgspecError, RecursionError, ValueError, LookupError, TypeError) as error:
        raise CorruptionError(
            f"the broadcasts of a checkpoint are damaged: {error}", expected="pieces of MessagePack"
        ) from error


def _decode(blob: bytes, pool: NamePool) -> list[ListedBroadcast]:
    found: list[ListedBroadcast] = []
    vchannels: list[tuple[str, ...]] = []
    copies: list[tuple[RunName, ...]] = []
    for kind, data in split_pieces(blob):
        if kind is not PieceKind.COPIES:
            continue
        piece = _decoder.decode(data)
        vchannels += map(pool.vchannels, piece.vchannels)
        copies += [pool.copies(tuple(zip(names, incarnations, strict=True))) for names, incarnations in piece.copies]
        for row in piece.rows:
            header = BroadcastHeader(row.broadcast_id, vchannels[row.vchannels], row.resource_keys, row.needs_ack)
            parts = [
                CopiesPart(unpacked(position), index, tick, copies[number], bool(aborts))
                for position, index, tick, number, aborts in row.parts
            ]
            found.append(ListedBroadcast(header, tuple(parts)))
    return found


class _Sets:
    """Numbers for tuples of names. `fresh` are the tuples that were not written yet; they have `size` names in all."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.fresh: list[tuple[Any, ...]] = []
        self.size = 0

    def number(self, names: tuple[Any, ...]) -> int:
        number = self._numbers.get(names)
        if number is None:
            number = self._numbers[names] = len(self._numbers)
            self.fresh.append(names)
            self.size += len(names)
        return number

    def take(self) -> list[tuple[Any, ...]]:
        fresh, self.fresh, self.size = self.fresh, [], 0
        return fresh


def _piece(vchannels: _Sets, copies: _Sets, rows: list[Any]) -> bytes:
    columns = [([name for name, _ in names], [incarnation for _, incarnation in names]) for names in copies.take()]
    return encode_piece(PieceKind.COPIES, [vchannels.take(), columns, rows])


class _Row(msgspec.Struct, array_like=True, gc=False):
    broadcast_id: Natural
    vchannels: Natural
    resource_keys: tuple[ResourceKey, ...]
    needs_ack: bool
    parts: list[tuple[PackedPosition, Natural, Natural, Natural, int]]


class _Piece(msgspec.Struct, array_like=True):
    kind: int
    vchannels: list[tuple[str, ...]]
    copies: list[tuple[list[str], list[Natural]]]
    rows: list[_Row]


_decoder: Final = msgspec.msgpack.Decoder(_Piece)


class NamePool:
    """One object for equal names and equal tuples of them, while a table of broadcasts is recovered.

    Every frame and every checkpoint is decoded separately, so the same thousand names recur with each broadcast. Without the pool they
    take a hundred KB per broadcast, with it eight bytes per name for each different set. It forgets nothing, so it exists only during
    the recovery, when everything it holds is in use.
    """

    __slots__ = ("_copies", "_runs", "_texts", "_vchannels")

    def __init__(self) -> None:
        self._vchannels: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._copies: dict[tuple[RunName, ...], tuple[RunName, ...]] = {}
        self._runs: dict[RunName, RunName] = {}
        self._texts: dict[str, str] = {}

    def vchannels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the pooled tuple of these names."""
        held = self._vchannels.get(names)
        if held is None:
            held = tuple(map(self._texts.setdefault, names, names))
            self._vchannels[held] = held
        return held

    def copies(self, names: tuple[RunName, ...]) -> tuple[RunName, ...]:
        """Returns the pooled tuple of these names with their incarnations."""
        held = self._copies.get(names)
        if held is None:
            held = tuple(map(self._run, names))
            self._copies[held] = held
        return held

    def _run(self, name: RunName) -> RunName:
        held = self._runs.get(name)
        if held is None:
            text, incarnation = name
            held = (self._texts.setdefault(text, text), incarnation)
            self._runs[held] = held
        return held
