"""JournalWriter: the order of a pchannel's frames and of their outcomes, and the choice of the path on which each frame goes to the disk.

There are two write paths: the loop itself (`LoopPath`) for small frames, and a thread (`ThreadPath`) for all others and for blocking work.
Under `write_path="auto"` small frames take the thread too where that is faster (`path_choice.py`). Only one path writes, one frame after
the other, with one sync each. So at most one frame is ever unsynced, no frame of a fenced writer is after the first frame of its successor,
and every acknowledged frame is on the disk. While the thread has a frame, the next one goes there too, so frames never overtake each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from wal.errors import WALError
from wal.frame import EncodedFrame
from wal.storage.base import REFUSALS, AppendDone
from wal.storage.journal.linux_aio import AsyncWrite
from wal.storage.journal.log_tail import LogTail
from wal.storage.journal.loop_path import LoopPath, WritePath, unknown_outcome
from wal.storage.journal.path_choice import PathChoice
from wal.storage.journal.thread_path import ThreadPath


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
        """With `loop_write`, frames of at most `loop_bytes_max` bytes may be written from the loop; the writer closes it at its end, but
        not if it cannot begin (RuntimeError: no thread can be started).

        `failed(error)` is called on the loop when the names of the log lead to other files and no frame was waiting.
        """
        self._loop = asyncio.get_running_loop()
        self._failed = failed
        self._attempt = 0
        self._waiting: deque[tuple[int, EncodedFrame | WALError, AppendDone]] = deque()  # waiting for the frame that is being written
        self._outcomes: deque[tuple[int, AppendDone, int, WALError | None]] = deque()
        self._choice = PathChoice() if write_path == "auto" and loop_write is not None else None
        self._counts: deque[int] = deque()  # with a choice: the events of each frame without an outcome, -1 for an error
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
        """Answers with an error, in order after all earlier appends, without writing."""
        self._take(error, done)

    def promise(self, tick: int, limit: int) -> None:
        """Stores this promised tick with the frame in flight or the next one, or as soon as the thread is idle."""
        self.tail.promise(tick, limit)
        if self._loop_path is None or self._loop_path.flight is None:
            self._thread.promise()

    def end(self) -> None:
        """Writes everything that was appended, then ends. No append may follow. On the loop, or after its end."""
        if self._loop_path is not None:
            self._loop_path.unwatch()
        while self._waiting:
            self._thread.take(*self._waiting.popleft())
        self._thread.end()

    def join(self) -> None:
        """Waits for the end. Blocks, so never call it on the loop; then `deliver` the last outcomes there."""
        self._thread.join()

    def deliver(self) -> None:
        """Begins to write the waiting frames, and calls `done` for every known outcome."""
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
                # Once for all appends that one refusal failed: the senders of later appends have seen it.
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
            # The thread refuses the appends after a refused one, so that no gap is written: the loop must not write them either.
            elif not self._is_bulk and attempt > thread.refused_attempt and path.begin(attempt, frame, done):
                if self.tail.is_check_due:
                    thread.check()
                return
        thread.take(attempt, frame, done)

    def _add(self, attempt: int, done: AppendDone, position: int, error: WALError | None) -> None:
        self._outcomes.append((attempt, done, position, error))

    def _notify(self) -> None:
        """Schedules the delivery of the outcomes on the loop. Called in the thread."""
        if not self._notified:
            self._notified = True
            try:
                self._loop.call_soon_threadsafe(self.deliver)
            except RuntimeError:
                # The loop was closed while the log was open, so no caller is left to answer.
                self._outcomes.clear()

    def _lost(self, error: WALError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed while the log was open
            self._loop.call_soon_threadsafe(self._failed, error)
