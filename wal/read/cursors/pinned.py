"""PinnedCursors: the cursors of a log for a process beside its writer, or without one.

The saved cursor is the newer of two: the record of a cursor in the log, and the pin that a process beside the writer has stored since. The
records are read from the last checkpoint on, once, and from then on from the frames that were added since.

A save stores a pin, and then looks how far the writer means to truncate (`PChannelLog.intend`): the writer looks at the pins after it has
said that. So one of the two sees the other, and nobody waits for a lock. Where the writer is about to truncate past the pin, the save waits
until it has done so, which refuses the save, or has given up, which it does if it has seen the pin in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from wal.errors import NotLocalError, TruncatedError, WouldBlockError
from wal.message import LogPosition
from wal.read.cursors.cursor import Cursor, CursorKey, other_key
from wal.read.cursors.pins import Pin, Pins, name_of, newest_pin, prefix_of, stem_of
from wal.read.cursors.records import CursorRecord, CursorRecords, newest_records
from wal.read.cursors.store import DamagedCursor, SavedCursors, below_earliest, check_replaced
from wal.storage.read_only import ReadOnlyStoredLog

INTENT_TIMEOUT_S: Final = 10.0
"""How long a save waits for a truncation, which takes milliseconds unless the writer was stopped or killed."""
_POLL_S: Final = 0.002
_PAGE_BYTES: Final = 1 << 20
_TIE_S: Final = 1e-6
"""A save is at least so much later than the one that it replaces, whatever the clock says."""


class PinnedCursors(SavedCursors):
    """See the top of the file. `logs` returns the open logs by pchannel."""

    def __init__(self, pins: Pins, logs: Callable[[], Mapping[str, ReadOnlyStoredLog]]) -> None:
        self._pins = pins
        self._logs = logs
        self._records: dict[str, _Records] = {}
        self._own: dict[CursorKey, Pin] = {}
        """The pins that this object has stored last: while they are there, nobody else has changed their cursors."""
        self._turn = threading.RLock()  # a signal handler may save in the midst of a save

    def load(self, key: CursorKey) -> Cursor | None:
        """See `SavedCursors.load`."""
        saved = self._saved(key, self._pins_of(key))
        if saved.cursor is None or saved.deleted:
            self._check_name(key)
            return None
        return saved.cursor

    def load_all(self) -> list[Cursor | DamagedCursor]:
        """Returns all cursors, by name and vchannels, damaged ones last."""
        saved, _, damaged = self._look("", lambda _: True)
        return [*(each.cursor for _, each in sorted(saved.items()) if each.cursor is not None and not each.deleted), *damaged]

    def all_pins(self) -> list[Pin | DamagedCursor]:
        """Returns all pins, whether the writer has made records of them or not."""
        pins = map(self._pins.read, self._pins.names())
        return [pin for pin in pins if pin is not None]

    def saved_keys(self) -> list[CursorKey]:
        """See `SavedCursors.saved_keys`."""
        return [cursor.key for cursor in self.load_all() if isinstance(cursor, Cursor)]

    def save(self, cursor: Cursor, *, forward_only: bool = False) -> bool:
        """See `SavedCursors.save`. Raises WouldBlockError if a truncation takes too long."""
        key = cursor.key
        with self._turn:
            pins = self._pins_of(key)
            saved = self._saved(key, pins)
            if saved.is_moving:
                raise NotLocalError(
                    f"{key} moves with transactions and is kept in the log of pchannel {saved.home}: save it in the process that writes "
                    "that log, or through a server of it"
                )
            before = None if saved.deleted else saved.cursor
            if before is None:
                self._check_name(key)
            else:
                if not check_replaced(before, cursor, forward_only=forward_only):
                    return False
                cursor = msgspec.structs.replace(cursor, saved_at=max(cursor.saved_at, before.saved_at + _TIE_S))
            logs = self._logs()
            pin = self._store(cursor, saved, pins, firsts=_firsts(cursor, logs))
            try:
                for name, first in pin.needs.items():
                    _wait_for_truncation(logs[name], cursor, first)
            except TruncatedError:
                self._pins.remove((pin.name,))
                raise
            self._pins.remove(each.name for each in pins)
            self._own[key] = pin
        return True

    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes the cursor of this name and set, or all of this name, damaged ones too; a missing one is fine. Durable on return.

        Raises NotLocalError for a cursor that only the writer of the log changes.
        """
        with self._turn:
            stem = prefix_of(name) if vchannels is None else stem_of(CursorKey(name, vchannels))
            saved, sound, damaged = self._look(stem, lambda key: key.name == name and vchannels in (None, key.vchannels))
            for key, each in saved.items():
                if each.is_moving:
                    raise NotLocalError(
                        f"{key} moves with transactions and is kept in the log of pchannel {each.home}: delete it in the process that "
                        "writes that log, or through a server of it"
                    )
            for key, each in saved.items():
                if each.cursor is not None and not each.deleted:
                    later = msgspec.structs.replace(each.cursor, saved_at=max(time.time(), each.cursor.saved_at + _TIE_S))
                    self._store(later, each, sound.get(key, ()), deleted=True)
                    self._pins.remove(pin.name for pin in sound.get(key, ()))
            self._pins.remove(each.file for each in damaged)

    def positions_of(self, cursors: Iterable[Cursor | DamagedCursor]) -> dict[tuple[str, int], LogPosition]:
        """Returns the position of the first event that a cursor of a pattern needs, by pchannel and tick; none for truncated ones."""
        positions: dict[tuple[str, int], LogPosition] = {}
        for cursor in cursors:
            if isinstance(cursor, Cursor) and (at := cursor.tick_position) is not None:
                for name, log in self._logs().items():
                    tick = at.covered(name)
                    if (first := log.first_after(tick, at.first_of(name))) is not None:
                        positions[name, tick] = first
        return positions

    def _store(
        self, cursor: Cursor, before: _Saved, pins: Iterable[Pin], *, deleted: bool = False, firsts: tuple[tuple[str, int, int], ...] = ()
    ) -> Pin:
        number = max((pin.number for pin in pins), default=0) + 1
        pin = Pin(cursor, before.revision, deleted, number, name_of(cursor.key, number), firsts=firsts)
        self._pins.write(pin.name, pin)
        return pin

    def _check_name(self, key: CursorKey) -> None:
        """Raises InvalidArgumentError if another cursor has this name, and one of both is of a pattern."""
        saved, _, _ = self._look(prefix_of(key.name), key.excludes)
        for other, each in saved.items():
            if key.excludes(other) and each.cursor is not None and not each.deleted:
                raise other_key(key, other)

    def _look(
        self, stem: str, chosen: Callable[[CursorKey], bool]
    ) -> tuple[dict[CursorKey, _Saved], dict[CursorKey, list[Pin]], list[DamagedCursor]]:
        """Returns what is saved of the cursors with chosen records, or with pins whose names begin with `stem`; and these pins."""
        sound, damaged = self._sorted([file for file in self._pins.names() if file.startswith(stem)])
        keys = sound.keys() | set(filter(chosen, self._all_records()))
        return {key: self._saved(key, sound.get(key, [])) for key in keys}, sound, damaged

    def _pins_of(self, key: CursorKey) -> list[Pin]:
        """Returns the pins of a cursor; raises the error of a damaged one."""
        stem = stem_of(key)
        sound, damaged = self._sorted([name for name in self._pins.names() if name.startswith(stem)])
        if damaged:
            raise damaged[0].error
        return sound.get(key, [])

    def _sorted(self, names: Iterable[str]) -> tuple[dict[CursorKey, list[Pin]], list[DamagedCursor]]:
        """Reads these pins; returns the sound ones by cursor, and the damaged ones."""
        sound: dict[CursorKey, list[Pin]] = {}
        damaged: list[DamagedCursor] = []
        for name in names:
            pin = self._pins.read(name)
            if isinstance(pin, DamagedCursor):
                damaged.append(pin)
            elif pin is not None:
                sound.setdefault(pin.cursor.key, []).append(pin)
        return sound, damaged

    def _saved(self, key: CursorKey, pins: list[Pin]) -> _Saved:
        """Returns what is saved of a cursor, given its pins."""
        pin = newest_pin(pins)
        if pin is not None and pin.name == getattr(self._own.get(key), "name", None):
            return _Saved(pin.cursor, pin.revision, pin.deleted)
        home, record = self._all_records().get(key, ("", None))
        logs = self._logs()
        pin = newest_pin(each for each in pins if not each.is_below(logs) and each.is_later(record))
        if record is None:
            return _Saved() if pin is None else _Saved(pin.cursor, pin.revision, pin.deleted)
        if pin is None:
            return _Saved(record.cursor, record.revision, record.deleted, record.is_moving, home)
        return _Saved(pin.cursor, record.revision, pin.deleted, record.is_moving, home)

    def _all_records(self) -> dict[CursorKey, tuple[str, CursorRecord]]:
        """Returns the newest record of each cursor, with the pchannel that has it."""
        found: list[tuple[str, CursorRecord]] = []
        with self._turn:
            for name, log in self._logs().items():
                records = self._records.get(name)
                if records is None or records.log is not log:
                    records = self._records[name] = _Records(log)
                found += [(name, record) for record in records.look().all()]
        return newest_records(found)


class _Saved(msgspec.Struct, frozen=True):
    """The saved state of a cursor; `revision` is that of its newest record, 0 for none."""

    cursor: Cursor | None = None
    revision: int = 0
    deleted: bool = False
    is_moving: bool = False
    home: str = ""


class _Records:
    """The records of cursors in one log, as of the last look."""

    def __init__(self, log: ReadOnlyStoredLog) -> None:
        self.log = log
        self._records = CursorRecords()
        self._upto: int | None = None
        """The position up to which the frames were read; None: the checkpoint was not read either."""

    def look(self) -> CursorRecords:
        """Returns the newest record of each cursor, tombstones included."""
        log = self.log
        while True:
            position = None
            try:
                if self._upto is None:
                    position = self._begin()
                end = log.reach().durable_end
                while self._upto is not None and self._upto < end:
                    page = log.keyed_page(self._upto, end, _PAGE_BYTES)
                    for frame in page.frames:
                        self._records.replay(frame.position, frame.view)
                    self._upto = page.next_position
                if self._upto is not None:
                    return self._records
            except TruncatedError:  # the checkpoint was replaced meanwhile, and what came after it is gone
                self._upto = None
                if position is not None and log.checkpoint_position() == position:
                    raise

    def _begin(self) -> int | None:
        """Reads the newest checkpoint; returns its position, None if there is none."""
        log = self.log
        position = log.checkpoint_position()
        self._records = CursorRecords()
        if position is not None:
            if (state := log.checkpoint_state(position)) is None:
                return position
            self._records.restore(state)
        self._upto = log.local_earliest[0] if position is None else position
        return position


def _firsts(cursor: Cursor, logs: Mapping[str, ReadOnlyStoredLog]) -> tuple[tuple[str, int, int], ...]:
    """Returns the first event that the cursor of a pattern needs of each pchannel. Raises TruncatedError if the log of a cursor is
    truncated past it."""
    at, firsts = cursor.tick_position, []
    if at is None:
        if cursor.start < (earliest := logs[cursor.pchannel].kept()[0]):
            raise below_earliest(cursor, earliest)
        return ()
    for name, log in logs.items():
        if (first := log.first_after(at.covered(name), at.first_of(name))) is None:
            raise below_earliest(cursor, log.kept()[0])
        firsts.append((name, *first))
    return tuple(firsts)


def _wait_for_truncation(log: ReadOnlyStoredLog, cursor: Cursor, first: LogPosition) -> None:
    """Returns once the writer means to truncate nothing from the `first` event on that the cursor needs. Raises TruncatedError if it has
    done so."""
    until = time.monotonic() + INTENT_TIMEOUT_S
    while True:
        earliest, intended = log.kept()
        if first < earliest:
            raise below_earliest(cursor, earliest)
        if first >= intended:
            return
        if time.monotonic() > until:
            raise WouldBlockError(
                f"the writer of the log has been truncating for more than {INTENT_TIMEOUT_S:g} s, or was killed while it did: save the "
                "cursor again, once a writer has opened the log"
            )
        time.sleep(_POLL_S)
