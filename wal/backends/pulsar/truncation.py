"""Truncation: the position where the log begins, the one where its recovery begins, and what Pulsar may delete below both.

Owns the order of the steps. The earliest event is first stored in the control record; only then is the durable cursor advanced, past
messages that neither a reader nor the next recovery needs. Pulsar deletes whole ledgers, when they are full and its own retention allows
it. The next opening moves the cursor again, so a failure only delays freeing space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from wal.backends.pulsar.control import CHANGES_MAX
from wal.backends.pulsar.fencing_floor import FencingFloor
from wal.backends.pulsar.opening import Opened
from wal.backends.pulsar.topic import move_cursor

__all__ = ["Truncation"]


class Truncation:
    """Truncates one log. `floor_before` returns the fencing floor below a position; it blocks."""

    def __init__(self, opened: Opened, *, floor_before: Callable[[int], FencingFloor]) -> None:
        self._connection = opened.connection
        self._control = opened.control
        self._ledgers = opened.ledgers
        self._floors = opened.floors
        self._topic = opened.topic
        self._term = opened.mark.term
        self._floor_before = floor_before
        self._turn = asyncio.Lock()
        self.checkpoint: int | None = opened.checkpoint
        """Nothing at or above this position is released, truncated or not; None: nothing is held for a recovery."""

    @property
    def earliest(self) -> tuple[int, int]:
        return self._control.record.earliest

    async def truncate(self, earliest: tuple[int, int]) -> None:
        """Makes this the earliest event, unless a later one already is. Raises ChannelFencedError, or an error of the metadata."""
        async with self._turn:
            if earliest <= self.earliest:
                await self._control.check_owner(self._term)
                return
            await self._control.change(
                self._term,
                earliest=earliest,
                last_truncated=self._newest_below(earliest[0]) or self._control.record.last_truncated,
            )
            await self._give_back()

    async def release(self, checkpoint: int) -> bool:
        """Lets recovery begin here from now on; returns False if it already begins later. Raises ChannelFencedError."""
        async with self._turn:
            await self._control.check_owner(self._term)
            if self.checkpoint is not None and checkpoint < self.checkpoint:
                return False
            self.checkpoint = checkpoint
            await self._give_back()
            return True

    async def _give_back(self) -> None:
        record = self._control.record
        kept = record.earliest[0] if self.checkpoint is None else min(record.earliest[0], self.checkpoint)
        if kept <= record.kept_from:
            return
        floor = await self._connection.run(lambda: self._floor_before(kept))
        terms = sorted(term for term, position in self._control.terms.items() if position < kept)[:-1]
        await self._control.change(
            self._term,
            kept_from=kept,
            floor=(floor.term, floor.sequence),
            dropped_terms=terms[:CHANGES_MAX],
            dropped_ledgers=self._ledgers.numbers_below(kept)[: 4 * CHANGES_MAX],
        )
        self._floors.add(kept, floor, lasting=True)
        self._floors.drop_below(kept)
        last = self._ledgers.last_below(kept)
        self._ledgers.drop_below(kept)
        if last is not None:
            await self._connection.run(lambda: move_cursor(self._connection, self._topic, last))

    def _newest_below(self, position: int) -> tuple[int, int] | None:
        """Returns the newest event below this position if a ledger begins there, else None."""
        for ledger, following in zip(self._ledgers.ledgers, self._ledgers.ledgers[1:], strict=False):
            if following.start == position and ledger.record is not None:
                return ledger.record.newest
        return None
