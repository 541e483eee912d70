"""Planning: the amount of log that a trigger takes, and the division of a read among tasks. Pure.

Owns two decisions. `take` goes through the frames of all pchannels in the order of their ticks until a limit is reached, so that no
pchannel runs ahead of another or starves. `share_out` cuts a read into pieces of about equal size at frame boundaries, as few as keep the
tasks busy. Both are deterministic functions of their arguments.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from wal.message import LogPosition
from wal.storage.base import FrameWeight


class EventWeight(msgspec.Struct, frozen=True, gc=False):
    """The weight of one event of a frame, by its index. A transaction is one event, with all its rows."""

    index: int
    rows: int
    size: int


class TriggerEnd(msgspec.Struct, frozen=True, gc=False):
    """The end of a trigger in one pchannel: the end of this frame, which is the last unread one there if `all`.

    With `cut` it is within the frame, which alone exceeds a limit.
    """

    frame: FrameWeight
    all: bool = False
    cut: bool = False


class EventRange(msgspec.Struct, frozen=True, gc=False):
    """The events of one pchannel from `start` up to, but not including, `end`."""

    pchannel: str
    start: LogPosition
    end: LogPosition


def take(
    frames: Mapping[str, Sequence[FrameWeight]], *, rows_max: int | None = None, bytes_max: int | None = None
) -> dict[str, TriggerEnd]:
    """Returns the end of the trigger in each pchannel that it reads; `frames` are the unread ones there, in order.

    It takes whole frames, in the order of their ticks, while they fit. If the first one does not fit, it is cut: see `cut`.
    """
    ends: dict[str, TriggerEnd] = {}
    rows = size = 0
    heads = [(weights[0].first_tick, name, 0) for name, weights in frames.items() if weights]
    heapq.heapify(heads)
    while heads:
        _, name, at = heads[0]
        frame = frames[name][at]
        rows += frame.rows
        size += frame.size
        if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
            if not ends:
                ends[name] = TriggerEnd(frame, cut=True)
            break
        more = at + 1 < len(frames[name])
        ends[name] = TriggerEnd(frame, all=not more)
        if more:
            heapq.heapreplace(heads, (frames[name][at + 1].first_tick, name, at + 1))
        else:
            heapq.heappop(heads)
    return ends


def cut(events: Sequence[EventWeight], *, rows_max: int | None = None, bytes_max: int | None = None) -> int | None:
    """Returns the index below which the events of a frame fit the limits; None when all of them fit. The first event is always taken.

    An event is taken whole, including all its rows: a transaction may exceed the limit alone.
    """
    rows = size = 0
    for at, event in enumerate(events):
        rows += event.rows
        size += event.size
        if at and ((rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max)):
            return events[at - 1].index + 1
    return None


def share_out(ranges: Sequence[tuple[EventRange, Sequence[FrameWeight]]], *, partitions_max: int, bytes_min: int) -> list[list[EventRange]]:
    """Returns the pieces that each task reads: all of the ranges, each event once, in at most `partitions_max` tasks of about equal size.

    A task reads at least `bytes_min` bytes if there are that many: starting a task costs more than reading a little. Ranges are cut only
    between their given frames. Empty ranges are omitted.
    """
    ranges = [(whole, frames) for whole, frames in ranges if whole.start < whole.end]
    if not ranges:
        return []
    total = sum(frame.size for _, frames in ranges for frame in frames)
    count = max(1, min(partitions_max, -(-total // bytes_min)))
    shares: list[list[EventRange]] = [[]]
    size = 0
    for whole, frames in ranges:
        start = whole.start
        for frame in frames:
            size += frame.size
            boundary = (frame.next_position, 0)
            if len(shares) < count and size * count >= total * len(shares) and start < boundary < whole.end:
                shares[-1].append(EventRange(whole.pchannel, start, boundary))
                shares.append([])
                start = boundary
        shares[-1].append(EventRange(whole.pchannel, start, whole.end))
        if len(shares) < count and size * count >= total * len(shares) and whole is not ranges[-1][0]:
            shares.append([])
    return shares
