"""Searches in the frames of a log: the position after a tick, the newest event below a position, what frames weigh.

They need of a backend no more than reading and counting bytes, so they work on every one of them.
"""

from __future__ import annotations

from typing import Final

from wal.backends import PChannelLog, ReadableLog, StoredFrame
from wal.errors import TruncatedError
from wal.frame import RunKind
from wal.message import LogPosition
from wal.rpc.api.pchannel_calls_pb2 import FrameWeight
from wal.rpc.positions import position_to_proto

__all__ = ["event_below", "position_after", "weigh", "weigh_pieces"]

PIECES: Final = 64
"""The most weights of an extent without a limit: enough to share it out among the tasks of a job."""
_PAGE_BYTES: Final = 1 << 20
_PAGES_MAX: Final = 64
"""The most pages that one call weighs: it answers within a deadline, with a bounded number of weights."""
_BACK_BYTES: Final = 1 << 16
"""How far back the search for an event first goes: the last few frames, of which most hold events."""
_NONE: Final = frozenset[str]()


async def position_after(log: PChannelLog, tick: int, start: int, end: int) -> LogPosition:
    """Returns the log position in [start, end) after all events with a tick up to this one; (end, 0) if none has a larger one.

    Promised ticks ascend from frame to frame, so this is a binary search over positions that reads one frame in each step.
    """
    low, high = start, end
    for extent in log.extents():  # a sealed extent knows its newest tick without a read
        if extent.sealed and extent.newest_tick <= tick:
            low = max(low, min(extent.end, end))
    while high - low > 1:
        middle = (low + high) // 2
        frames = (await log.read(middle, names=None, bytes_max=1, end=high)).frames
        if frames and frames[0].view.header.promised_tick <= tick:
            low = frames[0].next_position
        else:
            high = middle
    at = low
    while at < end:
        page = await log.read(at, names=None, bytes_max=1, end=end)
        for frame in page.frames:
            header = frame.view.header
            if header.indices and header.first_tick + header.indices - 1 > tick:
                return frame.position, max(0, tick + 1 - header.first_tick)
        at = page.next_position
    return end, 0


async def event_below(log: ReadableLog, since: LogPosition, below: LogPosition) -> LogPosition | None:
    """Returns the newest event in [since, below), or None if there is none, or if it may be truncated."""
    if below[1]:
        found = (below[0], below[1] - 1)
        return found if found >= since else None
    start, upper, back = max(since[0], log.earliest[0]), below[0], _BACK_BYTES
    try:
        while start < upper:
            lower = at = _back(log, start, upper, back)
            newest: LogPosition | None = None
            while at < upper:
                page = await log.read(at, names=_NONE, bytes_max=_PAGE_BYTES, end=upper)
                newest, at = page.last_event or newest, page.next_position
            if newest is not None:
                return newest if newest >= since else None
            upper, back = lower, 4 * back
    except TruncatedError:
        pass  # what was there is gone
    return None


def weigh_pieces(log: ReadableLog, start: int, end: int) -> list[FrameWeight]:
    """Returns the weights of at most 64 pieces of about equal bytes; only their positions and bytes are known. Reads no frame."""
    total = log.bytes_between(start, end)
    if not total:
        return []
    grain = -(-total // PIECES)
    weights: list[FrameWeight] = []
    while start < end:
        following = _forward(log, start, end, grain)
        weights.append(
            FrameWeight(
                position=position_to_proto(start),
                next_position=position_to_proto(following),
                bytes=log.bytes_between(start, following),
            )
        )
        start = following
    return weights


async def weigh(
    log: ReadableLog,
    start: int,
    end: int,
    names: frozenset[str] | None,
    *,
    rows_max: int | None,
    bytes_max: int | None,
) -> tuple[list[FrameWeight], int]:
    """Returns the weights of the frames in [start, end) that hold rows of these vchannels, and the position up to which it looked.

    It ends after the first frame that exceeds a limit, or after 64 pages.
    """
    weights: list[FrameWeight] = []
    rows = size = 0
    for _ in range(_PAGES_MAX):
        if start >= end:
            break
        page = await log.read(start, names=names, bytes_max=_PAGE_BYTES, end=end)
        for frame in page.frames:
            if (weight := _weight(frame, names)) is None:
                continue
            weights.append(weight)
            rows, size = rows + weight.rows, size + weight.bytes
            if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
                return weights, frame.next_position
        start = page.next_position
    return weights, start


def _weight(frame: StoredFrame, names: frozenset[str] | None) -> FrameWeight | None:
    """Returns the weight of a frame for these vchannels, None when it holds no row of them."""
    header = frame.view.header
    if names is None:
        rows, size = header.indices, header.frame_bytes
    else:
        runs = [run for run in frame.view.runs.find(names) if run.kind != RunKind.SYSTEM]
        rows = sum(1 if run.kind == RunKind.COPY else run.end - run.first for run in runs)
        size = sum(run.body_end - run.body_start for run in runs)
    if not rows:
        return None
    return FrameWeight(
        position=position_to_proto(frame.position),
        next_position=position_to_proto(frame.next_position),
        first_tick=header.first_tick,
        promised_tick=header.promised_tick,
        rows=rows,
        bytes=size,
    )


def _forward(log: ReadableLog, start: int, end: int, size: int) -> int:
    """Returns the first position above `start` with at least `size` bytes before it, or the end."""
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if log.bytes_between(start, middle) >= size else (middle, high)
    return high


def _back(log: ReadableLog, start: int, end: int, size: int) -> int:
    """Returns the last position below `end` with at least `size` bytes after it, or the start."""
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log.bytes_between(middle, end) >= size else (low, middle)
    return low
