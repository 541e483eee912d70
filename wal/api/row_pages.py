"""RowPages: pages of frames that are taken as rows, without a view of each frame and without a Python object for each record.

Owns: when a read may take its next frames so, and the checks that need a sum over all records (see `wal.frame.rows_head`): Arrow's kernels
make them for a whole page. A failed check raises nothing here: the page is read again as frames, and that read raises the error.
 After such a page, or a frame that does not fit, the next pages are taken as frames, so that a log of such frames is not
read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import sub
from typing import Any, Final

from wal.api.arrow import joined, load_pyarrow, steps
from wal.frame import RowsHead
from wal.message import MessageType
from wal.read.columns import PageFields, Piece, RowColumns
from wal.read.frame_rows import counting
from wal.read.progress import Progress
from wal.storage.base import FramePage, RowsPage, RowsRequest

_BYTES_MAX: Final = 1 << 30
"""A column of bytes has offsets of 31 bits."""
_PAUSE_MAX: Final = 16
_OFFSETS_END: Final = 1 << 31
_ZERO: Final = bytes(4)


class RowPages:
    """Takes the pages of one read as rows, where the frames fit."""

    __slots__ = ("_pause", "_pauses", "_rows_page")

    def __init__(self, rows_page: Callable[[RowsRequest], RowsPage | None]) -> None:
        self._rows_page = rows_page
        self._pauses = 1
        self._pause = 0

    def take(self, progress: Progress, rows: RowColumns, *, rows_max: int, bytes_max: int, end: int | None = None) -> bool:
        """Adds the next page to the rows, about `rows_max` of them or `bytes_max` bytes; returns False if it has to be taken as frames.

        Call it when the read needs a PAGE. With `end` the page ends before the frame at that position. Raises TruncatedError if the page is
        gone.
        """
        if self._pause:
            self._pause -= 1
            return False
        end = progress.page_end if end is None else min(end, progress.page_end)
        if end <= progress.at or (ticks := progress.whole_ticks()) is None:
            return False
        types, pa = progress.types, load_pyarrow()
        inserts_only = types is not None and int(MessageType.INSERT) not in types
        has_bodies = not inserts_only and ("payload" in rows.columns or "properties" in rows.columns)
        selection = progress.selection
        request = RowsRequest(
            progress.at,
            end,
            selection.names,
            selection.accepts,
            *ticks,
            rows_max,
            min(bytes_max, _BYTES_MAX),
            inserts_only,
            pa.allocate_buffer if has_bodies else None,
        )
        page = self._rows_page(request)
        fields = None if page is None else checked_fields(pa, page)
        if page is None or fields is None:
            self._pause, self._pauses = self._pauses, min(2 * self._pauses, _PAUSE_MAX)
            return False
        if page.is_cut:
            self._pause = 1
        else:
            self._pauses = 1
        if not inserts_only:
            rows.add_page(page, fields, progress.origin, types)
        progress.take(FramePage([], page.next_position, page.last_event, page.promised_tick))
        return True


def checked_fields(pa: Any, page: RowsPage) -> PageFields | None:
    """Returns the fields of the rows; None if the tables of a frame contradict each other."""
    frames = page.frames
    if not frames:
        return PageFields([], [], [], [])
    heads = [frame.head for frame in frames]
    if all(head.is_bare for head in heads):
        ends = list(accumulate([head.records for head in heads]))
    else:
        ends = list(accumulate([run.records for head in heads for run in head.runs]))
    count = ends[-1]
    order = None
    if any(head.indices is not None for head in heads) and (order := _order(pa, heads, count, ends)) is None:
        return None
    stops = pa.array(ends, pa.int32())
    payloads = _offsets(pa, [head.payload_lens for head in heads], count, stops)
    if payloads is None:
        return None
    lens, offsets, sizes = payloads
    if len(ends) == len(heads) and all(head.is_bare for head in heads):
        if sizes != [head.body_len for head in heads]:
            return None
        return PageFields([lens], [] if page.bodies is None else [page.bodies], [], [], offsets, order)
    return _split(pa, page, payloads, stops, order)


def _split(pa: Any, page: RowsPage, payloads: tuple[Any, Any, list[int]], stops: Any, order: Any) -> PageFields | None:
    """Returns the fields of the rows, run by run; None if those of a run are not as long together as its part of the body."""
    heads = [frame.head for frame in page.frames]
    count = sum([head.records for head in heads])
    payload_lens, payload_offsets, payload_sizes = payloads
    nothing: tuple[Any, Any, list[int]] = None, None, [0] * len(payload_sizes)
    properties: tuple[Any, Any, list[int]] | None = nothing
    exts: tuple[Any, Any, list[int]] | None = nothing
    if any(head.properties_lens is not None for head in heads):
        properties = _offsets(pa, [head.properties_lens or bytes(4 * head.records) for head in heads], count, stops)
    if any(head.ext_lens is not None for head in heads):
        exts = _offsets(pa, [head.ext_lens or bytes(4 * head.records) for head in heads], count, stops)
    if properties is None or exts is None:
        return None
    payload_parts: list[Piece] = []
    property_parts: list[Piece] = []
    bodies = None if page.bodies is None else memoryview(page.bodies).cast("B")
    sizes = zip(payload_sizes, properties[2], exts[2], strict=True)
    for frame in page.frames:
        for run in frame.head.runs:
            payload_size, property_size, ext_size = next(sizes)
            if payload_size + property_size + ext_size != run.body_end - run.body_start:
                return None
            if bodies is not None:
                start = frame.body_at + run.body_start
                properties_at = start + payload_size
                payload_parts.append(bodies[start:properties_at])
                if property_size:
                    property_parts.append(bodies[properties_at : properties_at + property_size])
    return PageFields([payload_lens], payload_parts, [properties[0]] if property_parts else [], property_parts, payload_offsets, order)


def _offsets(pa: Any, columns: Sequence[bytes], count: int, stops: Any) -> tuple[Any, Any, list[int]] | None:
    """Returns these lengths of `count` fields in one buffer, the offsets of the fields, and the sizes of the runs that end at `stops`.

    Returns None if the fields are too long together for offsets of 31 bits.
    """
    lens = joined(pa, [_ZERO, *columns], 4 * count + 4)
    numbers = pa.Array.from_buffers(pa.uint32(), count + 1, [None, lens])
    try:
        offsets = pa.compute.cumulative_sum_checked(numbers)
    except pa.ArrowInvalid:
        return None
    ends = offsets.take(stops).to_pylist()
    if ends[-1] >= _OFFSETS_END:
        return None
    return lens.slice(4), offsets.buffers()[1], list(map(sub, ends, [0, *ends]))


def _order(pa: Any, heads: Sequence[RowsHead], count: int, ends: Sequence[int]) -> Any:
    """Returns the slots of the rows in the order of their events. The runs end at the slots `ends`.

    Returns None unless the indices of each frame are each below its records once, and ascend in each run.
    """
    pc = pa.compute
    starts = accumulate([head.records for head in heads], initial=0)
    bases = joined(pa, [start.to_bytes(4, "little") * head.records for start, head in zip(starts, heads, strict=False)], 4 * count)
    indices = joined(pa, [head.indices or counting(head.records) for head in heads], 4 * count)
    ranks = pc.add(*[pa.Array.from_buffers(pa.int32(), count, [None, buffer]) for buffer in (bases, indices)])
    descents = pc.indices_nonzero(pc.less_equal(ranks[1:], ranks[:-1]))
    if len(descents) > len(ends) or not set(ends).issuperset([at + 1 for at in descents.to_pylist()]):
        return None
    # An index at or above the records of its frame would have the rank of a later frame's event, and leave a rank of its own frame out.
    if not hasattr(pc, "inverse_permutation"):  # before pyarrow 20
        order = pc.array_sort_indices(ranks)
        return order if ranks.take(order).equals(steps(pa, 0, 1, count)) else None
    try:
        order = pc.inverse_permutation(ranks)
    except pa.ArrowIndexError:
        return None
    return order if not order.null_count else None
