"""LogReader: pages of frames from a topic, for any number of readers at once, beside the writer.

Owns: a few readers of the topic that stand where a page ended, so that the next page goes on there; and the way to begin anywhere else,
which is to find the floor there first (wal.backends.pulsar.floor). What a page holds is in memory: using it never reads anything.

It blocks, so it runs in threads. Frames that are missing are a CorruptionError, unless the position was truncated meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wal.backends.base import FramePage, StoredFrame
from wal.backends.pulsar.connection import Connection
from wal.backends.pulsar.floor import Floor, FloorSearch
from wal.backends.pulsar.floors import FloorIndex
from wal.backends.pulsar.layout import FRAMES_IN_FLIGHT, text_of
from wal.backends.pulsar.ledgers import LedgerTable
from wal.backends.pulsar.topic import Entry, TopicReader, damaged
from wal.errors import ClosedError, CorruptionError, TruncatedError
from wal.frame import RECOVERED, FrameHeader, FrameView, RunKind
from wal.message import FORM_PULSAR, MessageID

__all__ = ["LogReader"]

IDLE_MAX: Final = 4
"""Readers kept for a next page; each holds some frames that its client fetched ahead."""
SEARCH_ENTRIES: Final = 2 * FRAMES_IN_FLIGHT
"""Messages looked at first, before the position where a read begins, to find the floor there; more when they do not tell."""


class LogReader:
    """Reads one log. `earliest` and `kept_from` must be current; `term_at`: the last term whose mark lies below a position."""

    def __init__(
        self,
        connection: Connection,
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
        self._idle: list[tuple[int, TopicReader, Floor]] = []
        self._busy: set[TopicReader] = set()
        self._closed = False

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """The wanted frames in [start, end), from about `bytes_max` bytes of log; `end` is durable."""
        self.check(start, end)

        def wanted(view: FrameView) -> bool:
            if names is None:
                view.check_body()
                return True
            runs = view.find(names)
            for run in runs:
                view.fetch(view.runs[run.shared] if run.kind == RunKind.COPY else run)
            return bool(runs)

        return self._page(start, end, bytes_max, self.check, lambda _: True, wanted)

    def heads(self, start: int, end: int, bytes_max: int) -> FramePage:
        """All frames in [start, end), from about `bytes_max` bytes of log, at least one; their bodies are not looked at."""
        self.check(start, end)
        return self._page(start, end, bytes_max, self.check, lambda _: True, lambda _: True)

    def keyed_page(self, start: int, end: int, bytes_max: int) -> FramePage:
        """The frames with keyed events or copies in [start, end), truncated or not."""
        self.check_held(start, end)

        def whole(view: FrameView) -> bool:
            view.check_body()
            return True

        return self._page(
            start, end, bytes_max, self.check_held, lambda header: bool(header.compatible & RECOVERED), whole
        )

    def check(self, start: int, end: int) -> None:
        """TruncatedError when `start` lies below the earliest event."""
        position, index = self._earliest()
        if start < position:
            earliest = (
                MessageID(self._pchannel, self._incarnation, position, index, FORM_PULSAR) if position < end else None
            )
            raise TruncatedError(
                f"position {text_of(start)} of pchannel {self._pchannel!r} has been truncated; the earliest event is at "
                f"{text_of(position)}:{index}",
                earliest=earliest,
            )

    def check_held(self, start: int, end: int) -> None:
        """TruncatedError when the frame at `start` has been given back."""
        held = self._kept_from()
        if start < held:
            raise TruncatedError(
                f"position {text_of(start)} of pchannel {self._pchannel!r} is gone; what is held begins at {text_of(held)}",
                earliest=None,
            )

    def floor_before(self, position: int) -> Floor:
        """What counted last among the messages below this position."""
        known = self._floors.before(position)
        if known is not None and not self._ledgers.entries_between(known[0], position):
            return known[1]
        reader, floor = self._search(position)
        self._give_back(reader, floor)
        return floor

    def close(self) -> None:
        """Ends the readers, also those that are in use. Idempotent."""
        with self._lock:
            self._closed = True
            readers = [*self._busy, *(reader for _, reader, _ in self._idle)]
            self._idle = []
        for reader in readers:
            reader.close()

    def _page(
        self,
        start: int,
        end: int,
        bytes_max: int,
        check: Callable[[int, int], None],
        select: Callable[[FrameHeader], bool],
        wanted: Callable[[FrameView], bool],
    ) -> FramePage:
        try:
            return self._read(start, end, bytes_max, select, wanted)
        except CorruptionError:
            check(start, end)
            raise

    def _read(
        self,
        start: int,
        end: int,
        bytes_max: int,
        select: Callable[[FrameHeader], bool],
        wanted: Callable[[FrameView], bool],
    ) -> FramePage:
        frames: list[StoredFrame] = []
        last_event: tuple[int, int] | None = None
        promised_tick = taken = 0
        at = self._ledgers.first_at(start)
        if at is None or at >= end:
            return FramePage(frames, max(start, end), None, 0)
        reader, floor = self._reader_at(at)
        whole = False
        try:
            while at is not None and at < end and (not taken or taken < bytes_max):
                entry = reader.next(self._incarnation)
                if entry.position >= end:
                    raise CorruptionError(
                        f"{self._topic}: the message at {text_of(at)} is missing",
                        path=self._topic,
                        offset=at,
                        expected="a message",
                    )
                at = self._ledgers.first_at(entry.position + 1)
                header = entry.header
                if not self._moves(floor, entry) or header is None:
                    continue
                taken += header.frame_bytes
                promised_tick = max(promised_tick, header.promised_tick)
                if header.indices:
                    last_event = (entry.position, header.indices - 1)
                if select(header):
                    view = self._view(entry)
                    if wanted(view):
                        frames.append(StoredFrame(entry.position, entry.position + 1, view))
            whole = True
        finally:
            if whole and reader.last is not None:
                self._give_back(reader, floor)
            else:
                self._drop(reader)
        next_position = end if at is None or at >= end else at
        return FramePage(frames, next_position, last_event, promised_tick)

    def _view(self, entry: Entry) -> FrameView:
        assert entry.header is not None
        data, head = entry.data, entry.header.head_bytes
        try:
            return FrameView.decode(data, lambda start, end: data[head + start : head + end])
        except CorruptionError as error:
            raise damaged(error, self._topic, entry.position) from error

    # -- readers of the topic

    def _reader_at(self, position: int) -> tuple[TopicReader, Floor]:
        """A reader whose next message is the one at this position, and the floor there."""
        with self._lock:
            for at, (place, reader, floor) in enumerate(self._idle):
                if self._ledgers.first_at(place) == position:
                    del self._idle[at]
                    self._busy.add(reader)
                    return reader, floor
        return self._search(position)

    def _search(self, position: int) -> tuple[TopicReader, Floor]:
        """A reader that has read everything below this position from somewhere on, and the floor there."""
        count = SEARCH_ENTRIES
        while True:
            begin = self._ledgers.back(position, count)
            known = self._floors.before(position)
            if known is None:
                known = self._floors.first()
            floor: Floor | None = None
            if begin is None or known[0] >= begin:
                begin, floor = known
            reader, found = self._look(begin, position, floor)
            if found is not None:
                return reader, found
            self._drop(reader)
            count *= 4

    def _look(self, begin: int, position: int, floor: Floor | None) -> tuple[TopicReader, Floor | None]:
        """Reads up to the position from a place where the floor is known, or not; None when what lies between does not tell."""
        search = FloorSearch(window=FRAMES_IN_FLIGHT, term=self._term_at(begin))
        search.found = floor
        reader = self._open(begin)
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

    def _open(self, begin: int) -> TopicReader:
        first = self._ledgers.first_at(begin)
        reader = (
            TopicReader(self._connection, self._topic, first)
            if first is not None
            else TopicReader(self._connection, self._topic, self._ledgers.last_below(begin), after=True)
        )
        with self._lock:
            if self._closed:
                raise ClosedError(f"the log of pchannel {self._pchannel!r} is closed: open it again to go on")
            self._busy.add(reader)
        return reader

    def _give_back(self, reader: TopicReader, floor: Floor) -> None:
        """Keeps it for who goes on there."""
        dropped = None
        with self._lock:
            self._busy.discard(reader)
            if reader.last is None or self._closed:
                dropped = reader
            else:
                self._floors.add(reader.last + 1, floor)
                self._idle.append((reader.last + 1, reader, floor))
                if len(self._idle) > IDLE_MAX:
                    dropped = self._idle.pop(0)[1]
        if dropped is not None:
            dropped.close()

    def _drop(self, reader: TopicReader) -> None:
        with self._lock:
            self._busy.discard(reader)
        reader.close()

    def _moves(self, floor: Floor, entry: Entry) -> bool:
        """Moves the floor on over this message; whether it is a frame that counts. CorruptionError when frames are missing."""
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
