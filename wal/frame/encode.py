"""Encode: a draft becomes the bytes of a frame.

Pure functions. The result is a list of buffers (head, then blocks), so that a large payload is handed to the operating system
where it lies and only small ones are joined.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, chain
from struct import pack
from typing import Final

import google_crc32c
import msgspec

from wal.frame.draft import FrameDraft, Record, Run
from wal.frame.layout import (
    BLOCK_BYTES_MIN,
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

__all__ = ["EncodedFrame", "encode_frame"]


class EncodedFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame ready to be written: its header, its bytes as `buffers` (`length` in all), and which vchannels it holds.

    `vchannels` are (name, incarnation) of every run that a reader of that vchannel has to see; `pchannel_wide` is True when every
    reader has to see the frame.
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
    promise: int | None = None,
) -> EncodedFrame:
    """The frame of this draft.

    `promise` defaults to the tick of the last event; a frame without events (a TimeTick frame) must state it.
    """
    runs = draft.runs
    records: list[Record] = (
        runs[0].records if len(runs) == 1 else list(chain.from_iterable(run.records for run in runs))
    )
    count = len(records)
    payload_lens = [len(record.payload) for record in records]
    types = [record.message_type for record in records]
    flags = [record.flags for record in records]
    properties_lens = [len(record.properties) for record in records]
    ext_lens = [len(record.ext) for record in records]

    incompatible = 0
    columns: list[list[int]] = []
    form: list[str] = []
    indices = _index_column(runs, count)
    if indices is not None:
        incompatible |= COLUMN_INDEX
        columns.append(indices)
        form.append(f"{count}I")
    columns.append(payload_lens)
    form.append(f"{count}I")
    if types.count(DEFAULT_TYPE) != count:
        incompatible |= COLUMN_TYPE
        columns.append(types)
        form.append(f"{count}H")
    if any(flags):
        incompatible |= COLUMN_FLAGS
        columns.append(flags)
        form.append(f"{count}B")
    if has_properties := any(properties_lens):
        incompatible |= COLUMN_PROPERTIES
        columns.append(properties_lens)
        form.append(f"{count}I")
    if has_ext := any(ext_lens):
        incompatible |= COLUMN_EXT
        columns.append(ext_lens)
        form.append(f"{count}I")

    parts: list[bytes] = []
    offsets: list[int] = []
    body_len = 0
    row = 0
    for run in runs:
        offsets.append(body_len)
        end = row + len(run.records)
        parts += [record.payload for record in run.records]
        body_len += sum(payload_lens[row:end])
        if has_properties:
            parts += [record.properties for record in run.records]
            body_len += sum(properties_lens[row:end])
        if has_ext:
            parts += [record.ext for record in run.records]
            body_len += sum(ext_lens[row:end])
        row = end
    blocks, ends = _cut(parts)

    names = [run.name.encode() for run in runs]
    name_bytes = b"".join(names)
    tables = pack(
        f"<{len(runs)}B{len(runs)}H{len(runs)}I{len(runs)}I{len(runs)}I{''.join(form)}{len(blocks)}I{len(blocks)}I",
        *[run.kind for run in runs],
        *map(len, names),
        *[run.incarnation for run in runs],
        *[run.shared if run.kind is RunKind.COPY else len(run.records) for run in runs],
        *offsets,
        *chain.from_iterable(columns),
        *ends,
        *map(google_crc32c.value, blocks),
    )
    header = FrameHeader(
        incompatible=incompatible,
        compatible=0,
        incarnation=incarnation,
        term=term,
        sequence=sequence,
        first_tick=first_tick,
        promise=first_tick + draft.indices - 1 if promise is None else promise,
        indices=draft.indices,
        records=count,
        runs=len(runs),
        blocks=len(blocks),
        tables_len=len(tables) + len(name_bytes),
        body_len=body_len,
        names_len=len(name_bytes),
    )
    packed = header.pack()
    crc = google_crc32c.extend(google_crc32c.value(packed), tables + name_bytes)
    head = b"".join((packed, CRC.pack(crc), tables, name_bytes))
    return EncodedFrame(
        header,
        [head, *blocks],
        len(head) + body_len,
        tuple({(run.name, run.incarnation): None for run in runs if run.kind in _NAMED}),
        any(run.kind is RunKind.PCHANNEL for run in runs),
    )


_NAMED: Final = frozenset((RunKind.VCHANNEL, RunKind.COPY))


def _index_column(runs: list[Run], count: int) -> list[int] | None:
    """The index of each record row, or None when the rows are simply numbered."""
    if len(runs) == 1:
        indices = runs[0].indices
    else:
        indices = list(chain.from_iterable(run.indices for run in runs))
    if not count or (indices[0] == 0 and indices[-1] == count - 1 and indices == list(range(count))):
        return None
    return indices


def _cut(parts: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Blocks of at least BLOCK_BYTES_MIN from whole parts, and where each ends."""
    ends = list(accumulate(map(len, parts)))
    total = ends[-1] if ends else 0
    blocks: list[bytes] = []
    block_ends: list[int] = []
    at = start = 0
    while start < total:
        last = min(bisect_left(ends, start + BLOCK_BYTES_MIN, at), len(ends) - 1)
        blocks.append(parts[at] if last == at else b"".join(parts[at : last + 1]))
        start = ends[last]
        block_ends.append(start)
        at = last + 1
    return blocks, block_ends
