"""ReadOnlyTopic: one pchannel's log on Pulsar, for a process that only reads it.

Owns: the end of the log, the promised tick there, and the ledgers, as of the last look; and the reader of its frames. The same
fencing floor as for the writer's own readers decides which messages count. It writes nothing, neither to the topic nor to the metadata,
and leaves no subscription.

It blocks, for up to `PATIENCE_S` while the broker or the metadata is unavailable. Any number of threads may call it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, takewhile
from typing import Final, TypeVar

from wal.errors import ClosedError, CorruptionError, StorageError, UnavailableError, closed_log
from wal.frame import RunName
from wal.message import FORM_PULSAR, Lineage, LogPosition, Origin
from wal.runtime.backoff import Backoff
from wal.storage import search
from wal.storage.base import FramePage, FrameWeight, LogSnapshot
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.checkpoints import read_state
from wal.storage.pulsar.connection import PulsarConnection
from wal.storage.pulsar.control import PulsarControlRecord, StoredState
from wal.storage.pulsar.fencing_floor import FencingFloor
from wal.storage.pulsar.floor_index import FloorIndex
from wal.storage.pulsar.ledgers import LedgerTable
from wal.storage.pulsar.positions import ledger_of, position_of, text_of
from wal.storage.pulsar.reader import Passed, PulsarReader
from wal.storage.pulsar.recovery import end_before
from wal.storage.pulsar.vchannel_index import VChannelIndex
from wal.storage.read_only import ReadOnlyStoredLog, VChannelChoice
from wal.storage.search import PAGE_BYTES, PageRequest, weight_of

_T = TypeVar("_T")
FOLLOW_ENTRIES: Final = 64
"""Up to this number of new messages, all are read; above it only the last ones are."""
FOLLOW_MIN_S: Final = 0.02
FOLLOW_MAX_S: Final = 0.1
"""The maximum age of an answer of `refresh` while the log grows, and while it does not: each costs the broker and the metadata a
request."""
PATIENCE_S: Final = 60.0
RETRY_S: Final = 0.25

INDEX_MIN: Final = 512
"""A read of fewer messages is not worth fetching the index of vchannels for."""
_SCANS_MAX: Final = 16
"""The number of choices whose scanned frames are cached."""
_KEPT_MAX: Final = 1 << 16
"""The most frames whose weights are kept."""
_ENTRY_BYTES: Final = 16 << 10

LookAtControl = Callable[[], tuple[PulsarControlRecord, dict[int, int]]]
"""Returns the current control record, and the position of the mark of each term."""


class ReadOnlyTopic(ReadOnlyStoredLog):
    """Reads one log; see `ReadOnlyPChannelLog`. `look` asks the metadata; `connection` must be started. Call `reach` before other calls."""

    refresh_waits: bool = True

    def __init__(self, connection: PulsarConnection, admin: Admin, look: LookAtControl, *, pchannel: str, incarnation: int) -> None:
        self.pchannel = pchannel
        self.incarnation = incarnation
        self.lineage: Lineage = Lineage(incarnation)
        self.topic: str = connection.address.topic(pchannel)
        self.ledgers: LedgerTable = LedgerTable(())
        self.state: LogSnapshot
        """The log as of the last look."""
        self._connection = connection
        self._admin = admin
        self._look = look
        self._floors = FloorIndex()
        self._record: PulsarControlRecord
        self._terms: dict[int, int] = {}
        self._end = 0
        self._promised_tick = 0
        self._lock = threading.RLock()
        self._backoff = Backoff(FOLLOW_MIN_S, FOLLOW_MAX_S)
        self._fresh_until_s = 0.0
        self._closed = False
        self._newest: tuple[int, int] | None = None
        self._origin = Origin(pchannel, incarnation, 0, FORM_PULSAR)
        self._scans: OrderedDict[VChannelChoice | None, ScannedFrames] = OrderedDict()
        self._indexed: tuple[StoredState, VChannelIndex | None] | None = None
        """The index of vchannels, and its location; None if it could not be read."""
        self._newest_tick: tuple[LogPosition, int] | None = None
        """The newest event when its tick was last requested, and that tick."""
        self._reader = PulsarReader(
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

    @property
    def earliest(self) -> tuple[int, int]:
        """The first event that is not truncated, as of the last answer of the metadata."""
        return self._record.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        """The newest event below `earliest`, if it is known."""
        return self._record.last_truncated

    @property
    def truncated_tick(self) -> int | None:
        """See `ReadableLog.truncated_tick`."""
        return self._record.truncated_tick

    def refresh(self) -> LogSnapshot:
        """Returns the log as it was at most `FOLLOW_MIN_S` ago, or `FOLLOW_MAX_S` if it has not grown for a while; see `reach`."""
        with self._lock:
            self._check_open()
            return self.state if time.monotonic() < self._fresh_until_s else self._look_at_all()

    def reach(self) -> LogSnapshot:
        """Returns the log as it is now, by one request to the broker, one to the metadata, and reading the messages added since.

        Raises CorruptionError when Pulsar lacks messages that the metadata lists, StorageError or UnavailableError when one of them does
        not answer for `PATIENCE_S`, ClosedError when the log was recreated.
        """
        with self._lock:
            self._check_open()
            return self._look_at_all()

    def bytes_between(self, start: int, end: int) -> int:
        """Returns the approximate number of bytes of log in [start, end)."""
        return self.ledgers.bytes_between(start, end)

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns the wanted frames in [start, end), see `PulsarReader.page`. Raises TruncatedError also for frames that are truncated
        meanwhile."""
        self._check_open()
        if names is not None and (index := self._index_for(start, end)) is not None:
            if (hole := index.hole(start, end, names)) is not None:
                self._reader.check(start, end)
                return FramePage([], hole.end, hole.last_event, hole.promised_tick)
            end = index.run_end(start, end, names)
        return self._reading(start, end, lambda: self._reader.page(start, end, names, bytes_max))

    def _index_for(self, start: int, end: int) -> VChannelIndex | None:
        """Returns the stored index of vchannels, the last one for a read that may be long; None without an index."""
        saved = self._record.index
        with self._lock:
            indexed = self._indexed
            is_newest = indexed is not None and indexed[0] == saved
            if saved is not None and not is_newest and self.ledgers.entries_between(start, end) >= INDEX_MIN:
                index = None
                try:
                    index = VChannelIndex.decode(read_state(self._connection, self._connection.address.checkpoints(self.pchannel), saved))
                except (CorruptionError, StorageError):
                    pass  # a later one has replaced it, or it is damaged: the read goes over all frames
                indexed = self._indexed = saved, index
            return None if indexed is None else indexed[1]

    def last_events(self, start: int, names: frozenset[str]) -> tuple[int, dict[RunName, LogPosition]]:
        """Returns the newest event of each of these vchannels, and perhaps of others; see `ReadOnlyPChannelLog`.

        It reads all of the log from `start` on: the index of vchannels names no events.
        """
        end = self.reach().durable_end
        first = max(start, self._record.kept_from)
        passed = Passed(first, first)
        while passed.end < end:
            self._patiently(partial(self._reader.last_events, passed, end))
        return first, passed.events

    def kept(self) -> tuple[LogPosition, LogPosition]:
        record, _ = self._patiently(self._look)
        return record.earliest, record.intent or (0, 0)

    def keyed_page(self, start: int, end: int, bytes_max: int) -> FramePage:
        return self._patiently(lambda: self._reader.keyed_page(Passed(start, start), end, bytes_max))

    def checkpoint_position(self) -> int | None:
        """Returns the position of the newest state for recovery, as of the last look at the metadata."""
        return max(map(int, self._record.states), default=None)

    def checkpoint_state(self, position: int) -> bytes | None:
        """Returns the state stored for this position; None if it is no longer listed."""
        saved = self._record.states.get(str(position))
        if saved is None:
            return None
        topic = self._connection.address.checkpoints(self.pchannel)
        return self._patiently(lambda: read_state(self._connection, topic, saved))

    def head_page(self, request: PageRequest) -> FramePage:
        """Returns all frames of this page, with any content, by their heads; see `PulsarReader.heads`."""
        start, end, bytes_max = request.start, request.end, request.bytes_max
        self._check_open()
        return self._reading(start, end, lambda: self._reader.heads(start, end, bytes_max))

    def measure(self, start: int, end: int) -> int:
        """Messages count the same: a ledger that is being written has no size yet."""
        return _ENTRY_BYTES * self.ledgers.entries_between(start, end)

    def position_after(self, tick: int, start: int, end: int) -> LogPosition:
        if end >= self.state.durable_end and tick >= self.newest_tick():
            return end, 0
        return super().position_after(tick, start, end)

    def newest_tick(self) -> int:
        newest = self.state.newest
        if newest is None or newest < self.state.earliest:
            return 0
        cached = self._newest_tick
        if cached is None or cached[0] != newest:
            (frame,) = self.head_page(PageRequest(newest[0], newest[0] + 1)).frames
            cached = self._newest_tick = newest, frame.view.header.first_tick + newest[1]
        return cached[1]

    def weights(
        self, start: int, end: int, choice: VChannelChoice | None, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> list[FrameWeight]:
        if rows_max is None and bytes_max is None:
            return self._pieces(start, end)
        scanned = self._scanned(choice, start)
        while scanned.upto < end and not scanned.exceeds(end, rows_max, bytes_max):
            page = self.head_page(PageRequest(scanned.upto, end, None, PAGE_BYTES))
            scanned.add(list(filter(None, (weight_of(frame, choice) for frame in page.frames))), page.next_position)
        return scanned.within(end, rows_max, bytes_max)

    def _scanned(self, choice: VChannelChoice | None, start: int) -> ScannedFrames:
        scanned = self._scans.get(choice)
        if scanned is None or not scanned.go_on(start):
            scanned = self._scans[choice] = ScannedFrames(start)
        self._scans.move_to_end(choice)
        if len(self._scans) > _SCANS_MAX:
            self._scans.popitem(last=False)
        return scanned

    def _pieces(self, start: int, end: int) -> list[FrameWeight]:
        """Returns the weights of pieces of about equal numbers of messages between two positions; rows and ticks are unknown."""
        ledgers = self.ledgers
        count = ledgers.entries_between(start, end)
        if not count:
            return []
        grain = -(-count // search.PIECES)
        first = ledgers.first_at(start)
        places = [start if first is None else first]
        places += [place for remaining in range(count - grain, 0, -grain) if (place := ledgers.back(end, remaining)) is not None]
        places.append(end)
        return [FrameWeight(at, following, 0, 0, 0, ledgers.bytes_between(at, following)) for at, following in pairwise(places)]

    def has_writer(self) -> bool:
        """Whether any producer is connected to the topic now."""
        return self._admin.producers(self.topic) > 0

    def close(self) -> None:
        """Closes the readers; calls that wait for the broker and all later calls raise ClosedError. Idempotent."""
        self._closed = True
        self._reader.close()

    # -- the end of the log

    def _look_at_all(self) -> LogSnapshot:
        # In this order, so that the metadata is never older than the messages with which it is compared, or than the list of ledgers.
        end = self._find_end()
        record, terms = self._patiently(self._look)
        if end <= max((mark for mark in terms.values() if mark >= record.kept_from), default=-1):
            end = self._find_end()  # that mark may have been written since
        self._take_over(record, terms, end)
        end = max(end, record.kept_from)
        if end > self._end:
            self._follow(end)
        promised_tick = self._promised_tick
        if end >= record.end:  # it was promised for everything below that
            promised_tick = max(promised_tick, record.promised_tick)
        newest = max(filter(None, (self._newest, record.newest)), default=None)
        before, self.state = (
            getattr(self, "state", None),
            LogSnapshot(
                self._origin, self.lineage, record.term, end, record.earliest, promised_tick, record.clean, newest, record.last_truncated
            ),
        )
        if self.state != before:
            self._backoff.reset()
        self._fresh_until_s = time.monotonic() + self._backoff.next()
        self._reader.close_idle()
        return self.state

    def _check_open(self) -> None:
        if self._closed:
            raise closed_log(f"of pchannel {self.pchannel!r}")

    def _find_end(self) -> int:
        """Returns the position after the newest message, 0 without one. The ledgers reach up to it afterwards."""
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
            self.ledgers.added(position, new * open_.size // open_.entries)  # approximate until the ledgers are listed again
        elif self.ledgers.first_at(position) is None:
            self.ledgers.added(position, 0)
        return position + 1

    def _take_over(self, record: PulsarControlRecord, terms: dict[int, int], end: int) -> None:
        """Applies the current metadata. Raises CorruptionError when it describes another topic."""
        if record.incarnation != self.incarnation:
            raise ClosedError(
                f"another log was created in the place of pchannel {self.pchannel!r} (incarnation {record.incarnation:#x}): open the log "
                "again to read that one"
            )
        marks = {term: mark for term, mark in terms.items() if mark >= record.kept_from}
        newest = max(marks.values(), default=-1)
        if end <= newest:
            raise CorruptionError(
                f"{self.topic} ends at {text_of(end)}, and the metadata has a writer that took it over at {text_of(newest)}: messages "
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
        for term, mark in marks.items():
            self._floors.add(mark + 1, FencingFloor(term, -1), lasting=True)

    def _follow(self, end: int) -> None:
        """Reads the messages between the last known end and this one."""
        at = self._end
        if at < self._record.earliest[0] or self.ledgers.entries_between(at, end) > FOLLOW_ENTRIES:
            log_end = end_before(
                self._connection,
                self.topic,
                end,
                incarnation=self.incarnation,
                ledgers=self.ledgers,
                floors=self._floors,
                term_at=self._term_at,
            )
            self._promised_tick = max(self._promised_tick, log_end.promised_tick)
            self._newest = log_end.newest or self._newest
        else:
            while at < end:
                page = self._reader.heads(at, end, 1 << 20)
                self._promised_tick = max(self._promised_tick, page.promised_tick)
                self._newest = page.last_event or self._newest
                at = page.next_position
        self._end = end

    def _term_at(self, position: int) -> int:
        """Returns the last term whose mark is below this position."""
        return max((term for term, mark in self._terms.items() if mark < position), default=0)

    # -- asking

    def _reading(self, start: int, end: int, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except CorruptionError:
            with self._lock:
                self._record, self._terms = self._look()
            self._reader.check(start, end)  # the frames may be gone because they were truncated meanwhile
            raise

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Returns the answer of the admin REST or the metadata; waits for an unavailable server."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ask()
            except (StorageError, UnavailableError):
                self._check_open()
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)


class ScannedFrames:
    """The weights of the frames that were scanned for one choice: a topic has no index.

    Everything in [`start`, `upto`) was scanned; frames without rows of the choice are not kept. So each poll of an idle query continues
    where the previous one ended, and a frame that one trigger did not take is there for the next.
    """

    def __init__(self, start: int) -> None:
        self.start: int = start
        self.upto: int = start
        self._frames: deque[FrameWeight] = deque()

    def go_on(self, start: int) -> bool:
        """Forgets the frames below `start`. Returns False when `start` was not scanned, or when too many frames are kept."""
        if not self.start <= start <= self.upto or len(self._frames) > _KEPT_MAX:
            return False
        self.start = start
        while self._frames and self._frames[0].position < start:
            self._frames.popleft()
        return True

    def add(self, frames: list[FrameWeight], upto: int) -> None:
        """Records that the frames from `upto` to this position were scanned, and that these have rows."""
        self._frames += frames
        self.upto = upto

    def exceeds(self, end: int, rows_max: int | None, bytes_max: int | None) -> bool:
        """Returns whether the scanned frames below `end` exceed a limit."""
        rows, size = sum(frame.rows for frame in self._below(end)), sum(frame.size for frame in self._below(end))
        return search.exceeds(rows, rows_max) or search.exceeds(size, bytes_max)

    def within(self, end: int, rows_max: int | None, bytes_max: int | None) -> list[FrameWeight]:
        """Returns the frames below `end`, up to and including the first that exceeds a limit."""
        return list(search.within(self._below(end), rows_max, bytes_max))

    def _below(self, end: int) -> Iterator[FrameWeight]:
        return takewhile(lambda frame: frame.position < end, self._frames)
