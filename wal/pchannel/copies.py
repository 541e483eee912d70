"""CopyTable: which broadcasts have copies in a pchannel's log, and where, until they are over. Pure.

It is told what became durable and which broadcasts are over, and answers where a vchannel's copy lies. What it knows never depends on a
window: a broadcast stays until it is forgotten, over restarts by the checkpoint and the frames behind it. So no copy is appended twice,
and retention keeps what is not over.

    (unknown) --durable--> listed --forget--> (unknown)       a checkpoint that was made behind `forget` does not list it

A vchannel that was dropped has had its copy all the same: one that is made anew under its name gets none of a broadcast to the one
before. `forgotten` are the broadcasts whose end no checkpoint knows of yet. What is recovered holds equal names once (`copies_names`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from wal.frame import BROADCAST, FrameView, RunName
from wal.message import BroadcastHeader, MessageType
from wal.pchannel.copies_state import CopiesPart, ListedBroadcast, NamePool, decode_copies, encode_copies
from wal.reading import shared_copies

__all__ = ["CopiesPart", "CopyPlace", "CopyTable", "ListedBroadcast", "names_of"]


class CopyPlace(msgspec.Struct, frozen=True, gc=False):
    """Where a vchannel's copy lies: its frame, index and tick, and the incarnation that it is for."""

    position: int
    index: int
    tick: int
    incarnation: int


class CopyTable:
    """The broadcasts of one pchannel. `changes` counts what happened since it was last set to 0: parts, and ends of broadcasts."""

    def __init__(self) -> None:
        self.changes: int = 0
        self.forgotten: set[int] = set()
        self._broadcasts: dict[int, ListedBroadcast] = {}
        self._pool: NamePool | None = None
        """During recovery only."""

    def __len__(self) -> int:
        return len(self._broadcasts)

    def find(self, broadcast_id: int, vchannels: Iterable[str], *, aborts: bool) -> dict[str, CopyPlace]:
        """The places of those of these vchannels that have their copy (with `aborts`: their message that it was aborted)."""
        listed = self._broadcasts.get(broadcast_id)
        if listed is None:
            return {}
        places: dict[str, CopyPlace] = {}
        for part in listed.parts:
            if part.aborts == aborts:
                for at, (name, incarnation) in enumerate(part.names):
                    places.setdefault(name, CopyPlace(part.position, part.index + at, part.tick + at, incarnation))
        return {name: places[name] for name in vchannels if name in places}

    def get(self, broadcast_id: int) -> ListedBroadcast | None:
        """What this log holds of it; None when nothing, or when it is over."""
        return self._broadcasts.get(broadcast_id)

    def listed(self) -> list[ListedBroadcast]:
        """All that are not over, in the order in which they came to this log."""
        return list(self._broadcasts.values())

    def pins(self) -> list[tuple[tuple[int, int], int]]:
        """(position, index) of the first that each broadcast has in this log, and its id: nothing at or above it may be dropped."""
        return [
            ((listed.parts[0].position, listed.parts[0].index), broadcast_id)
            for broadcast_id, listed in self._broadcasts.items()
        ]

    def durable(self, header: BroadcastHeader, part: CopiesPart) -> None:
        """These copies are in the log."""
        listed = self._broadcasts.get(header.broadcast_id)
        parts = (part,) if listed is None else (*listed.parts, part)
        self._broadcasts[header.broadcast_id] = ListedBroadcast(header if listed is None else listed.header, parts)
        self.changes += 1

    def forget(self, broadcast_id: int) -> None:
        """The broadcast is over. Unknown ones are fine."""
        self._broadcasts.pop(broadcast_id, None)
        self.forgotten.add(broadcast_id)
        self.changes += 1

    # -- recovery

    def replay(self, position: int, view: FrameView) -> int:
        """Applies the copies of one durable frame, those behind what was restored, in their order; answers how many parts there are."""
        if not view.header.compatible & BROADCAST:
            return 0
        first_tick = view.header.first_tick
        found = shared_copies(view)
        pool = self._names()
        for shared in found:
            aborts = shared.message_type == _ABORT
            names = pool.copies(shared.names)
            header = msgspec.structs.replace(shared.header, vchannels=pool.vchannels(shared.header.vchannels))
            self.durable(header, CopiesPart(position, shared.index, first_tick + shared.index, names, aborts))
        return len(found)

    def snapshot(self) -> Iterator[bytes]:
        """The state as of this call, in pieces that are cheap to make one by one, whatever happens meanwhile."""
        return encode_copies(self.listed())

    def restore(self, blob: bytes) -> None:
        """Sets an empty table to the state of a snapshot. CorruptionError for what is none, FormatError for a newer version."""
        self._broadcasts.update((listed.header.broadcast_id, listed) for listed in decode_copies(blob, self._names()))

    def recovered(self) -> None:
        """Nothing more is restored or replayed: what only served that is let go."""
        self._pool = None

    def _names(self) -> NamePool:
        if self._pool is None:
            self._pool = NamePool()
        return self._pool


def names_of(parts: Sequence[CopiesPart], *, aborts: bool) -> Iterator[RunName]:
    """The vchannels of these parts, of the one kind."""
    for part in parts:
        if part.aborts == aborts:
            yield from part.names


_ABORT = int(MessageType.ABORT_BROADCAST)
