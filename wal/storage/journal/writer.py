"""JournalWriter: the order of a pchannel's frames and of their outcomes, and the choice of the path on which each frame goes to the disk.

There are two write paths: the loop itself (`LoopPath`) for small frames, and a thread (`ThreadPath`) for all others and for everything that
blocks; under `write_path="auto"` small frames take the thread too where that is faster (`path_choice.py`). Only one of them writes at a
time, one frame after the other, with one sync each; so at most one frame is ever unsynced, no frame of a fenced writer is after the first
frame of its successor, and every acknowledged frame is on the disk. A frame goes to the thread if the thread still has one, so frames never
overtake each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from wal.errors import ChannelFencedError, InvalidArgumentError, StorageError, WALError, caused
from wal.frame import EncodedFrame
from wal.storage.base import REFUSALS, AppendDone
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import slot_bytes
from wal.storage.journal.linux_aio import AsyncWrite
from wal.storage.journal.log_tail import ActiveSegment, LogTail
from wal.storage.journal.path_choice import PathChoice

WritePath = Literal["auto", "loop", "thread"]
"""How frames go to the disk: from the event loop wherever it can, from a thread alone, or (auto) from the loop where it is faster."""


def loop_write(disk: Disk, active: ActiveSegment, write_path: WritePath) -> AsyncWrite | None:
    """Returns the means to write from the loop; None if it is not to, or cannot and need not.

    Raises InvalidArgumentError if it has to and cannot.
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


LOOP_BYTES_MAX: Final = 640 * 1024
"""The largest frame that is written from the loop unless a setting says otherwise.

The rate and the processor time per message, beside a limit of 128 KiB (medians of eight to fourteen interleaved rounds on 2 cores): 1.18
and 0.83 for frames of 260 KiB (256 writers, 1 KB), 1.14 and 0.94 with keys, 1.22 and 0.84 for frames of 160 KiB (16 transactions of
10 KB), 1.08 and 0.97 for frames of 530 KiB. Frames of 1 MiB and more gain nothing: 1.03 and 1.03.
"""
YIELD_S: Final = 0.1
"""So often a frame goes through the thread, however small."""
_WAIT_S: Final = 0.02
"""How long the thread waits for a completion before it looks again whether the loop has taken it."""

Answer = Callable[[int, AppendDone, int, WALError | None], None]
"""`add(attempt, done, position, error)`: adds the outcome of the oldest append that has none."""


class _WriteInFlight(msgspec.Struct, gc=False):
    """A frame that is being written at `position`. `fenced`: the fence is held for it. `answered`: its outcome was added."""

    attempt: int
    frame: EncodedFrame
    done: AppendDone
    position: int = -1
    fenced: bool = False
    answered: bool = False


class LoopPath:
    """Writes small frames, of at most `bytes_max` bytes, from the event loop by Linux AIO (`write`), without a thread.

    It owns the one frame in flight. The fence is held from its submission until it is durable and stored; it is taken without waiting, and
    whatever cannot be done without waiting is left to the thread. When the disk has the frame, the loop finishes it. If the loop does not
    (it is blocked, or has ended), the writer's thread does (`take_over`): the kernel gives the completion to one of the two.

    All calls are made on the loop, but for `take_over` and `close`. `add` is called with the outcome when a frame is finished, by whichever
    thread did so; then `landed()`, if that was the loop's.
    """

    def __init__(self, tail: LogTail, write: AsyncWrite, *, bytes_max: int, add: Answer, landed: Callable[[], None]) -> None:
        self._tail = tail
        self._write = write
        self._refused = False  # the kernel takes no write of this kind
        self._bytes_max = bytes_max
        self._add = add
        self._landed = landed
        self._defect: BaseException | None = None  # an interrupt, most likely: the frame in flight is half submitted or half finished
        self._yield_at = time.monotonic() + YIELD_S
        self.flight: _WriteInFlight | None = None
        """The frame in flight. From its submission on the fence is held for it."""
        self.frames: int = 0
        """The number of frames that were written durably."""
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(write.event_fd, self._completed)

    def wants(self, frame: EncodedFrame) -> bool:
        """Returns whether a frame of this size is written from the loop; `begin` can still refuse it."""
        return frame.length <= self._bytes_max and not self._refused

    def begin(self, attempt: int, frame: EncodedFrame, done: AppendDone) -> bool:
        """Begins to write a frame, while no other one is being written. Returns False, and has done nothing, if the thread has to."""
        tail = self._tail
        if (
            self._is_others_turn()  # first: a frame that goes through the thread for another reason is one of these turns too
            or not tail.is_checked
            or tail.failure is not None
            or self._defect is not None
            or not tail.active.file.is_direct
            or not tail.has_room(frame)
        ):
            return False
        try:
            # Before the fence, so that an interrupt leaves nothing that `take_over` does not end.
            self.flight = flight = _WriteInFlight(attempt, frame, done)
            flight.fenced = tail.fence.try_take()
            if flight.fenced:
                flight.position, offset, buffers = tail.place(frame)
                tail.active.file.begin_write(self._write, buffers, offset)
                return True
        except (OSError, WALError) as error:
            # Nothing was written. The thread finds the error by itself, unless it is one of AIO.
            self.flight = None
            tail.fence.release()
            self._refused = isinstance(error, OSError) and error.errno != errno.EAGAIN
        except BaseException as defect:
            self._defect = defect  # nobody knows how far the frame came
            if not isinstance(defect, Exception):
                raise
            return True
        self.flight = None
        return False

    def _is_others_turn(self) -> bool:
        """Whether the fence has to be left alone for a moment, after YIELD_S: another process that waits for it takes longer to wake up
        than the loop to take it again."""
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
                self._write.end()  # the disk is through with it, if it was submitted
                self._finish(0)
            elif (result := self._write.wait(_WAIT_S)) is not None:
                self._finish(result)

    def unwatch(self) -> None:
        """Leaves the frame in flight to `take_over`. On the loop, or after it has ended. Does nothing in a forked child."""
        if os.getpid() != self._pid:
            return  # the parent's loop has the same epoll instance, and would no longer be told of its frames
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
            number = -result if result < 0 else errno.EIO  # a short write says no more
            raise self._tail.failed(OSError(number, os.strerror(number)), outcome_unknown=True)


def unknown_outcome(defect: BaseException) -> StorageError:
    """Returns the final error for a frame of which nobody knows how far it came."""
    return caused(StorageError(f"writing a frame failed: {defect!r}", outcome_unknown=True), defect)


Item = tuple[int, EncodedFrame | WALError | None, AppendDone | None]
"""(attempt, the frame or the error to answer with, done); without `done`, it is _PROMISE or _CHECK."""
_PROMISE: Final[Item] = (0, None, None)
_CHECK: Final[Item] = (1, None, None)
CHECK_S: Final = 1.0
"""The longest time for which the idle thread does not check the names of its files, or whether the loop finishes its frame."""
_FENCE_S: Final = 0.02
"""How long the thread waits for the fence before it finishes the frame of the loop, which may hold it."""


class ThreadPath:
    """The thread of one log: it writes frames of any size, one after the other, and does for the log what blocks.

    For each frame it takes the fence, checks the term, and calls `pwritev` and `fdatasync`; then it stores the control page. It begins new
    segments, stores the promised ticks of an idle log, and checks the names of its files: before a frame that follows a pause, at each new
    segment, and about once a second in any case. Then it also finishes a frame of the loop path whose loop does not.

    All calls but `join` are made on the loop. The rest is called in the thread: `add(attempt, done, position, error)` for each outcome,
    `notify()` when some were added and the loop may go on, and `lost(error)` when the names of the log lead to other files and no frame was
    waiting.
    """

    def __init__(
        self,
        tail: LogTail,
        loop_path: LoopPath | None,
        *,
        name: str,
        add: Answer,
        notify: Callable[[], None],
        lost: Callable[[WALError], None],
    ) -> None:
        self._tail = tail
        self._loop_path = loop_path
        self._add = add
        self._notify = notify
        self._lost = lost
        self._promise_waiting = False
        self._check_waiting = False
        self._untold: WALError | None = None  # why nothing more is written, while no append has failed with it
        self._refusal: WALError | None = None
        self.refused_attempt: int = -1
        """The newest attempt that was refused: its appends fail, because writing them would leave a gap."""
        self._taken = 0
        self._answered = 0
        self._inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether every frame that it took is answered, so that another path may write."""
        return self._taken == self._answered

    def take(self, attempt: int, frame: EncodedFrame | WALError, done: AppendDone) -> None:
        """Writes a frame, or answers with an error, after everything that it took before."""
        self._taken += 1
        self._inbox.put((attempt, frame, done))

    def promise(self) -> None:
        """Stores the promised tick of the tail as soon as the thread comes to it, unless a frame does so first."""
        if not self._promise_waiting:
            self._promise_waiting = True
            self._inbox.put(_PROMISE)

    def check(self) -> None:
        """Checks the names of the files soon."""
        if not self._check_waiting:
            self._check_waiting = True
            self._inbox.put(_CHECK)

    def end(self) -> None:
        """Ends the thread after it has written everything that it took, and has finished the frame of the loop."""
        self._inbox.put(None)

    def join(self) -> None:
        """Waits for the end. Blocks, so never call it on the loop."""
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                item = self._inbox.get(timeout=CHECK_S)
            except queue.Empty:
                if self._take_over():
                    self._store_promise()  # one that came meanwhile
                self._check_idle()
                continue
            if item is None:
                self._take_over()
                if self._loop_path is not None:
                    self._loop_path.close()
                return
            attempt, frame, done = item
            if done is None:
                if item is _PROMISE:
                    self._store_promise()
                    self._check_idle()
                else:
                    self._check_names()
                    self._check_waiting = False
                continue
            self._take_over()  # at the end only: the loop hands nothing over before its frame is finished
            if isinstance(frame, EncodedFrame):
                self._handle(attempt, frame, done)
            else:
                self._answer(attempt, done, -1, frame)

    def _handle(self, attempt: int, frame: EncodedFrame, done: AppendDone) -> None:
        failure = self._tail.failure
        if failure is not None:
            self._untold = None
            self._answer(attempt, done, -1, _not_written(failure))
            return
        if attempt <= self.refused_attempt and self._refusal is not None:
            # It was queued before its sender could know that an earlier frame was refused: writing it would leave a gap.
            refusal = type(self._refusal)(f"an append before this one was refused, append both again: {self._refusal}")
            self._answer(attempt, done, -1, refusal)
            return
        try:
            position = self._write(frame)
        except REFUSALS as error:
            self._refusal, self.refused_attempt = error, attempt
            self._answer(attempt, done, -1, error)
        except WALError as error:
            self._tail.fail(error)
            self._answer(attempt, done, -1, error)
        except Exception as error:
            # No error may end this thread silently: a caller would wait for its outcome for ever.
            unknown = caused(StorageError(f"writing a frame failed: {error!r}", outcome_unknown=True), error)
            self._tail.fail(unknown)
            self._answer(attempt, done, -1, unknown)
        else:
            self._answer(attempt, done, position, None)

    def _write(self, frame: EncodedFrame) -> int:
        """Writes and syncs one frame; returns its position."""
        tail = self._tail
        is_full = not tail.has_room(frame)
        if is_full or not tail.is_checked:
            tail.check()
        spare = tail.take_spare(frame) if is_full else None
        self._take_fence()
        try:
            position, offset, buffers = tail.place(frame, spare)
            file = tail.active.file
            try:
                file.write(buffers, offset)
                tail.syncs += 1
                file.sync()
            except OSError as error:
                raise tail.failed(error, outcome_unknown=True) from error
            tail.added(frame, position)
        finally:
            tail.fence.release()
        if spare is not None:
            tail.prepare_next()
        return position

    def _take_fence(self) -> None:
        while not self._tail.fence.take(_FENCE_S):
            self._take_over()  # the loop may have stopped with its frame in flight

    def _take_over(self) -> bool:
        """Returns when the loop has no frame in flight; whether it had one."""
        if self._loop_path is None or self._loop_path.flight is None:
            return False
        self._loop_path.take_over()
        self._notify()
        return True

    def _store_promise(self) -> None:
        self._promise_waiting = False
        if self._tail.failure is not None:
            return
        try:
            self._take_fence()
            try:
                self._tail.store_promise()
            finally:
                self._tail.fence.release()
        except WALError as error:
            self._tail.fail(error)
        except Exception as error:  # as for a frame: the next frame fails with it
            failure = caused(StorageError(f"the control page could not be stored: {error!r}", outcome_unknown=False), error)
            self._tail.fail(failure)

    def _check_idle(self) -> None:
        """Checks the names while no frame does so, and tells the log if they are lost."""
        self._check_names()
        if self._untold is not None:
            self._lost(self._untold)
            self._untold = None

    def _check_names(self) -> None:
        """Checks the names between frames; if they are lost, the next frame fails."""
        if self._tail.failure is not None or not self._tail.is_check_due:
            return
        try:
            self._tail.check()
        except ChannelFencedError as error:
            self._tail.fail(error)
        except StorageError as error:
            self._tail.fail(error)
            self._untold = error

    def _answer(self, attempt: int, done: AppendDone, position: int, error: WALError | None) -> None:
        self._add(attempt, done, position, error)
        self._answered += 1  # between the two: the outcomes stay in order, and the loop finds the thread idle
        self._notify()


def _not_written(failure: WALError) -> WALError:
    """Returns the error for a frame that was never written because of this failure."""
    if isinstance(failure, StorageError) and failure.outcome_unknown:
        return StorageError(str(failure), outcome_unknown=False)
    return failure


class JournalWriter:
    """Writes frames to the tail of a log; it is used on the loop, but for `finish` and `join`."""

    def __init__(
        self,
        tail: LogTail,
        *,
        pchannel: str,
        loop_write: AsyncWrite | None,
        loop_bytes_max: int,
        failed: Callable[[WALError], None],
        write_path: WritePath = "loop",
    ) -> None:
        """With `loop_write`, frames of at most `loop_bytes_max` bytes may be written from the loop; the writer closes it
        at its end, but not if it cannot begin (RuntimeError: no thread can be started).

        `failed(error)` is called on the loop when the names of the log lead to other files and no frame was waiting.
        """
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._attempt = 0
        self._waiting: deque[tuple[int, EncodedFrame | WALError, AppendDone]] = deque()  # for one that is being written
        self._outcomes: deque[tuple[int, AppendDone, int, WALError | None]] = deque()
        self._choice = PathChoice() if write_path == "auto" and loop_write is not None else None
        self._counts: deque[int] = deque()  # with a choice: the events of each frame that has no outcome yet, -1 for an error
        self._write_path = write_path
        self._is_bulk = False  # the thread writes large frames: small ones between them follow faster there
        self._notified = False
        self.tail: LogTail = tail
        self._loop_path = (
            None if loop_write is None else LoopPath(tail, loop_write, bytes_max=loop_bytes_max, add=self._add, landed=self.deliver)
        )
        try:
            self._thread = ThreadPath(
                tail, self._loop_path, name=f"wal-write-{pchannel}", add=self._add, notify=self._notify, lost=self._lost
            )
        except BaseException:  # no thread can be started
            if self._loop_path is not None:
                self._loop_path.unwatch()
            raise

    @property
    def loop_frames(self) -> int:
        """The number of durable frames that the loop wrote."""
        return 0 if self._loop_path is None else self._loop_path.frames

    @property
    def path(self) -> tuple[str, str]:
        """The path that small frames take now, and the reason."""
        if self._choice is not None:
            return self._choice.path, self._choice.reason
        if self._loop_path is not None:
            return "loop", "the setting write_path"
        return "thread", "the loop cannot write here" if self._write_path == "auto" else "the setting write_path"

    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        """Writes a frame after all frames before it; `done` is called on the loop, later."""
        self._take(frame, done)

    def refuse(self, done: AppendDone, error: WALError) -> None:
        """Answers with an error, in order after everything before, without writing."""
        self._take(error, done)

    def promise(self, tick: int, limit: int) -> None:
        """Stores this promised tick with the frame in flight or the next one, or as soon as the thread is idle."""
        self.tail.promise(tick, limit)
        if self._loop_path is None or self._loop_path.flight is None:
            self._thread.promise()

    def end(self) -> None:
        """Has everything written that was appended, then ends. Nothing may be appended any more. On the loop, or after its end."""
        if self._loop_path is not None:
            self._loop_path.unwatch()
        while self._waiting:
            self._thread.take(*self._waiting.popleft())
        self._thread.end()

    def join(self) -> None:
        """Waits for the end. Blocks, so never call it on the loop; then `deliver` the last outcomes there."""
        self._thread.join()

    def deliver(self) -> None:
        """Begins to write what waited, and calls `done` for every known outcome."""
        try:
            self._deliver()
        except BaseException:  # an interrupt, or a defect of one caller: the others are answered all the same
            self._loop.call_soon(self.deliver)
            raise

    def _deliver(self) -> None:
        self._notified = False
        while self._waiting and not self._must_wait(self._waiting[0][1]):
            try:
                self._begin(*self._waiting.popleft())
            except BaseException as defect:  # an interrupt: without this frame, those after it would follow a gap
                self.tail.fail(unknown_outcome(defect))
                raise
        outcomes, choice = self._outcomes, self._choice
        while outcomes:
            attempt, done, position, error = outcomes.popleft()
            if choice is not None and (events := self._counts.popleft()) >= 0:
                choice.ended(events, time.monotonic())
            if error.__class__ in REFUSALS and attempt == self._attempt:
                # Once for all appends that one refusal failed: the senders of later appends know of it.
                self._attempt += 1
            done(position, error)

    def _take(self, frame: EncodedFrame | WALError, done: AppendDone) -> None:
        if (choice := self._choice) is not None:
            if isinstance(frame, EncodedFrame):
                self._counts.append(frame.header.indices)
                choice.begun(time.monotonic())
            else:
                self._counts.append(-1)
        if self._waiting or self._must_wait(frame):
            self._waiting.append((self._attempt, frame, done))
        else:
            self._begin(self._attempt, frame, done)

    def _must_wait(self, frame: EncodedFrame | WALError) -> bool:
        """Whether the loop has a frame in flight, or could write this one as soon as the thread is idle, which is soon."""
        path = self._loop_path
        if path is None:
            return False
        if path.flight is not None:
            return True
        if self._thread.idle or self._is_bulk or not isinstance(frame, EncodedFrame):
            return False
        if self._choice is not None and self._choice.path == "thread":
            return False
        return path.wants(frame)

    def _begin(self, attempt: int, frame: EncodedFrame | WALError, done: AppendDone) -> None:
        path, thread = self._loop_path, self._thread
        if path is not None and isinstance(frame, EncodedFrame):
            if thread.idle:
                self._is_bulk = False
            choice = self._choice
            if not path.wants(frame):
                self._is_bulk = True
                if choice is not None:
                    choice.skipped()
            elif choice is not None and choice.path == "thread":
                pass
            elif not self._is_bulk and attempt > thread.refused_attempt and path.begin(attempt, frame, done):
                if self.tail.is_check_due:
                    thread.check()
                return
        thread.take(attempt, frame, done)

    def _add(self, attempt: int, done: AppendDone, position: int, error: WALError | None) -> None:
        self._outcomes.append((attempt, done, position, error))

    def _notify(self) -> None:
        """Has the outcomes delivered. Called in the thread."""
        if not self._notified:
            self._notified = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # The loop was closed while the log was open: no caller is left.
                self._outcomes.clear()

    def _lost(self, error: WALError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed while the log was open
            self._loop.call_soon_threadsafe(self._failed, error)
