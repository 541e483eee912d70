"""DirectoryLock: one process at a time writes a journal; FORMAT: what kind of directory this is.

Owns the files `FORMAT` and `LOCK`. The lock is a flock, so it goes with its process however that ends; the pid in the file is only
for the text of the error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Final

from wal.backends.journal.disk import Disk
from wal.errors import FormatError, LockedError

__all__ = ["FORMAT_NAME", "LOCK_NAME", "DirectoryLock", "check_format", "claim_format", "is_being_written"]

FORMAT_NAME: Final = "FORMAT"
LOCK_NAME: Final = "LOCK"
_KIND: Final = "wal-journal"
_VERSION: Final = 1
_FORMAT_TEMPORARY: Final = "FORMAT.tmp"
_TRIES: Final = 1000
_PAUSE_S: Final = 0.001


class DirectoryLock:
    """Held from `acquire` to `release`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, directory: Path) -> DirectoryLock:
        """The lock, or a LockedError with the pid of who has it (this process's own if it opened the journal twice)."""
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(fd)
            # In this order a full disk does not matter: the file keeps the block that it has.
            os.ftruncate(fd, os.pwrite(fd, b"%d\n" % os.getpid(), 0))
        except BlockingIOError as error:
            text = os.pread(fd, 32, 0).strip()
            os.close(fd)
            pid = int(text) if text.isdigit() else None
            raise LockedError(
                f"the journal {directory} is open for writing in process {pid}: close it there first, or read beside it with "
                "open_wal(…, read_only=True)",
                pid=pid,
            ) from error
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def release(self) -> None:
        if self._fd >= 0:
            fcntl.flock(
                self._fd, fcntl.LOCK_UN
            )  # closing alone would leave it with a forked child that still has the file
            os.close(self._fd)
            self._fd = -1


def _lock(fd: int) -> None:
    """Takes the lock; BlockingIOError when a writer has it. Who only asks whether the journal is free shares it for an instant, which
    is waited for."""
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # not with a writer
        fcntl.flock(fd, fcntl.LOCK_UN)
        time.sleep(_PAUSE_S)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_being_written(directory: Path) -> bool | None:
    """Whether somebody has the journal open for writing; None when it is not known. Shares the lock for an instant, see `_lock`."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without such locks
        return None
    finally:
        os.close(fd)


def claim_format(disk: Disk, directory: Path) -> None:
    """Makes an empty or missing directory a journal; anything but a journal of a known version is a FormatError."""
    if directory.exists() and not directory.is_dir():
        raise FormatError(f"{directory} is a file: name a directory for the journal")
    if (path := directory / FORMAT_NAME).exists():
        check_format(directory)
        return
    disk.make_directory(directory)
    others = sorted(entry.name for entry in directory.iterdir() if entry.name not in _OURS)
    if others:
        raise FormatError(
            f"{directory} is no journal: it has no {FORMAT_NAME} but holds {', '.join(others[:5])}; "
            "name an empty directory, or restore the file"
        )
    disk.replace(path, f"{_KIND} {_VERSION}\n".encode(), temporary=directory / _FORMAT_TEMPORARY)


def check_format(directory: Path) -> None:
    """Returns if the directory is a journal of a known version; anything else is a FormatError."""
    path = directory / FORMAT_NAME
    try:
        text = path.read_text("ascii", "replace")
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{directory} holds no journal: there is no {FORMAT_NAME} in it; a journal is made by opening it for writing"
        ) from None
    kind, _, version = text.strip().partition(" ")
    if kind != _KIND or not (version.isascii() and version.isdigit()):
        raise FormatError(f"{path} says {text[:40]!r}, not {_KIND!r} and a version: this is no journal")
    if int(version) != _VERSION:
        raise FormatError(
            f"{path} says version {version}; this version of the package knows {_VERSION}: upgrade to open it"
        )


_SINK_NAME: Final = "spark"
"""What the tasks of Spark's sink staged may be there before the journal is, see docs/reference/files.md."""
_OURS: Final = frozenset((FORMAT_NAME, LOCK_NAME, _FORMAT_TEMPORARY, _SINK_NAME))
