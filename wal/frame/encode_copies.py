"""Encode copies: the tables of frames with the copies of broadcasts. Pure.

Every SHARED run is followed by a COPY run for each vchannel of its broadcast. Their columns are built broadcast by broadcast, never copy by
copy: there may be thousands of copies.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from struct import pack
from typing import Final

import google_crc32c

from wal.frame.draft import Run, RunName
from wal.frame.layout import (
    COLUMN_EXT,
    COLUMN_FLAGS,
    COLUMN_INDEX,
    COLUMN_PROPERTIES,
    COLUMN_TYPE,
    DEFAULT_TYPE,
    FLAG_COPY,
)
from wal.frame.packed_tables import Tables, cut_blocks

__all__ = ["copy_columns", "copy_vchannels", "only_copies"]


def only_copies(runs: list[Run]) -> Tables | None:
    """Returns the tables of a frame that holds nothing but broadcasts to the same vchannels, or None for any other frame."""
    copies = runs[0].copies
    if copies is None or len({run.copies for run in runs}) > 1:
        return None
    records = [run.records[0] for run in runs]
    count = len(records)
    incompatible = COLUMN_FLAGS | COLUMN_EXT
    columns: list[int | bytes] = []
    form = f"{count}I"
    if count > 1 and copies.count > 1:
        incompatible |= COLUMN_INDEX
        columns += [run.indices[0] for run in runs]
        form += form
    columns += [len(record.payload) for record in records]
    types = [record.message_type for record in records]
    if types.count(DEFAULT_TYPE) != count:
        incompatible |= COLUMN_TYPE
        columns += types
        form += f"{count}H"
    columns.append(_FLAGS * count)
    form += f"{count}s"
    properties = [record.properties for record in records]
    if any(properties):
        incompatible |= COLUMN_PROPERTIES
        columns += map(len, properties)
        form += f"{count}I"
        parts = [part for record in records for part in (record.payload, record.properties, record.ext)]
    else:
        parts = [part for record in records for part in (record.payload, record.ext)]
    columns += [len(record.ext) for record in records]
    ends = list(accumulate(map(len, parts), initial=0))
    blocks, block_ends = cut_blocks(parts, ends)
    number = copies.count
    packed = b"".join(
        (
            copies.kinds * count,
            copies.name_lens * count,
            copies.incarnations * count,
            *[
                _ONE_RECORD + ordinal.to_bytes(4, "little") * number
                for ordinal in range(0, count * (1 + number), 1 + number)
            ],
            *[
                start.to_bytes(4, "little") + end.to_bytes(4, "little") * number
                for start, end in pairwise(ends[:: len(parts) // count])
            ],
            pack(
                f"<{form}{count}I{2 * len(blocks)}I",
                *columns,
                *block_ends,
                *map(google_crc32c.value, blocks),
            ),
            copies.joined * count,
        )
    )
    return Tables(
        packed,
        blocks,
        incompatible,
        count * (1 + number),
        count,
        ends[-1],
        count * len(copies.joined),
        copies.names,
        False,
    )


def copy_columns(
    runs: list[Run], rows: list[int], offsets: list[int], body_len: int
) -> tuple[int, int, list[bytes], list[bytes]]:
    """Returns the runs with the COPY runs after each SHARED run: their number, the bytes of their names, their columns and names in pieces.

    They are built broadcast by broadcast, never copy by copy: there may be thousands of copies.
    """
    kinds: list[bytes] = []
    name_lens: list[bytes] = []
    incarnations: list[bytes] = []
    counts: list[bytes] = []
    starts: list[bytes] = []
    names: list[bytes] = []
    ordinal = 0
    for run, count, (start, end) in zip(runs, rows, pairwise((*offsets, body_len)), strict=True):
        begin = start.to_bytes(4, "little")
        if (copies := run.copies) is None:
            name = run.name.encode()
            kinds.append(bytes((run.kind,)))
            name_lens.append(len(name).to_bytes(2, "little"))
            incarnations.append(run.incarnation.to_bytes(4, "little"))
            counts.append(count.to_bytes(4, "little"))
            starts.append(begin)
            names.append(name)
            ordinal += 1
        else:  # a SHARED run has one record; the columns of its copies hold its ordinal and its end
            kinds.append(copies.kinds)
            name_lens.append(copies.name_lens)
            incarnations.append(copies.incarnations)
            counts.append(_ONE_RECORD + ordinal.to_bytes(4, "little") * copies.count)
            starts.append(begin + end.to_bytes(4, "little") * copies.count)
            names.append(copies.joined)
            ordinal += 1 + copies.count
    return ordinal, sum(map(len, names)), [*kinds, *name_lens, *incarnations, *counts, *starts], names


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


_FLAGS: Final = bytes((FLAG_COPY,))
_ONE_RECORD: Final = (1).to_bytes(4, "little")
