"""Checkpoint files: `checkpoint-<position:016x>`, one blob each, always replaced as a whole.

    magic "WALP" | version u32 | incarnation u64 | position u64 | length u64 | crc32c u32 (of the header before it, then the blob) | blob

Owns two guarantees: a name never shows a part of a blob, and a checkpoint is removed only after another one has durably replaced it; the
caller, which records the current checkpoint, calls `keep_only` then. A file that a fenced writer leaves is still valid (it covers only what
was durable in its term), and it never replaces another one. Everything here blocks, so it runs in threads.

On a full disk, segments can be removed only when a checkpoint replaces them for recovery, and a checkpoint is itself a file. So
`checkpoint.reserve` keeps room for the next one, and becomes the checkpoint when the disk has no other room. The reserve is best effort,
and its content is meaningless.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import google_crc32c

from wal.errors import CorruptionError, NoSpaceError, StorageError
from wal.message import Lineage
from wal.storage.files.links import is_shared
from wal.storage.journal.control import ControlPage
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.preparer import NO_SPACE


class CheckpointFiles:
    """The checkpoints of one log that is open for writing in `term`."""

    def __init__(self, disk: Disk, directory: Path, control: ControlPage, *, lineage: Lineage, term: int) -> None:
        self._disk = disk
        self._directory = directory
        self._control = control
        self._lineage = lineage
        self._term = term
        self._reserve = directory / _RESERVE_NAME
        self._using_reserve = threading.Lock()
        """Locked during a save and a call that fills the reserve: a save may rename the reserve, and no other call may have it open
        meanwhile.
        """

    def save(self, position: int, pieces: Sequence[bytes]) -> None:
        """Durably stores the concatenated pieces. Raises ChannelFencedError if the log has a higher term by now."""
        packed = _HEADER.pack(_MAGIC, _VERSION, self._lineage.incarnation, position, sum(map(len, pieces)))
        crc = google_crc32c.value(packed)
        for piece in pieces:
            crc = google_crc32c.extend(crc, piece)
        path = self.path(position)
        temporary = path.with_name(f"{path.name}.{self._term:x}.tmp")
        buffers = [packed + _CRC.pack(crc), *pieces]
        with self._using_reserve:
            self._store(path, temporary, buffers)

    def _store(self, path: Path, temporary: Path, buffers: list[bytes]) -> None:
        try:
            try:
                try:
                    self._write(self._disk.open(temporary, create=True), buffers)
                except OSError as error:
                    if error.errno not in NO_SPACE or not self._reserved(sum(map(len, buffers))):
                        raise
                    self._disk.rename(self._reserve, temporary)
                    self._write(self._disk.open(temporary), buffers)
                with self._control.locked():
                    self._control.load_owned()
                # The rename is outside the lock, under which frames are written, because it waits for the journal of the file
                # system.
                self._disk.rename(temporary, path)
            except BaseException:
                self._disk.unlink(temporary)
                raise
            self._disk.sync_directory(self._directory)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise NoSpaceError(f"no room for the checkpoint {path}: free some space") from error
            raise StorageError(f"saving the checkpoint {path} failed: {error.strerror}") from error

    def keep_room(self, grown_bytes: int) -> None:
        """Keeps room for a checkpoint that is `grown_bytes` larger than the newest one; raises OSError on a full disk."""
        with self._using_reserve:
            self._fill_reserve(grown_bytes)

    def _fill_reserve(self, grown_bytes: int) -> None:
        sizes = [path.stat().st_size for path in self._directory.glob(_PATTERN)]
        size = max(sizes, default=0) + grown_bytes
        if self._reserved(size):
            return
        file = self._disk.open(self._reserve, create=not self._reserve.exists() or self._disk.is_shared(self._reserve))
        try:
            file.allocate(size)
            file.sync()
        finally:
            file.close()

    def keep_only(self, position: int | None) -> None:
        """Removes every checkpoint except the one for this position."""
        try:
            for path in self._directory.glob(_PATTERN):
                if position is None or path != self.path(position):
                    self._disk.unlink(path)
        except OSError as error:
            raise StorageError(f"removing a checkpoint in {self._directory} failed: {error.strerror}") from error

    def load(self, position: int) -> bytes:
        """Returns the blob that was saved for this position; raises CorruptionError when it is missing or damaged."""
        blob = load_checkpoint(self._directory, position, lineage=self._lineage)
        if blob is None:
            path = self.path(position)
            raise CorruptionError(f"{path} is missing", path=str(path), offset=0, expected="the checkpoint that the metadata names")
        return blob

    def path(self, position: int) -> Path:
        """Returns the path of the checkpoint for this position."""
        return _path(self._directory, position)

    def _reserved(self, size: int) -> bool:
        """Returns whether the reserve has at least `size` bytes, and no copy shares it."""
        try:
            status = self._reserve.stat()
            return status.st_size >= size and not is_shared(status)
        except FileNotFoundError:
            return False

    def _write(self, file: JournalFile, buffers: list[bytes]) -> None:
        """Writes the buffers as the content of the file, and closes it. Syncs every megabyte, so that a frame's sync meanwhile never waits
        for the whole file."""
        try:
            offset = synced = 0
            for buffer in buffers:
                file.write([buffer], offset)
                offset += len(buffer)
                if offset - synced >= _SYNC_BYTES:
                    file.sync()
                    synced = offset
            file.cut(offset)
            file.sync()
        finally:
            file.close()


def newest_checkpoint(directory: Path) -> int | None:
    """Returns the position of the newest checkpoint in this directory, or None."""
    return max((int(path.name.removeprefix(_PREFIX), 16) for path in directory.glob(_PATTERN)), default=None)


def load_checkpoint(directory: Path, position: int, *, lineage: Lineage) -> bytes | None:
    """Returns the blob of the checkpoint for this position, or None if it is missing. Raises CorruptionError when it is damaged."""
    path = _path(directory, position)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"reading the checkpoint {path} failed: {error.strerror}") from error
    return decode_checkpoint(data, path, position, lineage)


def decode_checkpoint(data: bytes, path: Path, position: int, lineage: Lineage) -> bytes:
    """Returns the blob of the checkpoint in these bytes of a file. Raises CorruptionError when it is damaged."""
    blob = data[_HEADER.size + _CRC.size :]
    if len(data) < _HEADER.size + _CRC.size:
        raise CorruptionError(f"{path} is cut short", path=str(path), offset=len(data), expected="a checkpoint")
    magic, version, incarnation, at, length = _HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEADER.size)
    computed = google_crc32c.extend(google_crc32c.value(data[: _HEADER.size]), blob)
    identity = (magic, version, at, length)
    covered = lineage.covers(incarnation, position - 1)  # it is about the log below its position
    if computed != crc or not covered or identity != (_MAGIC, _VERSION, position, len(blob)):
        raise CorruptionError(f"{path} is damaged: it has CRC32C {computed:#010x}", path=str(path), offset=0, expected=f"{crc:#010x}")
    return blob


def checkpoint_position(name: str) -> int | None:
    """Returns the position of the checkpoint in a file of this name, None for another file."""
    return int(name.removeprefix(_PREFIX), 16) if name.startswith(_PREFIX) else None


def checkpoint_name(position: int) -> str:
    """Returns the name of the file with the checkpoint for this position."""
    return f"{_PREFIX}{position:016x}"


def _path(directory: Path, position: int) -> Path:
    return directory / checkpoint_name(position)


_PREFIX: Final = "checkpoint-"
_PATTERN: Final = f"{_PREFIX}{'[0-9a-f]' * 16}"
_RESERVE_NAME: Final = "checkpoint.reserve"
_HEADER: Final = struct.Struct("<4sIQQQ")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"WALP"
_VERSION: Final = 1
_SYNC_BYTES: Final = 1 << 20
