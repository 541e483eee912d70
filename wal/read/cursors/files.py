"""CursorFiles: the cursors of a journal, one small file each, for every process that reads it.

Owns the directory `cursors/`, created by the first save. A file is replaced by rename under the lock, from one temporary file that no other
process writes meanwhile, so that every name shows a whole cursor, the old or the new, even after a crash. The lock is a flock on
`cursors.lock` beside the directory, which is created together with the journal: it ends with its process, and taking it needs no room on
the disk, so that a log on a full disk can be truncated. Only the user who writes the journal can take it. Reading cursors needs neither the
lock nor write permission.

With the `held` directory of an open log, every call first checks that its names still lead to it, and raises StorageError if not; all
files are looked up in that directory. So the cursors of another log that now has the path are neither shown nor changed.

The functions for a file's name and its bytes are pure:

    <shown>-<name hash>-<set hash>.cursor     magic "WALCURSR" | version u32 | length u32 | crc32c u32 | zero u32 | body of `length` bytes

The checksum is over the first 16 bytes and the body. The body is a MessagePack map of the fields below. `shown` is as much of the cursor's
name as a file name can hold, for a person who lists the directory. The hashes identify the cursor: BLAKE2b, 10 bytes, of the name, and of
the sorted vchannels. So a cursor's name may have any characters and length, all cursors of one name are found without opening them, and a
file with damaged content can still be identified. Version 2 is the copy of a cursor that moves with transactions: versions of this package
that know only version 1 must neither use nor replace it.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import struct
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError, NoSpaceError, StorageError, WALError, WouldBlockError
from wal.message import Natural, PackedPosition, packed, unpacked
from wal.read.cursors.cursor import Cursor, CursorKey, check_cursor
from wal.read.cursors.store import CursorStore, DamagedCursor
from wal.runtime.backoff import Backoff
from wal.runtime.descriptors import open_file
from wal.runtime.system import sync_data, sync_file
from wal.storage.files import CURSORS_LOCK_NAME, FORMAT_NAME, FileAccess, FileLock, HeldDirectory

CURSOR_SUFFIX: Final = ".cursor"
_SHOWN_MAX: Final = 60


def encode_cursor(cursor: Cursor) -> bytes:
    """Returns the bytes of the whole file."""
    fields = _Body(
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
    )
    if cursor.home:
        fields = _CopyBody(**msgspec.structs.asdict(fields), moved_at=cursor.moved_at, home=cursor.home, revision=cursor.revision)
    body = _encoder.encode(fields)
    head = _HEAD.pack(_MAGIC, _VERSION_OF_COPIES if cursor.home else _VERSION, len(body))
    return head + _TAIL.pack(google_crc32c.extend(google_crc32c.value(head), body), 0) + body


def decode_cursor(data: bytes) -> Cursor:
    """Returns the cursor in these bytes. Raises CorruptionError (without path) for damage, and FormatError for a newer version."""
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
    if version not in (_VERSION, _VERSION_OF_COPIES):
        raise FormatError(f"cursor version {version} is not known here (known: {_VERSION}, {_VERSION_OF_COPIES}): upgrade to use it")
    try:
        copy = _copy_decoder.decode(body) if version == _VERSION_OF_COPIES else None
        fields = copy or _decoder.decode(body)
        names = [check_cursor(fields.name), *(name for name, _ in fields.vchannels)]
        for text in names:
            text.encode()
        start = (unpacked(fields.start[0]), fields.start[1])
        event = None if fields.event is None else (unpacked(fields.event[0]), fields.event[1])
        if not math.isfinite(fields.saved_at):
            raise ValueError(f"it was saved at {fields.saved_at}")
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CorruptionError(f"a cursor cannot be read: {error}", expected="the fields of a cursor") from error
    vchannels = tuple(name for name, _ in fields.vchannels)
    if not vchannels or list(vchannels) != sorted(set(vchannels)):
        raise CorruptionError(f"a cursor names the vchannels {vchannels!r}", expected="sorted names, each once")
    cursor = Cursor(
        CursorKey(fields.name, vchannels),
        tuple(incarnation for _, incarnation in fields.vchannels),
        fields.pchannel,
        fields.incarnation,
        start,
        event,
        fields.time_tick,
        fields.saved_at,
        fields.form,
        fields.stale,
    )
    if copy is None:
        return cursor
    return msgspec.structs.replace(cursor, moved_at=copy.moved_at, home=copy.home, revision=copy.revision)


def file_name(key: CursorKey) -> str:
    """Returns the name of the file of this cursor."""
    return f"{file_prefix(key.name)}{_hash(key.vchannels)}{CURSOR_SUFFIX}"


def file_prefix(name: str) -> str:
    """Returns the beginning of the file names of all cursors of this name, and of no others."""
    shown = _UNSAFE.sub("_", name)[:_SHOWN_MAX]
    return f"{shown}-{_hash((name,))}-"


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


class _CopyBody(_Body, frozen=True):
    moved_at: float
    home: Annotated[str, msgspec.Meta(min_length=1)]
    revision: Natural


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=10)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()


_MAGIC: Final = b"WALCURSR"
_VERSION: Final = 1
_VERSION_OF_COPIES: Final = 2
_HEAD: Final = struct.Struct("<8sII")
_TAIL: Final = struct.Struct("<II")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9]")
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Body)
_copy_decoder: Final = msgspec.msgpack.Decoder(_CopyBody)


CURSORS_NAME: Final = "cursors"
"""The directory of the cursors, inside that of the journal."""
_TEMPORARY: Final = "saving.tmp"
_POLL_MIN_S: Final = 0.0005
_POLL_MAX_S: Final = 0.002
_FILE_BYTES_MAX: Final = 1 << 26
"""The most bytes that are read of a file: far above the size of any cursor."""


class CursorFiles(CursorStore):
    """See `CursorStore`. `directory` is that of the journal, which must exist; `cursors/` in it need not.

    `held` is the same directory, which the open log holds while this object is used; None if no log is open.
    """

    def __init__(self, directory: Path, *, held: HeldDirectory | None = None) -> None:
        self._parent = directory
        self._directory = directory / CURSORS_NAME
        self.held = held
        self._threads = threading.Lock()
        self._locked: FileLock | None = None

    def delete_named(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        self._check()
        if not self._is_there():
            return
        with self.locked():
            if vchannels is not None:
                self._remove(CursorKey(name, vchannels))
            else:
                prefix = file_prefix(name)
                for file in self._names():
                    if file.startswith(prefix):
                        self._unlink(file)
        self.sync()

    def load(self, key: CursorKey) -> Cursor | None:
        self._check()
        file = file_name(key)
        try:
            return self._read(file)
        except FileNotFoundError:
            return None

    def load_all(self) -> list[Cursor | DamagedCursor]:
        self._check()
        cursors: list[Cursor] = []
        damaged: list[DamagedCursor] = []
        for file in self._names():
            try:
                cursors.append(self._read(file))
            except FileNotFoundError:
                continue  # it was deleted meanwhile
            except WALError as error:
                damaged.append(DamagedCursor(file, error))
        cursors.sort(key=lambda cursor: cursor.key)
        return [*cursors, *damaged]

    def acquire(self, timeout_s: float, *, since_s: float | None = None) -> None:
        until = (time.monotonic() if since_s is None else since_s) + timeout_s
        if not self._threads.acquire(timeout=max(0.0, until - time.monotonic())):
            raise self._would_block(timeout_s)
        try:
            self._locked = self._lock(until, timeout_s)
        except BaseException:
            self._threads.release()
            raise

    def release(self) -> None:
        locked, self._locked = self._locked, None
        try:
            if locked is not None:
                locked.close()
        finally:
            self._threads.release()

    def sync(self) -> None:
        try:
            self._sync_directory(self._directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _failed(error, self._directory) from error

    def _put(self, cursor: Cursor) -> None:
        temporary, at = self._lookup(self._directory / _TEMPORARY)
        try:
            access = self._access()
            self._make_directory(access)
            fd = access.create(temporary, os.O_WRONLY | os.O_TRUNC, dir_fd=at)
            try:
                data = encode_cursor(cursor)
                while data:
                    data = data[os.write(fd, data) :]
                sync_data(fd)
            finally:
                os.close(fd)
            target, _ = self._lookup(self._directory / file_name(cursor.key))
            os.rename(temporary, target, src_dir_fd=at, dst_dir_fd=at)
        except OSError as error:
            raise _failed(error, self._directory) from error

    def _remove(self, key: CursorKey) -> None:
        self._unlink(file_name(key))

    def _unlink(self, file: str) -> None:
        try:
            name, at = self._lookup(self._directory / file)
            os.unlink(name, dir_fd=at)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _failed(error, self._directory) from error

    def _names(self) -> list[str]:
        try:
            fd = self._open_directory(self._directory)
            try:
                return sorted(file for file in os.listdir(fd) if file.endswith(CURSOR_SUFFIX))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _failed(error, self._directory) from error

    def _read(self, file: str) -> Cursor:
        path = self._directory / file
        remedy = f"restore {file}, or delete the cursor (delete_cursor) or the file to begin again; it holds back retention until then"
        try:
            name, at = self._lookup(path)
            with open(open_file(name, os.O_RDONLY, dir_fd=at), "rb") as opened:
                data = opened.read(_FILE_BYTES_MAX)
            cursor = decode_cursor(data)
            if file_name(cursor.key) != file:
                raise CorruptionError(f"it holds {cursor.key}", expected="the cursor that its name is made of")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error
        except CorruptionError as error:
            text = f"{path} is damaged: {error}; expected {error.expected}; {remedy}"
            raise CorruptionError(text, path=str(path), offset=0, expected=error.expected) from error
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
        return cursor

    def _lock(self, until: float, timeout_s: float) -> FileLock:
        self._check()
        path = self._parent / CURSORS_LOCK_NAME
        try:
            directory = None if self.held is None else self.held.fd
            try:
                lock = FileLock.look(path, dir_fd=directory)
            except FileNotFoundError:  # an older version opened the journal, or it is being created
                lock = FileLock.open(path, self._access(), dir_fd=directory)
        except OSError as error:
            raise self._refused(error) from error
        try:
            backoff = Backoff(_POLL_MIN_S, _POLL_MAX_S)
            while not lock.try_lock():
                if time.monotonic() >= until:
                    raise self._would_block(timeout_s)
                time.sleep(backoff.next())
            self._check()
        except BaseException:
            lock.close()
            raise
        return lock

    def _access(self) -> FileAccess:
        """Returns the access of the journal's files, because a process that saves does not know the settings."""
        return FileAccess.like(self._parent / FORMAT_NAME)

    def _is_there(self) -> bool:
        try:
            os.stat(self._directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed(error, self._directory) from error
        return True

    def _make_directory(self, access: FileAccess) -> None:
        if not self._directory.is_dir():
            name, at = self._lookup(self._directory)
            access.make_directory(name, dir_fd=at)
            self._sync_directory(self._parent)

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

    def _refused(self, error: OSError) -> WALError:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            return _failed(error, self._parent)
        owner = self._access().owner
        return StorageError(
            f"user {os.geteuid()} cannot save or delete cursors in {self._parent.absolute()}: {error.strerror}; only the user who writes "
            f"the log there can{'' if owner is None else f', user {owner[0]}'}. To go on without a cursor keep scanner.position, and give "
            "it as resume="
        )

    def _would_block(self, timeout_s: float) -> WouldBlockError:
        return WouldBlockError(
            f"the lock on the cursors in {self._directory} is held for more than {timeout_s} s by another process, which saves one or has "
            "been stopped while it did: try again, or end that process"
        )


def _failed(error: OSError, path: Path) -> WALError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"there is no room to save a cursor in {path}: free some space and save again")
    journal = path.parent if path.name == CURSORS_NAME else path  # names are relative to it while it is held
    return StorageError(f"{path if error.filename is None else journal / error.filename}: {error.strerror or error}")
