"""StoredPart: the bytes of one part of a stored index, read whole and checked. Pure; `SegmentIndex` says what the bytes are."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise
from operator import gt, lt
from typing import Final

from wal.backends.journal.layout import ENVELOPE_BYTES, SECTOR_BYTES
from wal.errors import CorruptionError
from wal.frame import HEADER_BYTES

__all__ = ["PART_CRC", "PART_HEAD", "PART_MAGIC", "PART_VERSION", "StoredPart", "pack_column"]

PART_HEAD: Final = struct.Struct("<4sIQQQQQQqIIIIII")
PART_CRC: Final = struct.Struct("<I")
_SLOT_ROUND: Final = ENVELOPE_BYTES + SECTOR_BYTES - 1
_FRAME_BYTES: Final = 36
"""The bytes of one frame in all columns."""
PART_MAGIC: Final = b"WALX"
PART_VERSION: Final = 2


class StoredPart:
    """The content of one stored part, read whole and checked before an index takes it over.

    A matching CRC says that the part is as it was written, not that a journal wrote it. So each count and length is checked against the
    bytes, each frame against the one before it, and each ordinal against the frames.
    """

    def __init__(self, start: int, first: int, frames: int, wide: int, keyed: int, names: int, names_len: int) -> None:
        self._start = start
        self._first = first
        self._frames = frames
        self._counts = (wide, keyed, names, names_len)
        self.columns: list[array[int]] = []
        self.wide: array[int] = array("I")
        self.keyed: array[int] = array("I")
        self.rows: dict[str, array[int]] = {}

    def read(self, body: bytes, end: int) -> None:
        """Reads the part whose bytes, without their CRC, are `body`, and whose last frame ends at `end`. Raises CorruptionError."""
        frames, (wide, keyed, names, names_len) = self._frames, self._counts
        counts_at = PART_HEAD.size + frames * _FRAME_BYTES + 4 * (wide + keyed)
        text_at = counts_at + 6 * names
        rows_at = text_at + names_len
        if rows_at > len(body):
            raise _inconsistent(f"its counts ask for {rows_at} bytes", f"at most the {len(body)} that it has")
        counts = struct.unpack_from(f"<{names}H{names}I", body, counts_at)
        name_lens, row_lens = counts[:names], counts[names:]
        if rows_at + 4 * sum(row_lens) != len(body) or sum(name_lens) != names_len:
            raise _inconsistent("the lengths of its names and rows", f"together the {len(body)} bytes that it has")
        at = PART_HEAD.size
        for form in "QQQIII":
            at = self._take_column(form, body, at)
        self.wide, at = _unpack("I", body, at, wide)
        self.keyed, at = _unpack("I", body, at, keyed)
        self._check_frames(end)
        self._read_rows(body[text_at:rows_at], name_lens, body, rows_at, row_lens)
        for row in (self.wide, self.keyed, *self.rows.values()):
            self._check_ordinals(row)

    def _take_column(self, form: str, body: bytes, at: int) -> int:
        column, at = _unpack(form, body, at, self._frames)
        self.columns.append(column)
        return at

    def _read_rows(self, text: bytes, name_lens: Sequence[int], body: bytes, at: int, row_lens: Sequence[int]) -> None:
        try:
            names = [text[start:end].decode() for start, end in pairwise(accumulate(name_lens, initial=0))]
        except UnicodeDecodeError as error:
            raise _inconsistent(f"its names are not UTF-8: {error}", "UTF-8") from error
        for name, count in zip(names, row_lens, strict=True):
            self.rows[name], at = _unpack("I", body, at, count)
        if len(self.rows) != len(names) or not all(row_lens):
            raise _inconsistent("a name has two rows, or one without a frame", "one row for each name")

    def _check_frames(self, end: int) -> None:
        """Checks that the frames follow each other without a gap, and that none is shorter than its head."""
        positions, first_ticks, _, lengths, head_lens, indices = self.columns
        # This is `slot_bytes` of each frame, without a call for each of many thousands.
        ends = [at + (length + _SLOT_ROUND & -SECTOR_BYTES) for at, length in zip(positions, lengths, strict=True)]
        if [self._start, *ends] != [*positions, end]:
            raise _inconsistent("its frames do not follow each other", f"frames from {self._start} to {end}")
        if any(map(gt, head_lens, lengths)) or min(head_lens, default=HEADER_BYTES) < HEADER_BYTES:
            raise _inconsistent("a head is shorter than a header, or longer than its frame", f"{HEADER_BYTES} bytes up")
        if max(first_ticks, default=0) + max(indices, default=0) > 1 << 64:
            raise _inconsistent("a frame has ticks above 64 bits", "ticks of 64 bits")

    def _check_ordinals(self, row: array[int]) -> None:
        first, stop = self._first, self._first + self._frames
        if row and (row[0] < first or row[-1] >= stop or not all(map(lt, row, islice(row, 1, None)))):
            raise _inconsistent("the ordinals of its frames do not ascend", f"ordinals from {first} up to {stop}")


def _inconsistent(found: str, expected: str) -> CorruptionError:
    return CorruptionError(f"an index contradicts itself: {found}", expected=expected)


def pack_column(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _unpack(form: str, data: bytes, at: int, count: int) -> tuple[array[int], int]:
    """Returns the column of `count` entries at `at`, and its end; the caller has checked that the bytes are there."""
    column = array(form)
    end = at + count * column.itemsize
    column.frombytes(data[at:end])
    if sys.byteorder == "big":
        column.byteswap()
    return column, end
