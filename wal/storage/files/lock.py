"""FileLock: a flock on a file that only its owner can open, so that no other user can lock it; LockHolder: the process that has the lock.

A process that may open a file, even only to read it, may lock it. So no lock of the log is on a file that readers need: each has a separate
file with mode 0600, and it ends with its process, however that exits.

A forked child shares the locks of its parent, and would keep them when the parent is killed. So the child closes its descriptors of them at
once, which keeps the parent's locks; unlocking there would release them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from wal.errors import ClosedError, StorageError
from wal.runtime.descriptors import open_file
from wal.runtime.system import is_running
from wal.storage.files.access import PRIVATE, FileAccess

LOCK_NAME: Final = "LOCK"
"""The lock file of the process that has the journal open for writing."""
CURSORS_LOCK_NAME: Final = "cursors.lock"
"""A lock file of earlier versions, whose processes took turns in saving cursors and truncating."""


class FileLock:
    """An open lock file, created by `open`, locked or not, until `close`. Locks of one process on the same file also exclude each other."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path: Path = path
        self.fd: int = fd

    @classmethod
    def open(cls, path: Path, access: FileAccess = PRIVATE, *, dir_fd: int | None = None) -> FileLock:
        """Opens the file, creating it if it is missing. `dir_fd`: the open directory that contains it, wherever its path leads now.

        Raises PermissionError when the user may not write there, and any other OSError unchanged.
        """
        with _forking:
            lock = cls(path, access.private.create(path if dir_fd is None else path.name, os.O_RDWR, dir_fd=dir_fd))
            _open.add(lock)
        return lock

    @classmethod
    def look(cls, path: Path) -> FileLock:
        """Opens an existing lock file without writing to it. Raises FileNotFoundError or PermissionError as `open` does."""
        with _forking:
            lock = cls(path, open_file(path, os.O_RDONLY))
            _open.add(lock)
        return lock

    def try_lock(self, *, shared: bool = False) -> bool:
        """Takes the lock; returns False when another holder has it. Raises StorageError when the file system refuses to lock."""
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except (OSError, ValueError) as error:
            raise self._refused(error) from error
        return True

    def lock(self) -> None:
        """Takes the lock, waiting while another holder has it; otherwise like `try_lock`."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def unlock(self) -> None:
        """Releases the lock. Does nothing in a child that was forked while its parent had it."""
        try:
            if self.fd >= 0:
                fcntl.flock(self.fd, fcntl.LOCK_UN)
        except OSError as error:
            raise self._refused(error) from error

    def close(self) -> None:
        """Releases the lock and closes the file. Idempotent."""
        with _forking:
            if self.fd < 0:
                return
            fd, self.fd = self.fd, -1
            _open.discard(self)
            try:
                # Closing alone would leave the lock with a child that a library forked without running Python's fork hooks.
                fcntl.flock(fd, fcntl.LOCK_UN)
            except OSError:
                pass  # closing releases it as well
            finally:
                os.close(fd)

    def _refused(self, error: OSError | ValueError) -> StorageError | ClosedError:
        if isinstance(error, ValueError):  # the descriptor is -1
            return ClosedError(f"the lock {self.path} is closed, or belongs to the process that this one was forked from")
        return StorageError(
            f"{self.path} cannot be locked: {error.strerror or error}; a log needs a file system with flock, on a disk of this host"
        )


def _let_go() -> None:
    """Closes all locks in a forked child, before anything else runs there."""
    for lock in list(_open):
        os.close(lock.fd)
        lock.fd = -1
    _open.clear()
    _forking.release()


_open: Final[weakref.WeakSet[FileLock]] = weakref.WeakSet()
_forking: Final = threading.RLock()
"""Locked while a lock is opened or closed, and while the process forks: no child inherits a descriptor that is not in `_open`."""
os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_let_go)


_PID_BYTES: Final = 32


class LockHolder(msgspec.Struct, frozen=True):
    """The process that has a lock file locked, for the text of an error.

    The file has the pid of the process that locked it last. That process may have been killed since, while a child that it or a library in
    it forked still has the lock; and its pid may now belong to another process. So the holder is looked up in `/proc`. The answer appears
    in errors only; no decision depends on it.

    `pid` is None when the process is not visible from here; `text` names it in a sentence. `inherited`: the process that took the lock has
    ended, or is not visible, and another process has it.
    """

    pid: int | None
    text: str
    inherited: bool = False

    @staticmethod
    def note(fd: int) -> None:
        """Writes the pid of this process into the lock file that it has locked."""
        # In this order a full disk does not matter: the file keeps its block.
        os.ftruncate(fd, os.pwrite(fd, b"%d\n" % os.getpid(), 0))

    @classmethod
    def find(cls, fd: int) -> LockHolder:
        """Returns the process that has a flock on this open file."""
        text = os.pread(fd, _PID_BYTES, 0).strip()
        noted = int(text) if text.isdigit() else None
        status = os.fstat(fd)
        identity = status.st_dev, status.st_ino
        if not os.path.isdir("/proc/self"):  # not Linux: no system call returns the process that has the lock
            if noted is None or not is_running(noted):
                return cls(None, "another process")
            return cls(noted, f"process {noted}")
        # A process that hides its open files (of root, say) counts as the holder if it runs.
        if noted is not None and _holds(noted, identity) is not False:
            return cls(noted, f"process {noted}")
        holder = next((pid for pid in _pids() if _holds(pid, identity)), None)
        if holder is None:
            if noted is None:
                return cls(None, "another process")
            return cls(
                None,
                f"a process that cannot be seen from here (process {noted}, which opened it, has ended or runs in another container)",
                inherited=True,
            )
        if noted is None:
            return cls(holder, f"process {holder}")
        return cls(holder, f"process {holder} (process {noted}, which opened it, has ended, and left the lock to it)", inherited=True)


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _holds(pid: int, identity: tuple[int, int]) -> bool | None:
    """Returns whether this process has a flock on the file; None when it runs and hides its open files."""
    process = Path("/proc") / str(pid)
    try:
        fds = os.listdir(process / "fd")
    except PermissionError:
        return None
    except OSError:
        return False
    return any(_locks(process, fd, identity) for fd in fds)


def _locks(process: Path, fd: str, identity: tuple[int, int]) -> bool:
    try:
        status = os.stat(process / "fd" / fd)
        return (status.st_dev, status.st_ino) == identity and " FLOCK " in (process / "fdinfo" / fd).read_text()
    except OSError:
        return False  # it was closed meanwhile
