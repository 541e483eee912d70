"""The choice of the source that reads a log that another process writes, and the pauses while its first writer is waited for.

Pulsar and the archive are imported when their source is chosen; checking whether a location can be read at all does not need the import.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wal.channels.vchannel_map import MapPlace, VChannelMaps, VChannelView
from wal.errors import ClosedError, FormatError, InvalidArgumentError, StorageError
from wal.location import Location
from wal.read.cursors.pinned import PinnedCursors
from wal.read.cursors.pins import PinFiles
from wal.read.read_only_core import ReadOnlySource
from wal.runtime.backoff import Backoff
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.directory import is_being_written
from wal.storage.journal.read_only_journal import ReadOnlyJournal, ReadOnlyJournalLog, absence

if TYPE_CHECKING:
    from wal.read.archive_source import ReadOnlyArchiveSource
    from wal.read.pulsar_source import ReadOnlyPulsarSource
    from wal.settings import Settings
    from wal.storage.archive.archived_journal import ArchivedPast

PAUSE_MIN_S: Final = 0.005
PAUSE_MAX_S: Final = 0.1


def check_source(location: Location) -> None:
    """Raises InvalidArgumentError unless a process other than the writer can read the log at this location."""
    if location.path is None and location.pulsar is None and location.archive is None:
        raise InvalidArgumentError(
            f"the log at {location} lies in the memory of the process that opened it, and no other opening can read it: read it "
            "there, with log.read() or blocking(), or name a journal's directory or a log on Pulsar"
        )


def source_of(location: Location, settings: Settings) -> ReadOnlyJournalSource | ReadOnlyPulsarSource | ReadOnlyArchiveSource:
    """Returns the source that reads the log at this location; raises as `check_source` does. Imports its backend."""
    check_source(location)
    if location.pulsar is not None:
        from wal.read.pulsar_source import ReadOnlyPulsarSource

        return ReadOnlyPulsarSource(location.pulsar, settings)
    if location.archive is not None:
        from wal.read.archive_source import ReadOnlyArchiveSource

        return ReadOnlyArchiveSource(location.archive, settings)
    assert location.path is not None
    return ReadOnlyJournalSource(location.path, archive=settings.archive)


def pauses(wait_s: float, now: Callable[[], float]) -> Iterator[float]:
    """Yields the pauses between looks for the log, until `wait_s` seconds have passed. `now` is a clock in seconds."""
    deadline, backoff = now() + wait_s, Backoff(PAUSE_MIN_S, PAUSE_MAX_S)
    while (left_s := deadline - now()) > 0:
        yield min(backoff.next(), left_s)


_REMEDY: Final = "a journal is created by opening it for writing"


class ReadOnlyJournalSource(ReadOnlySource):
    """A journal on this host as a log that is read and not written, from its files alone.

    It takes no lock that could keep a writer out, and never opens the metadata: vchannels come from the maps that the writer keeps next to
    each pchannel's log for other processes.

    The journal in `directory`. See `ReadOnlySource`; `logs` are the open ones. `archive` is where its archive is now, None: where
    the writer has put it.
    """

    name: str = JournalBackend.name
    form: int = JournalBackend.form

    def __init__(self, directory: Path, *, archive: str | None = None) -> None:
        self.location: str = f"journal:{directory}"
        self._pins = PinFiles(directory)
        self.cursors: PinnedCursors = PinnedCursors(self._pins, lambda: dict(self.logs))
        self.logs: dict[str, ReadOnlyJournalLog] = {}
        self._directory = directory
        self._journal: ReadOnlyJournal | None = None
        self._places: dict[str, MapPlace] = {}
        self._maps = VChannelMaps()
        self._archive = archive
        self._pasts: dict[str, ArchivedPast] = {}

    def absence(self, waited_s: float) -> FormatError | None:
        return absence(self._directory, remedy=_REMEDY, waited_s=waited_s)

    def open(self) -> None:
        self._journal = ReadOnlyJournal(self._directory)
        self._pins.held = self._journal.held

    def pchannels(self) -> list[str]:
        for log in self.logs.values():
            with contextlib.suppress(ClosedError, StorageError):  # the readers of that log get the error there
                log.check()
        journal = self._opened()
        journal.held.check()
        return journal.pchannels()

    def open_log(self, pchannel: str) -> ReadOnlyJournalLog:
        from wal.storage.archive.archived_journal import ReadOnlyArchivedLog

        log = self.logs[pchannel] = self._opened().open_as(partial(ReadOnlyArchivedLog, pasts=self._past), pchannel)
        self._places[pchannel] = MapPlace(log.directory, log.incarnation, frozenset(restore.parent for restore in log.lineage.restores))
        return log

    def vchannels(self, *, newest: bool = False) -> VChannelView:
        view = self._maps.look(self._places)
        for pchannel in self._maps.missing | self._maps.foreign:
            with contextlib.suppress(ClosedError, StorageError):  # the readers of that log get the error there
                self.logs[pchannel].check_map(missing=pchannel in self._maps.missing)
        return view

    def has_writer(self) -> bool | None:
        if all(log.refresh().closed for log in self.logs.values()):
            return False
        return is_being_written(self._directory)

    def is_current(self) -> bool:
        return all(log.is_current() for log in self.logs.values())

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _past(self, url: str) -> ArchivedPast:
        from wal.storage.archive.archived_journal import ArchivedPast

        url = self._archive or url
        return self._pasts.setdefault(url, ArchivedPast(url))

    def _opened(self) -> ReadOnlyJournal:
        assert self._journal is not None, "the source is used before open()"
        return self._journal
