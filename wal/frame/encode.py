"""Encode: turns a draft into the bytes of a frame.

Pure functions. The result is a list of buffers (the head, then the blocks), so that a large payload reaches the operating system without a
copy and only small ones are joined.

Any draft can be encoded column by column (`_many`). Two kinds of frames have a shorter way: a message alone (`_one`) in half of the time,
and a frame of plain transactions alone (`_only_txns`) in a fifth to a half of it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate, chain, pairwise
from struct import Struct, pack
from typing import Final, TypeVar

import google_crc32c
import msgspec

from wal.frame.codec import BODY_BYTES_MIN, Compressor
from wal.frame.draft import FrameDraft, PlainTxn, Record, Run, RunName
from wal.frame.layout import (
    BLOCK_BYTES_MIN,
    CODEC_ZSTD,
    COLUMN_EXT,
    COLUMN_FLAGS,
    COLUMN_INDEX,
    COLUMN_PROPERTIES,
    COLUMN_TYPE,
    CRC,
    CURSORS,
    DEFAULT_TYPE,
    FLAG_BODY,
    FLAG_COMMIT,
    FrameHeader,
    RunKind,
    SystemRecord,
)


class Tables(msgspec.Struct, gc=False):
    """The tables of a frame as bytes, the blocks that its body is cut into, and the fields of the header that depend on them."""

    packed: bytes
    blocks: list[bytes]
    incompatible: int
    runs: int
    records: int
    body_len: int
    names_len: int
    vchannels: tuple[tuple[str, int], ...]
    pchannel_wide: bool


def cut_blocks(parts: list[bytes], ends: list[int]) -> tuple[list[bytes], list[int]]:
    """Joins whole parts into blocks of at least BLOCK_BYTES_MIN; returns them with their ends. Part i is bytes [ends[i], ends[i + 1])."""
    total = ends[-1]
    if total <= BLOCK_BYTES_MIN:
        return ([b"".join(parts)], [total]) if total else ([], [])
    blocks: list[bytes] = []
    block_ends: list[int] = []
    at = start = 0
    while start < total:
        last = min(bisect_left(ends, start + BLOCK_BYTES_MIN, at + 1), len(parts))
        blocks.append(parts[at] if last == at + 1 else b"".join(parts[at:last]))
        start = ends[last]
        block_ends.append(start)
        at = last
    return blocks, block_ends


def run_columns(runs: list[Run], rows: list[int], offsets: list[int], body_len: int) -> tuple[int, list[bytes], bytes]:
    """Returns the number of the runs, their columns and their names, with the COPY runs after each SHARED run.

    Copies are added broadcast by broadcast, never copy by copy: there may be thousands of them.
    """
    kinds, name_lens, names = bytearray(), array("H"), list[bytes]()
    incarnations, counts, starts = array("I"), array("I"), array("I")
    begin = 0
    for at in (*[at for at, run in enumerate(runs) if run.copies is not None], len(runs)):
        if begin < at:
            some = runs[begin:at]
            encoded = [run.name.encode() for run in some]
            kinds += bytes([run.kind for run in some])
            name_lens.extend(map(len, encoded))
            incarnations.extend([run.incarnation for run in some])
            counts.extend(rows[begin:at])
            starts.extend(offsets[begin:at])
            names += encoded
        if at < len(runs) and (copies := runs[at].copies) is not None:
            # A SHARED run has one record; the columns of its copies hold its ordinal and its end.
            end = offsets[at + 1] if at + 1 < len(runs) else body_len
            counts.frombytes(_ONE_RECORD + len(kinds).to_bytes(4, "little") * copies.count)
            starts.frombytes(offsets[at].to_bytes(4, "little") + end.to_bytes(4, "little") * copies.count)
            kinds += copies.kinds
            name_lens.frombytes(copies.name_lens)
            incarnations.frombytes(copies.incarnations)
            names.append(copies.joined)
        begin = at + 1
    numbers = (name_lens, incarnations, counts, starts)
    return len(kinds), [bytes(kinds), *[column.tobytes() for column in numbers]], b"".join(names)


def copy_vchannels(runs: list[Run]) -> tuple[RunName, ...]:
    """Returns the vchannels of the runs, each once, in their order; a vchannel may have a run of its own and copies."""
    several = {id(run.copies): run.copies for run in runs if run.copies is not None}
    if len(several) == 1 and not any(run.name for run in runs):
        (copies,) = several.values()
        return copies.names
    named: dict[RunName, None] = {}
    for run in runs:
        if run.copies is not None and several.pop(id(run.copies), None) is not None:
            named.update(dict.fromkeys(run.copies.names))
        elif run.name:
            named[run.name, run.incarnation] = None
    return tuple(named)


_ONE_RECORD: Final = (1).to_bytes(4, "little")


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
    compressor: Compressor | None = None,
    tables: Tables | None = None,
) -> EncodedFrame:
    """Returns the frame of this draft; with a `compressor`, its blocks that shrink are compressed.

    `promised_tick` is the tick of the last event by default; a frame without events (a TimeTick frame) requires one. `tables`: those of the
    draft, perhaps compressed, if they were made before.
    """
    if tables is None:
        tables = frame_tables(draft)
        if compressor is not None:
            tables = compressed(tables, compressor)
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
    return EncodedFrame(header, [head, *blocks], len(head) + tables.body_len, tables.vchannels, tables.pchannel_wide)


def frame_tables(draft: FrameDraft) -> Tables:
    """Returns the tables and blocks of this draft: all of the frame that does not depend on its term, sequence and ticks."""
    cursors = draft.take_cursors() if draft.compatible & CURSORS else []
    if draft.plain:
        return _only_txns(draft.plain, cursors)
    for state in cursors:
        draft.system(SystemRecord.CURSOR, state)
    if draft.indices == 1 and draft.in_order and not draft.has_flags:  # the only run is a vchannel's, with one record
        return _one(draft.runs[0]) or _many(draft)
    return _many(draft)


def compressed(tables: Tables, compressor: Compressor) -> Tables:
    """Returns the tables with compressed blocks, or the same tables if no block shrinks. Any thread may call it."""
    if tables.body_len < BODY_BYTES_MIN:
        return tables
    blocks = list(map(compressor.compress, tables.blocks))
    stored_ends = list(accumulate(map(len, blocks)))
    if stored_ends[-1] == tables.body_len:
        return tables
    count = len(blocks)
    names_at = len(tables.packed) - tables.names_len
    ends_at = names_at - 8 * count
    packed = b"".join(
        (
            tables.packed[: ends_at + 4 * count],
            pack(f"<{2 * count}I", *map(google_crc32c.value, blocks), *stored_ends),
            tables.packed[names_at:],
        )
    )
    return msgspec.structs.replace(
        tables, packed=packed, blocks=blocks, incompatible=tables.incompatible | CODEC_ZSTD, body_len=stored_ends[-1]
    )


def _one(run: Run) -> Tables | None:
    """Returns the tables of a single INSERT in one block, the usual frame of a lone writer, or None for any other message."""
    record = run.records[0]
    payload, properties, ext = record.payload, record.properties, record.ext
    block = payload + properties + ext  # no copy if only one of them has bytes
    size = len(block)
    # Another type needs its column, an empty record has no block, and a larger block is not joined from several parts.
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
    run_count, columns_of_runs, names = run_columns(runs, rows, offsets, body_len)
    if len(draft.by_name) == len(runs):
        vchannels, pchannel_wide = tuple(draft.by_name), False
    else:
        vchannels, pchannel_wide = copy_vchannels(runs), any(run.kind is RunKind.PCHANNEL for run in runs)
    rest = pack(f"<{form}{2 * len(blocks)}I", *chain.from_iterable(columns), *block_ends, *map(google_crc32c.value, blocks))
    packed = b"".join((*columns_of_runs, rest, names))
    return Tables(packed, blocks, incompatible, run_count, count, body_len, len(names), vchannels, pchannel_wide)


def _only_txns(txns: list[PlainTxn], cursors: list[bytes]) -> Tables:
    """Returns the tables of a frame of plain transactions, at least one, which are in the order of their indices, and states of cursors.

    The tables are built transaction by transaction, never body by body, from the given payloads and lengths. The cursors are a SYSTEM run
    at the end, whose records have types and no indices.
    """
    runs: dict[RunName, list[PlainTxn]] = {}
    for txn in txns:
        runs.setdefault(txn.name, []).append(txn)
    if len(runs) > 1:
        txns = list(chain.from_iterable(runs.values()))
    rows: list[int] = []
    starts = [0]
    parts: list[bytes] = []
    part_lens: list[int] = []
    payload_lens: list[int] = []
    flags: list[bytes] = []
    ext_lens: list[bytes] = []
    for run in runs.values():
        first, in_run = len(payload_lens), len(part_lens)
        for txn in run:
            bodies = txn.bodies
            count = len(bodies.lengths)
            parts += bodies.payloads
            part_lens += bodies.lengths
            payload_lens += bodies.lengths
            payload_lens.append(0)
            flags.append(_BODY * count + _COMMIT)
            ext_lens.append(_NO_EXT * count + len(txn.ext).to_bytes(4, "little"))
        exts = [txn.ext for txn in run]
        parts += exts
        part_lens += map(len, exts)
        rows.append(len(payload_lens) - first)
        starts.append(starts[-1] + sum(part_lens[in_run:]))
    if cursors:
        lengths = list(map(len, cursors))
        parts += cursors
        part_lens += lengths
        payload_lens += lengths
        flags.append(bytes(len(cursors)))
        ext_lens.append(_NO_EXT * len(cursors))
        rows.append(len(cursors))
        starts.append(starts[-1] + sum(lengths))
    body_len = starts.pop()
    blocks, block_ends = cut_blocks(parts, list(accumulate(part_lens, initial=0)))
    records = len(payload_lens)
    incompatible = COLUMN_FLAGS | COLUMN_EXT
    indices: list[int] = []
    types = b""
    if cursors:
        incompatible |= COLUMN_TYPE
        types = _INSERT_TYPE * (records - len(cursors)) + _CURSOR_TYPE * len(cursors)
    if cursors or any(first.first > second.first for first, second in pairwise(txns)):
        incompatible |= COLUMN_INDEX
        for txn in txns:
            indices += range(txn.first, txn.first + len(txn.bodies.lengths) + 1)
        indices += [0] * len(cursors)
    encoded = [name.encode() for name, _ in runs]
    joined = b"".join(encoded)
    incarnations, kinds = [incarnation for _, incarnation in runs], _KIND * len(runs)
    if cursors:
        encoded.append(b"")
        incarnations.append(0)
        kinds += _SYSTEM_KIND
    number = len(kinds)
    packed = b"".join(
        (
            kinds,
            pack(
                f"<{number}H{3 * number + len(indices) + records}I",
                *map(len, encoded),
                *incarnations,
                *rows,
                *starts,
                *indices,
                *payload_lens,
            ),
            types,
            *flags,
            *ext_lens,
            pack(f"<{2 * len(blocks)}I", *block_ends, *map(google_crc32c.value, blocks)),
            joined,
        )
    )
    return Tables(packed, blocks, incompatible, number, records, body_len, len(joined), tuple(runs), False)


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
_KIND: Final = bytes((_VCHANNEL,))
_SYSTEM_KIND: Final = bytes((int(RunKind.SYSTEM),))
_INSERT_TYPE: Final = DEFAULT_TYPE.to_bytes(2, "little")
_CURSOR_TYPE: Final = int(SystemRecord.CURSOR).to_bytes(2, "little")
_BODY: Final = bytes((FLAG_BODY,))
_COMMIT: Final = bytes((FLAG_COMMIT,))
_NO_EXT: Final = bytes(4)
"""The length of the ext of a row without one."""
