"""Planning: how much of the log a trigger takes, and which task reads what. Pure.

Owns two decisions. `take` goes through the frames of all pchannels in the order of their ticks until a limit is reached, so that no
pchannel runs ahead of another or starves. `share_out` cuts what is to be read into pieces of about one size at frame boundaries, as few as
keep the tasks busy. Both depend on nothing but what they are given: asked again, they answer the same.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from wal.backends import StoredFrame
from wal.frame import RunKind
from wal.spark.offsets import Place
from wal.spark.options import ChannelChoice

__all__ = ["EventWeight", "FrameWeight", "LookedAt", "Piece", "Taken", "cut", "share_out", "take", "weight_of"]

KEPT_MAX: Final = 1 << 16
"""Frames kept behind one answer."""


class FrameWeight(msgspec.Struct, frozen=True, gc=False):
    """What reading a frame takes (or some that lie beside each other): at most so many rows, about so many bytes.

    `position` is that of the first one, everything in it lies below (`next_position`, 0). Its events have ticks from `first_tick` to
    `promise`, and later ones have larger ones.
    """

    position: int
    next_position: int
    first_tick: int
    promised_tick: int
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


class LookedAt:
    """Of one pchannel and choice. Everything in [`start`, `upto`) was looked at; what held nothing of the choice is not kept."""

    def __init__(self, start: int) -> None:
        self.start: int = start
        self.upto: int = start
        self._frames: deque[FrameWeight] = deque()

    def go_on(self, start: int) -> bool:
        """Forgets what lies below `start`; False when that is not within what was looked at, or this has become large."""
        if not self.start <= start <= self.upto or len(self._frames) > KEPT_MAX:
            return False
        self.start = start
        while self._frames and self._frames[0].position < start:
            self._frames.popleft()
        return True

    def add(self, frames: list[FrameWeight], upto: int) -> None:
        """The frames from `upto` on were looked at, up to this position; these hold something."""
        self._frames += frames
        self.upto = upto

    def exceeds(self, end: int, rows_max: int | None, bytes_max: int | None) -> bool:
        """Whether the frames below `end` that were looked at are more than fits these limits."""
        return _count(self._frames, end, rows_max, bytes_max)[1]

    def within(self, end: int, rows_max: int | None, bytes_max: int | None) -> list[FrameWeight]:
        """The frames below `end`, up to and with the one with which a limit is exceeded."""
        count, _ = _count(self._frames, end, rows_max, bytes_max)
        return [frame for _, frame in zip(range(count), self._frames, strict=False)]


def weight_of(frame: StoredFrame, choice: ChannelChoice) -> FrameWeight | None:
    """What reading this frame takes; None when it holds no rows of this choice."""
    view = frame.view
    header = view.header
    if choice.everything:
        rows, size = header.indices, header.frame_bytes
    else:
        runs = [run for run in view.find(choice) if run.kind != RunKind.SYSTEM]
        rows = sum(1 if run.kind == RunKind.COPY else run.end - run.first for run in runs)
        size = sum(run.body_end - run.body_start for run in runs)
    if not rows:
        return None
    return FrameWeight(frame.position, frame.next_position, header.first_tick, header.promised_tick, rows, size)


def _count(frames: deque[FrameWeight], end: int, rows_max: int | None, bytes_max: int | None) -> tuple[int, bool]:
    """How many frames below `end` it takes to exceed a limit, and whether that is so; all of them where it is not."""
    count = rows = size = 0
    for frame in takewhile(lambda frame: frame.position < end, frames):
        count += 1
        rows += frame.rows
        size += frame.size
        if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
            return count, True
    return count, False
