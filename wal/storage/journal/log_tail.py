"""LogTail: the end of a log that is being written, and the steps that add a frame to it.

Owns the active segment and the numbers of the last frame, and the order of the steps. Under the fence: check the term (`place`), write and
sync the frame, store the control page (`added`); only then may a caller get its answer. A write path brings the bytes to the disk; two
paths use the tail, never at the same time. A failure is final: the kernel may have dropped the data, so nothing more is written.

A full segment is replaced by the next one (`begin_segment`), and the index of the active one is stored while it grows (`IndexKeeper`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Final

from wal.errors import StorageError, WALError
from wal.frame import RECOVERED, EncodedFrame
from wal.storage.files import HeldDirectory
from wal.storage.journal.active_segment import ActiveSegment, begin_segment
from wal.storage.journal.control import ControlPage
from wal.storage.journal.disk import Disk
from wal.storage.journal.index_keeper import IndexKeeper
from wal.storage.journal.layout import HEADER_PAGE_BYTES, pack_envelope, padding, slot_bytes
from wal.storage.journal.preparer import NO_DESCRIPTOR, Preparer, Spare, no_descriptor

PAUSE_S: Final = 0.01
"""The age at which a check of the names must be repeated before a frame; it takes a few microseconds."""


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
        """Returns the final error for an error of the operating system."""
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
        """Whether half of that time has passed."""
        return time.monotonic() - self._checked_s > PAUSE_S / 2

    def check(self) -> None:
        """Raises ChannelFencedError if a higher term owns the log, else StorageError when the names lead to other files, so that writes
        would be lost. Blocks.
        """
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

        With `spare` it first begins the next segment in that file. Raises ChannelFencedError if a higher term owns the log; StorageError,
        or WouldBlockError without a free file descriptor, when the segment could not be begun.
        """
        record = self._control.load_owned()
        active = self.active if spare is None else self._roll(spare, frame.header.first_tick, record.promised_tick)
        position = active.index.end
        envelope = pack_envelope(frame.length, active.segment.header.generation, position)
        return position, position - active.segment.base, [envelope, *frame.buffers, padding(frame.length)]

    def added(self, frame: EncodedFrame, position: int) -> None:
        """Makes the frame a part of the log, after it was placed here and is on the disk. The fence is kept since `place`."""
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
        """Requests the next segment, after one was begun."""
        self._preparer.prepare(2 * self.active.segment.header.size)

    # -- the promised tick

    def promise(self, tick: int, limit: int) -> None:
        """Sets the promised tick, and the oracle's saved limit, to be stored with the next frame or by `store_promise`."""
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
                raise no_descriptor(error, self.active.segment.path.parent) from error
            raise self.failed(error, outcome_unknown=False) from error
        self.segments += 1
        self._held.watch(self.active.segment.path, os.fstat(self.active.file.fd))
        self._held.unwatch(old.segment.path)  # before a truncation can remove it
        self._sealed(old, self.active)
        self._keeper.begin(self.active.segment, self.active.index)
        return self.active
