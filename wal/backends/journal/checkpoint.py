"""Checkpoint files: `checkpoint-<position:016x>`, one blob each, replaced whole.

    magic "WALP" | version u32 | incarnation u64 | position u64 | length u64 | crc32c u32 (of the header before it, then the blob) | blob

Owns: that a name never shows a part of a blob, and that older ones go only when the new one is durable. Blocks: it runs in threads.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import google_crc32c

from wal.backends.journal.control import ControlPage
from wal.backends.journal.disk import Disk
from wal.errors import CorruptionError, StorageError

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

    def save(self, position: int, blob: bytes) -> None:
        """Stores it durably, then removes older ones. ChannelFencedError when the term is not ours any more."""
        packed = _HEADER.pack(_MAGIC, _VERSION, self._incarnation, position, len(blob))
        crc = google_crc32c.extend(google_crc32c.value(packed), blob)
        path = self._path(position)
        temporary = path.with_name(f"{path.name}.{self._term:x}.tmp")
        try:
            file = self._disk.open(temporary, create=True)
            try:
                file.write([packed + _CRC.pack(crc), blob], 0)
                file.sync()
            finally:
                file.close()
            with self._control.locked():
                self._control.load_owned(self._pchannel, self._term)
                self._disk.rename(temporary, path)
                self._disk.sync_directory(self._directory)
                for other in self._directory.glob(f"{_PREFIX}{'[0-9a-f]' * 16}"):
                    if other.name < path.name:
                        self._disk.unlink(other)
        except OSError as error:
            raise StorageError(f"saving the checkpoint {path} failed: {error.strerror}") from error

    def load(self, position: int) -> bytes | None:
        """The blob saved for this position, None when there is none; CorruptionError when it is damaged."""
        path = self._path(position)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
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

    def _path(self, position: int) -> Path:
        return self._directory / f"{_PREFIX}{position:016x}"


_PREFIX: Final = "checkpoint-"
_HEADER: Final = struct.Struct("<4sIQQQ")
_CRC: Final = struct.Struct("<I")
_MAGIC: Final = b"WALP"
_VERSION: Final = 1
