"""CopyTable: the unfinished broadcasts with copies in a pchannel's log, and the positions of the copies. Pure.

Its caller reports durable copies and ended broadcasts, and asks for the position of a vchannel's copy. It has no window: a broadcast stays
until it is forgotten, and survives restarts in the checkpoint and the frames written after it. So no copy is appended twice, and retention
keeps the copies of unfinished broadcasts.

    (unknown) --durable--> listed --forget--> (unknown)       a checkpoint taken after `forget` does not list it

A dropped vchannel keeps its entry: a vchannel that is recreated under its name gets no copy of a broadcast to the earlier incarnation.
`forgotten` are the broadcasts that ended since the last checkpoint.

A recovery checkpoint has the rows of the table in pieces of this form (see `wal/storage/pieces.py`):

    3 copies    [3, sets of vchannels, sets of copies, rows]
    row         [broadcast id, number of its set of vchannels, resource keys, needs_ack, parts]
    part        [position, index, tick, number of its set of copies, 1 for aborts else 0]

A set of vchannels is a list of names; a set of copies is a list of names and one of incarnations; each is in the order of the broadcast.
Most broadcasts go to the same vchannels, so a piece has only the sets of no earlier piece; sets are numbered in the order they appear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import msgspec

from wal.frame import BROADCAST, FrameView, RunName
from wal.message import BroadcastHeader, MessageType, Natural, PackedPosition, ResourceKey, packed, unpacked
from wal.read.assembly import shared_copies
from wal.storage.pieces import PieceKind, encode_header, encode_piece
from wal.storage.state_table import Decoders, Live, StateTable

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
    """An unfinished broadcast, and the parts of it in this log, in their order."""

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
        parts = [[packed(part.position), part.index, part.tick, copies.number(part.names), int(part.aborts)] for part in listed.parts]
        rows.append([header.broadcast_id, vchannels.number(header.vchannels), header.resource_keys, header.needs_ack, parts])
        weight += 1 + len(parts)
        if weight + vchannels.size + copies.size >= PIECE_NAMES:
            yield _piece(vchannels, copies, rows)
            rows, weight = [], 0
    if rows:
        yield _piece(vchannels, copies, rows)


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


class _CopiesPiece(msgspec.Struct, array_like=True):
    kind: int
    vchannels: list[tuple[str, ...]]
    copies: list[tuple[list[str], list[Natural]]]
    rows: list[_Row]


class NamePool:
    """One object for equal names and equal tuples of them, while a table of broadcasts is recovered.

    Every frame and every checkpoint is decoded separately, so the same thousand names recur with each broadcast. Without the pool they take
    a hundred KB per broadcast, with it eight bytes per name for each different set. It forgets nothing, so it exists only during the
    recovery, when all of its objects are in use.
    """

    __slots__ = ("_copies", "_runs", "_texts", "_vchannels")

    def __init__(self) -> None:
        self._vchannels: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._copies: dict[tuple[RunName, ...], tuple[RunName, ...]] = {}
        self._runs: dict[RunName, RunName] = {}
        self._texts: dict[str, str] = {}

    def vchannels(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the pooled tuple of these names."""
        pooled = self._vchannels.get(names)
        if pooled is None:
            pooled = tuple(map(self._texts.setdefault, names, names))
            self._vchannels[pooled] = pooled
        return pooled

    def copies(self, names: tuple[RunName, ...]) -> tuple[RunName, ...]:
        """Returns the pooled tuple of these names with their incarnations."""
        pooled = self._copies.get(names)
        if pooled is None:
            pooled = tuple(map(self._run, names))
            self._copies[pooled] = pooled
        return pooled

    def _run(self, name: RunName) -> RunName:
        pooled = self._runs.get(name)
        if pooled is None:
            text, incarnation = name
            pooled = (self._texts.setdefault(text, text), incarnation)
            self._runs[pooled] = pooled
        return pooled


class CopyPosition(msgspec.Struct, frozen=True, gc=False):
    """The log position of a vchannel's copy and its tick, and the incarnation that it is for."""

    position: int
    index: int
    tick: int
    incarnation: int


class CopyTable(StateTable):
    """The broadcasts of one pchannel. `changes` counts the parts and the ends of broadcasts."""

    what = "broadcasts"
    decoders: ClassVar[Decoders] = {PieceKind.COPIES: msgspec.msgpack.Decoder(_CopiesPiece)}
    flag = BROADCAST

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: set[int] = set()
        self._broadcasts: dict[int, ListedBroadcast] = {}
        self._pool: NamePool | None = None
        """Stores equal names once; only during recovery."""

    def __len__(self) -> int:
        return len(self._broadcasts)

    def find(self, broadcast_id: int, vchannels: Iterable[str], *, aborts: bool) -> dict[str, CopyPosition]:
        """Returns the positions of these vchannels' copies, for each that has one (with `aborts`: of the message about the abort)."""
        listed = self._broadcasts.get(broadcast_id)
        if listed is None:
            return {}
        positions: dict[str, CopyPosition] = {}
        for part in listed.parts:
            if part.aborts == aborts:
                for at, (name, incarnation) in enumerate(part.names):
                    positions.setdefault(name, CopyPosition(part.position, part.index + at, part.tick + at, incarnation))
        return {name: positions[name] for name in vchannels if name in positions}

    def get(self, broadcast_id: int) -> ListedBroadcast | None:
        """Returns the broadcast's copies in this log; None without copies, or after the end of the broadcast."""
        return self._broadcasts.get(broadcast_id)

    def listed(self) -> list[ListedBroadcast]:
        """Returns the unfinished broadcasts, in the order of their first copies."""
        return list(self._broadcasts.values())

    def pins(self) -> list[tuple[tuple[int, int], int]]:
        """Returns the log position of each broadcast's first copy, and its id. Nothing at or above that position may be dropped."""
        return [((listed.parts[0].position, listed.parts[0].index), broadcast_id) for broadcast_id, listed in self._broadcasts.items()]

    def durable(self, header: BroadcastHeader, part: CopiesPart) -> None:
        """Adds copies that are in the log."""
        self._put(header, part)
        self.changed()

    def _put(self, header: BroadcastHeader, part: CopiesPart) -> None:
        listed = self._broadcasts.get(header.broadcast_id)
        parts = (part,) if listed is None else (*listed.parts, part)
        self._broadcasts[header.broadcast_id] = ListedBroadcast(header if listed is None else listed.header, parts)

    def forget(self, broadcast_id: int) -> None:
        """Forgets a broadcast that has ended; it may be unknown."""
        self._broadcasts.pop(broadcast_id, None)
        self.forgotten.add(broadcast_id)
        self.changed()

    # -- recovery

    def _replay(self, position: int, view: FrameView, live: Live | None) -> int:
        first_tick = view.header.first_tick
        frame_copies = shared_copies(view)
        pool = self._names()
        for shared in frame_copies:
            aborts = shared.message_type == _ABORT
            names = pool.copies(shared.names)
            header = msgspec.structs.replace(shared.header, vchannels=pool.vchannels(shared.header.vchannels))
            self._put(header, CopiesPart(position, shared.index, first_tick + shared.index, names, aborts))
        return len(frame_copies)

    def snapshot(self) -> Iterator[bytes]:
        return encode_copies(self.listed())

    def _restore(self, pieces: Iterable[_CopiesPiece], live: Live | None) -> None:
        pool = self._names()
        vchannels: list[tuple[str, ...]] = []
        copies: list[tuple[RunName, ...]] = []
        for piece in pieces:
            vchannels += map(pool.vchannels, piece.vchannels)
            copies += [pool.copies(tuple(zip(names, incarnations, strict=True))) for names, incarnations in piece.copies]
            for row in piece.rows:
                header = BroadcastHeader(row.broadcast_id, vchannels[row.vchannels], row.resource_keys, row.needs_ack)
                parts = [
                    CopiesPart(unpacked(position), index, tick, copies[number], bool(aborts))
                    for position, index, tick, number, aborts in row.parts
                ]
                self._broadcasts[row.broadcast_id] = ListedBroadcast(header, tuple(parts))

    def recovered(self) -> None:
        """Releases objects that only recovery needed."""
        self._pool = None

    def _names(self) -> NamePool:
        if self._pool is None:
            self._pool = NamePool()
        return self._pool


def names_of(parts: Sequence[CopiesPart], *, aborts: bool) -> Iterator[RunName]:
    """Yields the vchannels of the copies in these parts, or with `aborts` of the messages about an abort."""
    for part in parts:
        if part.aborts == aborts:
            yield from part.names


_ABORT = int(MessageType.ABORT_BROADCAST)
