"""ReadOnlyJournal and ReadOnlyJournalLog: a journal that this process only reads, beside its writer or without one.

Owns: the read-only mapping of each pchannel's control page, and what is known of its segments. It promises the right bytes of frames
that are durable, or TruncatedError for what is gone; anything else that does not hold is a CorruptionError. It never writes, never
makes a file, takes no lock but the shared flock on a segment while it reads there, and needs no event loop: it blocks, and can be used
from any thread. Without a writer, also after one was killed, it ends at the durable position of the control page, and goes on from
there when another has opened the log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from wal.backends.base import FramePage, ReadOnlyState, StoredFrame
from wal.backends.journal.control import CONTROL_NAME, REPLACED_TERM, ControlRecord, ControlView
from wal.backends.journal.disk import Disk
from wal.backends.journal.index import SegmentIndex
from wal.backends.journal.lock import check_format
from wal.backends.journal.read_only_segments import ReadOnlySegments
from wal.backends.journal.reader import LogReader
from wal.backends.journal.segment import damaged
from wal.backends.journal.segments import last_truncated
from wal.errors import ClosedError, CorruptionError, FormatError, StorageError
from wal.files import HeldDirectory, HeldNames

__all__ = ["ReadOnlyJournal", "ReadOnlyJournalLog", "ReadOnlyState"]

_T = TypeVar("_T")
_PCHANNELS: Final = "pchannels"


class ReadOnlyJournal:
    """The journal in `directory`. FormatError when there is none, or one of a newer version."""

    def __init__(self, directory: Path, *, disk: Disk | None = None) -> None:
        self._directory = Path(directory)
        self._disk = Disk() if disk is None else disk
        _storage_errors(self._directory, lambda: check_format(self._directory))
        self.held: Final = _storage_errors(self._directory, lambda: HeldDirectory(self._directory))
        """The directory, held until `close`; its check fails once the directory was removed or replaced."""

    def pchannels(self) -> list[str]:
        """The names of the pchannels that have a log, in the order of their numbers. There may be more of them later."""
        found = _storage_errors(
            self._directory,
            lambda: [path.parent.name for path in self._directory.glob(f"{_PCHANNELS}/*/{CONTROL_NAME}")],
        )
        return sorted(found, key=lambda name: (len(name), name))

    def folder(self, pchannel: str) -> Path:
        """Where the files of this pchannel lie."""
        return self._directory / _PCHANNELS / pchannel

    def open(self, pchannel: str) -> ReadOnlyJournalLog:
        """The log of this pchannel; FormatError when it has none, CorruptionError when its control page is damaged."""
        return ReadOnlyJournalLog(self._disk, self.folder(pchannel), pchannel, within=self.held)

    def close(self) -> None:
        """Lets go of the directory, after the logs. Idempotent."""
        self.held.close()


class ReadOnlyJournalLog:
    """One pchannel's log. Made by `ReadOnlyJournal.open`; `incarnation` is the life of the log that it reads."""

    def __init__(self, disk: Disk, directory: Path, pchannel: str, *, within: HeldNames | None = None) -> None:
        self.pchannel = pchannel
        self.directory = directory
        try:
            self._control = _storage_errors(directory, lambda: ControlView(directory / CONTROL_NAME))
        except FileNotFoundError as error:
            raise FormatError(
                f"{directory} holds no log of pchannel {pchannel!r}: it is made when the journal is opened for writing"
            ) from error
        try:
            record = self._control.load()
        except BaseException:
            self._control.close()
            raise
        # A writer that creates the log again says so in the old page first.
        self._held = HeldNames(within=within, released=self._load)
        self._held.watch(directory / CONTROL_NAME, self._control.status)
        self._lost: StorageError | None = None
        self.incarnation: int = record.incarnation
        self._segments = ReadOnlySegments(disk, directory, incarnation=record.incarnation)
        self._reader = LogReader(
            disk, self._segments, pchannel=pchannel, incarnation=record.incarnation, earliest=lambda: self.earliest
        )
        self._newest: tuple[int, int] | None = None
        self._closed = False

    @property
    def earliest(self) -> tuple[int, int]:
        """(position, index) of the first event that is not truncated, as it is now. Waits for nothing."""
        return self._load().earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        """See `ReadableLog.last_truncated`. Waits for nothing; known from `reach` on."""
        return last_truncated(self._segments.segments, self.earliest)

    def refresh(self) -> ReadOnlyState:
        """What the control page says now. Takes some microseconds, touches no file and waits for nothing."""
        newest = self._newest  # before the record: it must not lie above its durable end
        return _state(self._load(), newest)

    def reach(self) -> ReadOnlyState:
        """What the control page says now, with the newest event for certain. Reads the heads of the frames it has not seen."""
        with self._damage_or_loss():
            return _state(*self._reach())

    def check(self) -> None:
        """Returns if the control page that is mapped is the one that lies there; blocks for as long as a few `stat` calls take.

        StorageError, then and at every later call on the log, when the directory was removed or replaced. ClosedError when it was the
        writer that created the log again.
        """
        self._load()
        try:
            self._held.check()
        except StorageError as error:
            self._lost = error
            raise

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """The frames in [start, end) that readers of these names want, as `ReadableLog.read` describes; `end` is durable.

        TruncatedError when `start` lies below the earliest event, also when that happens meanwhile.
        """
        with self._damage_or_loss():
            self._reader.check(start, end)
            self._reach()
            return self._reader.page(start, end, names, bytes_max)

    def indices(self, start: int, end: int, *, above: int = -1) -> Iterator[tuple[SegmentIndex, int, int]]:
        """What is known of the frames in [start, end) without reading them: the index of each segment, and their ordinals in it.

        `end` is durable. Segments without ticks above this one may be left out. TruncatedError when `start` lies below the earliest
        event, also when that happens meanwhile.
        """
        with self._damage_or_loss():
            self._reader.check(start, end)
            self._reach()
            for _, index in self._reader.indices(start, end, above=above):
                yield index, index.ordinal(start), index.ordinal(end)

    def heads(self, start: int, end: int, names: frozenset[str]) -> Iterator[StoredFrame]:
        """The frames in [start, end) that hold a run of one of these names, without their bodies. Otherwise as `indices`."""
        with self._damage_or_loss():
            self._reader.check(start, end)
            self._reach()
            yield from self._reader.heads(start, end, names)

    def close(self) -> None:
        """Lets go of the control page; every later call is a ClosedError. Idempotent. Nothing may be under way."""
        self._closed = True
        self._control.close()

    def _load(self) -> ControlRecord:
        if self._closed:
            raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to go on")
        if self._lost is not None:
            raise self._lost
        record = self._control.load()
        if record.term == REPLACED_TERM or record.incarnation != self.incarnation:
            raise ClosedError(
                f"the log of pchannel {self.pchannel!r}, which was empty, was made anew by another process: open it again to go on"
            )
        return record

    @contextlib.contextmanager
    def _damage_or_loss(self) -> Iterator[None]:
        """What is missing or damaged in a directory that was removed or replaced is no damage of this log."""
        try:
            yield
        except (CorruptionError, StorageError):
            self.check()
            raise

    def _reach(self) -> tuple[ControlRecord, tuple[int, int] | None]:
        """Takes in all that is durable now; the newest event below. What is missing or damaged may have been truncated meanwhile."""
        record = self._load()
        while True:
            try:
                newest = self._segments.reach(record.durable, record.earliest[0])
            except (CorruptionError, OSError) as error:
                before, record = record, self._load()
                if record.earliest != before.earliest:
                    continue
                if isinstance(error, CorruptionError):
                    raise
                if not isinstance(error, FileNotFoundError):
                    raise StorageError(
                        f"reading {error.filename or self.directory} failed: {error.strerror}"
                    ) from error
                missing = CorruptionError("the file is gone", expected="a segment of this log")
                raise damaged(missing, Path(error.filename or self.directory), 0) from error
            self._newest = newest
            return record, newest


def _state(record: ControlRecord, newest: tuple[int, int] | None) -> ReadOnlyState:
    return ReadOnlyState(record.term, record.durable, record.earliest, record.promised_tick, record.closed, newest)


def _storage_errors(path: Path, call: Callable[[], _T]) -> _T:
    """The call; what the operating system refuses is a StorageError, but that there is no such file."""
    try:
        return call()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise StorageError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
