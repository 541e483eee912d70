"""ReadOnlyArchiveSource: a log in an archive as a log that is read, from its objects alone: no server, no lock, any number of readers.

Vchannels are those of the metadata in the newest manifest. Cursors are those of the log then, and none is saved: a
reader stores its position itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NoReturn

import msgspec

from wal.channels.directory import BOTH, SavedVChannels
from wal.channels.vchannel_map import VChannelView
from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.frame import EncodedFrame, FrameView, encode_frame
from wal.message import FORM_JOURNAL
from wal.read.cursors.pinned import PinnedCursors
from wal.read.cursors.pins import CURSORS_NAME, Pin, pin_in
from wal.read.cursors.store import DamagedCursor
from wal.read.parts import draft_up_to
from wal.read.read_only_core import ReadOnlySource
from wal.settings import Settings
from wal.storage.archive.archive_log import Archive, EmptyArchiveError, ReadOnlyArchiveLog
from wal.storage.archive.manifest import Chunk
from wal.storage.archive.objects import fetch
from wal.storage.archive.store import open_store

NAME: Final = "archive"


class ReadOnlyArchiveSource(ReadOnlySource):
    """The archive at `place`, a URL of an object store or a directory. See `ReadOnlySource`."""

    name: str = NAME
    form: int = FORM_JOURNAL
    may_lag: bool = True

    def __init__(self, place: str, settings: Settings) -> None:
        self.location: str = f"archive:{place}"
        as_of = settings.as_of
        assert not isinstance(as_of, datetime)
        self._archive = Archive(open_store(place), poll_s=settings.archive_poll_s, as_of=as_of)
        self._logs: dict[str, ReadOnlyArchiveLog] = {}
        self.cursors: PinnedCursors = PinnedCursors(ArchivedPins(self._archive, self.location), lambda: dict(self._logs))
        self._view = VChannelView({}, {})
        self._viewed: tuple[Chunk | None, int] = None, 0
        """The metadata from which `_view` was built, and for how many logs."""
        self._saved = SavedVChannels()
        self._saved_in: Chunk | None = None

    def absence(self, waited_s: float) -> FormatError | None:
        if not self._archive.is_open:
            try:
                self._archive.open()
            except EmptyArchiveError as error:
                return error
        return None

    def open(self) -> None:
        """Does nothing: `absence` has found the manifest."""

    def pchannels(self) -> list[str]:
        self._archive.look()
        return sorted(self._archive.manifest.pchannels, key=lambda name: (len(name), name))

    def open_log(self, pchannel: str) -> ReadOnlyArchiveLog:
        log = self._logs[pchannel] = ReadOnlyArchiveLog(self._archive, pchannel, _frame_up_to)
        return log

    def catch_up(self) -> None:
        if self._archive.as_of is None:
            self._archive.look(now=True)

    def vchannels(self, *, newest: bool = False) -> VChannelView:
        if newest:
            self.catch_up()
        chunk = self._archive.manifest.metadata
        if chunk != self._saved_in:
            self._saved, self._saved_in = self._load(chunk), chunk
        if self._viewed != (chunk, len(self._logs)):
            self._view = self._saved.view({name: log.incarnation for name, log in self._logs.items()})
            self._viewed = chunk, len(self._logs)
        return self._view

    def _load(self, chunk: Chunk) -> SavedVChannels:
        try:
            metadata = msgspec.json.decode(fetch(self._archive.store, chunk), type=dict[str, str])
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            path = f"{self._archive.store.place}/{chunk.name}"
            raise CorruptionError(f"{path} is damaged: {error}; expected metadata", path=path, offset=0, expected="metadata") from error
        records = {key: value for key, value in metadata.items() if key.startswith(BOTH)}
        return SavedVChannels.of(records, records.values())

    def has_writer(self) -> bool | None:
        """Returns None while newer manifests may come, and False for an archive as of a tick."""
        return None if self._archive.as_of is None else False

    def is_current(self) -> bool:
        return all(log.is_current() for log in self._logs.values())

    def close(self) -> None:
        """Does nothing: an archive holds nothing open."""


class ArchivedPins:
    """The cursors of the log as of the archive's manifest, see `wal.read.cursors.pins.Pins`. None can be saved or removed."""

    def __init__(self, archive: Archive, location: str) -> None:
        self._archive = archive
        self._location = location

    def names(self) -> list[str]:
        return sorted(file.removeprefix(f"{CURSORS_NAME}/") for file in self._archive.manifest.files)

    def read(self, name: str) -> Pin | DamagedCursor | None:
        if (chunk := self._archive.manifest.files.get(f"{CURSORS_NAME}/{name}")) is None:
            return None
        return pin_in(name, fetch(self._archive.store, chunk), where=f"{self._archive.store.place}/{chunk.name}")

    def write(self, name: str, pin: Pin) -> None:
        self._refuse(str(pin.cursor.key))

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._refuse(f"the cursor in {name}")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidArgumentError(
            f"{what} cannot be changed: {self._location} is only read; store str(scanner.position), and give it as resume="
        )


def _frame_up_to(view: FrameView, tick: int) -> EncodedFrame | None:
    draft, header = draft_up_to(view, tick), view.header
    if draft is None:
        return None
    return encode_frame(draft, incarnation=header.incarnation, term=header.term, sequence=header.sequence, first_tick=header.first_tick)
