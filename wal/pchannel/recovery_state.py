"""RecoveryState: all that a pchannel has to remember over restarts, as one. Pure.

Owns the two tables (idempotency keys; copies of broadcasts) and what they have in common: one blob in a checkpoint, one pass over the
frames behind it, one count of what happened since the last checkpoint. What a frame means is the tables' own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import msgspec

from wal.frame import FrameView, RunName
from wal.pchannel.copies import CopyTable
from wal.pchannel.idempotency import IdempotencyTable

__all__ = ["Changes", "RecoveryState"]


class Changes(msgspec.Struct, frozen=True):
    """What happened between two checkpoints: counts, and the broadcasts that ended."""

    keyed: int
    copies: int
    forgotten: frozenset[int]


class RecoveryState:
    """The tables of one pchannel."""

    def __init__(self, keys: IdempotencyTable, copies: CopyTable) -> None:
        self.keys = keys
        self.copies = copies

    @property
    def changes(self) -> int:
        """How much happened since the last checkpoint."""
        return self.keys.keyed_since_checkpoint + self.copies.changes

    def take_changes(self) -> Changes:
        """A checkpoint of this moment is being made: from now on changes count for the next."""
        copies = self.copies
        taken = Changes(self.keys.keyed_since_checkpoint, copies.changes, frozenset(copies.forgotten))
        self.keys.keyed_since_checkpoint = copies.changes = 0
        copies.forgotten.clear()
        return taken

    def give_back(self, changes: Changes) -> None:
        """It was not stored: they count again."""
        self.keys.keyed_since_checkpoint += changes.keyed
        self.copies.changes += changes.copies
        self.copies.forgotten |= changes.forgotten

    def replay(self, position: int, view: FrameView, *, live: Callable[[RunName], bool] | None = None) -> int:
        """Applies one durable frame behind what was restored; answers how much there was. `live`: whether a vchannel still exists."""
        return self.keys.replay(position, view, live=live) + self.copies.replay(position, view)

    def snapshot(self) -> Iterator[bytes]:
        """The state as of this call, in pieces that are cheap to make one by one; joined they are the blob."""
        return chain(self.keys.snapshot(), self.copies.snapshot())

    def restore(self, blob: bytes, *, live: Callable[[RunName], bool] | None = None) -> None:
        """Sets empty tables to the state of a snapshot. CorruptionError for what is none, FormatError for a newer version."""
        self.keys.restore(blob, live=live)
        self.copies.restore(blob)

    def recovered(self) -> None:
        """Nothing more is restored or replayed: what only served that is let go."""
        self.copies.recovered()
