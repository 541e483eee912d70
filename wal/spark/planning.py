"""Planning: how much of the log a trigger takes, and which task reads what. Pure.

Owns two decisions. `take` goes through the frames of all pchannels in the order of their ticks until a limit is reached, so that no
pchannel runs ahead of another or starves. `share_out` cuts what is to be read into pieces of about one size at frame boundaries, as few as
keep the tasks busy. Both depend on nothing but what they are given: asked again, they answer the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from wal.spark.offsets import Place

__all__ = ["EventWeight", "FrameWeight", "Piece", "Taken", "cut", "share_out", "take"]


class FrameWeight(msgspec.Struct, frozen=True, gc=False):
    """What reading a frame takes (or some that lie beside each other): at most so many rows, about so many bytes.

    `position` is that of the first one, everything in it lies below (`next_position`, 0). Its events have ticks from `first_tick` to
    `promise`, and later ones have larger ones.
    """

    position: int
    next_position: int
    first_tick: int
    promise: int
    rows: int
    size: int


class EventWeight(msgspec.Struct, frozen=True, gc=False):
    """An event of a frame, by the index of its own: a transaction is one, with all its rows."""

    index: int
    rows: int
    size: int


class Taken(msgspec.Struct, frozen=True, gc=False):
    """How far a trigger goes in one pchannel: to the end of this frame, which is the last of those that wait there if `all`.

    With `cut` only into it, since it alone is more than fits.
    """

    frame: FrameWeight
    all: bool = False
    cut: bool = False


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Events of one pchannel, from the place `start` on, below the place `end`."""

    pchannel: str
    start: Place
    end: Place


def take(
    frames: Mapping[str, Sequence[FrameWeight]], *, rows_max: int | None = None, bytes_max: int | None = None
) -> dict[str, Taken]:
    """How far a trigger goes in each pchannel from which it takes anything; `frames` are those that wait there, in their order.

    It takes whole frames, in the order of their ticks, while they fit. If the very first one does not, that one is to be cut: see `cut`.
    """
    taken: dict[str, Taken] = {}
    rows = size = 0
    heads = [(found[0].first_tick, name, 0) for name, found in frames.items() if found]
    heapq.heapify(heads)
    while heads:
        _, name, at = heads[0]
        frame = frames[name][at]
        rows += frame.rows
        size += frame.size
        if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
            if not taken:
                taken[name] = Taken(frame, cut=True)
            break
        more = at + 1 < len(frames[name])
        taken[name] = Taken(frame, all=not more)
        if more:
            heapq.heapreplace(heads, (frames[name][at + 1].first_tick, name, at + 1))
        else:
            heapq.heappop(heads)
    return taken


def cut(events: Sequence[EventWeight], *, rows_max: int | None = None, bytes_max: int | None = None) -> int | None:
    """The index below which the events of a frame fit the limits; None when all of them do. The first one is always taken.

    An event is taken whole, however many rows it has: a limit that a transaction alone exceeds is exceeded.
    """
    rows = size = 0
    for at, event in enumerate(events):
        rows += event.rows
        size += event.size
        if at and ((rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max)):
            return events[at - 1].index + 1
    return None


def share_out(
    ranges: Sequence[tuple[Piece, Sequence[FrameWeight]]], *, partitions_max: int, bytes_min: int
) -> list[list[Piece]]:
    """The pieces that each task reads: all of the ranges, each event once, in at most `partitions_max` tasks of about one size.

    A task reads `bytes_min` bytes or more if there are so many: starting one costs more than reading little. Ranges are cut only
    between the frames that come with them; an empty range is left out.
    """
    ranges = [(whole, frames) for whole, frames in ranges if whole.start < whole.end]
    if not ranges:
        return []
    total = sum(frame.size for _, frames in ranges for frame in frames)
    count = max(1, min(partitions_max, -(-total // bytes_min)))
    shares: list[list[Piece]] = [[]]
    size = 0
    for whole, frames in ranges:
        start = whole.start
        for frame in frames:
            size += frame.size
            boundary = (frame.next_position, 0)
            if len(shares) < count and size * count >= total * len(shares) and start < boundary < whole.end:
                shares[-1].append(Piece(whole.pchannel, start, boundary))
                shares.append([])
                start = boundary
        shares[-1].append(Piece(whole.pchannel, start, whole.end))
        if len(shares) < count and size * count >= total * len(shares) and whole is not ranges[-1][0]:
            shares.append([])
    return shares
