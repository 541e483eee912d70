"""ReadOnlyTopic: one pchannel's log on Pulsar as a process sees it that does not write it.

Owns: where the log ends, what is promised there, and which ledgers there are, as of the last `refresh`; and the reader of its frames. What
counts and what does not (repeats, frames of fenced writers) is decided by the same floor as for the writer's own readers. It writes
nothing, neither to the topic nor to the metadata, and leaves no subscription behind.

It blocks, for up to `PATIENCE_S` while a broker is away, and is used by one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from wal.backends.base import FramePage
from wal.backends.pulsar.admin import Admin
from wal.backends.pulsar.connection import Connection
from wal.backends.pulsar.control import ControlRecord
from wal.backends.pulsar.fencing_floor import FencingFloor
from wal.backends.pulsar.floor_index import FloorIndex
from wal.backends.pulsar.layout import ledger_of, position_of, text_of
from wal.backends.pulsar.ledgers import LedgerTable
from wal.backends.pulsar.reader import LogReader
from wal.backends.pulsar.recovery import end_before
from wal.errors import CorruptionError, StorageError

__all__ = ["LookAtControl", "ReadOnlyTopic", "TopicState"]

_T = TypeVar("_T")
FOLLOW_ENTRIES: Final = 64
"""So many new messages are read one after the other; of more only the last ones are looked at."""
PATIENCE_S: Final = 60.0
RETRY_S: Final = 0.25

LookAtControl = Callable[[], tuple[ControlRecord, dict[int, int]]]
"""The control record as it is now, and the position of the mark of each term."""


class TopicState(msgspec.Struct, frozen=True, gc=False):
    """The log at one moment. Everything at or below `promised_tick` lies below `durable_end`, and events above `earliest` are there.

    `newest`: (position, index) of the newest event, where it is known; it may have been truncated. `closed`: its writer closed it.
    """

    durable_end: int
    promised_tick: int
    newest: tuple[int, int] | None
    earliest: tuple[int, int]
    last_truncated: tuple[int, int] | None
    closed: bool


class ReadOnlyTopic:
    """Reads one log. `look` asks the metadata; `connection` was started."""

    def __init__(
        self, connection: Connection, admin: Admin, look: LookAtControl, *, pchannel: str, incarnation: int
    ) -> None:
        self.pchannel = pchannel
        self.incarnation = incarnation
        self.topic: str = connection.address.topic(pchannel)
        self.ledgers: LedgerTable = LedgerTable(())
        self.state: TopicState
        self._connection = connection
        self._admin = admin
        self._look = look
        self._floors = FloorIndex()
        self._record: ControlRecord
        self._terms: dict[int, int] = {}
        self._end = 0
        self._promise = 0
        self._newest: tuple[int, int] | None = None
        self._reader = LogReader(
            connection,
            self.topic,
            self.ledgers,
            self._floors,
            pchannel=pchannel,
            incarnation=incarnation,
            earliest=lambda: self._record.earliest,
            kept_from=lambda: self._record.kept_from,
            term_at=self._term_at,
        )

    def refresh(self) -> TopicState:
        """The log as it is now: one question to the broker, one to the metadata, and the messages that have come since.

        CorruptionError when Pulsar does not have what the metadata knows of, StorageError when it does not answer.
        """
        # In this order: what the metadata say is never older than the messages it is held against, nor than the list of ledgers.
        end = self._find_end()
        record, terms = self._look()
        if end <= max((place for place in terms.values() if place >= record.kept_from), default=-1):
            end = self._find_end()  # that mark may have come since
        self._take_over(record, terms, end)
        end = max(end, record.kept_from)
        if end > self._end:
            self._follow(end)
        promised_tick = self._promise
        if end >= record.end:  # it was given for everything below that
            promised_tick = max(promised_tick, record.promised_tick)
        self.state = TopicState(
            end,
            promised_tick,
            max(filter(None, (self._newest, record.newest)), default=None),
            record.earliest,
            record.last_truncated,
            record.clean,
        )
        return self.state

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """The wanted frames in [start, end), see `LogReader.page`. TruncatedError also for what goes while it is read."""
        return self._reading(start, end, lambda: self._reader.page(start, end, names, bytes_max))

    def heads(self, start: int, end: int, bytes_max: int) -> FramePage:
        """All frames in [start, end) by their heads, see `LogReader.heads`."""
        return self._reading(start, end, lambda: self._reader.heads(start, end, bytes_max))

    def has_writer(self) -> bool:
        """Whether somebody has a producer on the topic now."""
        return self._admin.producers(self.topic) > 0

    def close(self) -> None:
        """Lets go of the readers. Idempotent."""
        self._reader.close()

    # -- the end of the log

    def _find_end(self) -> int:
        """The position behind the newest message; 0 when there is none. The ledgers reach up to it afterwards."""
        last = self._patiently(lambda: self._admin.last(self.topic))
        if last is None:
            return 0
        position = position_of(*last)
        ledgers = self.ledgers.ledgers
        open_ = ledgers[-1] if ledgers else None
        if open_ is None or open_.number != last[0] or last[1] >= 2 * open_.entries:
            listed = self._patiently(lambda: self._admin.ledgers(self.topic))
            self.ledgers.renew(listed or ())
            open_ = None
        if open_ is not None and open_.entries <= last[1]:
            new = last[1] + 1 - open_.entries
            self.ledgers.added(position, new * open_.size // open_.entries)  # about: until it is asked for again
        elif self.ledgers.first_at(position) is None:
            self.ledgers.added(position, 0)
        return position + 1

    def _take_over(self, record: ControlRecord, terms: dict[int, int], end: int) -> None:
        """What the metadata say from now on. CorruptionError when the topic is not the one that they tell of."""
        marks = {term: place for term, place in terms.items() if place >= record.kept_from}
        newest = max(marks.values(), default=-1)
        if record.incarnation != self.incarnation or end <= newest:
            raise CorruptionError(
                f"{self.topic} ends at {text_of(end)}, and the metadata know of a writer that took it over at {text_of(newest)}: messages "
                "are gone, or this is another Pulsar or namespace than the log's",
                path=self.topic,
                offset=ledger_of(end),
                expected=f"the log of incarnation {self.incarnation:#x} with a message at {text_of(newest)}",
            )
        moved = not hasattr(self, "_record") or record.kept_from != self._record.kept_from
        self._record, self._terms = record, terms
        if moved:
            self._floors.add(record.kept_from, FencingFloor(*record.floor), lasting=True)
            self._floors.drop_below(record.kept_from)
        self.ledgers.drop_below(record.kept_from)
        for term, place in marks.items():
            self._floors.add(place + 1, FencingFloor(term, -1), lasting=True)

    def _follow(self, end: int) -> None:
        """Takes in what lies between the end that was known and this one."""
        at = self._end
        if at < self._record.earliest[0] or self.ledgers.entries_between(at, end) > FOLLOW_ENTRIES:
            found = end_before(
                self._connection,
                self.topic,
                end,
                incarnation=self.incarnation,
                ledgers=self.ledgers,
                floors=self._floors,
                term_at=self._term_at,
            )
            self._promise = max(self._promise, found.promised_tick)
            self._newest = found.newest or self._newest
        else:
            while at < end:
                page = self._reader.heads(at, end, 1 << 20)
                self._promise = max(self._promise, page.promised_tick)
                self._newest = page.last_event or self._newest
                at = page.next_position
        self._end = end

    def _term_at(self, position: int) -> int:
        """The last term whose mark lies below this position."""
        return max((term for term, place in self._terms.items() if place < position), default=0)

    # -- asking

    def _reading(self, start: int, end: int, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except CorruptionError:
            self._record, self._terms = self._look()
            self._reader.check(start, end)  # it may be gone because it was truncated meanwhile
            raise

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """What Pulsar's admin REST answers; a broker that is away is waited for."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ask()
            except StorageError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
