"""ActiveSegment: the segment that is being written, and the step from a full one to the next. Synchronous."""

from __future__ import annotations

import secrets

from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import Envelope, SegmentHeader, padding, segment_name
from wal.storage.journal.preparer import Spare
from wal.storage.journal.segments import Segment


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
    """Seals the active segment and begins the next one in the file of `spare`. Both are durable when it returns.

    The old segment is sealed first, then the new header is written, and then the file gets its name; only after that comes the first frame.
    A crash in between leaves the old segment as the last one, or the new one without a frame.

    `last` is (term, sequence) of the last frame, `newest` is (position, index) of the newest event, and `first_tick` is the first tick of
    the frame to come. Raises OSError without a free file descriptor: then the spare file is unchanged, and the old segment is the last one.
    """
    generation = old.segment.header.generation
    offset = old.index.end - old.segment.base
    if offset < old.segment.header.size:
        old.file.write([Envelope(0, generation, old.index.end).pack(), padding(0)], offset)
        old.file.sync()
    header = SegmentHeader(
        incarnation=incarnation,  # after a restore it differs from the old segment's
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
