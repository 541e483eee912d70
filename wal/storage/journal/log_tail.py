"""LogTail: the end of a log that is being written, and the steps that add a frame to it.

Owns the active segment and the numbers of the last frame, and the order of the steps. Under the fence: check the term (`place`), write and
sync the frame, store the control page (`added`); only then may anybody be answered. How the bytes reach the disk is the business of a
write path; two paths use the tail, never at the same time. A failure is final: the kernel may have dropped the data, so nothing
more is written.

A full segment is replaced by the next one (`begin_segment`), and the index of the active one is stored while it grows (`IndexKeeper`).
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal.errors import StorageError, WALError
from wal.frame import RECOVERED, EncodedFrame
from wal.storage.files import HeldDirectory
from wal.storage.journal.control import ControlPage
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.index import IndexPart, SegmentIndex, index_name
from wal.storage.journal.layout import HEADER_PAGE_BYTES, Envelope, SegmentHeader, pack_envelope, padding, segment_name, slot_bytes
from wal.storage.journal.preparer import NO_DESCRIPTOR, Preparer, Spare, no_descriptor
from wal.storage.journal.segments import Segment, remove_stale_index


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
    the frame to come. Raises OSError if there is no file descriptor: then the spare file is as it was, and the old segment is the last one.
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
        """Makes this the active segment. Frames that it already holds are stored with the next part."""
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
    """The stored part of one segment's index: `frames` were asked for, `size` bytes were written."""

    __slots__ = ("broken", "frames", "segment", "size")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.frames = 0
        self.size = 0
        self.broken = False


PAUSE_S: Final = 0.01
"""A frame that comes later than this after the last check of the names is checked first, which takes a few microseconds."""


class LogTail:
    """The active segment and what is durable in it. `fence` is the lock under which a frame is placed, written and added."""

    def __init__(
        self,
        disk: Disk,
        control: ControlPage,
        active: ActiveSegment,
        preparer: Preparer,
        keeper: IndexKeeper,
        held: HeldDirectory,
        *,
        last: tuple[int, int],
        newest: tuple[int, int] | None,
        sealed: Callable[[ActiveSegment, ActiveSegment], None],
    ) -> None:
        """`last` is (term, sequence) of the last frame in the log, `newest` is (position, index) of its newest event.

        `held` is the directory of the log and watches its active segment. `sealed(old, new)` is called at each new segment.
        """
        self._disk = disk
        self._control = control
        self._preparer = preparer
        self._keeper = keeper
        keeper.begin(active.segment, active.index)
        self._held = held
        self._checked_s = -math.inf  # never; a monotonic clock may count from the start of the machine, so 0.0 can be recent
        self._last = last
        self._newest = newest
        self._sealed = sealed
        self._failure: WALError | None = None
        self._tick = self._limit = 0
        self.fence: Final = control.fence
        self.active: ActiveSegment = active
        self.durable_end: int = active.index.end
        self.keyed_bytes: int = 0
        """The bytes of the durable frames that hold keyed events."""
        self.frames: int = 0
        self.frame_bytes: int = 0
        self.syncs: int = 0
        self.segments: int = 0

    @property
    def failure(self) -> WALError | None:
        """The reason why nothing more is written, or None; the first one stays."""
        if self._failure is None:
            self._failure = self._preparer.failure
        return self._failure

    def fail(self, error: WALError) -> None:
        """Ends the writing with this error."""
        self._failure = self._failure or error

    def failed(self, error: OSError, *, outcome_unknown: bool) -> StorageError:
        """Returns the final error for one of the operating system."""
        return StorageError(
            f"writing {error.filename or self.active.segment.path} failed: {error.strerror or error}; "
            "nothing more is written until the log is opened again",
            outcome_unknown=outcome_unknown,
        )

    # -- the names of the files

    @property
    def is_checked(self) -> bool:
        """Whether the names of the files were checked within the last PAUSE_S, as they must be before a frame."""
        return time.monotonic() - self._checked_s <= PAUSE_S

    @property
    def is_check_due(self) -> bool:
        """Whether half of that time is over."""
        return time.monotonic() - self._checked_s > PAUSE_S / 2

    def check(self) -> None:
        """Raises ChannelFencedError if this term is over, else StorageError when the names lead to other files, so that writes would be
        lost. Blocks."""
        self._held.check()
        self._checked_s = time.monotonic()

    # -- a frame

    def has_room(self, frame: EncodedFrame) -> bool:
        """Returns whether the frame fits in the active segment."""
        active = self.active
        return active.index.end - active.segment.base + slot_bytes(frame.length) <= active.segment.header.size

    def take_spare(self, frame: EncodedFrame) -> Spare:
        """Returns a file for the segment that begins with this frame; waits for it. Raises NoSpaceError, WouldBlockError, StorageError."""
        try:
            return self._preparer.take(HEADER_PAGE_BYTES + slot_bytes(frame.length), 2 * self.active.segment.header.size)
        except OSError as error:
            raise self.failed(error, outcome_unknown=False) from error

    def place(self, frame: EncodedFrame, spare: Spare | None = None) -> tuple[int, int, list[bytes | memoryview[int]]]:
        """Returns the position of the frame, the offset of its bytes in the active file, and these bytes; under the fence.

        With `spare` it first begins the next segment in that file. Raises ChannelFencedError if the term is over; StorageError, or
        WouldBlockError if there is no file descriptor, when the segment could not be begun.
        """
        record = self._control.load_owned()
        active = self.active if spare is None else self._roll(spare, frame.header.first_tick, record.promised_tick)
        position = active.index.end
        envelope = pack_envelope(frame.length, active.segment.header.generation, position)
        return position, position - active.segment.base, [envelope, *frame.buffers, padding(frame.length)]

    def added(self, frame: EncodedFrame, position: int) -> None:
        """Makes the frame a part of the log: it was placed here, and is on the disk. Under the same hold of the fence."""
        header, index = frame.header, self.active.index
        # Readers read only below the durable end, so the index may have the frame a moment before it is durable.
        index.add(position, header, [name for name, _ in frame.vchannels], pchannel_wide=frame.pchannel_wide)
        self._last = (header.term, header.sequence)
        if header.indices:
            self._newest = (position, header.indices - 1)
        self._control.store_durable(index.end, max(header.promised_tick, self._tick), self._limit)
        self.durable_end = index.end
        self._keeper.look(index)
        self.frames += 1
        self.frame_bytes += frame.length
        if header.compatible & RECOVERED:
            self.keyed_bytes += frame.length

    def prepare_next(self) -> None:
        """Has the next segment prepared, after one was begun."""
        self._preparer.prepare(2 * self.active.segment.header.size)

    # -- the promised tick

    def promise(self, tick: int, limit: int) -> None:
        """Takes a promised tick, and the oracle's saved limit, to be stored with the next frame or by `store_promise`."""
        self._tick = max(self._tick, tick)
        self._limit = max(self._limit, limit)

    def store_promise(self) -> None:
        """Stores the promised tick, if it is not stored yet; under the fence. Raises ChannelFencedError."""
        record = self._control.load_owned()
        if self._tick > record.promised_tick or self._limit > record.limit:
            self._control.store_durable(None, self._tick, self._limit)

    def _roll(self, spare: Spare, first_tick: int, promised_tick: int) -> ActiveSegment:
        old = self.active
        try:
            self.active = begin_segment(
                self._disk,
                old,
                spare,
                incarnation=self._control.load_owned().incarnation,
                last=self._last,
                newest=self._newest,
                first_tick=first_tick,
                promised_tick=promised_tick,
            )
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                self._preparer.adopt(spare)
                raise no_descriptor(error, self._folder) from error
            raise self.failed(error, outcome_unknown=False) from error
        self.segments += 1
        self._held.watch(self.active.segment.path, os.fstat(self.active.file.fd))
        self._held.unwatch(old.segment.path)  # before a truncation can remove it
        self._sealed(old, self.active)
        self._keeper.begin(self.active.segment, self.active.index)
        return self.active

    @property
    def _folder(self) -> Path:
        return self.active.segment.path.parent
