"""FileJournal: a journal for one reader that blocks, read from its files alone. The counterpart of `ReadOnlyLog`, without its loop.

Owns the observed log of each pchannel and what is known of vchannels, from the maps that the writer keeps for other processes. The maps
may lag behind: a name that is in none of them counts as empty, and is looked for again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wal.backends.journal import ABSENT_REMEDY, ReadOnlyJournal, ReadOnlyJournalLog, check_present
from wal.channels import MapPlace, UnknownVChannels, VChannelMaps, VChannelView, common_place
from wal.cursors import CursorFiles, LogPlace, LogView
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.reading import Selection

__all__ = ["FileJournal"]


class FileJournal:
    """The journal in `directory`; FormatError when there is none. One thread at a time, until `close`."""

    def __init__(self, directory: Path) -> None:
        check_present(directory, remedy=ABSENT_REMEDY)
        self._journal = ReadOnlyJournal(directory)
        self.cursors: Final = CursorFiles(directory, held=self._journal.held)
        self._places: dict[str, MapPlace] = {}
        self._maps = VChannelMaps()
        self._unknown = UnknownVChannels(f"journal:{directory}")
        self.logs: dict[str, ReadOnlyJournalLog] = {}
        try:
            self.look()
        except BaseException:
            self.close()
            raise

    def look(self) -> VChannelView:
        """What is known of the vchannels now. StorageError when the directory was removed or replaced since it was opened."""
        self._journal.held.check()
        for name in self._journal.pchannels():
            if name not in self.logs:
                log = self.logs[name] = self._journal.open(name)
                self._places[name] = MapPlace(log.directory, log.incarnation)
        return self._maps.look(self._places)

    def attach(self, names: tuple[str, ...]) -> tuple[ReadOnlyJournalLog, Selection]:
        """The log to read these vchannels in, with its newest event known, and the vchannels as they are now."""
        while True:
            log = self.logs[self._place(names, self.look())]
            log.reach()
            view = self.look()
            if self._place(names, view) == log.pchannel:
                break
        self._unknown.note(names, view.records)
        bound = {name: view.records[name].incarnation if name in view.records else None for name in names}
        return log, Selection(bound, floor=view.floor(log.pchannel))

    def made_elsewhere(
        self, selection: Selection, names: tuple[str, ...], here: ReadOnlyJournalLog
    ) -> ReadOnlyJournalLog | None:
        """Looks again for a reader of these vchannels `here`: where to go on reading, if what it waits for was made elsewhere.

        It is bound to that life then. ChannelNotExistError when a vchannel that it reads was dropped.
        """
        view = self.look()
        for name in names:
            incarnation, info = selection.incarnation(name), view.records.get(name)
            if incarnation is not None:
                if view.is_over(here.pchannel, name, incarnation):
                    raise ChannelNotExistError(f"vchannel {name!r} was dropped: nothing comes from it any more")
            elif info is not None and info.pchannel != here.pchannel:
                if len(names) > 1:
                    raise InvalidArgumentError(
                        f"vchannel {name!r} was made on {info.pchannel}, but this reader reads {', '.join(names)} on "
                        f"{here.pchannel}, and a reader reads one pchannel: read them apart"
                    )
                selection.bind(name, info.incarnation)
                return self.logs[info.pchannel]
        return None

    def cursor_view(self) -> LogView:
        """What cursors are held against, as far as it is known here."""
        view = self._maps.view
        places: dict[str, LogPlace] = {}
        for name, log in self.logs.items():
            state = log.refresh()
            places[name] = LogPlace(log.incarnation, state.earliest, state.durable_end)

        def life(name: str) -> int | None:
            info = view.records.get(name)
            return None if info is None else info.incarnation

        return LogView(places, life, min(map(view.floor, self.logs), default=0))

    def close(self) -> None:
        """Lets go of all logs, and of the directory. Idempotent."""
        for log in self.logs.values():
            log.close()
        self._journal.close()

    def _place(self, names: tuple[str, ...], view: VChannelView) -> str:
        return common_place(names, view.records, list(self.logs), create_vchannels=True)
