"""IndexKeeper: the stored index of the segment that is being written, never far behind it.

Owns the parts that are appended to `<base:016x>.idx` while the segment grows, so that opening after a crash reads the heads of a few
frames instead of all that a segment can hold. Nothing waits for them and nothing rests on them: they are not synced, a part that could
not be written ends the index there, and what is missing is read from the segment. It never stores a frame that is not durable,
and leaves nothing of a segment that is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wal.backends.journal.disk import Disk
from wal.backends.journal.index import IndexPart, SegmentIndex, index_name
from wal.backends.journal.preparer import Preparer
from wal.backends.journal.segment import Segment
from wal.backends.journal.segments import remove_stale_index

__all__ = ["IndexKeeper"]

PART_FRAMES: Final = 1024
"""Heads of so many frames are read in about 20 ms; …"""
PART_RUNS: Final = 8192
"""… and those of frames with so many runs in about 10."""


class IndexKeeper:
    """`begin` and `look` are called where frames are written, behind a durable one; the preparer's thread stores."""

    def __init__(self, disk: Disk, directory: Path, preparer: Preparer) -> None:
        self._disk = disk
        self._directory = directory
        self._preparer = preparer
        self._stored: _Stored
        self._frames_due = 0
        self._runs_due = 0

    def begin(self, segment: Segment, index: SegmentIndex) -> None:
        """This segment is written from now on. What it holds already will be stored with what comes."""
        self._stored = _Stored(segment)
        self._frames_due = len(index) + PART_FRAMES
        self._runs_due = index.runs + PART_RUNS

    def look(self, index: SegmentIndex) -> None:
        """Stores the newest frames if there are enough of them."""
        if len(index) >= self._frames_due or index.runs >= self._runs_due:
            stored = self._stored
            part = index.part(stored.frames)
            stored.frames = part.stop
            self._frames_due = part.stop + PART_FRAMES
            self._runs_due = index.runs + PART_RUNS
            self._preparer.run(lambda: self._append(stored, index, part))

    def _append(self, stored: _Stored, index: SegmentIndex, part: IndexPart) -> None:
        if stored.broken:
            return
        header = stored.segment.header
        data = index.encode(incarnation=header.incarnation, generation=header.generation, part=part)
        stored.broken = True  # unless this goes well
        file = self._disk.open(self._directory / index_name(header.base), create=part.first == 0)
        try:
            file.write([data], stored.size)
        finally:
            file.close()
            remove_stale_index(self._disk, self._directory, stored.segment)
        stored.size += len(data)
        stored.broken = False


class _Stored:
    """What is stored of one segment's index: `frames` as asked for, `size` bytes as written."""

    __slots__ = ("broken", "frames", "segment", "size")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.frames = 0
        self.size = 0
        self.broken = False
