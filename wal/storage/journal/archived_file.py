"""The file `archived` of a pchannel: the earliest event of a log that archives itself, while its local start is above that.

    magic "WALA" | version u32 | earliest position u64, index u32 | dropped position u64, index u32 | length u32 | URL | crc32c u32

`dropped` is the highest local start that `free` or `truncate` was about to set. A higher one in the control page comes from an opening
without this archive, which dropped what may be archived nowhere: then the log begins there, as it does without the file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NoReturn

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError, StorageError
from wal.message import LogPosition
from wal.storage.journal.disk import Disk

ARCHIVED_NAME: Final = "archived"
_VERSION: Final = 1
_MAGIC: Final = b"WALA"
_HEAD: Final = struct.Struct("<4sIQIQII")
_CRC: Final = struct.Struct("<I")


class ArchivedStart(msgspec.Struct, frozen=True):
    """The content of the file: the earliest event of the log, the highest local start, and the archive that has what lies between."""

    earliest: LogPosition
    dropped: LogPosition
    url: str

    def covers(self, local: LogPosition) -> bool:
        """Returns whether the archive has what lies between the earliest event and this local start."""
        return self.earliest < local <= self.dropped


def save_start(disk: Disk, directory: Path, start: ArchivedStart) -> None:
    """Stores the file durably."""
    url = start.url.encode()
    data = _HEAD.pack(_MAGIC, _VERSION, *start.earliest, *start.dropped, len(url)) + url
    path = directory / ARCHIVED_NAME
    temporary = path.with_suffix(".tmp")
    disk.unlink(temporary)
    disk.replace(path, data + _CRC.pack(google_crc32c.value(data)), temporary=temporary)


def load_start(directory: Path) -> ArchivedStart | None:
    """Returns the content of the file, None without it. Raises CorruptionError, FormatError for a newer version, StorageError."""
    path = directory / ARCHIVED_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) < _HEAD.size + _CRC.size:
        _damaged(path, f"it has {len(data)} bytes", f"at least {_HEAD.size + _CRC.size}")
    (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    if (actual := google_crc32c.value(data[: -_CRC.size])) != crc:
        _damaged(path, f"it has CRC32C {actual:#010x}", f"{crc:#010x}")
    magic, version, position, index, dropped, dropped_index, length = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        _damaged(path, f"it starts with {magic!r}", repr(_MAGIC))
    if version != _VERSION:
        raise FormatError(f"{path} has version {version}, known here is {_VERSION}: upgrade to read it")
    url = data[_HEAD.size : -_CRC.size]
    if len(url) != length:
        _damaged(path, f"its URL has {len(url)} bytes", f"{length}")
    return ArchivedStart((position, index), (dropped, dropped_index), url.decode())


def _damaged(path: Path, actual: str, expected: str) -> NoReturn:
    raise CorruptionError(f"{path} is damaged: {actual}; expected {expected}", path=str(path), offset=0, expected=expected)
