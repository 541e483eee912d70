"""Locks: the lock of the publishing process, and the check that the log is free for it.

Owns the lock on the sink's folder. Writers of the sink wait for each other there, so that no writer mistakes another's opening of the log
for a stranger's. A log that a stranger has open for writing raises LockedError at once, because the wait could be of any length.

For a journal the answer is exact: the directory's own lock shows whether it is free. On Pulsar, opening a log for writing takes it over, so
the sink first checks with the brokers that no writer is connected. A service that opens the log in between takes it over, or loses it to
the sink until it opens it again. In both cases no row is lost or written twice. A log on the network accepts any number of writers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from wal.errors import FormatError, LockedError
from wal.runtime.system import is_foreign
from wal.spark.frame_source import opened, source_of
from wal.spark.location import SparkLocation
from wal.spark.sink.folder import SINK_NAME, SinkFolder, make_directory, storing
from wal.spark.sink.options import SinkOptions
from wal.storage.files import FORMAT_NAME, LOCK_NAME, FileLock, LockHolder

_POLL_S: Final = 0.005
_GONE_S: Final = 1.0
"""The time after which brokers have noticed that a writer was killed."""


class PublishingLock:
    """A lock, held inside `with`. Entering waits up to `timeout_s` for another sink writer, then raises LockedError with its pid."""

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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def check_free(options: SinkOptions) -> None:
    """Raises FormatError or LockedError unless the log exists or can be created here, and no stranger has it open for writing.

    While another writer of the sink publishes, it returns: the later writer waits for the earlier one.
    """
    location = options.location
    if location.directory() is not None:
        check_journal(options.folder)
    elif location.servers() is None:
        _unless_publishing(options.folder, lambda: check_topics(location))


def check_journal(folder: SinkFolder) -> None:
    """The check of `check_free` for the journal that has this folder."""
    journal = folder.directory
    if journal.exists() and not journal.is_dir():
        raise FormatError(f"{journal} is a file: name the directory of a journal")
    if (journal / FORMAT_NAME).exists():
        _unless_publishing(folder, lambda: _check_lock(journal))
        return
    others = (
        sorted(name for name in os.listdir(journal) if name not in (SINK_NAME, LOCK_NAME) and not is_foreign(name))
        if journal.is_dir()
        else []
    )
    if others:
        raise FormatError(
            f"{journal} is not a journal: it has no {FORMAT_NAME} but holds {', '.join(others[:5])}; name a journal, or a "
            "directory that is empty or missing"
        )


def check_topics(location: SparkLocation) -> None:
    """Raises LockedError when a writer of this log on Pulsar is connected. A metadata file needs no check: only one process can open it."""
    if location.is_kv_file:
        return
    try:
        logs = opened(source_of(location))
    except FormatError:
        return  # no log yet
    until = time.monotonic() + _GONE_S
    while logs.has_writer():
        if time.monotonic() < until:
            time.sleep(_POLL_S)
            continue
        raise LockedError(
            f"the log at {location.value} is open for writing: its topics have a producer, and the sink would take it over to publish; "
            "close the log there first, or write to a log of your own"
        )


def _unless_publishing(folder: SinkFolder, check: Callable[[], None]) -> None:
    """Runs a check unless a writer of the sink publishes; no writer starts to publish while the check runs."""
    with storing(folder.path):
        make_directory(folder.path)
        own = FileLock.open(folder.lock_path)
    try:
        if own.try_lock(shared=True):
            check()
    finally:
        own.close()


def _check_lock(journal: Path) -> None:
    with storing(journal):
        try:
            file = FileLock.look(journal / LOCK_NAME)
        except FileNotFoundError:
            return  # it was never open
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
                    f"{holder.text} has been publishing to the same log for more than {timeout_s:g} s ({path}): wait for it, or raise "
                    "the option lockTimeoutMs",
                    pid=holder.pid,
                )
            time.sleep(_POLL_S)
    except BaseException:
        file.close()
        raise
    return file
