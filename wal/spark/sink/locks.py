"""Locks: who may publish, and whether the journal can be had.

Owns the lock on the sink's folder: writers of the sink wait for each other there, so that two of them never see each other's opening of the
journal as a stranger's. A journal that somebody else has open for writing is a LockedError at once: nobody knows how long that takes.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from wal.errors import FormatError, LockedError
from wal.spark.sink.durable import make_directory, storing
from wal.spark.sink.folder import SINK_NAME, SinkFolder

__all__ = ["PublishingLock", "check_journal"]

_POLL_S: Final = 0.005
_JOURNAL_LOCK: Final = "LOCK"
"""The file of the journal whose flock its writer holds, see docs/reference/files.md."""
_JOURNAL_FORMAT: Final = "FORMAT"


class PublishingLock:
    """Held inside its `with`. Entering waits up to `timeout_s` for another writer of the sink, then it is a LockedError with its pid."""

    def __init__(self, folder: SinkFolder, *, timeout_s: float) -> None:
        self._path = folder.lock_path
        self._timeout_s = timeout_s
        self._fd = -1

    def __enter__(self) -> Self:
        with storing(self._path):
            make_directory(self._path.parent)
            self._fd = _locked(self._path, time.monotonic() + self._timeout_s, self._timeout_s)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fd, self._fd = self._fd, -1
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would leave it with a forked child
        os.close(fd)


def check_journal(folder: SinkFolder) -> None:
    """Returns if a journal is, or can be made, in this directory and no stranger has it open for writing.

    FormatError or LockedError. While a writer of the sink publishes nothing is said: whoever comes later waits for that one.
    """
    journal = folder.journal
    if journal.exists() and not journal.is_dir():
        raise FormatError(f"{journal} is a file: name the directory of a journal")
    if not (journal / _JOURNAL_FORMAT).exists():
        others = sorted(set(os.listdir(journal)) - {SINK_NAME, _JOURNAL_LOCK}) if journal.is_dir() else []
        if others:
            raise FormatError(
                f"{journal} is no journal: it has no {_JOURNAL_FORMAT} but holds {', '.join(others[:5])}; name a journal, or a "
                "directory that is empty or missing"
            )
        return
    with storing(folder.path):
        make_directory(folder.path)
        own = os.open(folder.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if _try_lock(own, fcntl.LOCK_SH):
            _check_free(journal)
    finally:
        os.close(own)


def _check_free(journal: Path) -> None:
    try:
        fd = os.open(journal / _JOURNAL_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # nobody ever had it open
    try:
        if not _try_lock(fd, fcntl.LOCK_SH):
            pid = _pid(fd)
            raise LockedError(
                f"the journal {journal} is open for writing in process {pid}, and the sink has to open it to publish: close it there "
                "first, or write to a journal of your own",
                pid=pid,
            )
    finally:
        os.close(fd)


def _locked(path: Path, until: float, timeout_s: float) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try_lock(fd, fcntl.LOCK_EX):
            if time.monotonic() >= until:
                pid = _pid(fd)
                raise LockedError(
                    f"process {pid} has been publishing to the same journal for more than {timeout_s:g} s ({path}): wait for it, or raise "
                    "the option lockTimeoutMs",
                    pid=pid,
                )
            time.sleep(_POLL_S)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None
