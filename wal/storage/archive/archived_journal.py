"""ArchivedJournalLog and ReadOnlyArchivedLog: a journal's log that archives itself, read from where the archive begins.

Retention drops segments that the archive has (`free`): the local start moves, and the log's earliest event stays. A read below the local
start is answered by the archive up to there, and by the journal from there on. Only `truncate`, for a user, moves the earliest event.
The file `archived` keeps it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from wal.errors import (
    ChannelFencedError,
    CorruptionError,
    FormatError,
    InvalidArgumentError,
    LogWentBackError,
    StorageError,
    TruncatedError,
    UnavailableError,
    WALError,
)
from wal.frame import EncodedFrame, FrameView
from wal.message import FORM_JOURNAL, LogPosition, MessageID
from wal.runtime.threads import in_thread
from wal.storage.archive.archive_log import Archive, EmptyArchiveError, ReadOnlyArchiveLog
from wal.storage.archive.store import open_store
from wal.storage.base import FramePage, RowsPage, RowsRequest, StoredFrame, Unread, past_end, truncated
from wal.storage.journal.archived_file import ARCHIVED_NAME, ArchivedStart, load_start, save_start
from wal.storage.journal.control import CONTROL_NAME, ControlRecord, ControlView
from wal.storage.journal.disk import Disk
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.log import JournalLog
from wal.storage.journal.read_only_journal import ReadOnlyJournalLog
from wal.storage.journal.segments import truncated_tick
from wal.storage.search import PAGE_BYTES

_POLL_S: Final = 1.0
_T = TypeVar("_T")


class ArchivedPast:
    """The archive of a journal for the reads below the local start. Its calls block; thread-safe."""

    def __init__(self, url: str) -> None:
        self.url: str = url
        self._archive: Archive | None = None
        self._logs: dict[str, ReadOnlyArchiveLog] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def log(self, pchannel: str, incarnation: int, start: int, end: int) -> Iterator[tuple[ReadOnlyArchiveLog, int]]:
        """Opens the archived log for questions about [start, end); the result has the end of what the archive has of that.

        Raises UnavailableError, also out of the block, while the store does not answer, or has another log, and FormatError if this process
        cannot read the archive.
        """
        try:
            with self._lock:
                log, stop = self._find(pchannel, incarnation, start, end)
            yield log, stop
        except LogWentBackError as error:
            raise self._unavailable(pchannel, start, "it has another log now") from error
        except (StorageError, EmptyArchiveError) as error:
            raise self._unavailable(pchannel, start, str(error)) from error
        except (InvalidArgumentError, ImportError) as error:
            raise FormatError(self._place(pchannel, start) + str(error)) from error

    def _find(self, pchannel: str, incarnation: int, start: int, end: int) -> tuple[ReadOnlyArchiveLog, int]:
        archive = self._opened()
        copy = archive.manifest.pchannels.get(pchannel)
        if copy is None or copy.incarnation != incarnation or copy.end < end:
            archive.look(now=True)
            copy = archive.manifest.pchannels.get(pchannel)
        if copy is None or copy.incarnation != incarnation:
            raise StorageError("it has another log")
        if copy.end <= start:
            raise StorageError(f"it ends at position {copy.end}")
        log = self._logs.get(pchannel)
        if log is None or log.incarnation != incarnation:
            log = self._logs[pchannel] = ReadOnlyArchiveLog(archive, pchannel, _uncut)
        return log, min(end, copy.end)

    def _unavailable(self, pchannel: str, start: int, what: str) -> UnavailableError:
        return UnavailableError(self._place(pchannel, start) + what)

    def _place(self, pchannel: str, start: int) -> str:
        return f"position {start} of pchannel {pchannel!r} is in the archive at {self.url}, which cannot be read: "

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
        if start is not None:
            self._preparer.run(self._publish)  # the control page may have been made again

    @property
    def earliest(self) -> LogPosition:
        local, start = self.local_earliest, self._start
        return start.earliest if start is not None and start.url == self._past.url and start.covers(local) else local

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

        def page() -> FramePage:
            with self._past.log(self.pchannel, self.incarnation, start, end) as (log, stop):
                return log.page(start, stop, names, bytes_max)

        return await in_thread(page)

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
            self._control.publish_archived(start.earliest, start.dropped)
            self._control.sync()

        moved = await self._in_thread(lambda: self._truncation.truncate(local, note=note))
        self._earliest = max(self._earliest, moved)

    def _publish(self) -> None:
        with contextlib.suppress(ChannelFencedError), self._control.locked():
            self._control.load_owned()
            if self._start is not None:
                self._control.publish_archived(self._start.earliest, self._start.dropped)


class ReadOnlyArchivedLog(ReadOnlyJournalLog):
    """A `ReadOnlyJournalLog` beside the writer of a log that archives itself, or once did: its past is where the file `archived` names it.

    `pasts` returns the archive at a URL.
    """

    def __init__(self, *arguments: Any, pasts: Callable[[str], ArchivedPast], **options: Any) -> None:
        self._pasts = pasts
        super().__init__(*arguments, **options)

    def _seen(self, record: ControlRecord) -> ControlRecord:
        if record.earliest == (0, 0) or (archived := self._control.archived()) is None:
            return record
        earliest, dropped = archived
        return msgspec.structs.replace(record, earliest=earliest) if earliest < record.earliest <= dropped else record

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        ask = super().page
        return self._first(start, end, lambda log, start, end: (log.page if log else ask)(start, end, names, bytes_max))

    def rows_page(self, request: RowsRequest) -> RowsPage | None:
        ask = super().rows_page

        def page(log: ReadOnlyArchiveLog | None, start: int, end: int) -> RowsPage | None:
            return (log.rows_page if log else ask)(msgspec.structs.replace(request, end=end))

        return self._first(request.start, request.end, page)

    def indices(self, start: int, end: int, *, above: int = -1) -> Iterator[tuple[SegmentIndex, int, int]]:
        ask, local = super().indices, self.local_earliest
        if (
            self.earliest[0] <= start < local[0]
            and (promised := truncated_tick(self._segments.segments, local)) is not None
            and promised <= above
        ):
            start = min(end, local[0])  # everything before is at or below the tick
        return self._joined(
            start, end, lambda log, start, end: (log.indices if log else ask)(start, end, above=above), lambda part: part[0].end
        )

    def heads(self, start: int, end: int, names: frozenset[str] | None = None, bytes_max: int = PAGE_BYTES) -> Iterator[StoredFrame]:
        ask = super().heads
        return self._joined(
            start, end, lambda log, start, end: (log.heads if log else ask)(start, end, names, bytes_max), lambda frame: frame.next_position
        )

    def unread_for(self, names: frozenset[str], start: LogPosition, end: int) -> Unread:
        return super().unread_for(names, start, end) if start >= self.local_earliest else Unread(self.bytes_between(start[0], end))

    def _first(self, start: int, end: int, ask: Callable[[ReadOnlyArchiveLog | None, int, int], _T]) -> _T:
        return next(self._joined(start, end, lambda *part: iter((ask(*part),)), lambda _: start))

    def _joined(
        self, start: int, end: int, ask: Callable[[ReadOnlyArchiveLog | None, int, int], Iterator[_T]], after: Callable[[_T], int]
    ) -> Iterator[_T]:
        """Yields the answers of the archive about the part of [start, end) below the local start, and of the journal (None) about the rest.

        `after` returns the position after an answer: what is dropped meanwhile is asked of the archive.
        """
        while True:
            local = self.local_earliest[0]
            if self.earliest[0] <= start < local:
                with self._past(start).log(self.pchannel, self.incarnation, start, min(local, end)) as (log, stop):
                    yield from ask(log, start, stop)
                if stop >= end:
                    return
                start = stop
                continue
            try:
                for answer in ask(None, start, end):
                    yield answer
                    start = after(answer)
                return
            except (TruncatedError, CorruptionError):
                if not self.earliest[0] <= start < self.local_earliest[0]:
                    raise

    def _past(self, start: int) -> ArchivedPast:
        archived = load_start(self.directory)
        if archived is None:
            path = self.directory / ARCHIVED_NAME
            raise CorruptionError(
                f"{path} is missing, which names the archive that has position {start} of pchannel {self.pchannel!r}",
                path=str(path),
                offset=0,
                expected="the file of a log that archives itself",
            )
        return self._pasts(archived.url)


def archived_logs(url: str) -> Callable[[Path], Callable[..., ArchivedJournalLog]]:
    """Returns what makes the logs of a journal with this archive, given the folder of each pchannel; it blocks."""
    past = ArchivedPast(url)
    return lambda directory: partial(ArchivedJournalLog, past=past, start=_start_in(past, directory))


def _start_in(past: ArchivedPast, directory: Path) -> ArchivedStart | None:
    """Returns the start of a log in its archive, stored with the new URL if the archive was moved. Raises InvalidArgumentError for another
    archive than the one that has what the disk does not have.
    """
    start = load_start(directory)
    if start is None or start.url == past.url:
        return start
    try:
        with closing(ControlView(directory / CONTROL_NAME)) as control:
            record = control.load()
        if not start.covers(record.earliest):  # the log begins on the disk
            return start
        with past.log(directory.name, record.incarnation, *start.earliest[:1], record.earliest[0]) as (log, stop):
            if log.earliest > start.earliest or stop < record.earliest[0]:
                raise StorageError(f"it has positions {log.earliest[0]} to {stop}")
    except (WALError, FileNotFoundError) as error:
        raise InvalidArgumentError(
            f"pchannel {directory.name!r} of the log begins at position {start.earliest[0]} of its archive at {start.url}, and "
            f"archive={past.url!r} does not have that: copy the archive there first, or name the former one: {error}"
        ) from error
    moved = msgspec.structs.replace(start, url=past.url)
    save_start(Disk(), directory, moved)
    return moved


def _uncut(view: FrameView, tick: int) -> EncodedFrame:
    raise AssertionError(f"the newest state of an archive is never cut, here at tick {tick}: {view}")
