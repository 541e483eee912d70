"""PulsarReader: reads pages of frames from a topic, for any number of readers at once, while the writer writes.

Owns: a few topic readers that stopped where a page ended, so that a page there, or a few messages later, continues with one of them; and
the start of a read at any other position, which first finds the fencing floor there (wal.storage.pulsar.fencing_floor). A page is in
memory: using it never reads a topic.

A read that begins at another position opens a topic reader, which takes some milliseconds. Seeking with an open one takes 110 ms: the
broker drops the consumer, and the client waits before it reconnects.

It blocks, so it runs in threads. Missing frames are a CorruptionError, unless the position was truncated meanwhile.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from wal.errors import CorruptionError, closed_log
from wal.frame import RECOVERED, FrameHeader, FrameView, RunKind, RunName
from wal.message import FORM_PULSAR, LogPosition, MessageID
from wal.storage.base import FramePage, StoredFrame, released, truncated
from wal.storage.pulsar.connection import READ_AHEAD, READ_AHEAD_MAX, PulsarConnection
from wal.storage.pulsar.fencing_floor import FencingFloor, FloorSearch
from wal.storage.pulsar.floor_index import FloorIndex
from wal.storage.pulsar.layout import FRAMES_IN_FLIGHT
from wal.storage.pulsar.ledgers import LedgerTable
from wal.storage.pulsar.positions import text_of
from wal.storage.pulsar.topic import TopicEntry, TopicReader, damaged
from wal.storage.pulsar.vchannel_index import VChannelIndex

IDLE_MAX: Final = 4
"""Topic readers kept open for a next page; each has up to READ_AHEAD frames that its client fetched ahead."""
SEARCH_ENTRIES: Final = 2 * FRAMES_IN_FLIGHT
"""The number of messages before the start of a read that are first examined to find the floor there; more if they are not enough."""

_LAST_EVENTS_BYTES: Final = 1 << 20
"""The bytes of log in which one call looks for last events."""


class _Idle(msgspec.Struct, frozen=True, gc=False):
    """A reader of the topic that has read everything below `position`, the fencing floor there, and the monotonic time of its last use."""

    position: int
    reader: TopicReader
    floor: FencingFloor
    since_s: float


class Passed(msgspec.Struct):
    """The frames in [start, end), and the newest event of each vchannel in them."""

    start: int
    end: int
    events: dict[RunName, LogPosition] = {}


class PulsarReader:
    """Reads one log. `earliest` and `kept_from` must be current; `term_at` returns the last term whose mark is below a position."""

    idle_s: ClassVar[float] = 30.0
    """An idle reader of the topic is closed after this time."""

    def __init__(
        self,
        connection: PulsarConnection,
        topic: str,
        ledgers: LedgerTable,
        floors: FloorIndex,
        *,
        pchannel: str,
        incarnation: int,
        earliest: Callable[[], tuple[int, int]],
        kept_from: Callable[[], int],
        term_at: Callable[[int], int],
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._ledgers = ledgers
        self._floors = floors
        self._pchannel = pchannel
        self._incarnation = incarnation
        self._earliest = earliest
        self._kept_from = kept_from
        self._term_at = term_at
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._busy: set[TopicReader] = set()
        self._closed = False

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns the wanted frames in [start, end), from about `bytes_max` bytes of log; `end` is durable.

        The first page of a new topic reader ends with its client's first fetch, so that a read of a few messages does not wait for a
        mebibyte of log.
        """
        self.check(start, end)

        def wanted(_position: int, view: FrameView) -> bool:
            if names is None:
                view.check_body()
                return True
            runs = view.runs.find(names)
            for run in runs:
                view.fetch(view.runs[run.shared] if run.kind == RunKind.COPY else run)
            return bool(runs)

        return self._page(start, end, bytes_max, self.check, lambda _: True, wanted, entries_max=READ_AHEAD)

    def heads(self, start: int, end: int, bytes_max: int) -> FramePage:
        """Returns all frames in [start, end), from about `bytes_max` bytes of log, at least one; their bodies are not checked."""
        self.check(start, end)
        return self._page(start, end, bytes_max, self.check, lambda _: True, lambda _position, _view: True)

    def keyed_page(self, passed: Passed, end: int, bytes_max: int, index: VChannelIndex | None = None) -> FramePage:
        """Returns the frames with keyed events or copies in the next page of what follows `passed` up to `end`, truncated or not.

        All frames of the page are added to `passed` and to the `index`, if one is given.
        """
        self.check_held(passed.end, end)
        return self._pass(passed, end, bytes_max, index, keyed=True)

    def last_events(self, passed: Passed, end: int, index: VChannelIndex | None = None) -> FramePage:
        """Adds the frames of the next page up to `end` to `passed` and to the `index`, truncated or not. Returns the page.

        Released frames are left out: a ledger is kept as a whole, but its released frames are not read any more.
        """
        passed.end = max(passed.end, self._kept_from())
        return self._pass(passed, end, _LAST_EVENTS_BYTES, index, keyed=False)

    def _pass(self, passed: Passed, end: int, bytes_max: int, index: VChannelIndex | None, *, keyed: bool) -> FramePage:
        events = passed.events

        def add(position: int, view: FrameView) -> bool:
            runs, header = view.runs, view.header
            for name, at in view.last_events().items():
                events[name] = (position, at)
            if index is not None:
                for_all = any(True for _ in runs.of_kind(RunKind.PCHANNEL))
                names = {run.name for run in runs if run.name}
                index.add(position, names, indices=header.indices, promised_tick=header.promised_tick, for_all=for_all)
            if not (keyed and header.compatible & RECOVERED):
                return False
            view.check_body()
            return True

        start = passed.end
        if index is not None:
            index.begin(start)
        page = self._page(start, end, bytes_max, self.check_held, lambda header: header.runs > 0, add, ahead=READ_AHEAD_MAX)
        if index is not None:
            index.passed(page.next_position)
        passed.end = page.next_position
        return page

    def check(self, start: int, end: int) -> None:
        """Raises TruncatedError when `start` is below the earliest event."""
        position, index = self._earliest()
        if start < position:
            event = MessageID(self._pchannel, self._incarnation, position, index, FORM_PULSAR) if position < end else None
            raise truncated(self._pchannel, text_of(start), f"{text_of(position)}:{index}", event=event)

    def check_held(self, start: int, end: int) -> None:
        """Raises TruncatedError when the frame at `start` has been released."""
        kept_from = self._kept_from()
        if start < kept_from:
            raise released(self._pchannel, text_of(start), text_of(kept_from))

    def floor_before(self, position: int) -> FencingFloor:
        """Returns the fencing floor at this position."""
        nearest = self._floors.before(position)
        if nearest is not None and not self._ledgers.entries_between(nearest[0], position):
            return nearest[1]
        reader, floor = self._search(position)
        self._give_back(reader, floor)
        return floor

    def close(self) -> None:
        """Closes the readers, including those in use. Idempotent."""
        with self._lock:
            self._closed = True
            readers = [*self._busy, *(idle.reader for idle in self._idle)]
            self._idle = []
        for reader in readers:
            reader.close()

    @property
    def is_open(self) -> bool:
        """Whether any reader of the topic is open."""
        return bool(self._idle or self._busy)

    def close_idle(self) -> None:
        """Closes the readers that were last used `idle_s` ago or earlier."""
        before = time.monotonic() - self.idle_s
        with self._lock:
            expired = [idle.reader for idle in self._idle if idle.since_s <= before]
            self._idle = [idle for idle in self._idle if idle.since_s > before]
        for reader in expired:
            reader.close()

    def _page(
        self,
        start: int,
        end: int,
        bytes_max: int,
        check: Callable[[int, int], None],
        select: Callable[[FrameHeader], bool],
        wanted: Callable[[int, FrameView], bool],
        *,
        entries_max: int = sys.maxsize,
        ahead: int = READ_AHEAD,
    ) -> FramePage:
        try:
            return self._read(start, end, bytes_max, select, wanted, entries_max, ahead)
        except CorruptionError:
            check(start, end)
            raise

    def _read(
        self,
        start: int,
        end: int,
        bytes_max: int,
        select: Callable[[FrameHeader], bool],
        wanted: Callable[[int, FrameView], bool],
        entries_max: int,
        ahead: int,
    ) -> FramePage:
        frames: list[StoredFrame] = []
        last_event: tuple[int, int] | None = None
        promised_tick = bytes_read = entries = 0
        at = self._ledgers.first_at(start)
        if at is None or at >= end:
            return FramePage(frames, max(start, end), None, 0)
        reader, floor, is_new = self._reader_at(at, ahead)
        if not is_new:
            entries_max = sys.maxsize
        whole = False
        try:
            # Until the end of the extent; after the first frame also until the page has its bytes, or its entries.
            while at is not None and at < end and (not bytes_read or (bytes_read < bytes_max and entries < entries_max)):
                entry = reader.next(self._incarnation)
                entries += 1
                if entry.position >= end:
                    raise CorruptionError(
                        f"{self._topic}: the message at {text_of(at)} is missing", path=self._topic, offset=at, expected="a message"
                    )
                at = self._ledgers.first_at(entry.position + 1)
                header = entry.header
                if not self._moves(floor, entry) or header is None:
                    continue
                bytes_read += header.frame_bytes
                promised_tick = max(promised_tick, header.promised_tick)
                if header.indices:
                    last_event = (entry.position, header.indices - 1)
                if select(header):
                    view = self._view(entry)
                    if wanted(entry.position, view):
                        frames.append(StoredFrame(entry.position, entry.position + 1, view))
            whole = True
        finally:
            next_position = end if at is None or at >= end else at
            if whole and reader.last is not None:
                self._give_back(reader, floor, keep=ahead == READ_AHEAD or next_position < end)
            else:
                self._drop(reader)
        return FramePage(frames, next_position, last_event, promised_tick)

    def _view(self, entry: TopicEntry) -> FrameView:
        assert entry.header is not None
        data, head = entry.data, entry.header.head_bytes
        try:
            return FrameView.decode(data, lambda start, end: data[head + start : head + end], header=entry.header)
        except CorruptionError as error:
            raise damaged(error, self._topic, entry.position) from error

    # -- readers of the topic

    def _reader_at(self, position: int, ahead: int) -> tuple[TopicReader, FencingFloor, bool]:
        """Returns a reader whose next message is the one at this position, the floor there, and whether the reader was opened for it.

        A new one fetches `ahead` messages ahead.
        """
        with self._lock:
            near = max((idle for idle in self._idle if self._is_near(idle, position)), key=lambda idle: idle.position, default=None)
            if near is not None:
                self._idle.remove(near)
                self._busy.add(near.reader)
        if near is None:
            return *self._search(position, ahead), True
        try:
            at = self._ledgers.first_at(near.position)
            while at is not None and at < position:
                entry = near.reader.next(self._incarnation)
                self._moves(near.floor, entry)
                at = self._ledgers.first_at(entry.position + 1)
        except BaseException:
            self._drop(near.reader)
            raise
        return near.reader, near.floor, False

    def _is_near(self, idle: _Idle, position: int) -> bool:
        """Returns whether a reader comes to this position by reading no more messages than a new one would to find the floor."""
        at = self._ledgers.first_at(idle.position)
        return at is not None and at <= position and self._ledgers.entries_between(at, position) <= SEARCH_ENTRIES

    def _search(self, position: int, ahead: int = READ_AHEAD) -> tuple[TopicReader, FencingFloor]:
        """Returns a new reader that has read some messages up to this position, and the floor there."""
        count = SEARCH_ENTRIES
        while True:
            begin = self._ledgers.back(position, count)
            nearest = self._floors.before(position)
            if nearest is None:
                nearest = self._floors.first()
            floor: FencingFloor | None = None
            if begin is None or nearest[0] >= begin:
                begin, floor = nearest
            reader, end_floor = self._look(begin, position, floor, ahead)
            if end_floor is not None:
                return reader, end_floor
            self._drop(reader)
            count *= 4

    def _look(self, begin: int, position: int, floor: FencingFloor | None, ahead: int) -> tuple[TopicReader, FencingFloor | None]:
        """Reads from `begin`, where the floor is `floor` (None: unknown), up to the position; returns None if the floor there stays
        unknown."""
        search = FloorSearch(window=FRAMES_IN_FLIGHT, term=self._term_at(begin))
        search.found = floor
        reader = self._open(begin, ahead)
        try:
            at = self._ledgers.first_at(begin)
            while at is not None and at < position:
                entry = reader.next(self._incarnation)
                if entry.mark is not None:
                    search.mark(entry.mark.term)
                elif entry.header is not None:
                    search.frame(entry.header.term, entry.header.sequence, entry.position)
                at = self._ledgers.first_at(entry.position + 1)
        except BaseException:
            self._drop(reader)
            raise
        return reader, search.found

    def _open(self, begin: int, ahead: int) -> TopicReader:
        first = self._ledgers.first_at(begin)
        reader = (
            TopicReader(self._connection, self._topic, first, ahead=ahead)
            if first is not None
            else TopicReader(self._connection, self._topic, self._ledgers.last_below(begin), after=True, ahead=ahead)
        )
        with self._lock:
            if self._closed:
                raise closed_log(f"of pchannel {self._pchannel!r}")
            self._busy.add(reader)
        return reader

    def _give_back(self, reader: TopicReader, floor: FencingFloor, *, keep: bool = True) -> None:
        """Keeps a reader for the next page, unless no page follows for which it fetches so far ahead."""
        dropped = None
        with self._lock:
            self._busy.discard(reader)
            if reader.last is not None:
                self._floors.add(reader.last + 1, floor)
            if reader.last is None or self._closed or not keep:
                dropped = reader
            else:
                self._idle.append(_Idle(reader.last + 1, reader, floor, time.monotonic()))
                if len(self._idle) > IDLE_MAX:
                    dropped = self._idle.pop(0).reader
        if dropped is not None:
            dropped.close()

    def _drop(self, reader: TopicReader) -> None:
        with self._lock:
            self._busy.discard(reader)
        reader.close()

    def _moves(self, floor: FencingFloor, entry: TopicEntry) -> bool:
        """Advances the floor past this message; returns whether it is a frame that counts. Raises CorruptionError when frames are
        missing."""
        if entry.mark is not None:
            floor.mark(entry.mark.term)
            return False
        header = entry.header
        if header is None:
            return False
        try:
            counts = floor.takes(header.term, header.sequence, entry.position)
            if counts and not header.sequence and (start := self._view(entry).term_start()) is not None:
                floor.check_start(start, entry.position)
        except CorruptionError as error:
            raise damaged(error, self._topic, entry.position) from error
        return counts
