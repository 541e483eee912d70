"""ActiveSegment: the segment that is being written, its replacement by the next one, and its stored index.

Owns the order in which a new segment becomes durable: the seal of the old one, the new header, its name, and only then the first
frame. A crash in between leaves the old segment as the last one, or the new one without a frame.

The IndexKeeper owns the parts that are appended to `<base:016x>.idx` while the segment grows, so that an opening after a crash
reads the heads of a few frames instead of those of a whole segment. Nothing waits for these parts or depends on them: they are not synced,
a part that could not be written ends the index, and recovery reads the rest from the segment. The keeper never stores a frame that is not
durable, and leaves no file for a segment that is gone.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.index import IndexPart, SegmentIndex, index_name
from wal.backends.journal.layout import Envelope, SegmentHeader, padding, segment_name
from wal.backends.journal.preparer import Preparer, Spare
from wal.backends.journal.segment import Segment
from wal.backends.journal.segments import remove_stale_index

__all__ = ["ActiveSegment", "IndexKeeper", "begin_segment"]


class ActiveSegment:
    """The segment that is being written: its file and the index that grows with it."""

    __slots__ = ("file", "index", "segment")

    def __init__(self, segment: Segment, file: JournalFile, index: SegmentIndex) -> None:
        self.segment: Segment = segment
        self.file: JournalFile = file
        self.index: SegmentIndex = index


def begin_segment(
    disk: Disk,
    old: ActiveSegment,
    spare: Spare,
    *,
    incarnation: int,
    last: tuple[int, int],
    newest: tuple[int, int] | None,
    first_tick: int,
    promised_tick: int,
) -> ActiveSegment:
    """Seals the active segment and begins the next one in the file of `spare`; both are durable when it returns.

    If there is no file descriptor, it raises OSError; the spare file stays as it was and the old segment stays the last one. `last` is
    (term, sequence) of the last frame, `newest` is (position, index) of the newest event, and `first_tick` is the first tick of the
    frame to come.
    """
    generation = old.segment.header.generation
    offset = old.index.end - old.segment.base
    if offset < old.segment.header.size:
        old.file.write([Envelope(0, generation, old.index.end).pack(), padding(0)], offset)
        old.file.sync()
    header = SegmentHeader(
        incarnation=incarnation,  # after a restore, not that of the old one
        generation=secrets.randbits(64),
        base=old.index.end,
        size=spare.size,
        previous_base=old.segment.base,
        previous_term=last[0],
        previous_sequence=last[1],
        first_tick=first_tick,
        promised_tick=promised_tick,
        newest=newest,
    )
    target = spare.path.with_name(segment_name(header.base))
    file = disk.open(spare.path)
    try:
        file.write([header.pack()], 0)
        file.sync()
        disk.rename_synced(spare.path, target)
    except BaseException:
        file.close()
        raise
    file.path = target
    file.bypass_cache()
    return ActiveSegment(Segment(target, header), file, SegmentIndex(header.base))


PART_FRAMES: Final = 1024
"""A part is stored after this many frames (reading their heads takes about 20 ms) …"""
PART_RUNS: Final = 8192
"""… or after this many runs (reading their heads takes about 10 ms)."""


class IndexKeeper:
    """Stores the index of the active segment in parts. The writer calls `begin` and `look` after a durable frame; the preparer's thread
    does the writing."""

    def __init__(self, disk: Disk, directory: Path, preparer: Preparer) -> None:
        self._disk = disk
        self._directory = directory
        self._preparer = preparer
        self._stored: _Stored
        self._frames_due = 0
        self._runs_due = 0

    def begin(self, segment: Segment, index: SegmentIndex) -> None:
        """Makes this the active segment. Frames that it already holds are stored with the next part."""
        self._stored = _Stored(segment)
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

    def _append(self, stored: _Stored, index: SegmentIndex, part: IndexPart) -> None:
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


class _Stored:
    """The stored part of one segment's index: `frames` were asked for, `size` bytes were written."""

    __slots__ = ("broken", "frames", "segment", "size")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.frames = 0
        self.size = 0
        self.broken = False
