"""Writer: the one thread that writes a pchannel's frames, with one sync after each, and only while the log is in its term.

Owns: the active segment, the order of frames and of their outcomes, and the fence. For each frame, with the control page locked: check
the term, `pwritev`, `fdatasync`, store the control page; only then does the loop get the outcome. So at most one frame is ever
unsynced, no frame of a fenced writer is after the first frame of its successor, and every acknowledged frame is on the disk.

A failed write or sync is final: the kernel may have dropped the data, so nothing more is written through this handle. The same holds when
the names of its files lead to other files, see `HeldDirectory`: the thread checks them before a frame that follows a pause, at each new
segment, and about once a second in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from wal.backends.base import REFUSALS, AppendDone
from wal.backends.journal.active import ActiveSegment, IndexKeeper, begin_segment
from wal.backends.journal.control import ControlPage, ControlRecord
from wal.backends.journal.disk import Disk
from wal.backends.journal.layout import HEADER_PAGE_BYTES, pack_envelope, padding, slot_bytes
from wal.backends.journal.preparer import NO_DESCRIPTOR, Preparer, Spare, no_descriptor
from wal.errors import ChannelFencedError, StorageError, WALError
from wal.files import HeldDirectory
from wal.frame import RECOVERED, EncodedFrame

__all__ = ["Writer"]

_Item = tuple[int, EncodedFrame | WALError | None, AppendDone | None]
"""(attempt, the frame or the error to answer with, done); without `done`, the promised tick is to be stored."""
_PROMISE: Final[_Item] = (0, None, None)
CHECK_S: Final = 1.0
"""The longest time for which the idle thread does not check the names of its files."""
PAUSE_S: Final = 0.01
"""A frame that comes later than this after the last check is checked first, which takes a few microseconds."""


class Writer:
    """Writes frames in its own thread; `append` and `promise` are called on the loop."""

    def __init__(
        self,
        disk: Disk,
        control: ControlPage,
        active: ActiveSegment,
        preparer: Preparer,
        keeper: IndexKeeper,
        held: HeldDirectory,
        *,
        pchannel: str,
        last: tuple[int, int],
        newest: tuple[int, int] | None,
        sealed: Callable[[ActiveSegment, ActiveSegment], None],
        failed: Callable[[WALError], None],
    ) -> None:
        """`last` is (term, sequence) of the last frame in the log, `newest` is (position, index) of its newest event.

        `held` is the directory of the log and watches its active segment. `sealed(old, new)` is called in the thread at each new segment,
        `failed(error)` on the loop when the names of the log lead to other files and no frame was waiting.
        """
        self._disk = disk
        self._control = control
        self._preparer = preparer
        self._keeper = keeper
        keeper.begin(active.segment, active.index)
        self._held = held
        self._checked_s = 0.0
        self._last = last
        self._newest = newest
        self._sealed = sealed
        self._failed_idle = failed
        self._loop = asyncio.get_running_loop()
        self.active: ActiveSegment = active
        self.durable_end: int = active.index.end
        self.keyed_bytes: int = 0
        """The bytes of the durable frames that hold keyed events."""
        self.failure: WALError | None = None
        self.frames: int = 0
        self.frame_bytes: int = 0
        self.syncs: int = 0
        self.segments: int = 0
        self._tick = self._limit = 0
        self._tick_waiting = False
        self._attempt = 0
        self._refused_attempt = -1
        self._refusal: WALError | None = None
        self._inbox: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._outcomes: deque[tuple[int, AppendDone, int, WALError | None]] = deque()
        self._notified = False
        self._thread = threading.Thread(target=self._run, name=f"wal-write-{pchannel}", daemon=True)
        self._thread.start()

    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        """Queues a frame for the thread; `done` is called on the loop."""
        self._inbox.put((self._attempt, frame, done))

    def refuse(self, done: AppendDone, error: WALError) -> None:
        """Answers with an error, in order after everything queued before, without writing."""
        self._inbox.put((self._attempt, error, done))

    def promise(self, tick: int, limit: int) -> None:
        """Stores this promised tick with the next frame, or as soon as the thread is idle."""
        self._tick = max(self._tick, tick)
        self._limit = max(self._limit, limit)
        if not self._tick_waiting:
            self._tick_waiting = True
            self._inbox.put(_PROMISE)

    def finish(self) -> None:
        """Ends the thread after it has written everything queued. Blocks, so never call it on the loop."""
        self._inbox.put(None)
        self._thread.join()

    def deliver(self) -> None:
        """Calls `done` for every known outcome. On the loop only."""
        self._notified = False
        outcomes = self._outcomes
        while outcomes:
            attempt, done, position, error = outcomes.popleft()
            if error.__class__ in REFUSALS and attempt == self._attempt:
                # Once for all appends that one refusal failed: the senders of later appends know of it.
                self._attempt += 1
            done(position, error)

    def _run(self) -> None:
        while True:
            try:
                item = self._inbox.get(timeout=CHECK_S)
            except queue.Empty:
                self._check_idle()
                continue
            if item is None:
                return
            attempt, frame, done = item
            if done is None:
                self._store_promise()
                self._check_idle()
            elif isinstance(frame, EncodedFrame):
                self._handle(attempt, frame, done)
            else:
                self._answer(attempt, done, -1, frame)

    def _handle(self, attempt: int, frame: EncodedFrame, done: AppendDone) -> None:
        if self.failure is None:
            self.failure = self._preparer.failure
        if self.failure is not None:
            self._answer(attempt, done, -1, _not_written(self.failure))
            return
        if attempt <= self._refused_attempt and self._refusal is not None:
            # It was queued before its sender could know that an earlier frame was refused: writing it would leave a gap.
            refusal = type(self._refusal)(f"an append before this one was refused, append both again: {self._refusal}")
            self._answer(attempt, done, -1, refusal)
            return
        try:
            position = self._write(frame)
        except REFUSALS as error:
            self._refused_attempt, self._refusal = attempt, error
            self._answer(attempt, done, -1, error)
        except WALError as error:
            self.failure = error
            self._answer(attempt, done, -1, error)
        except Exception as error:
            # No error may end this thread silently: a caller would wait for its outcome for ever.
            self.failure = StorageError(f"writing a frame failed: {error!r}", outcome_unknown=True)
            self.failure.__cause__ = error
            self._answer(attempt, done, -1, self.failure)
        else:
            self._answer(attempt, done, position, None)

    def _write(self, frame: EncodedFrame) -> int:
        """Writes and syncs one frame; returns its position."""
        slot = slot_bytes(frame.length)
        active = self.active
        spare = None
        is_full = active.index.end - active.segment.base + slot > active.segment.header.size
        if is_full or time.monotonic() - self._checked_s > PAUSE_S:
            self._check()
        if is_full:
            needed = HEADER_PAGE_BYTES + slot
            try:
                spare = self._preparer.take(needed, 2 * active.segment.header.size)
            except OSError as error:
                raise self._failed(error, outcome_unknown=False) from error
        with self._control.locked():
            record = self._control.load_owned()
            if spare is not None:
                try:
                    active = self._roll(spare, frame.header.first_tick, record.promised_tick)
                except OSError as error:
                    if error.errno in NO_DESCRIPTOR:
                        self._preparer.adopt(spare)
                        raise no_descriptor(error, active.segment.path.parent) from error
                    raise self._failed(error, outcome_unknown=False) from error
            position = active.index.end
            offset = position - active.segment.base
            envelope = pack_envelope(frame.length, active.segment.header.generation, position)
            try:
                active.file.write([envelope, *frame.buffers, padding(frame.length)], offset)
                self.syncs += 1
                active.file.sync()
            except OSError as error:
                raise self._failed(error, outcome_unknown=True) from error
            header = frame.header
            # Readers read only below the durable end, so the index may have the frame a moment before it is durable.
            active.index.add(position, header, [name for name, _ in frame.vchannels], pchannel_wide=frame.pchannel_wide)
            self._last = (header.term, header.sequence)
            if header.indices:
                self._newest = (position, header.indices - 1)
            self._control.store_owned(self._next(record, active.index.end, header.promised_tick))
        self.durable_end = active.index.end
        self._keeper.look(active.index)
        self.frames += 1
        self.frame_bytes += frame.length
        if header.compatible & RECOVERED:
            self.keyed_bytes += frame.length
        if spare is not None:
            self._preparer.prepare(2 * spare.size)
        return position

    def _roll(self, spare: Spare, first_tick: int, promised_tick: int) -> ActiveSegment:
        old = self.active
        self.active = begin_segment(
            self._disk,
            old,
            spare,
            last=self._last,
            newest=self._newest,
            first_tick=first_tick,
            promised_tick=promised_tick,
        )
        self.segments += 1
        self._held.watch(self.active.segment.path, os.fstat(self.active.file.fd))
        self._held.unwatch(old.segment.path)  # before a truncation can remove it
        self._sealed(old, self.active)
        self._keeper.begin(self.active.segment, self.active.index)
        return self.active

    def _next(self, record: ControlRecord, durable: int, promised_tick: int) -> ControlRecord:
        return ControlRecord(
            record.incarnation,
            record.term,
            durable,
            record.earliest,
            max(record.promised_tick, promised_tick, self._tick),
            max(record.limit, self._limit),
            closed=False,
        )

    def _store_promise(self) -> None:
        self._tick_waiting = False
        if self.failure is not None:
            return
        try:
            with self._control.locked():
                record = self._control.load_owned()
                if self._tick > record.promised_tick or self._limit > record.limit:
                    self._control.store_owned(self._next(record, record.durable, 0))
        except WALError as error:
            self.failure = error
        except Exception as error:  # as for a frame: the next frame fails with it
            self.failure = StorageError(f"the control page could not be stored: {error!r}", outcome_unknown=False)
            self.failure.__cause__ = error

    def _check(self) -> None:
        """Raises ChannelFencedError if this term is over, else StorageError when the names lead to other files, so that writes would be
        lost."""
        self._held.check()
        self._checked_s = time.monotonic()

    def _check_idle(self) -> None:
        """Checks the names while no frame does so."""
        if self.failure is not None or time.monotonic() - self._checked_s < PAUSE_S:
            return
        try:
            self._check()
        except ChannelFencedError as error:  # the next frame fails with it, as usual
            self.failure = error
        except StorageError as error:
            self.failure = error
            with contextlib.suppress(RuntimeError):  # the loop was closed while the log was open
                self._loop.call_soon_threadsafe(self._failed_idle, error)

    def _answer(self, attempt: int, done: AppendDone, position: int, error: WALError | None) -> None:
        self._outcomes.append((attempt, done, position, error))
        if not self._notified:
            self._notified = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # The loop was closed while the log was open: no caller is left.
                self._outcomes.clear()

    def _failed(self, error: OSError, *, outcome_unknown: bool) -> StorageError:
        return StorageError(
            f"writing {error.filename or self.active.segment.path} failed: {error.strerror or error}; "
            "nothing more is written until the log is opened again",
            outcome_unknown=outcome_unknown,
        )


def _not_written(failure: WALError) -> WALError:
    """Returns the error for a frame that was never written because of this failure."""
    if isinstance(failure, StorageError) and failure.outcome_unknown:
        return StorageError(str(failure), outcome_unknown=False)
    return failure
