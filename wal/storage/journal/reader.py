"""JournalReader: pages of frames from the segments, for any number of readers at once, while the writer writes.

Owns: fetching an extent of the log. Indices select the wanted frames. These are read into memory, under a shared flock on the segment (so
that the writer does not reuse it meanwhile), and checked: envelope, head, and the blocks of the wanted runs. The views in a page have the
wanted runs in memory: using them never reads a file.

It blocks, so it runs in threads. Damage raises CorruptionError with file and offset, unless the position was truncated meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from wal.errors import CorruptionError, StorageError
from wal.frame import FrameView, RunKind, RunName, RunRow
from wal.message import FORM_JOURNAL, LogPosition, MessageID
from wal.storage.base import FramePage, Memory, RowsFrame, RowsPage, RowsRequest, StoredFrame, Unread, released, truncated
from wal.storage.journal.disk import FrameFile
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import ENVELOPE_BYTES, slot_bytes
from wal.storage.journal.rows import plan_rows, read_rows
from wal.storage.journal.segments import Segment, Window, damaged

_SEGMENTS_MAX: Final = 16
"""The most segments that one call examines: a page for an absent name returns after this many indices."""
_AHEAD_BYTES: Final = 1 << 18
"""A size at which the allocator reuses its pages: fresh pages for every megabyte cost a third of a read."""
_KEPT_BYTES: Final = 4 << 20
"""Twice the page of a scanner; see `_keep_freed_memory`."""
_SMALL_FRAME_BYTES: Final = 64 * 1024
"""If frames are smaller than this and most are wanted, reading ahead beats one read per frame."""


class SegmentSource(Protocol):
    """The segments that a reader reads, with their indexes. Thread-safe."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in the order of the log. A reader keeps the tuple with which it began."""

    def index(self, segment: Segment) -> SegmentIndex:
        """Returns the index of this segment. Raises CorruptionError if it is damaged, FileNotFoundError if it is gone."""

    def remade(self, segment: Segment) -> SegmentIndex:
        """Returns the index computed from the segment, for a reader whose index was wrong. Raises CorruptionError if it is damaged."""

    def open(self, segment: Segment, index: SegmentIndex, ordinals: Sequence[int], bytes_max: int) -> FrameFile:
        """Opens the segment for reading these frames, in their order, until about `bytes_max` bytes were read.

        Raises FileNotFoundError if it is gone.
        """


class JournalReader:
    """Reads one log. `earliest` returns the first log position that is not truncated, and must be current."""

    def __init__(self, segments: SegmentSource, *, pchannel: str, incarnation: int, earliest: Callable[[], tuple[int, int]]) -> None:
        self._segments = segments
        self._pchannel = pchannel
        self._incarnation = incarnation
        self._earliest = earliest
        _keep_freed_memory()

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns the wanted frames in [start, end), reading about `bytes_max` bytes at most; `end` is durable."""
        self.check(start, end)
        return self._page(_Page(start, end, bytes_max), names, self.check, SegmentIndex.wanted)

    def rows_page(self, request: RowsRequest) -> RowsPage | None:
        """Returns the next frames as rows, out of one segment; None if they do not fit. `request.end` is durable.

        Raises TruncatedError. It raises no error because of a file: `page` raises that.
        """
        self.check(request.start, request.end)
        segments = self._segments.segments
        at = max(0, bisect_right([segment.base for segment in segments], request.start) - 1)
        segment, following = segments[at], segments[at + 1] if at + 1 < len(segments) else None
        if segment.base >= request.end:
            return None
        try:
            index = self._segments.index(segment)
            if (plan := plan_rows(index, request)) is None:
                return None
            ordinals, first, stop = plan
            frames, bodies = self._read_rows(segment, index, request, ordinals)
        except (CorruptionError, OSError):
            self.check(request.start, request.end)
            return None
        if is_cut := len(frames) < len(ordinals):
            stop = ordinals[len(frames)]
        if first == stop:
            return None
        if stop < len(index) and index.positions[stop] < request.end:
            end = index.positions[stop]
        else:
            end = request.end if following is None else min(request.end, following.base)
        return RowsPage(frames, bodies, end, index.last_event(first, stop), index.promise(first, stop), is_cut)

    def _read_rows(
        self, segment: Segment, index: SegmentIndex, request: RowsRequest, ordinals: list[int]
    ) -> tuple[list[RowsFrame], Memory | None]:
        if not ordinals:
            return [], None
        file = self._segments.open(segment, index, ordinals, request.bytes_max)
        try:
            return read_rows(segment, index, file, request, ordinals)
        finally:
            file.close()

    def keyed_page(self, start: int, end: int, bytes_max: int) -> FramePage:
        """Returns the frames with keyed events in [start, end), truncated or not."""
        self.check_held(start, end)
        return self._page(_Page(start, end, bytes_max), None, self.check_held, _keyed)

    def _page(
        self,
        page: _Page,
        names: frozenset[str] | None,
        check: Callable[[int, int], None],
        select: Callable[[SegmentIndex, frozenset[str] | None, int, int], list[int]],
    ) -> FramePage:
        start, end = page.start, page.end
        segments = self._segments.segments
        visited = 0
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            if following is not None and following.base <= start:
                continue
            if segment.base >= end or page.full:
                break
            if visited == _SEGMENTS_MAX:
                page.next_position = segment.base
                break
            visited += 1
            with self._failures(segment, start, end, check):
                self._add(page, segment, names, select)
        return page.done()

    def indices(self, start: int, end: int, *, above: int = -1) -> Iterator[tuple[Segment, SegmentIndex]]:
        """Yields the segments with frames in [start, end), each with its index; `end` is durable.

        It omits segments without a tick above `above`, by the header of the next segment: their indices need not be read.
        """
        segments = self._segments.segments
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            if segment.base >= end:
                return
            if following is None or (following.base > start and following.header.promised_tick > above):
                with self._failures(segment, start, end):
                    index = self._segments.index(segment)
                yield segment, index

    def unread_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
        """Answers `ReadableLog.unread_for`; `end` is durable. Reads the indexes of sealed segments that are not in memory."""
        return Unread.joined(index.unread_for(names, start, end) for _, index in self.indices(start[0], end))

    def last_events(self, start: int, end: int, names: frozenset[str] | None = None) -> dict[RunName, LogPosition]:
        """Returns the newest event in [start, end) of each of these vchannels, of every one for None; `end` is durable.

        It goes from the newest segment to older ones until it has all names, and reads heads of frames only: of each segment at most one
        for a vchannel. Frames may be truncated; TruncatedError when their space was freed.
        """
        self.check_held(start, end)
        events: dict[RunName, LogPosition] = {}
        passed: set[str] = set()
        segments = self._segments.segments
        for segment, following in reversed(list(zip(segments, (*segments[1:], None), strict=True))):
            if following is not None and following.base <= start:
                break
            if segment.base >= end or (names is not None and passed.issuperset(names)):
                continue
            with self._failures(segment, start, end, self.check_held):
                index = self._segments.index(segment)
            rest = frozenset(index.names() if names is None else names) - passed
            for frame in self._heads(segment, index, start, end, rest, select=SegmentIndex.newest, check=self.check_held):
                for name, at in frame.view.last_events(rest).items():
                    events[name] = (frame.position, at)
            passed.update(name for name, _ in events)
        return events

    def heads(self, start: int, end: int, names: frozenset[str]) -> Iterator[StoredFrame]:
        """Yields the wanted frames in [start, end) without their bodies."""
        for segment, index in self.indices(start, end):
            for frame in self._heads(segment, index, start, end, names):
                yield frame
                start = frame.next_position

    def _heads(
        self,
        segment: Segment,
        index: SegmentIndex,
        start: int,
        end: int,
        names: frozenset[str],
        *,
        select: Callable[[SegmentIndex, frozenset[str], int, int], list[int]] = SegmentIndex.wanted,
        check: Callable[[int, int], None] | None = None,
    ) -> Iterator[StoredFrame]:
        """Yields the wanted frames of one segment."""
        ordinals = deque(select(index, names, index.ordinal(start), index.ordinal(end)))
        if not ordinals:
            return
        with self._failures(segment, start, end, check):
            file = self._segments.open(segment, index, ordinals, _AHEAD_BYTES)
        try:
            window = Window(file)
            while ordinals:
                ordinal = ordinals.popleft()
                window.ahead = ENVELOPE_BYTES + index.head_lens[ordinal]
                position = index.positions[ordinal]
                with self._failures(segment, start, end, check):
                    try:
                        view, body = segment.frame(window, position, lazy=len(names))
                        _check_length(view, index.lengths[ordinal])
                    except CorruptionError:
                        remade = self._remade(segment, index, end)
                        if remade is None:
                            raise
                        index = remade
                        ordinals = deque(select(index, names, index.ordinal(start), index.ordinal(end)))
                        continue
                body.close()
                start = position + slot_bytes(index.lengths[ordinal])
                yield StoredFrame(position, start, view)
        finally:
            file.close()

    @contextlib.contextmanager
    def _failures(self, segment: Segment, start: int, end: int, check: Callable[[int, int], None] | None = None) -> Iterator[None]:
        """Raises TruncatedError (from `check`) for a damaged or missing segment that was truncated meanwhile, else the damage."""
        try:
            yield
        except (CorruptionError, FileNotFoundError) as error:
            (check or self.check)(start, end)
            if isinstance(error, FileNotFoundError):
                name = str(error.filename or segment.label)
                raise CorruptionError(f"{name} is missing", path=name, offset=0, expected="a segment of this log") from error
            raise
        except OSError as error:
            raise StorageError(f"reading {segment.label} failed: {error.strerror}") from error

    def check(self, start: int, end: int) -> None:
        """Raises TruncatedError when `start` is below the earliest event."""
        position, index = self._earliest()
        if start < position:
            event = MessageID(self._pchannel, self._incarnation, position, index, FORM_JOURNAL) if position < end else None
            raise truncated(self._pchannel, start, f"{position}:{index}", event=event)

    def check_held(self, start: int, end: int) -> None:
        """Raises TruncatedError when the space of the frame at `start` has been freed."""
        stored = self._segments.segments[0].base
        if start < stored:
            raise released(self._pchannel, start, stored)

    def _add(
        self,
        page: _Page,
        segment: Segment,
        names: frozenset[str] | None,
        select: Callable[[SegmentIndex, frozenset[str] | None, int, int], list[int]],
    ) -> None:
        """Adds the wanted frames of one segment to the page."""
        index, mark = self._segments.index(segment), page.mark()
        try:
            self._take(page, segment, index, names, select)
        except CorruptionError:
            remade = self._remade(segment, index, page.end)
            if remade is None:
                raise
            page.back_to(mark)
            self._take(page, segment, remade, names, select)

    def _remade(self, segment: Segment, index: SegmentIndex, end: int) -> SegmentIndex | None:
        """Returns the recomputed index if the given one was wrong, because the segment decides; None if the segment is damaged."""
        try:
            remade = self._segments.remade(segment)
        except CorruptionError:
            return None
        return None if remade.same_frames(index, end) else remade

    def _take(
        self,
        page: _Page,
        segment: Segment,
        index: SegmentIndex,
        names: frozenset[str] | None,
        select: Callable[[SegmentIndex, frozenset[str] | None, int, int], list[int]],
    ) -> None:
        first, end = index.ordinal(page.start), index.ordinal(page.end)
        ordinals = select(index, names, first, end)
        if not ordinals:
            page.looked_at(index, first, end)
            return
        file = self._segments.open(segment, index, ordinals, page.bytes_max)
        try:
            stop = self._fetch(page, segment, index, file, ordinals, names, dense=2 * len(ordinals) >= end - first)
        finally:
            file.close()
        page.looked_at(index, first, end if stop is None else stop)
        if stop is not None:
            page.full = True
            page.next_position = index.positions[stop]

    def _fetch(
        self,
        page: _Page,
        segment: Segment,
        index: SegmentIndex,
        file: FrameFile,
        wanted: list[int],
        names: frozenset[str] | None,
        *,
        dense: bool,
    ) -> int | None:
        """Reads the wanted frames; returns the ordinal at which the page was full, or None if all fit."""
        together = dense and (names is None or index.end - segment.base < _SMALL_FRAME_BYTES * len(index))
        window = Window(file, ahead=min(_AHEAD_BYTES, page.bytes_max) if together else 0)
        for ordinal in wanted:
            length = index.lengths[ordinal]
            if page.taken and page.taken + (length if names is None else 0) > page.bytes_max:
                return ordinal
            position = index.positions[ordinal]
            if not together:
                window.ahead = ENVELOPE_BYTES + index.head_lens[ordinal]
            view, body = segment.frame(window, position, lazy=0 if names is None else len(names))
            try:
                _check_length(view, length)
                if names is None:
                    view.check_body()
                else:
                    runs = _needed(view, names)
                    if len(runs) > 1 and view.needs_all(runs):
                        runs = []
                        if not together:
                            window.ahead = view.header.body_len
                        view.check_body()
                    for run in runs:
                        if not together:
                            window.ahead = run.body_end - run.body_start
                        view.fetch(run)
            except CorruptionError as error:
                raise damaged(error, segment.label, position - segment.base) from error
            body.close()
            page.frames.append(StoredFrame(position, position + slot_bytes(length), view))
            page.taken += view.header.head_bytes + body.fetched
        return None


@functools.cache
def _keep_freed_memory() -> None:
    """Makes malloc keep up to twice `_KEPT_BYTES` of freed memory in each of its arenas, for the next page and the next frame.

    By default glibc returns freed memory at the end of its heap to the system from 128 KiB on. Then every page of a read consists of fresh
    memory, and the page faults cost as much as the read: 1.7 µs for a message of 1 KiB, 0.9 without them. Freeing a block raises that limit
    to twice its size (mallopt(3), M_MMAP_THRESHOLD). Done once a process: a second block would come from the heap and be cleared.
    """
    bytes(_KEPT_BYTES)


def _check_length(view: FrameView, length: int) -> None:
    """Raises CorruptionError when the frame's length differs from its index: such an index may omit frames."""
    if view.header.frame_bytes != length:
        raise CorruptionError(f"the frame has {view.header.frame_bytes} bytes", expected=f"{length}, as in its index")


def _keyed(index: SegmentIndex, _: frozenset[str] | None, first: int, end: int) -> list[int]:
    return index.keyed(first, end)


def _needed(view: FrameView, names: frozenset[str]) -> list[RunRow]:
    """Returns the runs whose records a reader of these names may request: a copy's records are those of its shared run."""
    runs = view.runs.find(names)
    if any(run.kind == RunKind.COPY for run in runs):
        shared = dict.fromkeys(run.shared for run in runs if run.kind == RunKind.COPY)
        return [run for run in runs if run.kind != RunKind.COPY] + [view.runs[ordinal] for ordinal in shared]
    return runs


class _Page:
    """A page that is being filled."""

    def __init__(self, start: int, end: int, bytes_max: int) -> None:
        self.start = start
        self.end = end
        self.bytes_max = bytes_max
        self.frames: list[StoredFrame] = []
        self.taken = 0
        self.full = False
        self.next_position = max(start, end)
        self._last_event: tuple[int, int] | None = None
        self._promise = 0

    def mark(self) -> tuple[int, int]:
        """Returns the current state of the page, for `back_to`."""
        return len(self.frames), self.taken

    def back_to(self, mark: tuple[int, int]) -> None:
        """Drops everything added since the mark."""
        count, self.taken = mark
        del self.frames[count:]

    def looked_at(self, index: SegmentIndex, first: int, end: int) -> None:
        """Extends the page over these frames."""
        self._last_event = index.last_event(first, end) or self._last_event
        self._promise = max(self._promise, index.promise(first, end))

    def done(self) -> FramePage:
        return FramePage(self.frames, self.next_position, self._last_event, self._promise)
