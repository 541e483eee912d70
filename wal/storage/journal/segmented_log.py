"""SegmentedLog: reads of a log whose frames lie in segments with indexes, on a disk or in an archive.

It owns the answers to questions; a subclass owns the segments, and knows how far the log reaches (`_load`, `_reach`). Searches read indexes
and not frames. It never writes, and needs no event loop: calls block, and any thread may call.
"""

from __future__ import annotations

import abc
import contextlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

from wal.errors import CorruptionError, TruncatedError
from wal.message import FORM_JOURNAL, Lineage, LogPosition, Origin
from wal.storage.base import FramePage, FrameWeight, LogSnapshot, RowsPage, RowsRequest, StoredFrame, Unread
from wal.storage.journal.control import ControlRecord
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.reader import JournalReader, SegmentSource
from wal.storage.journal.segments import last_truncated, truncated_tick
from wal.storage.read_only import ReadOnlyStoredLog, VChannelChoice
from wal.storage.search import PAGE_BYTES, weight_of, within

_GRAIN: Final = 64
"""The most frames that share one weight when no limit needs each frame; smaller segments have smaller groups."""
_MATCHED_MAX: Final = 64
"""The number of segments, the last ones searched, whose matching names are cached."""


class SegmentedLog(ReadOnlyStoredLog):
    """One pchannel's log, open for reading. A subclass sets `_reader` and `_segments`."""

    _reader: JournalReader
    _segments: SegmentSource

    def __init__(self, pchannel: str, incarnation: int, lineage: Lineage) -> None:
        self.pchannel = pchannel
        self.incarnation: int = incarnation
        self.lineage: Lineage = lineage
        self._origin = Origin(pchannel, incarnation, 0, FORM_JOURNAL)
        self._newest: tuple[int, int] | None = None
        self._gone: tuple[LogPosition, LogPosition | None] = (-1, 0), None
        """The earliest event at the last `reach`, and the newest one below it."""
        self._matched: OrderedDict[tuple[int, VChannelChoice], tuple[int, frozenset[str]]] = OrderedDict()
        self._closed = False

    @property
    def earliest(self) -> tuple[int, int]:
        return self._load().earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return last_truncated(self._segments.segments, self.earliest)

    @property
    def truncated_tick(self) -> int | None:
        return truncated_tick(self._segments.segments, self.earliest)

    def refresh(self) -> LogSnapshot:
        """Returns the current content of the control page. Takes a few microseconds, reads no file and never blocks."""
        newest = self._newest  # read before the record, since it must not be above the record's durable end
        return self._snapshot(self._load(), newest)

    def reach(self) -> LogSnapshot:
        """Returns the current content of the control page, and the newest event. Reads the heads of frames that were not read before."""
        with self._damage_or_loss():
            record, newest = self._reach()
            self._gone = record.earliest, last_truncated(self._segments.segments, record.earliest)
            return self._snapshot(record, newest)

    def moment(self) -> LogSnapshot:
        state = self.refresh()
        return state if state.earliest == self._gone[0] else self.reach()  # the segments show what was truncated last

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        with self._damage_or_loss():
            self._reader.check(start, end)
            self._reach()
            return self._reader.page(start, end, names, bytes_max)

    def rows_page(self, request: RowsRequest) -> RowsPage | None:
        with self._damage_or_loss():
            self._reader.check(request.start, request.end)
            self._reach()
            return self._reader.rows_page(request)

    def indices(self, start: int, end: int, *, above: int = -1) -> Iterator[tuple[SegmentIndex, int, int]]:
        """Yields, for the frames in [start, end), each segment's index and their ordinals in it, without reading the frames.

        `end` is durable. Segments without ticks above the tick `above` may be left out. Raises TruncatedError if `start` is below the
        earliest event, also if a truncation passes it during the call.
        """
        with self._damage_or_loss():
            self._reader.check(start, end)
            self._reach()
            for _, index in self._reader.indices(start, end, above=above):
                yield index, index.ordinal(start), index.ordinal(end)

    def end_state(self, end: int) -> tuple[LogPosition | None, int]:
        """Returns the newest event below the durable position `end`, and the largest promised tick of a frame below it, 0 without one.

        It reads the index of the segment that contains `end`.
        """
        with self._damage_or_loss():
            self._reach()
            segments = [segment for segment in self._segments.segments if segment.base < end]
            if not segments:
                return None, 0
            header, index = segments[-1].header, self._segments.index(segments[-1])
            stop = index.ordinal(end)
            return index.last_event(0, stop) or header.newest, max(header.promised_tick, index.promise(0, stop))

    def index_of(self, base: int) -> SegmentIndex | None:
        """Returns the index of the segment with this base, None without one: for a damaged segment, or one below the earliest event."""
        segments = self._segments.segments
        at = bisect_left(segments, base, key=attrgetter("base"))
        if at == len(segments) or segments[at].base != base:
            return None
        try:
            return self._segments.index(segments[at])
        except CorruptionError:
            return None

    def first_above(self, tick: int, end: int) -> tuple[int, int | None]:
        """Returns the position of the first frame above this tick, and the position of the previous frame if it may have ticks above.

        Frames at or after `end`, which is durable, do not count.
        """
        before = None
        for index, first, stop in self.indices(self.earliest[0], end, above=tick):
            for ordinal in range(first, stop):
                if index.first_ticks[ordinal] > tick:
                    return int(index.positions[ordinal]), before
                before = int(index.positions[ordinal])
        return end, before

    def heads(self, start: int, end: int, names: frozenset[str] | None = None, bytes_max: int = PAGE_BYTES) -> Iterator[StoredFrame]:
        """Raises the same errors as `indices`."""
        if names is None:
            yield from super().heads(start, end, None, bytes_max)
            return
        with self._damage_or_loss():
            self._reader.check(start, end)
            self._reach()
            yield from self._reader.heads(start, end, names)

    def bytes_between(self, start: int, end: int) -> int:
        return max(0, end - start)

    def bytes_for(self, names: frozenset[str] | None, start: LogPosition, end: int) -> int:
        if names is None:
            return self.bytes_between(start[0], end)
        return self.unread_for(names, start, end).bytes

    def unread_for(self, names: frozenset[str], start: LogPosition, end: int) -> Unread:
        return Unread.joined(index.unread_for(names, start, end) for index, _, _ in self.indices(start[0], end))

    def position_after(self, tick: int, start: int, end: int) -> LogPosition:
        for index, first, stop in self.indices(start, end, above=tick):
            if stop == first or index.promise(first, stop) <= tick:
                continue
            for ordinal in range(first, stop):
                first_tick = index.first_ticks[ordinal]
                if index.indices[ordinal] and first_tick + index.indices[ordinal] - 1 > tick:
                    return index.positions[ordinal], max(0, tick + 1 - first_tick)
        return end, 0

    def newest_tick(self) -> int:
        newest = self.reach().newest
        if newest is None or newest < self.earliest:
            return 0
        try:
            for index, first, stop in self.indices(newest[0], newest[0] + 1):
                if first < stop:
                    return int(index.first_ticks[first]) + newest[1]
        except TruncatedError:
            pass  # truncated meanwhile, like everything before it
        return 0

    def names(self, start: int, end: int, choice: VChannelChoice) -> frozenset[str]:
        if isinstance(choice, frozenset):
            return choice
        return frozenset().union(*(self._matching(index, choice) for index, _, _ in self.indices(start, end)))

    def weights(
        self, start: int, end: int, choice: VChannelChoice | None, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> list[FrameWeight]:
        limited = rows_max is not None or bytes_max is not None
        return list(within(self._weights(start, end, choice, limited=limited), rows_max, bytes_max))

    def _weights(self, start: int, end: int, choice: VChannelChoice | None, *, limited: bool) -> Generator[FrameWeight, None, None]:
        """Yields the results of `weights`: from the index, or, with a limit for some vchannels, from the heads of the frames, which may
        contain thousands of other vchannels.
        """
        if limited and choice is not None:
            names = self.names(start, end, choice)
            yield from filter(None, (weight_of(frame, names) for frame in self.heads(start, end, names)))
            return
        for index, first, stop in self.indices(start, end):
            ordinals: Sequence[int] = range(first, stop)
            if choice is not None:
                ordinals = index.wanted(self._matching(index, choice), first, stop)
            grain = 1 if limited else max(1, min(_GRAIN, len(ordinals) // _GRAIN))
            for at in range(0, len(ordinals), grain):
                some = ordinals[at : at + grain]
                if limited and not index.indices[some[0]]:
                    continue
                yield FrameWeight(
                    index.positions[some[0]],
                    index.positions[some[-1] + 1] if some[-1] + 1 < len(index) else index.end,
                    index.first_ticks[some[0]],
                    index.promises[some[-1]],
                    sum(index.indices[ordinal] for ordinal in some),
                    sum(index.lengths[ordinal] for ordinal in some),
                )

    def _matching(self, index: SegmentIndex, choice: VChannelChoice) -> frozenset[str]:
        """Returns the names in this index that belong to the choice; each name is matched once."""
        if isinstance(choice, frozenset):
            return choice
        key = index.base, choice
        matched_count, matching = self._matched.get(key, (0, frozenset[str]()))
        names = index.names()
        if matched_count < len(names):
            matching |= frozenset(name for name in islice(names, matched_count, None) if name in choice)
            self._matched[key] = len(names), matching
            while len(self._matched) > _MATCHED_MAX:  # a stream goes through segments for years
                self._matched.popitem(last=False)
        return matching

    def _snapshot(self, record: ControlRecord, newest: LogPosition | None) -> LogSnapshot:
        last_truncated = self._gone[1] if self._gone[0] == record.earliest else None
        state = record.term, record.durable, record.earliest, record.promised_tick, record.closed, newest, last_truncated
        return LogSnapshot(self._origin, self.lineage, *state)

    @abc.abstractmethod
    def _load(self) -> ControlRecord:
        """Returns how far the log reaches now. Raises ClosedError after `close`, or when the log was recreated."""

    @abc.abstractmethod
    def _reach(self) -> tuple[ControlRecord, LogPosition | None]:
        """Returns the same with the newest durable event; the indexes have all frames below the end then."""

    @contextlib.contextmanager
    def _damage_or_loss(self) -> Iterator[None]:
        """Runs a call that reads segments. A subclass raises here what explains damage better."""
        yield
