"""ActiveSegment: the segment that is being written, and how the next one takes its place.

Owns the order in which that becomes durable: the seal, the new header, its name, and only then the first frame. A crash in between
leaves the old segment as the last one, or the new one without a frame.
"""

from __future__ import annotations

import secrets

from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.index import SegmentIndex
from wal.backends.journal.layout import Envelope, SegmentHeader, padding, segment_name
from wal.backends.journal.preparer import Spare
from wal.backends.journal.segment import Segment

__all__ = ["ActiveSegment", "begin_segment"]


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
    last: tuple[int, int],
    newest: tuple[int, int] | None,
    first_tick: int,
    promised_tick: int,
) -> ActiveSegment:
    """Seals the active segment and begins the next one in this file; all of it is durable when it returns.

    An OSError for want of a descriptor leaves the spare file as it was, and the active segment the last one.

    `last`: (term, sequence) of the last frame; `newest`: (position, index) of the newest event; `first_tick`: of the frame to come.
    """
    generation = old.segment.header.generation
    offset = old.index.end - old.segment.base
    if offset < old.segment.header.size:
        old.file.write([Envelope(0, generation, old.index.end).pack(), padding(0)], offset)
        old.file.sync()
    header = SegmentHeader(
        incarnation=old.segment.header.incarnation,
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
