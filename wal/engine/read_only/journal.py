"""ReadOnlyJournalSource: a journal on this host as a log that is read and not written, from its files alone.

It takes no lock that could keep a writer out, and never opens the metadata: vchannels come from the maps that the writer keeps next to each
pchannel's log for other processes.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

from wal.backends.journal import JournalBackend, ReadOnlyJournal, ReadOnlyJournalLog, absence
from wal.channels import MapPlace, VChannelMaps, VChannelView
from wal.cursors import CursorFiles
from wal.engine.read_only.source import ReadOnlySource
from wal.errors import ClosedError, FormatError, StorageError

__all__ = ["ReadOnlyJournalSource"]

_REMEDY: Final = "a journal is created by opening it for writing"


class ReadOnlyJournalSource(ReadOnlySource):
    """The journal in `directory`. See `ReadOnlySource`; `logs` are the open ones."""

    name: str = JournalBackend.name
    form: int = JournalBackend.form

    def __init__(self, directory: Path) -> None:
        self.location: str = f"journal:{directory}"
        self.cursors: CursorFiles = CursorFiles(directory)
        self.logs: dict[str, ReadOnlyJournalLog] = {}
        self._directory = directory
        self._journal: ReadOnlyJournal | None = None
        self._places: dict[str, MapPlace] = {}
        self._maps = VChannelMaps()

    def absence(self, waited_s: float) -> FormatError | None:
        return absence(self._directory, remedy=_REMEDY, waited_s=waited_s)

    def open(self) -> None:
        self._journal = ReadOnlyJournal(self._directory)
        self.cursors.held = self._journal.held

    def pchannels(self) -> list[str]:
        for log in self.logs.values():
            with contextlib.suppress(ClosedError, StorageError):  # the readers of that log get the error there
                log.check()
        journal = self._opened()
        journal.held.check()
        return journal.pchannels()

    def open_log(self, pchannel: str) -> ReadOnlyJournalLog:
        log = self.logs[pchannel] = self._opened().open(pchannel)
        self._places[pchannel] = MapPlace(
            log.directory, log.incarnation, frozenset(restore.parent for restore in log.lineage.restores)
        )
        return log

    def vchannels(self) -> VChannelView:
        view = self._maps.look(self._places)
        for pchannel in self._maps.missing | self._maps.foreign:
            with contextlib.suppress(ClosedError, StorageError):  # the readers of that log get the error there
                self.logs[pchannel].check_map(missing=pchannel in self._maps.missing)
        return view

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()

    def _opened(self) -> ReadOnlyJournal:
        assert self._journal is not None, "the source is used before open()"
        return self._journal
