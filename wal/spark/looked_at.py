"""LookedAt: what the frames of a stretch of log hold for one choice of vchannels, where there is no index to ask. Pure.

Owns the weights of the frames that were looked at, from where a query stands on: so each poll of an idle query goes on where the one before
ended, and a frame that one trigger did not take is there for the next one.
"""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import Final

from wal.backends import StoredFrame
from wal.frame import RunKind
from wal.spark.channel_choice import ChannelChoice
from wal.spark.planning import FrameWeight

__all__ = ["LookedAt", "weight_of"]

KEPT_MAX: Final = 1 << 16
"""Frames kept behind one answer."""


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
    return FrameWeight(frame.position, frame.next_position, header.first_tick, header.promise, rows, size)


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
