"""Pins: cursors that processes beside the writer of a log save, one small file (journal) or key (metadata in a KV) for each save.

A cursor is a record in the log, and only the writer writes records. Another process stores a pin; the writer makes a record of it
(`wal/node/cursors.py`), and looks for new ones before it truncates. A pin stays until its process replaces it, or the cursor is changed by
others: so the process that saves again sees at its own pin that nobody else did.

Every pin has a name of its own, with a number above those of the pins of its cursor that it replaces. A pin is never changed, and removing
one by its name never removes a later one: processes need no lock.

    <shown>-<name hash>-<set hash>-<number>-<random>.cursor
    magic "WALCURSR" | version u32 | length u32 | crc32c u32 | zero u32 | body of `length` bytes

The checksum is over the first 16 bytes and the body. The body is a MessagePack map of the fields below. `shown` is as much of the cursor's
name as a file name can hold, for a person who lists the directory. The hashes identify the cursor: BLAKE2b, 10 bytes, of the name, and of
the sorted vchannels. So a cursor's name may have any characters and length, all pins of one name are found without opening them, and a
damaged one can still be identified.

The pin of a pattern has version 4, which versions of the product that save none refuse, and a pin of names version 3. Earlier versions
saved all cursors in such files, without number and random part: in version 1 a cursor, in version 2 a copy of a cursor that moved with
transactions, whose record is in the log.
"""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import math
import os
import re
import secrets
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError, KeyNotExistError, NoSpaceError, StorageError, WALError, corruption
from wal.message import LogPosition, Natural, PackedPosition, packed, unpacked
from wal.read.cursors.cursor import DELETION, Cursor, CursorKey, check_cursor
from wal.read.cursors.records import CursorRecord
from wal.read.cursors.store import DamagedCursor
from wal.runtime.descriptors import open_file
from wal.runtime.loop_thread import LoopThread
from wal.runtime.system import sync_data, sync_file
from wal.runtime.threads import in_thread
from wal.storage.files import FORMAT_NAME, FileAccess, HeldDirectory

if TYPE_CHECKING:
    from wal.storage.kv import KVBase

CURSORS_NAME: Final = "cursors"
"""The directory of the pins, inside that of the journal; the first pin creates it."""
CURSOR_SUFFIX: Final = ".cursor"
_SHOWN_MAX: Final = 60
_FILE_BYTES_MAX: Final = 1 << 26
"""The most bytes that are read of a file: far above the size of any pin."""
_LEFT_S: Final = 60.0
"""A temporary file that is older was left behind by a process that was killed."""
_BROUGHT: Final = 1
"""The revision of the copy of a cursor whose record was never in the log, in version 2."""


class Truncated(Protocol):
    """A log, as far as it was truncated."""

    incarnation: int

    @property
    def earliest(self) -> LogPosition: ...


class Pin(msgspec.Struct, frozen=True):
    """A cursor that a process beside the writer has saved, or deleted (`deleted`).

    `revision` is that of the newest record of the cursor that the process has seen, 0 for none. `number` orders the pins of a cursor. A
    `copy` was written by the writer of an earlier version, from a record of this revision. `firsts` are those of a pattern: the position
    and index of the first event that the cursor needs of each pchannel.
    """

    cursor: Cursor
    revision: int = 0
    deleted: bool = False
    number: int = 0
    name: str = ""
    copy: bool = False
    firsts: tuple[tuple[str, int, int], ...] = ()

    @property
    def needs(self) -> dict[str, LogPosition]:
        """The first event that the cursor needs of each pchannel."""
        if self.cursor.key.pattern:
            return {name: (position, index) for name, position, index in self.firsts}
        return {self.cursor.pchannel: self.cursor.start}

    def is_later(self, record: CursorRecord | None) -> bool:
        """Returns whether it was saved after the newest record of its cursor; None: there is none."""
        if self.copy:
            return self.revision == _BROUGHT and (record is None or record.cursor is None)
        if record is None or record.revision <= self.revision:
            return True
        return record.cursor is not None and self.cursor.saved_at > record.cursor.saved_at

    def is_below(self, logs: Mapping[str, Truncated]) -> bool:
        """Returns whether one of these logs was truncated past it: its process finds that too, and refuses the save. One in a file of an
        earlier version was stored, and stays."""
        if not self.number or self.deleted:
            return False
        needs = [(logs[name], first) for name, first in self.needs.items() if name in logs]
        is_pattern = bool(self.cursor.key.pattern)  # a restored log has the same ticks
        return any(first < log.earliest and (is_pattern or self.cursor.incarnation == log.incarnation) for log, first in needs)


def newest_pin(pins: Iterable[Pin]) -> Pin | None:
    """Returns the pin of a cursor that was saved last."""
    return max(pins, key=order_of, default=None)


def order_of(pin: Pin) -> tuple[int, float, str]:
    """Returns by what the pins of a cursor are in the order in which they were stored."""
    return pin.number, pin.cursor.saved_at, pin.name


def name_of(key: CursorKey, number: int) -> str:
    """Returns a new name for a pin of this cursor."""
    return f"{stem_of(key)}-{number:x}-{secrets.token_hex(4)}{CURSOR_SUFFIX}"


def stem_of(key: CursorKey) -> str:
    """Returns the beginning of the names of all pins of this cursor, and of no others."""
    return f"{prefix_of(key.name)}{_hash((*key.vchannels, key.pattern) if key.pattern else key.vchannels)}"


def prefix_of(name: str) -> str:
    """Returns the beginning of the names of all pins of the cursors of this name, and of no others."""
    shown = _UNSAFE.sub("_", name)[:_SHOWN_MAX]
    return f"{shown}-{_hash((name,))}-"


def encode_pin(pin: Pin) -> bytes:
    """Returns the bytes of a pin."""
    cursor = pin.cursor
    body = _encoder.encode(
        _Body(
            cursor.key.name,
            list(zip(cursor.key.vchannels, cursor.incarnations, strict=True)),
            cursor.pchannel,
            cursor.incarnation,
            cursor.form,
            (packed(cursor.start[0]), cursor.start[1]),
            None if cursor.event is None else (packed(cursor.event[0]), cursor.event[1]),
            cursor.time_tick,
            cursor.saved_at,
            cursor.stale,
            revision=pin.revision,
            deleted=pin.deleted,
            pattern=cursor.key.pattern,
            begun=_packed(cursor.begun),
            firsts=_packed(pin.firsts),
        )
    )
    head = _HEAD.pack(_MAGIC, _VERSION if cursor.key.pattern else _VERSION_OF_NAMES, len(body))
    return head + _TAIL.pack(google_crc32c.extend(google_crc32c.value(head), body), 0) + body


def decode_pin(data: bytes) -> Pin:
    """Returns the pin in these bytes, without its name. Raises CorruptionError (without path) for damage, and FormatError for a newer
    version."""
    if len(data) < _HEAD.size + _TAIL.size:
        raise CorruptionError(f"a cursor of {len(data)} bytes is cut short", expected="a header")
    magic, version, length = _HEAD.unpack_from(data)
    crc, zero = _TAIL.unpack_from(data, _HEAD.size)
    body = data[_HEAD.size + _TAIL.size :]
    if magic != _MAGIC:
        raise CorruptionError(f"no cursor: it starts with {magic!r}", expected=repr(_MAGIC))
    if len(body) != length or zero:
        raise CorruptionError(f"a cursor's body has {len(body)} bytes", expected=f"{length} bytes")
    if (actual := google_crc32c.extend(google_crc32c.value(data[: _HEAD.size]), body)) != crc:
        raise CorruptionError(f"a cursor has CRC32C {actual:#010x}", expected=f"{crc:#010x}")
    if not 1 <= version <= _VERSION:
        raise FormatError(f"cursor version {version} is not known here (known: 1 to {_VERSION}): upgrade to use it")
    with corruption("a cursor cannot be read", expected="the fields of a cursor"):
        fields = _decoder.decode(body)
        names = [check_cursor(fields.name), fields.pattern, *(name for name, _ in fields.vchannels)]
        for text in names:
            text.encode()
        start = (unpacked(fields.start[0]), fields.start[1])
        event = None if fields.event is None else (unpacked(fields.event[0]), fields.event[1])
        if not math.isfinite(fields.saved_at):
            raise ValueError(f"it was saved at {fields.saved_at}")
    vchannels = tuple(name for name, _ in fields.vchannels)
    if bool(vchannels) == bool(fields.pattern) or list(vchannels) != sorted(set(vchannels)):
        named = f"a cursor names the vchannels {vchannels!r} and the pattern {fields.pattern!r}"
        raise CorruptionError(named, expected="sorted names, each once, or a pattern")
    is_copy = version == _VERSION_OF_COPIES
    cursor = Cursor(
        CursorKey(fields.name, vchannels, fields.pattern),
        tuple(incarnation for _, incarnation in fields.vchannels),
        fields.pchannel,
        fields.incarnation,
        start,
        event,
        fields.time_tick,
        fields.saved_at,
        fields.form,
        fields.stale,
        begun=_unpacked(fields.begun),
    )
    return Pin(cursor, fields.revision, fields.deleted, copy=is_copy, firsts=_unpacked(fields.firsts))


def pin_in(name: str, data: bytes, *, where: str) -> Pin | DamagedCursor:
    """Returns the pin with this name; `where` is its name in errors."""
    remedy = f"delete the cursor ({DELETION}) or the file to begin again; it holds back retention until then"
    try:
        pin, (stem, number) = decode_pin(data), _parts(name)
        if stem_of(pin.cursor.key) != stem:
            raise CorruptionError(f"it holds {pin.cursor.key}", expected="the cursor that its name is made of")
    except CorruptionError as error:
        text = f"{where} is damaged: {error}; expected {error.expected}; restore {name}, or {remedy}"
        damage = CorruptionError(text, path=where, offset=0, expected=error.expected)
        damage.__cause__ = error
        return DamagedCursor(name, damage)
    except FormatError as error:
        return DamagedCursor(name, FormatError(f"{where}: {error}"))
    return msgspec.structs.replace(pin, name=name, number=number)


class Pins(Protocol):
    """Where the pins of a log are kept, for code without an event loop. Calls block; any thread may make them."""

    def names(self) -> list[str]:
        """Returns the names of all pins, sorted."""

    def read(self, name: str) -> Pin | DamagedCursor | None:
        """Returns a pin, None if it was removed meanwhile."""

    def write(self, name: str, pin: Pin) -> None:
        """Stores a pin under a new name; durable on return. Raises NoSpaceError, StorageError."""

    def remove(self, names: Iterable[str]) -> None:
        """Removes pins, durably, and ignores missing ones."""


class PinFiles:
    """The pins of a journal: see `Pins`. `directory` is that of the journal, which must exist; `cursors/` in it need not.

    `held` is the same directory, which the open log holds while this object is used; None if no log is open. Every call first checks that
    its names still lead to it, and raises StorageError if not: the cursors of another log that now has the path are not changed.
    """

    def __init__(self, directory: Path, *, held: HeldDirectory | None = None) -> None:
        self._parent = directory
        self._directory = directory / CURSORS_NAME
        self.held = held

    def names(self) -> list[str]:
        self._check()
        try:
            fd = self._open_directory(self._directory)
            try:
                return sorted(file for file in os.listdir(fd) if file.endswith(CURSOR_SUFFIX))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from error

    def read(self, name: str) -> Pin | DamagedCursor | None:
        path = self._directory / name
        try:
            file, at = self._lookup(path)
            with open(open_file(file, os.O_RDONLY, dir_fd=at), "rb") as opened:
                data = opened.read(_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            return DamagedCursor(name, StorageError(f"{path} cannot be read: {error.strerror}"))
        return pin_in(name, data, where=str(path))

    def write(self, name: str, pin: Pin) -> None:
        self._check()
        temporary, at = self._lookup(self._directory / f"saving-{os.getpid()}-{secrets.token_hex(4)}.tmp")
        try:
            access = FileAccess.like(self._parent / FORMAT_NAME)  # a process that saves does not know the settings
            if not self._directory.is_dir():
                access.make_directory(self._lookup(self._directory)[0], dir_fd=at)
                self._sync_directory(self._parent)
            fd = access.create(temporary, os.O_WRONLY | os.O_TRUNC, dir_fd=at)
            try:
                data = encode_pin(pin)
                while data:
                    data = data[os.write(fd, data) :]
                sync_data(fd)
                os.rename(temporary, self._lookup(self._directory / name)[0], src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                os.unlink(temporary, dir_fd=at)
                raise
            finally:
                os.close(fd)
            self._sync_directory(self._directory)
        except OSError as error:
            raise self._failed(error) from error

    def remove(self, names: Iterable[str]) -> None:
        self._check()
        removed = False
        try:
            for name in names:
                try:
                    file, at = self._lookup(self._directory / name)
                    os.unlink(file, dir_fd=at)
                    removed = True
                except FileNotFoundError:
                    continue
            if removed:
                self._sync_directory(self._directory)
        except OSError as error:
            raise self._failed(error) from error

    def remove_left(self) -> None:
        """Removes what processes that were killed have left half done."""
        left = [path for path in self._directory.glob("*.tmp") if path.stat().st_mtime < time.time() - _LEFT_S]
        self.remove(path.name for path in left)

    def _check(self) -> None:
        """Raises StorageError when the directory of the open log was removed or replaced."""
        if self.held is not None:
            self.held.check()

    def _lookup(self, path: Path) -> tuple[Path, int | None]:
        """Returns a path below the journal's directory, and the descriptor to which it is relative (None: it is absolute)."""
        return (path, None) if self.held is None else (path.relative_to(self._parent), self.held.fd)

    def _open_directory(self, path: Path) -> int:
        name, at = self._lookup(path)
        return open_file(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)

    def _sync_directory(self, path: Path) -> None:
        fd = self._open_directory(path)
        try:
            sync_file(fd)
        finally:
            os.close(fd)

    def _failed(self, error: OSError) -> WALError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NoSpaceError(f"no room to save a cursor in {self._directory}: free some space and save again")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            owner = FileAccess.like(self._parent / FORMAT_NAME).owner
            return StorageError(
                f"user {os.geteuid()} cannot save or delete cursors in {self._parent.absolute()}: {error.strerror}; only the user who "
                f"writes the log there can{'' if owner is None else f', user {owner[0]}'}. To go on without a cursor keep "
                "scanner.position, and give it as resume="
            )
        return StorageError(f"{self._directory if error.filename is None else self._parent / error.filename}: {error.strerror or error}")


class PinKeys:
    """The pins of a log whose metadata other processes can open, for the loop of its KV, all of whose keys are pins: see `Pins`."""

    def __init__(self, kv: KVBase) -> None:
        self._kv = kv

    async def names(self) -> list[str]:
        names, _ = await self._kv.load_with_prefix("")
        return sorted(name for name in names if name.endswith(CURSOR_SUFFIX))

    async def read(self, name: str) -> Pin | DamagedCursor | None:
        where = f"the cursor {name}"
        try:
            data = base64.b64decode(await self._kv.load(name), validate=True)
        except KeyNotExistError:
            return None
        except binascii.Error:
            data = b""
        return pin_in(name, data, where=where)

    async def read_all(self, names: Iterable[str]) -> list[Pin | DamagedCursor]:
        return _present([await self.read(name) for name in names])

    async def write(self, name: str, pin: Pin) -> None:
        await self._kv.save(name, base64.b64encode(encode_pin(pin)).decode())

    async def remove(self, names: Iterable[str]) -> None:
        for name in names:
            await self._kv.remove(name)


class PinKeysInThread:
    """Pins in a KV, for threads without an event loop; `thread` is where the loop of the KV runs."""

    def __init__(self, thread: LoopThread, keys: PinKeys) -> None:
        self._thread = thread
        self._keys = keys

    def names(self) -> list[str]:
        return self._thread.call(self._keys.names)

    def read(self, name: str) -> Pin | DamagedCursor | None:
        return self._thread.call(self._keys.read, name)

    def write(self, name: str, pin: Pin) -> None:
        self._thread.call(self._keys.write, name, pin)

    def remove(self, names: Iterable[str]) -> None:
        self._thread.call(self._keys.remove, names)


class AsyncPins(Protocol):
    """The pins of a log for its writer: see `Pins`."""

    async def names(self) -> list[str]: ...

    async def read_all(self, names: Iterable[str]) -> list[Pin | DamagedCursor]:
        """Returns these pins, except pins that were removed meanwhile."""

    async def remove(self, names: Iterable[str]) -> None: ...


class PinFilesInThreads:
    """The pins of a journal for its writer, whose loop never waits for a file."""

    def __init__(self, files: PinFiles) -> None:
        self._files = files

    async def names(self) -> list[str]:
        return await in_thread(self._files.names)

    async def read_all(self, names: Iterable[str]) -> list[Pin | DamagedCursor]:
        return await in_thread(lambda: _present(map(self._files.read, names)))

    async def remove(self, names: Iterable[str]) -> None:
        await in_thread(self._files.remove, names)


_PackedEvent = tuple[str, PackedPosition, Natural]
"""A pchannel, and the position and index of an event of its log."""


class _Body(msgspec.Struct, frozen=True):
    name: str
    vchannels: list[tuple[str, Natural | None]]
    pchannel: str
    incarnation: Natural
    form: Natural
    start: tuple[PackedPosition, Natural]
    event: tuple[PackedPosition, Natural] | None
    time_tick: Natural
    saved_at: float
    stale: str
    revision: Natural = 0
    deleted: bool = False
    pattern: str = ""
    begun: list[_PackedEvent] = []
    firsts: list[_PackedEvent] = []


def _packed(events: Iterable[tuple[str, int, int]]) -> list[_PackedEvent]:
    return [(name, packed(position), index) for name, position, index in events]


def _unpacked(events: Iterable[_PackedEvent]) -> tuple[tuple[str, int, int], ...]:
    return tuple([(name, unpacked(position), index) for name, position, index in events])


def _present(pins: Iterable[Pin | DamagedCursor | None]) -> list[Pin | DamagedCursor]:
    return [pin for pin in pins if pin is not None]


def _parts(name: str) -> tuple[str, int]:
    """Returns the stem of a pin's name, and its number, 0 in a file of an earlier version."""
    parts = name.removesuffix(CURSOR_SUFFIX).split("-")
    try:
        return ("-".join(parts[:3]), int(parts[3], 16)) if len(parts) == 5 else ("-".join(parts), 0)
    except ValueError:
        return name, 0


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=10)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


_MAGIC: Final = b"WALCURSR"
_VERSION_OF_COPIES: Final = 2
_VERSION_OF_NAMES: Final = 3
_VERSION: Final = 4
_HEAD: Final = struct.Struct("<8sII")
_TAIL: Final = struct.Struct("<II")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]")
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Body)
