"""SegmentSet: the segments of one log, in order, and the index of each.

Owns: which segments there are (a tuple that is replaced, so that whoever reads keeps what it began with), the growing index of the
active one, and a bounded cache of the sealed ones' indices, loaded from `.idx` or made again from the segment when that is missing,
damaged or out of date. It never removes a file; damage in a sealed segment is loud.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from wal.backends.journal.disk import Disk
from wal.backends.journal.index import SegmentIndex, index_name
from wal.backends.journal.segment import Segment, damaged
from wal.errors import CorruptionError

__all__ = ["SegmentSet", "load_index", "write_index"]

_CACHE_BYTES: Final = 64 << 20
"""The most memory that the indices of sealed segments take (at least one is kept)."""


class SegmentSet:
    """Thread-safe. `segments` is what a reader goes through; the last one is active."""

    def __init__(self, disk: Disk, directory: Path, segments: tuple[Segment, ...], active_index: SegmentIndex) -> None:
        self._disk = disk
        self._directory = directory
        self.segments = segments
        self._active_index = active_index
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, tuple[SegmentIndex, int]] = OrderedDict()

    def add(self, segment: Segment, index: SegmentIndex) -> None:
        """A new active segment; the one before is sealed."""
        with self._lock:
            sealed, self._active_index = self._active_index, index
            self._keep(sealed)
            self.segments = (*self.segments, segment)

    def drop_below(self, position: int) -> tuple[Segment, ...]:
        """Forgets the segments that lie wholly below this position; answers them."""
        with self._lock:
            following = [segment.base for segment in self.segments[1:]]
            count = sum(base <= position for base in following)
            dropped, self.segments = self.segments[:count], self.segments[count:]
            for segment in dropped:
                self._cache.pop(segment.base, None)
        return dropped

    def index(self, segment: Segment) -> SegmentIndex:
        """The index of this segment. Reads files; CorruptionError when the segment itself is damaged."""
        with self._lock:
            if segment.base == self._active_index.base:
                return self._active_index
            cached = self._cache.get(segment.base)
            if cached is not None:
                self._cache.move_to_end(segment.base)
                return cached[0]
            following = next((other for other in self.segments if other.base > segment.base), None)
        if following is None:
            raise FileNotFoundError(2, "the segment was truncated", str(segment.path))
        index = self._sealed_index(segment, following)
        with self._lock:
            self._keep(index)
        return index

    def _sealed_index(self, segment: Segment, following: Segment) -> SegmentIndex:
        index = load_index(self._disk, self._directory, segment)
        if index is None or index.end > following.base:
            index = SegmentIndex(segment.base)
        if index.end < following.base:
            file = self._disk.open(segment.path, write=False)
            try:
                end = segment.scan(file, index, bodies_from=following.base)
            finally:
                file.close()
            if index.end != following.base:
                raise end.broken or damaged(
                    CorruptionError(
                        f"the segment ends at position {index.end}",
                        expected=f"{following.base}, where the next one begins",
                    ),
                    segment.path,
                    end.offset,
                )
            with contextlib.suppress(OSError):  # it can be made again
                write_index(self._disk, self._directory, segment, index)
        header = following.header
        last = index.last or (segment.header.previous_term, segment.header.previous_sequence)
        if last != (header.previous_term, header.previous_sequence):
            raise damaged(
                CorruptionError(
                    f"the next segment continues frame {header.previous_sequence} of term {header.previous_term}",
                    expected=f"frame {last[1]} of term {last[0]}, the last one here",
                ),
                following.path,
                0,
            )
        return index

    def _keep(self, index: SegmentIndex) -> None:
        self._cache[index.base] = (index, index.memory_bytes())
        total = sum(size for _, size in self._cache.values())
        while total > _CACHE_BYTES and len(self._cache) > 1:
            _, (_, size) = self._cache.popitem(last=False)
            total -= size


def load_index(disk: Disk, directory: Path, segment: Segment) -> SegmentIndex | None:
    """The stored index of this segment; None when there is none that holds."""
    try:
        file = disk.open(directory / index_name(segment.base), write=False)
    except FileNotFoundError:
        return None
    try:
        data = file.read(file.size(), 0)
    finally:
        file.close()
    header = segment.header
    try:
        return SegmentIndex.decode(data, base=header.base, incarnation=header.incarnation, generation=header.generation)
    except CorruptionError:
        return None


def write_index(disk: Disk, directory: Path, segment: Segment, index: SegmentIndex) -> None:
    """Stores the index of a segment to which no frame is added meanwhile."""
    path = directory / index_name(segment.base)
    data = index.encode(incarnation=segment.header.incarnation, generation=segment.header.generation)
    disk.replace(path, data, temporary=path.with_name(f"{path.name}.{threading.get_ident()}.tmp"))
