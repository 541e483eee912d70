"""The file `lineage` of a pchannel: the restores of its log. A log that was never restored has no such file.

    magic "WALR" | version u32 | count u32 | zero u32 | incarnation u64 | restores | crc32c u32
    a restore      parent u64 | fork u64 | newest position u64 | newest index u32 | has newest u32 (0 or 1)

The oldest restore is first, and `incarnation` is the child of the last one. The file is written before the log's record in the metadata and
its control page have that incarnation, so it may be one restore ahead of them: then that restore was interrupted, and does not count.
Segments and checkpoints keep the incarnation in which they were begun; those of a parent count below its fork. Reading it blocks.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, NoReturn

import google_crc32c

from wal.errors import CorruptionError, FormatError, StorageError
from wal.message import Lineage, Restore
from wal.storage.journal.disk import Disk

LINEAGE_NAME: Final = "lineage"

_VERSION: Final = 1
_MAGIC: Final = b"WALR"
_HEAD: Final = struct.Struct("<4sIIIQ")
_RESTORE: Final = struct.Struct("<QQQII")
_CRC: Final = struct.Struct("<I")


def save_lineage(disk: Disk, directory: Path, lineage: Lineage) -> None:
    """Stores the lineage of a log durably."""
    parts = [_HEAD.pack(_MAGIC, _VERSION, len(lineage.restores), 0, lineage.incarnation)]
    for restore in lineage.restores:
        position, index = restore.newest or (0, 0)
        parts.append(_RESTORE.pack(restore.parent, restore.fork, position, index, restore.newest is not None))
    data = b"".join(parts)
    path = directory / LINEAGE_NAME
    temporary = path.with_suffix(".tmp")
    disk.unlink(temporary)
    disk.replace(path, data + _CRC.pack(google_crc32c.value(data)), temporary=temporary)


def load_lineage(directory: Path, incarnation: int) -> Lineage:
    """Returns the lineage of the log that has this incarnation.

    Raises CorruptionError for a file that is damaged or of another log, FormatError for a newer version.
    """
    path = directory / LINEAGE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Lineage(incarnation)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    return decode_lineage(data, path, incarnation)


def decode_lineage(data: bytes, path: Path, incarnation: int) -> Lineage:
    """Returns the lineage in these bytes of a file; raises as `load_lineage` does."""
    if len(data) < _HEAD.size + _CRC.size:
        _damaged(path, f"it has {len(data)} bytes", f"at least {_HEAD.size + _CRC.size}")
    (crc,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    if (actual := google_crc32c.value(data[: -_CRC.size])) != crc:
        _damaged(path, f"it has CRC32C {actual:#010x}", f"{crc:#010x}")
    magic, version, count, _, child = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        _damaged(path, f"it starts with {magic!r}", repr(_MAGIC))
    if version != _VERSION:
        raise FormatError(f"{path} has version {version}, known here is {_VERSION}: upgrade to read it")
    if len(data) != _HEAD.size + count * _RESTORE.size + _CRC.size:
        _damaged(path, f"it has {len(data)} bytes", f"{count} restores")
    restores = [
        Restore(parent, fork, (position, index) if has_newest else None)
        for parent, fork, position, index, has_newest in _RESTORE.iter_unpack(data[_HEAD.size : -_CRC.size])
    ]
    incarnations = [*(restore.parent for restore in restores), child]
    if incarnation not in incarnations or len(set(incarnations)) < len(incarnations):
        _damaged(path, f"it is of the incarnations {', '.join(f'{one:x}' for one in incarnations)}", f"{incarnation:x}")
    return Lineage(incarnation, tuple(restores[: incarnations.index(incarnation)]))


def _damaged(path: Path, actual: str, expected: str) -> NoReturn:
    raise CorruptionError(f"{path} is damaged: {actual}; expected {expected}", path=str(path), offset=0, expected=expected)
