"""FileLock: a flock on a file that nobody but its owner can open, so that nobody else can hold it.

Anybody who may open a file, also to read it, may lock it. So no lock of the log is taken on a file that readers need: each lies on a file
of its own with mode 0600, and it goes with its process, however that ends.

A child that was forked shares the locks of its parent, and would keep them when the parent is killed. So it closes its descriptors of
them at once, which leaves the parent's locks alone; unlocking there would release them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from pathlib import Path
from typing import Final

from wal.errors import ClosedError, StorageError
from wal.files.access import PRIVATE, FileAccess

__all__ = ["FileLock"]


class FileLock:
    """An open lock file; made by `open`, locked or not, until `close`. Locks of one process on one file exclude each other as well."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path: Path = path
        self.fd: int = fd

    @classmethod
    def open(cls, path: Path, access: FileAccess = PRIVATE, *, dir_fd: int | None = None) -> FileLock:
        """Opens the file, which is created if it is missing. `dir_fd`: the open directory that holds it, whatever its path is by now.

        PermissionError when the user may not write there, any other OSError as it is.
        """
        with _forking:
            lock = cls(path, access.private.create(path if dir_fd is None else path.name, os.O_RDWR, dir_fd=dir_fd))
            _open.add(lock)
        return lock

    @classmethod
    def look(cls, path: Path, *, dir_fd: int | None = None) -> FileLock:
        """Opens an existing lock file without writing to it. FileNotFoundError or PermissionError as for `open`."""
        with _forking:
            name = path if dir_fd is None else path.name
            lock = cls(path, os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd))
            _open.add(lock)
        return lock

    def try_lock(self, *, shared: bool = False) -> bool:
        """Takes the lock; False when another one has it. StorageError when the file system refuses to lock."""
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:
            raise self._refused(error) from error
        return True

    def lock(self) -> None:
        """Takes the lock, waiting for it as long as another one has it; otherwise as `try_lock`."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def unlock(self) -> None:
        """Lets go of the lock. In a child that was forked while its parent held it there is nothing to let go of."""
        try:
            if self.fd >= 0:
                fcntl.flock(self.fd, fcntl.LOCK_UN)
        except OSError as error:
            raise self._refused(error) from error

    def close(self) -> None:
        """Lets go of the lock and the file. Idempotent."""
        with _forking:
            if self.fd < 0:
                return
            fd, self.fd = self.fd, -1
            _open.discard(self)
            try:
                # Closing alone would leave the lock with a child that was forked by a library, without telling Python.
                fcntl.flock(fd, fcntl.LOCK_UN)
            except OSError:
                pass  # closing lets go of it just as well
            finally:
                os.close(fd)

    def _refused(self, error: OSError | ValueError) -> StorageError | ClosedError:
        if isinstance(error, ValueError):  # a descriptor of -1
            return ClosedError(
                f"the lock {self.path} is closed, or belongs to the process that this one was forked from"
            )
        return StorageError(
            f"{self.path} cannot be locked: {error.strerror or error}; a log needs a file system with flock, on a disk of this host"
        )


def _let_go() -> None:
    """In a forked child, before anything else runs there."""
    for lock in list(_open):
        os.close(lock.fd)
        lock.fd = -1
    _open.clear()
    _forking.release()


_open: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()
_forking: Final = threading.RLock()
"""Held while a lock is opened or closed, and while the process forks: no child is made with a descriptor that is not in `_open`."""
os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_let_go)
