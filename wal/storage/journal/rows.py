"""Frames of a segment as rows: many of them are fetched with one call and checked, without a view of each.

Owns: which frames of a segment one request takes, and reading them. Bodies are read straight into their final memory, by one `preadv` for
many frames; for a request without bodies, only the heads of large frames are read. Envelopes, heads and the CRCs of all blocks that are
read are checked. No frame raises an error: the rows end before the first frame that does not fit or is not in order, and the reader of
frames (`reader.py`) continues there and raises the error.

It blocks, so it runs in threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import google_crc32c

from wal.frame import RowsHead, RunSpan, rows_head
from wal.storage.base import Memory, RowsFrame, RowsRequest
from wal.storage.journal.disk import BUFFERS_MAX, FrameFile
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import ENVELOPE_BYTES, pack_envelope, slot_bytes
from wal.storage.journal.segments import Segment

_FRAMES_MAX: Final = 1024
"""The most frames that one request looks at: their ordinals are Python objects."""
_CHUNK_BYTES: Final = 256 * 1024
"""The bytes of one read, so that the CRCs are computed while the bytes are in the processor's cache."""
_APART_BYTES: Final = 8 * 1024
"""From this many bytes of body a frame on, reading each head by itself takes less time than reading all bodies with them."""


def plan_rows(index: SegmentIndex, request: RowsRequest) -> tuple[list[int], int, int] | None:
    """Returns the ordinals of the frames to read, the first ordinal of the request, and the one at which this page ends.

    Returns None if the first frame does not fit, according to the index.
    """
    first, stop = index.ordinal(request.start), index.ordinal(request.end)
    # Promises ascend, so every event before this frame has a lower tick than the wanted ones.
    begin = bisect_left(index.promises, request.tick_min, first, stop) if request.tick_min else first
    stop = min(stop, begin + _FRAMES_MAX)
    ordinals: list[int] = []
    rows = size = 0
    for ordinal in index.wanted(request.names, begin, stop):
        if index.first_ticks[ordinal] < request.tick_min or index.promises[ordinal] >= request.tick_end:
            stop = ordinal
            break
        ordinals.append(ordinal)
        rows += index.indices[ordinal]
        size += index.lengths[ordinal] - index.head_lens[ordinal]
        if rows >= request.rows_max or size >= request.bytes_max:
            stop = ordinal + 1
            break
    return (ordinals, first, stop) if first < stop else None


def read_rows(
    segment: Segment, index: SegmentIndex, file: FrameFile, request: RowsRequest, ordinals: Sequence[int]
) -> tuple[list[RowsFrame], Memory | None]:
    """Returns the frames of these ordinals up to the first that does not fit or is not in order, and their bodies in one piece."""
    frames: list[RowsFrame] = []
    bodies, room = None, 0
    if request.allocate is not None:
        room = sum([index.lengths[ordinal] - index.head_lens[ordinal] for ordinal in ordinals])
        bodies = request.allocate(room)
    accepted: tuple[RunSpan, ...] = ()
    size = 0
    generation = segment.header.generation
    for ordinal, data, at in _heads(segment, index, file, ordinals, bodies):
        length = index.lengths[ordinal]
        position = index.positions[ordinal]
        if data[at : at + ENVELOPE_BYTES] != pack_envelope(length, generation, position):
            break
        head = rows_head(data, at + ENVELOPE_BYTES, length)
        # Not a head of plain messages, another length than in the index, or other types than the request wants.
        if head is None or head.body_len != length - index.head_lens[ordinal] or (request.inserts_only and head.types is not None):
            break
        runs = head.runs
        if runs is not accepted:  # the same runs are the same object
            if not all(request.accepts(run.name, run.incarnation) for run in runs):
                break
            accepted = runs
        if bodies is not None and not is_intact(head, bodies, size):
            break
        frames.append(RowsFrame(position, head, size))
        size += head.body_len
    if bodies is not None and size < room:
        bodies = bodies.slice(0, size)
    return frames, bodies


def is_intact(head: RowsHead, bodies: Memory, at: int) -> bool:
    """Returns whether the blocks of this frame match their CRCs."""
    start = 0
    for end, crc in zip(head.block_ends, head.block_crcs, strict=True):
        if google_crc32c.value(bodies.slice(at + start, end - start)) != crc:
            return False
        start = end
    return True


def _heads(
    segment: Segment, index: SegmentIndex, file: FrameFile, ordinals: Sequence[int], bodies: Memory | None
) -> Iterator[tuple[int, bytes, int]]:
    """Yields each ordinal with bytes that hold its envelope and head, and where these begin. Bodies are read into `bodies`.

    It ends early where the file ends.
    """
    base, positions, lengths, head_lens = segment.base, index.positions, index.lengths, index.head_lens
    into = None if bodies is None else memoryview(bodies).cast("B")
    apart = into is None and sum([lengths[ordinal] for ordinal in ordinals]) >= _APART_BYTES * len(ordinals)
    at = body_at = 0
    while at < len(ordinals):
        first = ordinals[at]
        offset = positions[first] - base
        if apart:
            data = file.read(ENVELOPE_BYTES + head_lens[first], offset)
            yield first, data, 0
            at += 1
            continue
        stop, size = at, 0
        # One read takes adjacent frames, up to a chunk (one frame may be larger), with two buffers for each.
        while (
            stop < len(ordinals)
            and ordinals[stop] - first == stop - at
            and (not size or size < _CHUNK_BYTES)
            and 2 * (stop - at) < BUFFERS_MAX
        ):
            size += slot_bytes(lengths[ordinals[stop]])
            stop += 1
        chunk = ordinals[at:stop]
        if into is None:
            data = file.read(size, offset)
            for ordinal in chunk:
                yield ordinal, data, positions[ordinal] - base - offset
        else:
            # The bytes between two bodies are read together: the padding of a frame, and the envelope and head of the next one.
            gaps: list[int] = []
            padding = 0
            for ordinal in chunk:
                gaps.append(padding + ENVELOPE_BYTES + head_lens[ordinal])
                padding = slot_bytes(lengths[ordinal]) - ENVELOPE_BYTES - lengths[ordinal]
            scratch = bytearray(sum(gaps))
            buffers: list[memoryview] = []
            view, gap_at = memoryview(scratch), 0
            for ordinal, gap in zip(chunk, gaps, strict=True):
                body_end = body_at + lengths[ordinal] - head_lens[ordinal]
                buffers += (view[gap_at : gap_at + gap], into[body_at:body_end])
                gap_at, body_at = gap_at + gap, body_end
            if not file.read_into(buffers, offset):
                return
            data, gap_at = bytes(scratch), 0
            for ordinal, gap in zip(chunk, gaps, strict=True):
                gap_at += gap
                yield ordinal, data, gap_at - ENVELOPE_BYTES - head_lens[ordinal]
        at = stop
