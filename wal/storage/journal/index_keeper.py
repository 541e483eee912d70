"""IndexKeeper: stores the index of the active segment in parts, while the segment grows, so that an opening after a crash is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wal.storage.journal.disk import Disk
from wal.storage.journal.index import IndexPart, SegmentIndex, index_name
from wal.storage.journal.preparer import Preparer
from wal.storage.journal.segments import Segment, remove_stale_index

PART_FRAMES: Final = 1024
"""A part is stored after this many frames (reading their heads takes about 20 ms) …"""
PART_RUNS: Final = 8192
"""… or after this many runs (reading their heads takes about 10 ms)."""


class IndexKeeper:
    """Appends the index of the active segment to `<base:016x>.idx` in parts, while the segment grows.

    So an opening after a crash reads the heads of a few frames instead of those of a whole segment. Nothing waits for these parts or
    depends on them: they are not synced, a part that could not be written ends the index, and recovery reads the rest from the segment. A
    frame that is not durable is never stored, and no file is left for a segment that is gone.

    The writer calls `begin` and `look` after a durable frame, and the preparer's thread does the writing.
    """

    def __init__(self, disk: Disk, directory: Path, preparer: Preparer) -> None:
        self._disk = disk
        self._directory = directory
        self._preparer = preparer
        self._stored: _StoredPart
        self._frames_due = 0
        self._runs_due = 0

    def begin(self, segment: Segment, index: SegmentIndex) -> None:
        """Makes this the active segment. Frames that its index already has are stored with the next part."""
        self._stored = _StoredPart(segment)
        self._frames_due = len(index) + PART_FRAMES
        self._runs_due = index.runs + PART_RUNS

    def look(self, index: SegmentIndex) -> None:
        """Queues the newest frames for storing if there are enough of them."""
        if len(index) >= self._frames_due or index.runs >= self._runs_due:
            stored = self._stored
            part = index.part(stored.frames)
            stored.frames = part.stop
            self._frames_due = part.stop + PART_FRAMES
            self._runs_due = index.runs + PART_RUNS
            self._preparer.run(lambda: self._append(stored, index, part))

    def _append(self, stored: _StoredPart, index: SegmentIndex, part: IndexPart) -> None:
        if stored.broken:
            return
        header = stored.segment.header
        data = index.encode(incarnation=header.incarnation, generation=header.generation, part=part)
        stored.broken = True  # until the part is written
        file = self._disk.open(self._directory / index_name(header.base), create=part.first == 0)
        try:
            file.write([data], stored.size)
        finally:
            file.close()
            remove_stale_index(self._disk, self._directory, stored.segment)
        stored.size += len(data)
        stored.broken = False


class _StoredPart:
    """The stored part of one segment's index: `frames` were requested, `size` bytes were written."""

    __slots__ = ("broken", "frames", "segment", "size")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.frames = 0
        self.size = 0
        self.broken = False
