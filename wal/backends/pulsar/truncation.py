"""Truncation: where the log begins, where its recovery begins, and what Pulsar may delete below both.

Owns: the order of it. The earliest event is stored in the control record first; only then is the durable cursor moved on that Pulsar
holds messages for, up to what neither a reader nor the next recovery needs. Pulsar deletes whole ledgers, when they are full and its
own retention lets them go. Moving the cursor is repeated at the next opening, so that a failure there only delays what is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from wal.backends.pulsar.connection import Connection, failure
from wal.backends.pulsar.control import CHANGES_MAX, Control
from wal.backends.pulsar.floor import Floor
from wal.backends.pulsar.floors import FloorIndex
from wal.backends.pulsar.layout import entry_of, ledger_of
from wal.backends.pulsar.ledgers import LedgerTable

__all__ = ["SUBSCRIPTION", "Truncation", "move_cursor"]

SUBSCRIPTION: Final = "wal"
"""The durable cursor, in the topics of logs and of checkpoints."""
_log: Final = logging.getLogger("wal.pulsar")


class Truncation:
    """Truncates one log. `floor_before`: what counts below a position; it blocks."""

    def __init__(
        self,
        connection: Connection,
        control: Control,
        ledgers: LedgerTable,
        floors: FloorIndex,
        *,
        topic: str,
        term: int,
        checkpoint: int | None,
        floor_before: Callable[[int], Floor],
    ) -> None:
        self._connection = connection
        self._control = control
        self._ledgers = ledgers
        self._floors = floors
        self._topic = topic
        self._term = term
        self._floor_before = floor_before
        self._turn = asyncio.Lock()
        self.checkpoint = checkpoint
        """Nothing at or above it goes, truncated or not; None: nothing is held for a recovery."""

    @property
    def earliest(self) -> tuple[int, int]:
        return self._control.record.earliest

    async def truncate(self, earliest: tuple[int, int]) -> None:
        """Makes this the earliest event unless a later one is already. ChannelFencedError, or what the metadata raises."""
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
        """Recovery begins here from now on; False when it begins later already. ChannelFencedError."""
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
        terms = sorted(term for term, place in self._control.terms.items() if place < kept)[:-1]
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
        """The newest event below this position, where that is the beginning of a ledger."""
        for ledger, following in zip(self._ledgers.ledgers, self._ledgers.ledgers[1:], strict=False):
            if following.start == position and ledger.record is not None:
                return ledger.record.newest
        return None


def move_cursor(connection: Connection, topic: str, last: int) -> None:
    """Tells Pulsar that nothing up to this position is needed any more. Blocks; a failure is logged, and made good at the next
    opening."""
    import pulsar

    try:
        consumer = connection.consumer(topic, SUBSCRIPTION)
        try:
            consumer.acknowledge_cumulative(pulsar.MessageId(-1, ledger_of(last), entry_of(last), -1)._msg_id)
        finally:
            consumer.close()
    except Exception as error:
        _log.warning(
            "%s; it is tried again later",
            failure(error, f"giving back what was truncated of {topic}", connection.address),
        )
