"""ArchivedJournalLog: a journal's log that archives itself, read from where the archive begins.

Retention drops segments that the archive has (`free`): the local start moves, and the log's earliest event stays. A read below the local
start is answered by the archive up to there, and by the journal from there on. Only `truncate`, for a user, moves the earliest event.
The file `archived` keeps it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from wal.errors import LogWentBackError, StorageError, TruncatedError, UnavailableError
from wal.frame import EncodedFrame, FrameView
from wal.message import FORM_JOURNAL, LogPosition, MessageID
from wal.runtime.threads import in_thread
from wal.storage.archive.archive_log import Archive, ReadOnlyArchiveLog
from wal.storage.archive.store import open_store
from wal.storage.base import FramePage, Unread, past_end, truncated
from wal.storage.journal.archived_file import ArchivedStart, load_start, save_start
from wal.storage.journal.log import JournalLog

_POLL_S: Final = 1.0


class ArchivedPast:
    """The archive of a journal for the reads below the local start. Its calls block; thread-safe."""

    def __init__(self, url: str) -> None:
        self.url: str = url
        self._archive: Archive | None = None
        self._logs: dict[str, ReadOnlyArchiveLog] = {}
        self._lock = threading.Lock()

    def page(self, pchannel: str, incarnation: int, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns a page of [start, end), which the archive has. Raises UnavailableError while the store does not answer."""
        try:
            with self._lock:
                archive = self._opened()
                copy = archive.manifest.pchannels.get(pchannel)
                if copy is None or copy.incarnation != incarnation or copy.end < end:
                    archive.look(now=True)
                    copy = archive.manifest.pchannels.get(pchannel)
                if copy is None or copy.incarnation != incarnation or copy.end <= start:
                    raise StorageError("it does not have this position yet")
                log = self._logs.get(pchannel)
                if log is None or log.incarnation != incarnation:
                    log = self._logs[pchannel] = ReadOnlyArchiveLog(archive, pchannel, _uncut)
            return log.page(start, min(end, copy.end), names, bytes_max)
        except LogWentBackError as error:
            raise self._unavailable(pchannel, start, "it has another log now") from error
        except StorageError as error:
            raise self._unavailable(pchannel, start, str(error)) from error

    def _unavailable(self, pchannel: str, start: int, what: str) -> UnavailableError:
        return UnavailableError(f"position {start} of pchannel {pchannel!r} is in the archive at {self.url}, which cannot be read: {what}")

    def _opened(self) -> Archive:
        if self._archive is None:
            archive = Archive(open_store(self.url), poll_s=_POLL_S, as_of=None)
            archive.open()
            self._archive = archive
        return self._archive


class ArchivedJournalLog(JournalLog):
    """A `JournalLog` whose past is in an archive; created by `JournalBackend.open`."""

    def __init__(self, *arguments: Any, past: ArchivedPast, start: ArchivedStart | None, **options: Any) -> None:
        self._past = past
        self._start = start
        super().__init__(*arguments, **options)

    @property
    def earliest(self) -> LogPosition:
        local, start = self.local_earliest, self._start
        if start is not None and start.url == self._past.url and start.earliest < local <= start.dropped:
            return start.earliest
        return local

    @property
    def local_earliest(self) -> LogPosition:
        return self._earliest_now()

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        if start >= self.local_earliest[0]:
            try:
                return await super().read(start, names=names, bytes_max=bytes_max, end=end)
            except TruncatedError:  # dropped meanwhile
                if start >= self.local_earliest[0]:
                    raise
        self._check_open()
        earliest, local = self.earliest, self.local_earliest[0]
        if start < earliest[0]:
            event = MessageID(self.pchannel, self.incarnation, *earliest, FORM_JOURNAL) if earliest[0] < self.durable_end else None
            raise truncated(self.pchannel, start, f"{earliest[0]}:{earliest[1]}", event=event)
        end = local if end is None else min(end, local)
        if start >= end:
            return FramePage([], start, None, 0)
        return await in_thread(self._past.page, self.pchannel, self.incarnation, start, end, names, bytes_max)

    def unread_for(self, names: frozenset[str], start: LogPosition, end: int) -> Unread:
        local = self.local_earliest
        if start >= local:
            return super().unread_for(names, start, end)
        return Unread(self.bytes_between(start[0], end))

    async def free(self, position: int) -> None:
        self._check_open()
        if position > self.durable_end:
            raise past_end(position, self.durable_end)
        await self._move((position, 0), earliest=self.earliest)

    async def truncate(self, position: int, index: int) -> None:
        self._check_open()
        if position > self.durable_end:
            raise past_end(position, self.durable_end)
        await self._move((position, index), earliest=max(self.earliest, (position, index)))

    async def _move(self, local: LogPosition, *, earliest: LogPosition) -> None:
        dropped = local if self._start is None else max(local, self._start.dropped)
        start = ArchivedStart(earliest, dropped, self._past.url)

        def note() -> None:
            save_start(self._disk, self._directory, start)
            self._start = start

        moved = await self._in_thread(lambda: self._truncation.truncate(local, note=note))
        self._earliest = max(self._earliest, moved)


def archived_logs(url: str) -> Callable[[Path], Callable[..., ArchivedJournalLog]]:
    """Returns what makes the logs of a journal with this archive, given the folder of each pchannel; it blocks."""
    past = ArchivedPast(url)
    return lambda directory: partial(ArchivedJournalLog, past=past, start=load_start(directory))


def _uncut(view: FrameView, tick: int) -> EncodedFrame:
    raise AssertionError(f"the newest state of an archive is never cut, here at tick {tick}: {view}")
