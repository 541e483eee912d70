"""ReadOnlySegments: the segments of a log that another process writes, for its readers.

It owns the list of segments between the earliest event and the durable position, an index of the last segment, which grows from the file
(heads of frames only, envelopes and CRCs checked), and a bounded cache of the other segments' indexes, read from `.idx` or computed from
the segment. It reads exactly up to the position that the caller says is durable: frames above may still be cut off and rewritten. It never
writes, not even an index that it had to compute.

A segment that is missing or damaged may just have been truncated: the caller reads the control page again before it trusts the error.
"""

from __future__ import annotations

import threading
from pathlib import Path

from wal.backends.journal.disk import Disk
from wal.backends.journal.index import SegmentIndex
from wal.backends.journal.layout import segment_name
from wal.backends.journal.segment import Segment, damaged, segment_bases
from wal.backends.journal.segments import IndexCache, load_index, open_shared, scanned_index, sealed_index
from wal.errors import CorruptionError
from wal.message import Lineage

__all__ = ["ReadOnlySegments"]


class ReadOnlySegments:
    """The segments of one log, in the order of the log; the last one holds the durable end. Thread-safe."""

    def __init__(self, disk: Disk, directory: Path, *, lineage: Lineage) -> None:
        self._disk = disk
        self._directory = directory
        self._lineage = lineage
        self.segments: tuple[Segment, ...] = ()
        self._last_index = SegmentIndex(0)
        self._stored = False
        """Whether the index of the last segment began as its stored index."""
        self._lock = threading.Lock()
        self._cache = IndexCache()

    def reach(self, durable: int, earliest: int) -> tuple[int, int] | None:
        """Indexes all frames below `durable` and forgets the segments below `earliest`; returns the newest event below `durable`.

        Raises CorruptionError or FileNotFoundError if a segment between the two positions is damaged or gone.
        """
        with self._lock:
            if self._extend(durable) is not None:
                self._list(durable, earliest)
                if (failure := self._extend(durable)) is not None:
                    if not self._stored:
                        raise failure
                    # The stored index may be wrong: the segment decides.
                    self._last_index, self._stored = SegmentIndex(self.segments[-1].base), False
                    if (failure := self._extend(durable)) is not None:
                        raise failure
            self._forget_below(earliest)
            index = self._last_index
            return index.last_event(0, index.ordinal(durable)) or self.segments[-1].header.newest

    def index(self, segment: Segment) -> SegmentIndex:
        """Returns the index of this segment. Reads files; raises CorruptionError if it is damaged, FileNotFoundError if it is gone."""
        with self._lock:
            if segment.base == self._last_index.base:
                return self._last_index
            if (cached := self._cache.get(segment.base)) is not None:
                return cached
            following = next((other for other in self.segments if other.base > segment.base), None)
        if following is None:
            raise FileNotFoundError(2, "the segment was truncated", str(segment.path))
        index, _ = sealed_index(self._disk, self._directory, segment, following)
        with self._lock:
            self._cache.keep(index)
        return index

    def remade(self, segment: Segment) -> SegmentIndex:
        """Returns the index computed from the segment itself, for a reader whose index named a position without a frame."""
        with self._lock:
            following = next((other for other in self.segments if other.base > segment.base), None)
            if following is None:
                durable = self._last_index.end
                self._last_index, self._stored = SegmentIndex(segment.base), False
                if (failure := self._extend(durable)) is not None:
                    raise failure
                return self._last_index
        index = scanned_index(self._disk, segment, following)
        with self._lock:
            self._cache.keep(index)
        return index

    def _extend(self, durable: int) -> CorruptionError | None:
        """Adds the frames of the last segment up to `durable` to its index; returns the error that stopped it, or None."""
        index = self._last_index
        if index.end >= durable and self.segments:
            return None
        if not self.segments:
            return CorruptionError("no segment is known yet")
        segment = self.segments[-1]
        try:
            file = open_shared(self._disk, segment.path)
        except FileNotFoundError as error:
            missing = CorruptionError("the file is gone", expected="a segment of this log")
            missing.__cause__ = error
            return damaged(missing, segment.path, 0)
        try:
            end = segment.scan(file, index, bodies_from=durable, until=durable)
        finally:
            file.close()
        if index.end >= durable:
            return None
        return end.broken or damaged(
            CorruptionError(
                "the log ends here",
                expected=f"frames up to position {durable}, which the control page says are durable",
            ),
            segment.path,
            end.offset,
        )

    def _list(self, durable: int, earliest: int) -> None:
        """Lists the segments, from the one that holds `earliest` to the one that holds `durable`."""
        bases = segment_bases(self._directory)
        first = max((i for i, base in enumerate(bases) if base <= earliest), default=-1)
        if first < 0:
            raise damaged(
                CorruptionError(
                    f"the segment that holds position {earliest} is missing",
                    expected=f"a segment with a base of at most {earliest:#x}",
                ),
                self._directory,
                0,
            )
        known = {segment.base: segment for segment in self.segments}
        segments = [
            known.get(base) or self._load(base) for base in bases[first:] if base == bases[first] or base < durable
        ]
        last, before = segments[-1], self._last_index
        if not self.segments or last.base != before.base:
            index = load_index(self._disk, self._directory, last, end_max=durable)
            self._stored = index is not None
            if index is None:
                index = SegmentIndex(last.base)
            if any(segment.base == before.end and segment.header.previous_base == before.base for segment in segments):
                self._cache.keep(before)  # its segment was the last one, and is complete now
            self._last_index = index
        self.segments = tuple(segments)

    def _load(self, base: int) -> Segment:
        segment = Segment.load(self._disk, self._directory / segment_name(base))
        if not self._lineage.covers(segment.header.incarnation, base):
            raise damaged(
                CorruptionError(
                    f"it is of incarnation {segment.header.incarnation:#x}", expected=f"{self._lineage.incarnation:#x}"
                ),
                segment.path,
                0,
            )
        return segment

    def _forget_below(self, position: int) -> None:
        following = [segment.base for segment in self.segments[1:]]
        count = sum(base <= position for base in following)
        for segment in self.segments[:count]:
            self._cache.drop(segment.base)
        if count:
            self.segments = self.segments[count:]
