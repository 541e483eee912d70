"""Recovery: finds the end of a log below a position, once no frame of an earlier writer can be added before it.

It reads back from there until the last frame and the newest event are known, and describes full ledgers that have no record.
It blocks, so it runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from wal.storage.pulsar.connection import PulsarConnection
from wal.storage.pulsar.fencing_floor import FencingFloor, FloorSearch
from wal.storage.pulsar.floor_index import FloorIndex
from wal.storage.pulsar.layout import FRAMES_IN_FLIGHT
from wal.storage.pulsar.ledgers import LedgerRecord, LedgerTable
from wal.storage.pulsar.topic import TopicReader

LOOK_ENTRIES: Final = 2 * FRAMES_IN_FLIGHT


class LogEnd(msgspec.Struct, frozen=True):
    """The end of a log: the fencing `floor`, the `promised_tick` of its last frame (0 without one), (position, index) of the `newest`
    event."""

    floor: FencingFloor
    promised_tick: int
    newest: tuple[int, int] | None

    @property
    def last(self) -> tuple[int, int]:
        """Term and sequence of the last frame; (0, -1) without a frame or if it is unknown."""
        return (self.floor.term, self.floor.sequence) if self.floor.sequence >= 0 else self.floor.before


def end_before(
    connection: PulsarConnection,
    topic: str,
    position: int,
    *,
    incarnation: int,
    ledgers: LedgerTable,
    floors: FloorIndex,
    term_at: Callable[[int], int],
    stop: int = 0,
) -> LogEnd:
    """Returns the end of the log below this position.

    It reads back, further each time, until it meets an event, `stop`, or the start of the log, whose floor the index must know.
    """
    count = LOOK_ENTRIES
    while True:
        back = ledgers.back(position, count)
        begin = position if back is None else back
        nearest = floors.before(begin)
        whole = begin <= stop
        floor: FencingFloor | None = None
        if nearest is None:
            begin, floor = floors.first()
            whole = True
        elif ledgers.entries_between(nearest[0], begin) <= count:
            begin, floor = nearest
        entries = _read(connection, topic, begin, position, floor, incarnation, ledgers, term_at(begin))
        # The floor became known, and both the last frame and the newest event were found, or there is no more log to read.
        if entries is not None and ((entries.newest is not None and entries.last[1] >= 0) or whole):
            return entries
        if whole or back is None or ledgers.back(position, count + 1) == back:
            begin, floor = floors.before(stop) or floors.first()
            entries = _read(connection, topic, begin, position, floor, incarnation, ledgers, 0)
            assert entries is not None, "the floor was known"
            return entries
        count *= 8


def missing_records(ledgers: LedgerTable, look: Callable[..., LogEnd]) -> dict[int, LedgerRecord]:
    """Sets and returns records for the full ledgers that have none: their writer was killed before it stored them.

    `look` is `end_before` of this log; it takes a position and `stop`.
    """
    made: dict[int, LedgerRecord] = {}
    tick, newest = 0, None
    for ledger, following in zip(ledgers.ledgers, ledgers.ledgers[1:], strict=False):
        if ledger.record is None:
            end = look(following.start, stop=ledger.start)
            ledger.record = made[ledger.number] = LedgerRecord(
                ledger.entries, ledger.size, max(tick, end.promised_tick), end.newest or newest
            )
        tick, newest = ledger.record.newest_tick, ledger.record.newest
    return made


def _read(
    connection: PulsarConnection,
    topic: str,
    begin: int,
    end: int,
    floor: FencingFloor | None,
    incarnation: int,
    ledgers: LedgerTable,
    term: int,
) -> LogEnd | None:
    """Reads [begin, end); returns None when no frame follows the position where the floor became known."""
    at = ledgers.first_at(begin)
    if at is None or at >= end:
        return None if floor is None else LogEnd(floor, 0, None)
    search = FloorSearch(window=FRAMES_IN_FLIGHT, term=term)
    search.found = floor
    exact = floor is not None
    promised_tick, newest = 0, None
    reader = TopicReader(connection, topic, at)
    try:
        while at is not None and at < end:
            entry = reader.next(incarnation)
            header = entry.header
            if entry.mark is not None:
                search.mark(entry.mark.term)
            elif header is not None:
                if search.found is None:
                    search.frame(header.term, header.sequence, entry.position)
                elif search.found.takes(header.term, header.sequence, entry.position):
                    exact = True
                    promised_tick = max(promised_tick, header.promised_tick)
                    if header.indices:
                        newest = (entry.position, header.indices - 1)
            at = ledgers.first_at(entry.position + 1)
    finally:
        reader.close()
    return LogEnd(search.found, promised_tick, newest) if exact and search.found is not None else None
