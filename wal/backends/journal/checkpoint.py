"""Checkpoint files: `checkpoint-<position:016x>`, one blob each, replaced whole.

    magic "WALP" | version u32 | incarnation u64 | position u64 | length u64 | crc32c u32 (of the header before it, then the blob) | blob

Owns: that a name never shows a part of a blob, and that a checkpoint goes only when another one took its place for good: who keeps
the record of them says so with `keep_only`. What a fenced writer leaves behind is true all the same (it covers only what was durable
in its term), and never replaces anything. Blocks: it runs in threads.

On a full disk segments go only when a checkpoint has taken over what they are needed for, and that is a file itself. So room for the next
one is kept in `checkpoint.reserve`, which becomes the checkpoint where there is no other room. It is best effort, and means nothing.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import google_crc32c

from wal.backends.journal.control import ControlPage
from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.preparer import NO_SPACE
from wal.errors import CorruptionError, NoSpaceError, StorageError

__all__ = ["CheckpointFiles"]


class CheckpointFiles:
    """The checkpoints of one log that is open for writing in `term`."""

    def __init__(
        self, disk: Disk, directory: Path, control: ControlPage, *, pchannel: str, incarnation: int, term: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._control = control
        self._pchannel = pchannel
        self._incarnation = incarnation
        self._term = term
        self._reserve = directory / _RESERVE_NAME
        self._using_reserve = threading.Lock()
        """A save takes the reserve for its own file, which whoever fills the reserve must not have open meanwhile."""

    def save(self, position: int, pieces: Sequence[bytes]) -> None:
        """Stores them in a row, durably. ChannelFencedError when the term is not ours any more."""
        packed = _HEADER.pack(_MAGIC, _VERSION, self._incarnation, position, sum(map(len, pieces)))
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
                    self._control.load_owned(self._pchannel, self._term)
                # Not under the lock, which frames are written under: a rename waits for the file system's journal.
                self._disk.rename(temporary, path)
            except BaseException:
                self._disk.unlink(temporary)
                raise
            self._disk.sync_directory(self._directory)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise NoSpaceError(f"there is no room for the checkpoint {path}: free some space") from error
            raise StorageError(f"saving the checkpoint {path} failed: {error.strerror}") from error

    def keep_room(self, grown_bytes: int) -> None:
        """Keeps room for a checkpoint that is so many bytes larger than the newest one there is; an OSError when there is none."""
        with self._using_reserve:
            self._fill_reserve(grown_bytes)

    def _fill_reserve(self, grown_bytes: int) -> None:
        sizes = [path.stat().st_size for path in self._directory.glob(_PATTERN)]
        size = max(sizes, default=0) + grown_bytes
        if self._reserved(size):
            return
        file = self._disk.open(self._reserve, create=not self._reserve.exists())
        try:
            file.allocate(size)
            file.sync()
        finally:
            file.close()

    def keep_only(self, position: int | None) -> None:
        """Removes every checkpoint but the one for this position."""
        try:
            for path in self._directory.glob(_PATTERN):
                if position is None or path != self.path(position):
                    self._disk.unlink(path)
        except OSError as error:
            raise StorageError(f"removing a checkpoint in {self._directory} failed: {error.strerror}") from error

    def load(self, position: int) -> bytes:
        """The blob saved for this position; CorruptionError when it is missing or damaged."""
        path = self.path(position)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise CorruptionError(
                f"{path} is missing", path=str(path), offset=0, expected="the checkpoint that the metadata names"
            ) from error
        except OSError as error:
            raise StorageError(f"reading the checkpoint {path} failed: {error.strerror}") from error
        blob = data[_HEADER.size + _CRC.size :]
        if len(data) < _HEADER.size + _CRC.size:
            raise CorruptionError(f"{path} is cut short", path=str(path), offset=len(data), expected="a checkpoint")
        magic, version, incarnation, at, length = _HEADER.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _HEADER.size)
        found = google_crc32c.extend(google_crc32c.value(data[: _HEADER.size]), blob)
        identity = (magic, version, incarnation, at, length)
        if found != crc or identity != (_MAGIC, _VERSION, self._incarnation, position, len(blob)):
            raise CorruptionError(
                f"{path} is damaged: it has CRC32C {found:#010x}", path=str(path), offset=0, expected=f"{crc:#010x}"
            )
        return blob

    def path(self, position: int) -> Path:
        """The file of the checkpoint for this position."""
        return self._directory / f"{_PREFIX}{position:016x}"

    def _reserved(self, size: int) -> bool:
        """Whether the reserve holds as many bytes."""
        try:
            return self._reserve.stat().st_size >= size
        except FileNotFoundError:
            return False

    def _write(self, file: JournalFile, buffers: list[bytes]) -> None:
        """Makes these the file's content, and closes it. Synced bit by bit, so that a frame's sync meanwhile never waits for the whole."""
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


_PREFIX: Final = "checkpoint-"
_PATTERN: Final = f"{_PREFIX}{'[0-9a-f]' * 16}"
_RESERVE_NAME: Final = "checkpoint.reserve"
_HEADER: Final = struct.Struct("<4sIQQQ")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"WALP"
_VERSION: Final = 1
_SYNC_BYTES: Final = 1 << 20
