"""CopyTable: the broadcasts with copies in a pchannel's log, and where the copies are, until the broadcasts are over. Pure.

Its caller reports durable copies and ended broadcasts, and asks where a vchannel's copy is. It has no window: a broadcast
stays until it is forgotten, and survives restarts in the checkpoint and the frames written after it. So no copy is appended twice, and
retention keeps the copies of broadcasts that are not over.

    (unknown) --durable--> listed --forget--> (unknown)       a checkpoint taken after `forget` does not list it

A vchannel that was dropped keeps its entry: one that is recreated under its name gets no copy of a broadcast to the earlier incarnation.
`forgotten` are the broadcasts that ended since the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from wal.frame import BROADCAST, FrameView, RunName
from wal.message import BroadcastHeader, MessageType
from wal.pchannel.copies_state import CopiesPart, ListedBroadcast, NamePool, decode_copies, encode_copies
from wal.reading import shared_copies

__all__ = ["CopiesPart", "CopyPosition", "CopyTable", "ListedBroadcast", "names_of"]


class CopyPosition(msgspec.Struct, frozen=True, gc=False):
    """The log position of a vchannel's copy and its tick, and the incarnation that it is for."""

    position: int
    index: int
    tick: int
    incarnation: int


class CopyTable:
    """The broadcasts of one pchannel. `changes` counts the parts and the ends of broadcasts since it was last set to 0."""

    def __init__(self) -> None:
        self.changes: int = 0
        self.forgotten: set[int] = set()
        self._broadcasts: dict[int, ListedBroadcast] = {}
        self._pool: NamePool | None = None
        """Holds equal names once; only during recovery."""

    def __len__(self) -> int:
        return len(self._broadcasts)

    def find(self, broadcast_id: int, vchannels: Iterable[str], *, aborts: bool) -> dict[str, CopyPosition]:
        """Returns where the copies are, for those of these vchannels that have one (with `aborts`: the message about the abort)."""
        listed = self._broadcasts.get(broadcast_id)
        if listed is None:
            return {}
        found: dict[str, CopyPosition] = {}
        for part in listed.parts:
            if part.aborts == aborts:
                for at, (name, incarnation) in enumerate(part.names):
                    found.setdefault(name, CopyPosition(part.position, part.index + at, part.tick + at, incarnation))
        return {name: found[name] for name in vchannels if name in found}

    def get(self, broadcast_id: int) -> ListedBroadcast | None:
        """Returns the broadcast's copies in this log; None if there are none, or the broadcast is over."""
        return self._broadcasts.get(broadcast_id)

    def listed(self) -> list[ListedBroadcast]:
        """Returns the broadcasts that are not over, in the order of their first copies."""
        return list(self._broadcasts.values())

    def pins(self) -> list[tuple[tuple[int, int], int]]:
        """Returns the log position of each broadcast's first copy, and its id. Nothing at or above that position may be dropped."""
        return [
            ((listed.parts[0].position, listed.parts[0].index), broadcast_id)
            for broadcast_id, listed in self._broadcasts.items()
        ]

    def durable(self, header: BroadcastHeader, part: CopiesPart) -> None:
        """Adds copies that are in the log."""
        listed = self._broadcasts.get(header.broadcast_id)
        parts = (part,) if listed is None else (*listed.parts, part)
        self._broadcasts[header.broadcast_id] = ListedBroadcast(header if listed is None else listed.header, parts)
        self.changes += 1

    def forget(self, broadcast_id: int) -> None:
        """Forgets a broadcast that is over; it may be unknown."""
        self._broadcasts.pop(broadcast_id, None)
        self.forgotten.add(broadcast_id)
        self.changes += 1

    # -- recovery

    def replay(self, position: int, view: FrameView) -> int:
        """Applies the copies of one durable frame written after the checkpoint, in order; returns how many parts there are."""
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
        """Returns the state as of this call, in pieces that are cheap to produce one by one; later changes are not in it."""
        return encode_copies(self.listed())

    def restore(self, blob: bytes) -> None:
        """Sets an empty table to the state of a snapshot. Raises CorruptionError if it is damaged, FormatError for a newer version."""
        self._broadcasts.update((listed.header.broadcast_id, listed) for listed in decode_copies(blob, self._names()))

    def recovered(self) -> None:
        """Releases what was only needed for recovery."""
        self._pool = None

    def _names(self) -> NamePool:
        if self._pool is None:
            self._pool = NamePool()
        return self._pool


def names_of(parts: Sequence[CopiesPart], *, aborts: bool) -> Iterator[RunName]:
    """Yields the vchannels of the parts that are copies, or with `aborts` of those that are messages about an abort."""
    for part in parts:
        if part.aborts == aborts:
            yield from part.names


_ABORT = int(MessageType.ABORT_BROADCAST)
