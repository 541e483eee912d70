"""Encode: turns a draft into the bytes of a frame.

Pure functions. The result is a list of buffers (the head, then the blocks), so that a large payload is handed to the operating system
without a copy and only small ones are joined.
"""

from __future__ import annotations

from itertools import accumulate, chain, pairwise
from struct import pack

import google_crc32c
import msgspec

from wal.frame.draft import FrameDraft, Record, Run
from wal.frame.encode_copies import copy_columns, copy_vchannels, only_copies
from wal.frame.layout import (
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
    runs = draft.runs
    if (
        draft.in_order
        and len(runs) == 1
        and len(runs[0].records) == 1
        and runs[0].kind is RunKind.VCHANNEL
        and not draft.has_flags
    ):
        tables = _one(runs[0])
    else:
        tables = (draft.compatible & BROADCAST and only_copies(runs)) or _many(draft)
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
    crc = google_crc32c.extend(google_crc32c.value(packed), tables.packed)
    head = b"".join((packed, CRC.pack(crc), tables.packed))
    return EncodedFrame(
        header,
        [head, *blocks],
        len(head) + tables.body_len,
        tables.vchannels,
        tables.pchannel_wide,
    )


def _one(run: Run) -> Tables:
    """Returns the tables of a single plain message, the usual frame of a lone writer, without building columns."""
    record = run.records[0]
    payload, kind, properties, ext = record.payload, record.message_type, record.properties, record.ext
    incompatible = 0
    form = "<BHIIII"
    columns = [len(payload)]
    parts = [payload]
    if kind != DEFAULT_TYPE:
        incompatible |= COLUMN_TYPE
        form += "H"
        columns.append(kind)
    if properties:
        incompatible |= COLUMN_PROPERTIES
        form += "I"
        columns.append(len(properties))
        parts.append(properties)
    if ext:
        incompatible |= COLUMN_EXT
        form += "I"
        columns.append(len(ext))
        parts.append(ext)
    blocks, ends = cut_blocks(parts, list(accumulate(map(len, parts), initial=0)))
    name = run.name.encode()
    packed = pack(
        f"{form}{2 * len(blocks)}I",
        RunKind.VCHANNEL,
        len(name),
        run.incarnation,
        1,
        0,
        *columns,
        *ends,
        *map(google_crc32c.value, blocks),
    )
    return Tables(
        packed + name,
        blocks,
        incompatible,
        1,
        1,
        ends[-1] if ends else 0,
        len(name),
        ((run.name, run.incarnation),),
        False,
    )


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
    fields = [payloads]
    for column, values in ((COLUMN_PROPERTIES, properties), (COLUMN_EXT, exts)):
        if any(values):
            incompatible |= column
            columns.append(list(map(len, values)))
            form += f"{count}I"
            fields.append(values)

    rows = [len(run.records) for run in runs]
    starts = list(accumulate(rows, initial=0))
    parts, part_lens = payloads, payload_lens
    if len(fields) > 1:
        parts = _by_run(fields, starts)
        part_lens = list(map(len, parts))
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


def _by_run(fields: list[list[bytes]], starts: list[int]) -> list[bytes]:
    """Returns the parts of the body: run after run, the payloads of its records, then their properties, then their exts."""
    return [part for start, end in pairwise(starts) for field in fields for part in field[start:end]]
