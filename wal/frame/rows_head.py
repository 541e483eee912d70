"""RowsHead: the head of a frame of plain messages, checked without a Python object for each record.

It is for frames whose runs are all of vchannels and long, without transactions, without a codec: the frames of group commits. Record i of
such a frame is a message, and every column of the records is taken as its stored bytes.

`rows_head` makes the checks of `FrameView.decode`, except for the sums over the records: that the fields of each run are as long together
as its part of the body, and that each index is below the number of events, appears once and ascends in its run. A reader of many frames
checks these for all of them at once (`wal.api.row_pages`). It never raises: a head that does not fit, or is not in order, gives None and is
left to `FrameView`, which also raises the error.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from operator import le
from typing import Final

import google_crc32c
import msgspec

from wal.errors import WALError
from wal.frame.layout import COLUMN_EXT, COLUMN_INDEX, COLUMN_PROPERTIES, COLUMN_TYPE, CRC, FORMAT_VERSION, HEADER_BYTES, MAGIC
from wal.frame.tables import read_names


class RunSpan(msgspec.Struct, frozen=True, gc=False):
    """A run of a vchannel: the number of its records, and where its part of the body begins and ends."""

    name: str
    incarnation: int
    records: int
    body_start: int
    body_end: int


class RowsHead(msgspec.Struct, frozen=True, gc=False):
    """The head of a frame of plain messages: its runs, the columns of its `records`, and the blocks of its body.

    Columns are little-endian: 4 bytes an entry, 2 for types; None if the frame has no such column. `block_ends` ascend and end at
    `body_len`.
    """

    first_tick: int
    records: int
    runs: tuple[RunSpan, ...]
    indices: bytes | None
    payload_lens: bytes
    types: bytes | None
    properties_lens: bytes | None
    ext_lens: bytes | None
    body_len: int
    block_ends: tuple[int, ...]
    block_crcs: tuple[int, ...]

    is_bare: bool
    """Whether the body is the payloads, one after the other, and nothing else."""


def rows_head(data: bytes, at: int, frame_bytes: int) -> RowsHead | None:
    """Returns the head of the frame of `frame_bytes` bytes that begins at `at`; None unless it fits, and all of its head is there."""
    if len(data) - at < HEADER_BYTES:
        return None
    (
        magic, version, header_len, columns, _, _, _, _, first_tick, _, indices, records, runs, blocks, tables_len, body_len, names_len,
        stored_crc,
    ) = _HEADER.unpack_from(data, at)  # fmt: skip
    if columns & ~_COLUMNS or magic != MAGIC or version != FORMAT_VERSION or header_len != HEADER_BYTES or records != indices:
        return None
    tables_at = at + HEADER_BYTES
    end = tables_at + tables_len
    if (
        not runs
        or names_len > _NAMES_BYTES_MAX
        or records < _LONG_RUN * runs - _LONG_RUN + 1
        or end - at + body_len != frame_bytes
        or len(data) < end
    ):
        return None
    if first_tick + indices > _TICKS_END:
        return None
    if google_crc32c.extend(google_crc32c.value(data[at : tables_at - CRC.size]), data[tables_at:end]) != stored_crc:
        return None
    index_column = types = properties_lens = ext_lens = None
    place = tables_at + _RUN_BYTES * runs
    if columns & COLUMN_INDEX:
        index_column = data[place : place + 4 * records]
        place += 4 * records
    payload_lens = data[place : place + 4 * records]
    place += 4 * records
    if columns & _AFTER_LENGTHS:
        if columns & COLUMN_TYPE:
            types = data[place : place + 2 * records]
            place += 2 * records
        if columns & COLUMN_PROPERTIES:
            properties_lens = data[place : place + 4 * records]
            place += 4 * records
        if columns & COLUMN_EXT:
            ext_lens = data[place : place + 4 * records]
            place += 4 * records
    names_at = place + 8 * blocks
    if names_at + names_len != end:
        return None
    numbers = struct.unpack_from(f"<{2 * blocks}I", data, place)
    ends = numbers[:blocks]
    if not ends:
        if body_len:
            return None
    elif ends[-1] != body_len or not ends[0] or any(map(le, ends[1:], ends)):
        return None
    spans = _spans(data[tables_at : tables_at + _RUN_BYTES * runs], runs, records, body_len, data[names_at:end])
    if spans is None:
        return None
    is_bare = runs == 1 and properties_lens is None and ext_lens is None
    return RowsHead(
        first_tick, records, spans, index_column, payload_lens, types, properties_lens, ext_lens, body_len, ends, numbers[blocks:], is_bare
    )


@lru_cache(maxsize=64)
def _spans(columns: bytes, runs: int, records: int, body_len: int, names: bytes) -> tuple[RunSpan, ...] | None:
    """Returns the runs of these columns; None unless all are of vchannels, and follow one another over all records and the whole body.

    Many frames have the same runs, so the results are cached; their names are short.
    """
    kinds = columns[:runs]
    if kinds.strip(_VCHANNEL):
        return None
    try:
        texts = read_names(kinds, columns[runs : 7 * runs], names)
    except WALError:
        return None
    numbers = struct.unpack_from(f"<{3 * runs}I", columns, 3 * runs)
    incarnations, counts, starts = numbers[:runs], numbers[runs : 2 * runs], numbers[2 * runs :]
    stops = (*starts[1:], body_len)
    # Runs cover all records and the body from its start, none is empty, and their parts ascend.
    if sum(counts) != records or starts[0] or not all(counts) or not all(map(le, starts, stops)):
        return None
    return tuple(map(RunSpan, texts, incarnations, counts, starts, stops))


_HEADER: Final = struct.Struct("<4sHHIIQQQQQIIIIIII8xI")
_RUN_BYTES: Final = 15
_LONG_RUN: Final = 8
"""The least average number of records a run: below it, the work for each run would cost more than the work for each record."""
_COLUMNS: Final = COLUMN_INDEX | COLUMN_TYPE | COLUMN_PROPERTIES | COLUMN_EXT
_AFTER_LENGTHS: Final = COLUMN_TYPE | COLUMN_PROPERTIES | COLUMN_EXT
_NAMES_BYTES_MAX: Final = 4096
_VCHANNEL: Final = b"\0"
_TICKS_END: Final = 1 << 63
"""Ticks are signed numbers of 64 bits in a column."""
