"""ThreadPath: writes frames of any size in a thread of the log, and does the log's blocking work there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from wal.errors import ChannelFencedError, StorageError, WALError, caused
from wal.frame import EncodedFrame
from wal.storage.base import REFUSALS, AppendDone
from wal.storage.journal.log_tail import LogTail
from wal.storage.journal.loop_path import Answer, LoopPath

Item = tuple[int, EncodedFrame | WALError | None, AppendDone | None]
"""(attempt, the frame or the error to answer with, done); without `done`, it is _PROMISE or _CHECK."""
_PROMISE: Final[Item] = (0, None, None)
_CHECK: Final[Item] = (1, None, None)
CHECK_S: Final = 1.0
"""The longest time for which the idle thread checks neither the names of its files nor whether the loop finishes its frame."""
_FENCE_S: Final = 0.02
"""The time for which the thread waits for the fence before it finishes the frame of the loop, which may have the fence."""


class ThreadPath:
    """The thread of one log: it writes frames of any size, one after the other, and does the log's blocking work.

    For each frame it takes the fence, checks the term, and calls `pwritev` and `fdatasync`; then it stores the control page. It begins new
    segments, stores the promised ticks of an idle log, and checks the names of its files: before a frame that follows a pause, at each new
    segment, and about once a second in any case. Then it also finishes a frame of the loop path that the loop leaves unfinished.

    All calls but `join` are made on the loop. The rest is called in the thread: `add(attempt, done, position, error)` for each outcome,
    `notify()` when outcomes were added and the loop may continue, and `lost(error)` when the names of the log lead to other files and no
    frame was waiting.
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
        self._untold: WALError | None = None  # the error that ended the writing, until an append has failed with it
        self._refusal: WALError | None = None
        self.refused_attempt: int = -1
        """The newest refused attempt. Invariant: every append of an attempt at or below it fails, because writing it would leave a gap in
        its sender's sequence. Only grows.
        """
        self._taken = 0
        self._answered = 0
        self._inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether every frame that the thread took is answered, so that another path may write."""
        return self._taken == self._answered

    def take(self, attempt: int, frame: EncodedFrame | WALError, done: AppendDone) -> None:
        """Writes a frame, or answers with an error, after all earlier frames."""
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
        """Ends the thread after it has written all its frames, and has finished the frame of the loop."""
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
                    self._store_promise()  # a promise that came meanwhile
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
            self._take_over()  # at the end only: the loop passes no frame to the thread before its own frame is finished
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
            # The append was queued before its sender could see the refusal of an earlier frame: writing it would leave a gap.
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
        """Returns when the loop has no frame in flight; the result is whether it had one."""
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
        """Checks the names while no frame does so, and reports to the log if they are lost."""
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
