"""Fence: the lock under which the control page is stored: a thread lock around an exclusive flock.

The flock alone would not separate the threads of this process, which share one descriptor. A caller that does not wait (`try_take`)
never overtakes a thread that does.
"""

from __future__ import annotations

import threading

from wal.errors import WALError
from wal.files import FileLock

__all__ = ["Fence"]


class Fence:
    """Excludes all other threads and processes while it is taken. One thread may take it and another one release it."""

    __slots__ = ("_file", "_threads", "_waiting")

    def __init__(self, file: FileLock) -> None:
        self._file = file
        self._threads = threading.Lock()
        self._waiting: list[None] = []  # one for each waiting thread: append and pop are atomic

    def __enter__(self) -> None:
        self.take(-1)

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, timeout_s: float) -> bool:
        """Takes the fence. Returns False if another thread has it for this long (-1: waits for ever); waits for other processes.

        Raises ClosedError or StorageError as `FileLock.lock`.
        """
        self._waiting.append(None)
        try:
            if not self._threads.acquire(timeout=timeout_s):
                return False
        finally:
            self._waiting.pop()
        try:
            self._file.lock()
        except BaseException:
            self._threads.release()
            raise
        return True

    def try_take(self) -> bool:
        """Takes the fence without waiting. Returns False when anybody else has it, a thread waits for it, or it cannot be taken."""
        if self._waiting:
            return False
        taken = False
        try:
            taken = self._threads.acquire(blocking=False)
            if taken and self._file.try_lock():
                return True
        except WALError:
            pass  # whoever waits for it gets the error
        except BaseException:  # an interrupt: it may have come after the file was locked
            if taken:
                self.release()
            raise
        if taken:
            self._threads.release()
        return False

    def release(self) -> None:
        try:
            self._file.unlock()
        finally:
            self._threads.release()
