"""LedgerTable: the ledgers of a topic, which contain its positions and are Pulsar's units of freeing space. Pure.

Owns: the existing positions (a ledger's entries are 0, 1, 2 …; the next ledger has any larger number), the distance between two of them,
and the extents of the log. A `LedgerRecord` describes a full ledger; the metadata keeps it for later openings.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise

import msgspec

from wal.errors import InvalidArgumentError
from wal.storage.base import Extent
from wal.storage.pulsar.positions import TopicLedger, entry_of, ledger_of, position_of


class LedgerRecord(msgspec.Struct, frozen=True, gc=False):
    """A ledger to which no more entries are added. `newest_tick`: no event in it or below it has a larger tick.

    `newest`: (position, index) of the newest event in it or below it, if known.
    """

    entries: int
    size: int
    newest_tick: int
    newest: tuple[int, int] | None


class Ledger(TopicLedger, gc=False):
    """A ledger of the log's topic, with its `record` once it is full and described."""

    record: LedgerRecord | None = None

    @property
    def start(self) -> int:
        return position_of(self.number, 0)


class LedgerTable:
    """The ledgers of a topic, oldest first. The last one is open and grows by `added`."""

    def __init__(self, ledgers: Iterable[TopicLedger]) -> None:
        # Threads read this list while the loop adds to it: it is appended to, or replaced, never shortened.
        self._ledgers = _described(ledgers)

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        return tuple(self._ledgers)

    def renew(self, ledgers: Iterable[TopicLedger]) -> None:
        """Replaces the ledgers by the present list, for a reader that gets no notice of new entries."""
        self._ledgers = _described(ledgers)

    def describe(self, records: Mapping[int, LedgerRecord]) -> None:
        """Sets the records of full ledgers, by number."""
        for ledger in self._ledgers[:-1]:
            record = records.get(ledger.number)
            if record is not None:
                ledger.record, ledger.size = record, record.size

    def added(self, position: int, size: int) -> bool:
        """Counts an entry that was added; returns whether it begins a ledger, so that the one before is full.

        Entries of other clients may be reported late or never: a ledger has at least the entries known here.
        """
        number, entries = ledger_of(position), entry_of(position) + 1
        if self._ledgers and number < self._ledgers[-1].number:
            raise InvalidArgumentError(f"ledger {number} comes before ledger {self._ledgers[-1].number}")
        begins = not self._ledgers or number > self._ledgers[-1].number
        if begins:
            self._ledgers.append(Ledger(number, 0, 0))
        last = self._ledgers[-1]
        last.entries = max(last.entries, entries)
        last.size += size
        return begins and len(self._ledgers) > 1

    def numbers_below(self, position: int) -> list[int]:
        """Returns the numbers of the ledgers that are wholly below this position, except the last one."""
        return [ledger.number for ledger, following in pairwise(self._ledgers) if following.start <= position]

    def drop_below(self, position: int) -> None:
        """Forgets the ledgers that are wholly below this position, except the last one."""
        self._ledgers = self._ledgers[len(self.numbers_below(position)) :]

    def first_at(self, position: int) -> int | None:
        """Returns the first position with an entry at or above this one, or None."""
        number, entry = ledger_of(position), entry_of(position)
        ledgers = self._ledgers
        at = bisect_right(ledgers, number, key=_number) - 1
        if at >= 0 and ledgers[at].number == number and entry < ledgers[at].entries:
            return position
        return next((ledger.start for ledger in islice(ledgers, at + 1, None) if ledger.entries), None)

    def last_below(self, position: int) -> int | None:
        """Returns the last position with an entry below this one, or None."""
        return self.back(position, 1)

    def back(self, position: int, count: int) -> int | None:
        """Returns the position `count` entries before this one, or the first one; None without an entry before it."""
        number, entry = ledger_of(position), entry_of(position)
        first_position = None
        for ledger in reversed(self._ledgers):
            if ledger.number > number:
                continue
            entries = min(ledger.entries, entry) if ledger.number == number else ledger.entries
            if entries >= count:
                return position_of(ledger.number, entries - count)
            if entries:
                first_position = ledger.start
            count -= entries
        return first_position

    def entries_between(self, start: int, end: int) -> int:
        """Returns the number of entries in [start, end)."""
        return sum(last - first for _, first, last in self._parts(start, end))

    def bytes_between(self, start: int, end: int) -> int:
        """Returns the approximate bytes of log in [start, end): all entries of a ledger count as equally large."""
        return sum(ledger.size * (last - first) // ledger.entries for ledger, first, last in self._parts(start, end) if ledger.entries)

    def bytes_within(self, start: int, end: int) -> int:
        """Returns the bytes of the full ledgers that contain `start` or begin above it, and end at or below `end`."""
        ledgers = self._ledgers
        return sum(ledger.size for ledger, following in pairwise(ledgers) if start < following.start <= end)

    def extents(self, end: int, newest_tick: int) -> list[Extent]:
        """Returns the extents up to the end of the log, in which no event has a tick above `newest_tick`."""
        ledgers = self._ledgers
        extents = [
            Extent(
                ledger.start,
                following.start,
                ledger.record.newest_tick if ledger.record is not None else newest_tick,
                sealed=True,
                held=ledger.size,
            )
            for ledger, following in pairwise(ledgers)
        ]
        if ledgers:
            last = ledgers[-1]
            extents.append(Extent(last.start, max(end, last.start), newest_tick, sealed=False, held=last.size))
        return extents

    def _parts(self, start: int, end: int) -> Iterable[tuple[Ledger, int, int]]:
        """Yields each ledger with its entries [first, last) in [start, end)."""
        ledgers = self._ledgers
        for at in range(bisect_left(ledgers, ledger_of(start), key=_number), len(ledgers)):
            ledger = ledgers[at]
            number = ledger.number
            if number > ledger_of(end):
                break
            first = entry_of(start) if number == ledger_of(start) else 0
            last = min(entry_of(end), ledger.entries) if number == ledger_of(end) else ledger.entries
            if first < last:
                yield ledger, first, last


def _number(ledger: Ledger) -> int:
    return ledger.number


def _described(ledgers: Iterable[TopicLedger]) -> list[Ledger]:
    """Returns these ledgers, without records yet."""
    return [Ledger(ledger.number, ledger.entries, ledger.size) for ledger in ledgers]
