"""Parts: the records of a stored frame, to be written again in other frames.

A part is a run with its records. An event of a new frame keeps its tick if its index keeps its distance to the first one, so a draft takes
a contiguous range of indices. Pure. It decodes the whole body of the frame.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wal.frame import (
    BROADCAST,
    CURSORS,
    DEFAULT_TYPE,
    FLAG_BODY,
    FLAG_COPY,
    SCHEDULES,
    CopyNames,
    FrameDraft,
    FrameView,
    Record,
    RunKind,
    RunName,
)
from wal.frame.draft import Run
from wal.frame.ext import encode_broadcast
from wal.read.assembly import shared_copies


class Part(msgspec.Struct, gc=False):
    """A run of the frame: its records that are still to be taken, from number `at` on. A copy has an index, and no records."""

    kind: RunKind
    name: str
    incarnation: int
    records: list[Record]
    indices: list[int]
    at: int = 0
    shared: int = -1
    """Of a copy: the ordinal of its SHARED run."""


def parts_of(view: FrameView) -> list[Part]:
    """Returns the runs of a frame with their records, by ordinal."""
    parts: list[Part] = []
    for run in view.runs:
        if run.kind == RunKind.COPY:
            parts.append(Part(RunKind.COPY, run.name, run.incarnation, [], [run.index], shared=run.shared))
            continue
        columns = view.columns(run)
        count = len(columns.payloads)
        types = columns.types or [DEFAULT_TYPE] * count
        empty = [b""] * count
        records = list(
            map(Record, columns.payloads, types, columns.flags or [0] * count, columns.properties or empty, columns.exts or empty)
        )
        parts.append(Part(RunKind(run.kind), run.name, run.incarnation, records, list(columns.indices)))
    return parts


def draft_of(view: FrameView, parts: list[Part], ordinals: Iterable[int], start: int, end: int) -> FrameDraft:
    """Returns the records of these runs with an index in [start, end). Ranges of one frame are taken in ascending order.

    Records for the log itself (SYSTEM) are left out.
    """
    draft = FrameDraft()
    copies: dict[int, list[tuple[int, RunName]]] = {}
    for ordinal in ordinals:
        part = parts[ordinal]
        if part.kind == RunKind.COPY:
            if start <= part.indices[0] < end:
                copies.setdefault(part.shared, []).append((part.indices[0], (part.name, part.incarnation)))
            continue
        if part.kind in (RunKind.SHARED, RunKind.SYSTEM):
            continue
        indices, first = part.indices, part.at
        while first < len(indices) and indices[first] < start:
            first += 1
        last = first
        while last < len(indices) and indices[last] < end:
            last += 1
        part.at = last
        if last > first:
            own = Run(part.kind, part.name, part.incarnation, part.records[first:last], [index - start for index in indices[first:last]])
            draft.runs.append(own)
            draft.has_flags = draft.has_flags or any(record.flags for record in own.records)
    for each in shared_copies(view) if copies else ():
        if (named := copies.get(each.ordinal)) is None:
            continue
        names = CopyNames([name for _, name in named])
        ext = encode_broadcast(each.header.to_bytes(names.texts))  # the header leaves out the names of the copies in its frame
        record = Record(each.payload, each.message_type, FLAG_COPY, each.properties, ext)
        draft.runs.append(Run(RunKind.SHARED, "", 0, [record], [named[0][0] - start], names))
        draft.has_flags = True
    draft.indices = end - start
    draft.in_order = False  # the encoder leaves the column of indices out where it is not needed
    draft.compatible = view.header.compatible & ~(CURSORS | SCHEDULES)
    if not copies:
        draft.compatible &= ~BROADCAST
    return draft


def draft_up_to(view: FrameView, tick: int) -> FrameDraft | None:
    """Returns the events of a frame with a tick up to this one, None without one. A transaction is one event, at its commit."""
    parts = parts_of(view)
    bodies = {
        index
        for part in parts
        for index, record in zip(part.indices, part.records, strict=False)
        if part.kind == RunKind.VCHANNEL and record.flags & FLAG_BODY
    }
    count = tick + 1 - view.header.first_tick
    while count and count - 1 in bodies:  # its commit comes after its bodies
        count -= 1
    return draft_of(view, parts, range(len(parts)), 0, count) if count else None
