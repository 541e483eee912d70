"""LoopPath: writes small frames on the event loop itself, by Linux' asynchronous I/O; and when a log may use it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from wal.errors import InvalidArgumentError, StorageError, WALError, caused
from wal.frame import EncodedFrame
from wal.storage.base import AppendDone
from wal.storage.journal.active_segment import ActiveSegment
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import slot_bytes
from wal.storage.journal.linux_aio import AsyncWrite
from wal.storage.journal.log_tail import LogTail

WritePath = Literal["auto", "loop", "thread"]
"""The way of frames to the disk: from the event loop wherever it can, from a thread alone, or (auto) from the loop where it is faster."""


YIELD_S: Final = 0.1
"""The interval at which one frame, however small, goes through the thread."""
_WAIT_S: Final = 0.02
"""The time for which the thread waits for a completion before it checks again whether the loop has taken it."""

Answer = Callable[[int, AppendDone, int, WALError | None], None]
"""`add(attempt, done, position, error)`: adds the outcome of the oldest append without one."""
LOOP_BYTES_MAX: Final = 640 * 1024
"""The largest frame that is written from the loop unless a setting says otherwise.

The rate and the processor time per message, beside a limit of 128 KiB (medians of eight to fourteen interleaved rounds on 2 cores): 1.18
and 0.83 for frames of 260 KiB (256 writers, 1 KB), 1.14 and 0.94 with keys, 1.22 and 0.84 for frames of 160 KiB (16 transactions of
10 KB), 1.08 and 0.97 for frames of 530 KiB. Frames of 1 MiB and more gain nothing: 1.03 and 1.03.
"""


def loop_write(disk: Disk, active: ActiveSegment, write_path: WritePath) -> AsyncWrite | None:
    """Returns the means to write from the loop; None if the setting excludes it, or if the loop cannot write and need not.

    Raises InvalidArgumentError if the setting demands it and the loop cannot write.
    """
    if write_path == "thread":
        return None
    try:
        return disk.async_write(active.file)
    except OSError as error:
        if write_path == "auto":
            return None
        raise InvalidArgumentError(
            f"setting write_path='loop' cannot be used for {active.segment.path}: {error.strerror}; use 'auto' or 'thread'"
        ) from error


def loop_bytes_max(write_path: WritePath, frame_bytes_limit: int) -> int:
    """Returns the bytes of the largest frame that the loop writes. `frame_bytes_limit`: those of the largest frame of the log."""
    return frame_bytes_limit if write_path == "loop" else LOOP_BYTES_MAX


class _WriteInFlight(msgspec.Struct, gc=False):
    """A frame that is being written at `position`. `fenced`: the fence is taken for it. `answered`: its outcome was added."""

    attempt: int
    frame: EncodedFrame
    done: AppendDone
    position: int = -1
    fenced: bool = False
    answered: bool = False


class LoopPath:
    """Writes small frames, of at most `bytes_max` bytes, from the event loop by Linux AIO (`write`), without a thread.

    It owns the one frame in flight. The fence is taken at its submission, without waiting, and kept until the frame is durable and stored.
    Every step that would have to wait is left to the thread. When the disk has the frame, the loop finishes it. If the loop does not (it is
    blocked, or has ended), the writer's thread does (`take_over`): the kernel gives the completion to one of the two.

    All calls are made on the loop, but for `take_over` and `close`. `add` is called with the outcome when a frame is finished, in the
    thread that finished it; then `landed()`, if that was the loop's.
    """

    def __init__(self, tail: LogTail, write: AsyncWrite, *, bytes_max: int, add: Answer, landed: Callable[[], None]) -> None:
        self._tail = tail
        self._write = write
        self._refused = False  # the kernel accepts no write of this kind
        self._bytes_max = bytes_max
        self._add = add
        self._landed = landed
        self._defect: BaseException | None = None  # an interrupt, most likely: the frame in flight is half submitted or half finished
        self._yield_at = time.monotonic() + YIELD_S
        self.flight: _WriteInFlight | None = None
        """The frame in flight; None without one. Invariant: while it is not None and `fenced`, this process has the fence, and only the
        taker of the kernel's completion (`_finish`) or `take_over` ends it.
        """
        self.frames: int = 0
        """The number of frames that were written durably."""
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(write.event_fd, self._completed)

    def wants(self, frame: EncodedFrame) -> bool:
        """Returns whether a frame of this size is written from the loop; `begin` can still refuse it."""
        return frame.length <= self._bytes_max and not self._refused

    def begin(self, attempt: int, frame: EncodedFrame, done: AppendDone) -> bool:
        """Begins to write a frame, while no other frame is being written. Returns False, and has no effect, if the thread has to."""
        tail = self._tail
        if (
            self._is_others_turn()  # first: a frame that goes through the thread for another reason counts as a turn too
            or not tail.is_checked
            or tail.failure is not None
            or self._defect is not None
            or not tail.active.file.is_direct
            or not tail.has_room(frame)
        ):
            return False
        try:
            # Before the fence, so that `take_over` ends whatever an interrupt leaves.
            self.flight = flight = _WriteInFlight(attempt, frame, done)
            flight.fenced = tail.fence.try_take()
            if flight.fenced:
                flight.position, offset, buffers = tail.place(frame)
                tail.active.file.begin_write(self._write, buffers, offset)
                return True
        except (OSError, WALError) as error:
            # Nothing was written. The thread meets the same error by itself, unless it is one of AIO.
            self.flight = None
            tail.fence.release()
            self._refused = isinstance(error, OSError) and error.errno != errno.EAGAIN
        except BaseException as defect:
            self._defect = defect  # the progress of the frame is unknown
            if not isinstance(defect, Exception):
                raise
            return True
        self.flight = None
        return False

    def _is_others_turn(self) -> bool:
        """Whether the fence has to be left alone for a moment, after YIELD_S: another process that waits for it takes longer to wake up
        than the loop to take it again.
        """
        now = time.monotonic()
        if now < self._yield_at:
            return False
        self._yield_at = now + YIELD_S
        return True

    def take_over(self) -> None:
        """Returns when the frame in flight is finished, by this thread if the loop does not. Never call it on the loop."""
        flight = self.flight
        while flight is not None and self.flight is flight:
            if self._defect is not None:
                self._write.end()  # the disk has finished with it, if it was submitted
                self._finish(0)
            elif (result := self._write.wait(_WAIT_S)) is not None:
                self._finish(result)

    def unwatch(self) -> None:
        """Leaves the frame in flight to `take_over`. On the loop, or after it has ended. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return  # the parent's loop has the same epoll instance, and would get no event for its frames
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.remove_reader(self._write.event_fd)

    def close(self) -> None:
        """Releases the kernel's resources, after `unwatch` and `take_over`. Blocks."""
        self._write.close()

    def _completed(self) -> None:
        try:
            if (result := self._write.reap()) is None or self._defect is not None:
                return
            self._finish(result)
        except BaseException as defect:
            self._defect = self._defect or defect  # the completion may be lost
            self._loop.call_soon(self._landed)
            raise
        self._landed()

    def _finish(self, result: int) -> None:
        """Adds the frame in flight to the log, or fails it for good. Only the thread that took its completion calls this."""
        flight, tail = self.flight, self._tail
        assert flight is not None
        position, error = -1, None
        try:
            try:
                self._check(flight, result)
                tail.syncs += 1
                tail.added(flight.frame, flight.position)
            finally:
                if flight.fenced:
                    tail.fence.release()
                    flight.fenced = False
            position = flight.position
            self.frames += 1
        except WALError as failure:
            error = failure
            tail.fail(error)
        except BaseException as defect:  # also an interrupt: the frame must not stay in flight for ever
            error = unknown_outcome(defect)
            tail.fail(error)
            if not isinstance(defect, Exception):
                raise
        finally:
            if not flight.answered:
                flight.answered = True
                self._add(flight.attempt, flight.done, position, error)
            self.flight = None

    def _check(self, flight: _WriteInFlight, result: int) -> None:
        """Raises a StorageError unless the whole frame is on the disk."""
        if self._defect is not None:
            raise unknown_outcome(self._defect)
        if result != slot_bytes(flight.frame.length):
            number = -result if result < 0 else errno.EIO  # a short write has no error of its own
            raise self._tail.failed(OSError(number, os.strerror(number)), outcome_unknown=True)


def unknown_outcome(defect: BaseException) -> StorageError:
    """Returns the final error for a frame whose progress is unknown."""
    return caused(StorageError(f"writing a frame failed: {defect!r}", outcome_unknown=True), defect)
