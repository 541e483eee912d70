"""Locks: who may publish, and whether the journal can be had.

Owns the lock on the sink's folder: writers of the sink wait for each other there, so that two of them never see each other's opening of the
journal as a stranger's. A journal that somebody else has open for writing is a LockedError at once: nobody knows how long that takes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from wal.errors import FormatError, LockedError
from wal.files import FORMAT_NAME, LOCK_NAME, FileLock, LockHolder
from wal.spark.sink.folder import SINK_NAME, SinkFolder, make_directory, storing

__all__ = ["PublishingLock", "check_journal"]

_POLL_S: Final = 0.005


class PublishingLock:
    """Held inside its `with`. Entering waits up to `timeout_s` for another writer of the sink, then it is a LockedError with its pid."""

    def __init__(self, folder: SinkFolder, *, timeout_s: float) -> None:
        self._path = folder.lock_path
        self._timeout_s = timeout_s
        self._file: FileLock | None = None

    def __enter__(self) -> Self:
        with storing(self._path):
            make_directory(self._path.parent)
            self._file = file = _locked(self._path, time.monotonic() + self._timeout_s, self._timeout_s)
            LockHolder.note(file.fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def check_journal(folder: SinkFolder) -> None:
    """Returns if a journal is, or can be made, in this directory and no stranger has it open for writing.

    FormatError or LockedError. While a writer of the sink publishes nothing is said: whoever comes later waits for that one.
    """
    journal = folder.journal
    if journal.exists() and not journal.is_dir():
        raise FormatError(f"{journal} is a file: name the directory of a journal")
    if not (journal / FORMAT_NAME).exists():
        others = sorted(set(os.listdir(journal)) - {SINK_NAME, LOCK_NAME}) if journal.is_dir() else []
        if others:
            raise FormatError(
                f"{journal} is no journal: it has no {FORMAT_NAME} but holds {', '.join(others[:5])}; name a journal, or a "
                "directory that is empty or missing"
            )
        return
    with storing(folder.path):
        make_directory(folder.path)
        own = FileLock.open(folder.lock_path)
    try:
        if own.try_lock(shared=True):
            with storing(journal):
                _check_free(journal)
    finally:
        own.close()


def _check_free(journal: Path) -> None:
    try:
        file = FileLock.look(journal / LOCK_NAME)
    except FileNotFoundError:
        return  # nobody ever had it open
    try:
        if not file.try_lock(shared=True):
            holder = LockHolder.find(file.fd)
            raise LockedError(
                f"the journal {journal} is open for writing in {holder.text}, and the sink has to open it to publish: close it there "
                "first, or write to a journal of your own",
                pid=holder.pid,
            )
    finally:
        file.close()


def _locked(path: Path, until: float, timeout_s: float) -> FileLock:
    file = FileLock.open(path)
    try:
        while not file.try_lock():
            if time.monotonic() >= until:
                holder = LockHolder.find(file.fd)
                raise LockedError(
                    f"{holder.text} has been publishing to the same journal for more than {timeout_s:g} s ({path}): wait for it, or raise "
                    "the option lockTimeoutMs",
                    pid=holder.pid,
                )
            time.sleep(_POLL_S)
    except BaseException:
        file.close()
        raise
    return file
