"""The calls that differ between operating systems: a log is made for Linux, and on macOS the same files work for development.

Owns: the substitutes for calls that the system lacks. Each function keeps the promise of its docstring on both systems. `weaknesses` lists
where the substitute is weaker or slower than on Linux, and a journal warns of it once a process, when it is first opened for writing. Each
function looks for the call itself, and never assumes it from the name of the system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from wal.runtime.descriptors import above_streams, open_file

_ZEROS: Final = bytes(1 << 20)


def sync_data(fd: int) -> None:
    """Returns when the bytes of this file, and its length, are on the disk: by fdatasync, or on macOS by F_FULLFSYNC.

    On macOS `fsync` leaves the bytes in the disk's own cache, which a power cut empties (fcntl(2) of macOS).
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync_file(fd)


def sync_file(fd: int) -> None:
    """Returns when an open file or directory, with all its names, is on the disk: by fsync, or on macOS by F_FULLFSYNC."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(fd)
        return
    try:
        fcntl.fcntl(fd, full)
    except OSError as error:
        if error.errno not in _NO_FULL_SYNC:
            raise
        os.fsync(fd)  # a file system, such as that of a network share, without a stronger call


def sync_path(path: Path) -> None:
    """Returns when this file, or this directory with the names in it, is on the disk."""
    fd = open_file(path, os.O_RDONLY)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def allocate(fd: int, start: int, size: int) -> None:
    """Reserves room on the disk for `size` bytes from `start` on, and makes the file at least that long.

    Without posix_fallocate the bytes after the file's end are written as zeros, which takes as long as writing them.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, start, size)
        return
    at = max(start, os.fstat(fd).st_size)
    while at < start + size:
        at += os.pwrite(fd, memoryview(_ZEROS)[: start + size - at], at)


def direct_flag() -> int:
    """Returns the flag of an open file whose writes bypass the page cache; raises an OSError on a system without such a flag."""
    flag: int | None = getattr(os, "O_DIRECT", None)
    if flag is None:
        raise OSError(errno.ENOTSUP, "this system has no O_DIRECT")
    return flag


@contextlib.contextmanager
def file_of(data: bytes) -> Iterator[str]:
    """Yields the path of a file with these bytes that only this process's user can read: in memory, or a temporary file on the disk."""
    if hasattr(os, "memfd_create"):
        with open(above_streams(os.memfd_create("wal")), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    with tempfile.NamedTemporaryFile(prefix="wal-") as temporary:  # mode 0600
        temporary.write(data)
        temporary.flush()
        yield temporary.name


def is_foreign(name: str) -> bool:
    """Returns whether a directory's entry of this name belongs to a file system or a tool, not to a log: `lost+found`, and every name that
    begins with a dot.
    """
    return name == "lost+found" or name.startswith(".")


def open_descriptors() -> int:
    """Returns the number of descriptors that this process has open."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return len(os.listdir("/dev/fd"))


def is_running(pid: int) -> bool:
    """Returns whether a process of this number runs here, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def weaknesses() -> list[str]:
    """Returns the properties that are weaker or slower here than on Linux, one text each; empty on Linux."""
    texts = []
    if not hasattr(os, "fdatasync"):
        texts.append("every sync is F_FULLFSYNC, which takes several times as long as fdatasync on Linux")
    if not hasattr(os, "O_DIRECT"):
        texts.append("writes go through the page cache and wait in a thread")
    if not hasattr(os, "posix_fallocate"):
        texts.append("the reserve for a full disk and new segments are written as zeros instead of being allocated")
    if not os.path.isdir("/proc/self"):
        texts.append("the process that holds a lock is known by its pid alone, and a process that inherited the lock is not named")
        texts.append("after a restart of the machine each opening checks the end of the log as if there had been a power cut")
    return texts


@functools.cache
def warn_of_weaknesses() -> None:
    """Warns, once a process, of the properties that are weaker or slower here than on Linux."""
    if texts := weaknesses():
        _log.warning("this system (%s) is for development, since a log is made for Linux: %s", sys.platform, "; ".join(texts))


_log: Final = logging.getLogger("wal")
_NO_FULL_SYNC: Final = frozenset((errno.ENOTSUP, errno.EINVAL, errno.ENOTTY))
