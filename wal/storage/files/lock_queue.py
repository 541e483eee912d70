"""LockQueue: the place of a process among the processes that wait for a lock file, first come, first served.

A place is a byte of the lock file, locked by its owner; the lock of the file itself (`FileLock`, a flock) is independent of it. A new place
is after all locked bytes, and the first in the queue is the owner of the lowest. Such a lock (of an open file description) ends with its
process, so a waiter that is killed holds up none of the others. A system without these locks has no order among waiters.
"""

from __future__ import annotations

import errno
import fcntl
import struct
from pathlib import Path
from typing import Final

from wal.storage.files.lock import FileLock

_FLOCK: Final = struct.Struct("@hhqqi4x")
"""struct flock of Linux: type, whence, start, length (0: to the end), and a pid of 0."""
_ORDERED: Final = hasattr(fcntl, "F_OFD_SETLK")


class LockQueue:
    """A place in the queue, until `leave`."""

    def __init__(self, file: FileLock, place: int) -> None:
        self._file = file
        self._place = place

    @classmethod
    def join(cls, path: Path) -> LockQueue:
        """Takes the place after all others. Raises OSError if the lock file cannot be opened for writing."""
        file = FileLock.open(path)
        try:
            place = 1
            while _ORDERED:
                while (locked := _locked(file.fd, place, 0)) is not None:
                    place = locked + 1
                try:
                    fcntl.fcntl(file.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, place, 1, 0))
                    break
                except OSError as error:  # another process has taken the place
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
        except BaseException:
            file.close()
            raise
        return cls(file, place)

    @property
    def is_first(self) -> bool:
        """Whether no other process has an earlier place."""
        return not _ORDERED or self._place == 1 or _locked(self._file.fd, 1, self._place - 1) is None

    def leave(self) -> None:
        """Gives the place up. Idempotent."""
        self._file.close()


def _locked(fd: int, start: int, length: int) -> int | None:
    """Returns a byte of this range that another open file has locked, None if all are free."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, start, length, 0))
    kind, _, first, _, _ = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(first)
