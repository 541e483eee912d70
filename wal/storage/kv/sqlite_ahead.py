"""The write-ahead file of sqlite: whether a fault in it is damage, or the torn end that a power cut leaves. Blocks.

Sqlite ignores everything from the first frame on whose checksum does not match, because that may be the last transaction, which was not
synced. So one flipped bit hides all transactions after it, and the next transaction overwrites them. But each transaction was synced before
the next one began: a whole transaction after the first wrong one proves that this one was durable. Only damage in the last transaction
cannot be told from a torn end.

    header 32 B   magic | version | page size | sequence | salt 8 B | checksum 8 B (of the 24 bytes before it); numbers are big-endian
    a frame       page | pages of the file if a transaction ends here, else 0 | salt 8 B | checksum 8 B | the page

The checksum of a frame covers its first 8 bytes and the page, and continues that of the frame before it, or of the header.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from wal.errors import CorruptionError

_HEADER: Final = struct.Struct(">6I")
_FRAME: Final = struct.Struct(">2I8s8s")
_HEADER_BYTES: Final = 32
_SUMMED_BYTES: Final = 8
_BIG_ENDIAN: Final = 0x377F0683
_PAGE_BYTES: Final = 4096
_FILE: Final = "the write-ahead file (-wal)"


def check_ahead(path: Path, where: Path) -> None:
    """Raises CorruptionError, which names `where`, if the write-ahead file `path` is damaged; a missing or torn one is fine."""
    try:
        data = path.read_bytes()
        problem = _problem(data)
        if problem is None or path.read_bytes() != data:  # its owner is writing
            return
    except OSError:  # sqlite meets it as well, and reports it
        return
    raise CorruptionError(
        f"the metadata in {where} are damaged: {problem}, so what was saved after it is lost; nothing was changed: restore a backup",
        path=str(where),
        expected="a write-ahead file that matches its checksums",
    )


def _problem(data: bytes) -> str | None:
    frames = (len(data) - _HEADER_BYTES) // (_FRAME.size + _PAGE_BYTES)
    if frames < 1:
        return None  # the header is synced before the first frame is written
    order = ">" if int.from_bytes(data[:4], "big") == _BIG_ENDIAN else "<"
    before = _sum(data[: _HEADER.size], bytes(8), order)
    if before != data[_HEADER.size : _HEADER_BYTES]:
        return f"the header of {_FILE} does not match its checksum"
    salt = data[16:24]
    is_whole, transactions = True, 0  # whether all frames so far match, and the transactions that end from the first wrong frame on
    for number in range(frames):
        at = _HEADER_BYTES + number * (_FRAME.size + _PAGE_BYTES)
        _, pages, its_salt, checksum = _FRAME.unpack_from(data, at)
        body = data[at : at + _SUMMED_BYTES] + data[at + _FRAME.size : at + _FRAME.size + _PAGE_BYTES]
        matches = its_salt == salt and _sum(body, before, order) == checksum
        if pages and matches != is_whole:
            transactions += 1
            if transactions > 1:
                return f"a frame of {_FILE} that was synced does not match its checksum"
        is_whole = is_whole and matches
        before = checksum
    return None


def _sum(data: bytes, before: bytes, order: str) -> bytes:
    """Returns sqlite's checksum of these bytes, which continues the one before."""
    one, two = struct.unpack(">2I", before)
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + second + one) & 0xFFFFFFFF
    return struct.pack(">2I", one, two)
