"""Encode: turns a draft into the bytes of a frame.

Pure functions. The result is a list of buffers (the head, then the blocks), so that a large payload is handed to the operating system
without a copy and only small ones are joined.
"""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from struct import Struct, pack
from typing import Final, TypeVar

import google_crc32c
import msgspec

from wal.frame.draft import FrameDraft, Record, Run
from wal.frame.encode_copies import copy_columns, copy_vchannels, only_copies
from wal.frame.layout import (
    BLOCK_BYTES_MIN,
    BROADCAST,
    COLUMN_EXT,
    COLUMN_FLAGS,
    COLUMN_INDEX,
    COLUMN_PROPERTIES,
    COLUMN_TYPE,
    CRC,
    DEFAULT_TYPE,
    FrameHeader,
    RunKind,
)
from wal.frame.packed_tables import Tables, cut_blocks

__all__ = ["EncodedFrame", "encode_frame"]

T = TypeVar("T")


class EncodedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame ready to be written: its header, its bytes as `buffers` (`length` bytes in all), and the vchannels in it.

    `vchannels` are the (name, incarnation) of each run that a reader of that vchannel has to see; `pchannel_wide` is True if every reader
    has to see the frame.
    """

    header: FrameHeader
    buffers: list[bytes]
    length: int
    vchannels: tuple[tuple[str, int], ...]
    pchannel_wide: bool


def encode_frame(
    draft: FrameDraft,
    *,
    incarnation: int,
    term: int,
    sequence: int,
    first_tick: int,
    promised_tick: int | None = None,
) -> EncodedFrame:
    """Returns the frame of this draft.

    `promised_tick` is the tick of the last event by default; a frame without events (a TimeTick frame) requires one.
    """
    if draft.indices == 1 and draft.in_order and not draft.has_flags:  # the only run is a vchannel's, with one record
        tables = _one(draft.runs[0]) or _many(draft)
    else:
        tables = (draft.compatible & BROADCAST and only_copies(draft.runs)) or _many(draft)
    blocks = tables.blocks
    header = FrameHeader(
        tables.incompatible,
        draft.compatible,
        incarnation,
        term,
        sequence,
        first_tick,
        first_tick + draft.indices - 1 if promised_tick is None else promised_tick,
        draft.indices,
        tables.records,
        tables.runs,
        len(blocks),
        len(tables.packed),
        tables.body_len,
        tables.names_len,
    )
    packed = header.pack()
    crc = google_crc32c.value(packed + tables.packed)  # one call over both is cheaper than two, as tables are short
    head = b"".join((packed, CRC.pack(crc), tables.packed))
    return EncodedFrame(
        header,
        [head, *blocks],
        len(head) + tables.body_len,
        tables.vchannels,
        tables.pchannel_wide,
    )


def _one(run: Run) -> Tables | None:
    """Returns the tables of a single INSERT in one block, the usual frame of a lone writer, or None for any other message."""
    record = run.records[0]
    payload, properties, ext = record.payload, record.properties, record.ext
    block = payload + properties + ext  # no copy if only one of them has bytes
    size = len(block)
    if record.message_type != DEFAULT_TYPE or not size or (size > BLOCK_BYTES_MIN and block is not payload):
        return None
    incompatible = 0
    lengths = [len(payload)]
    if properties:
        incompatible |= COLUMN_PROPERTIES
        lengths.append(len(properties))
    if ext:
        incompatible |= COLUMN_EXT
        lengths.append(len(ext))
    name = run.name.encode()
    row = _ONE[len(lengths)]
    packed = row.pack(_VCHANNEL, len(name), run.incarnation, 1, 0, *lengths, size, google_crc32c.value(block)) + name
    return Tables(packed, [block], incompatible, 1, 1, size, len(name), ((run.name, run.incarnation),), False)


def _many(draft: FrameDraft) -> Tables:
    """Returns the tables of any draft, built column by column."""
    runs = draft.runs
    records: list[Record] = runs[0].records if len(runs) == 1 else [record for run in runs for record in run.records]
    count = len(records)
    payloads = [record.payload for record in records]
    types = [record.message_type for record in records]
    properties = [record.properties for record in records]
    exts = [record.ext for record in records]

    incompatible = 0
    columns: list[list[int] | tuple[bytes]] = []
    form = ""
    if (indices := _index_column(draft, count)) is not None:
        incompatible |= COLUMN_INDEX
        columns.append(indices)
        form += f"{count}I"
    payload_lens = list(map(len, payloads))
    columns.append(payload_lens)
    form += f"{count}I"
    if types.count(DEFAULT_TYPE) != count:
        incompatible |= COLUMN_TYPE
        columns.append(types)
        form += f"{count}H"
    if draft.has_flags:
        incompatible |= COLUMN_FLAGS
        columns.append((bytes([record.flags for record in records]),))
        form += f"{count}s"
    fields, field_lens = [payloads], [payload_lens]
    for column, values in ((COLUMN_PROPERTIES, properties), (COLUMN_EXT, exts)):
        if any(values):
            incompatible |= column
            fields.append(values)
            field_lens.append(list(map(len, values)))
            columns.append(field_lens[-1])
            form += f"{count}I"

    rows = [len(run.records) for run in runs]
    starts = list(accumulate(rows, initial=0))
    parts, part_lens = payloads, payload_lens
    if len(fields) > 1:
        parts, part_lens = _by_run(fields, starts), _by_run(field_lens, starts)
    ends = list(accumulate(part_lens, initial=0))
    body_len = ends[-1]
    blocks, block_ends = cut_blocks(parts, ends)
    offsets = [ends[start * len(fields)] for start in starts[:-1]]
    if draft.compatible & BROADCAST:
        run_count, names_len, run_columns, name_bytes = copy_columns(runs, rows, offsets, body_len)
        vchannels, pchannel_wide = copy_vchannels(runs), any(run.kind is RunKind.PCHANNEL for run in runs)
        form = f"<{form}{2 * len(blocks)}I"
        packed = b"".join(
            (
                *run_columns,
                pack(form, *chain.from_iterable(columns), *block_ends, *map(google_crc32c.value, blocks)),
                *name_bytes,
            )
        )
        return Tables(packed, blocks, incompatible, run_count, count, body_len, names_len, vchannels, pchannel_wide)
    kinds, name_lens, joined = _names(runs)
    if len(draft.by_name) == len(runs):
        vchannels, pchannel_wide = tuple(draft.by_name), False
    else:
        vchannels = tuple({(run.name, run.incarnation): None for run in runs if run.name})
        pchannel_wide = RunKind.PCHANNEL in kinds
    packed = pack(
        f"<{len(runs)}s{len(runs)}H{3 * len(runs)}I{form}{2 * len(blocks)}I",
        kinds,
        *name_lens,
        *[run.incarnation for run in runs],
        *rows,
        *offsets,
        *chain.from_iterable(columns),
        *block_ends,
        *map(google_crc32c.value, blocks),
    )
    return Tables(
        packed + joined, blocks, incompatible, len(runs), count, body_len, len(joined), vchannels, pchannel_wide
    )


def _names(runs: list[Run]) -> tuple[bytes, list[int], bytes]:
    """Returns the kinds of the runs, the lengths of their names in UTF-8, and the names."""
    names = [run.name for run in runs]
    joined = "".join(names)
    lengths = list(map(len, names)) if joined.isascii() else [len(name.encode()) for name in names]
    return bytes([run.kind for run in runs]), lengths, joined.encode()


def _index_column(draft: FrameDraft, count: int) -> list[int] | None:
    """Returns the index of each record row, or None if the i-th row has the index i."""
    if draft.in_order:
        return None
    indices = list(chain.from_iterable(run.indices for run in draft.runs))
    return None if indices == list(range(count)) else indices


def _by_run(fields: list[list[T]], starts: list[int]) -> list[T]:
    """Returns the parts of the body, or their lengths: run after run, the payloads of its records, then their properties and exts."""
    return list(chain.from_iterable([field[start:end] for start, end in pairwise(starts) for field in fields]))


_ONE: Final = {lengths: Struct(f"<BHIII{lengths}III") for lengths in (1, 2, 3)}
"""The tables of a frame of one record, but its name: the row of the run, the lengths of the record's parts, the row of the only block."""
_VCHANNEL: Final = int(RunKind.VCHANNEL)
