"""RecentFrames: the newest frames of a pchannel, as they were written, for the readers at its tail.

Owns: a bounded window of frames (D11) up to the durable end, complete from `start` on. All tailing readers share it, so that a frame is
decoded once however many wait for it, and none of them asks the disk for what has just been written. It answers exactly what the
backend's `read` would; what lies below the window, the backend answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from wal.backends import FramePage, StoredFrame
from wal.frame import EncodedFrame, FrameHeader, FrameView, RunKind

__all__ = ["RecentFrames", "cost_bytes"]

RECENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""A few group commits of the largest kind; for each pchannel. Counted as `cost_bytes` does."""
_FRAME_COST: Final = 8192
"""Bytes that the objects of a decoded frame take beside its own, measured with frames of one message …"""
_RECORD_COST: Final = 128
"""… and for each of its records."""


class RecentFrames:
    """Frames at or above `start`, oldest first."""

    __slots__ = ("_bytes_max", "_frames", "_size", "start")

    def __init__(self, start: int, *, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self.start: int = start
        self._bytes_max = bytes_max
        self._size = 0
        self._frames: deque[_Recent | _Read] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, position: int, frame: EncodedFrame) -> None:
        """The next durable frame; the oldest go when the window is full."""
        self._frames.append(_Recent(position, frame))
        self._size += cost_bytes(frame.header)
        if self._size > self._bytes_max:
            self._shrink()

    def add_stored(self, stored: StoredFrame) -> None:
        """The same with a frame that was read, with all its runs."""
        self._frames.append(_Read(stored))
        self._size += cost_bytes(stored.view.header)
        if self._size > self._bytes_max:
            self._shrink()

    def restart(self, start: int) -> None:
        """Begins anew at `start`: what lies below was not added."""
        self._frames.clear()
        self._size = 0
        self.start = start

    def page(self, start: int, end: int, *, names: frozenset[str], bytes_max: int) -> FramePage | None:
        """The frames in [start, end) that a reader of these names sees, about `bytes_max` bytes of them; None below the window."""
        if start < self.start:
            return None
        frames: list[StoredFrame] = []
        next_position = end
        last_event: tuple[int, int] | None = None
        promised_tick = taken = 0
        for recent in self._from(start):
            if recent.position >= end:
                break
            if taken >= bytes_max:
                next_position = recent.position
                break
            header = recent.header
            if header.indices:
                last_event = (recent.position, header.indices - 1)
            promised_tick = max(promised_tick, header.promised_tick)
            if recent.pchannel_wide or not names.isdisjoint(recent.names):
                frames.append(recent.stored())
                taken += header.frame_bytes
        return FramePage(frames, next_position, last_event, promised_tick)

    def _shrink(self) -> None:
        while self._size > self._bytes_max:
            oldest = self._frames.popleft()
            self._size -= cost_bytes(oldest.header)
            self.start = oldest.position + 1

    def _from(self, start: int) -> Iterator[_Recent | _Read]:
        """The frames at or above `start`. Readers are near the end, so that is where the search begins."""
        behind = 0
        for recent in reversed(self._frames):
            if recent.position < start:
                break
            behind += 1
        return islice(self._frames, len(self._frames) - behind, None)


def cost_bytes(header: FrameHeader) -> int:
    """What a frame takes in memory, decoded: of small frames, of which there are many, its objects are the most."""
    return header.frame_bytes + _FRAME_COST + _RECORD_COST * header.records


class _Recent:
    """A frame as it was written; decoded when the first reader wants it."""

    __slots__ = ("_names", "_stored", "frame", "header", "pchannel_wide", "position")

    def __init__(self, position: int, frame: EncodedFrame) -> None:
        self.position = position
        self.frame = frame
        self.header = frame.header
        self.pchannel_wide = frame.pchannel_wide
        self._names: frozenset[str] | None = None
        self._stored: StoredFrame | None = None

    @property
    def names(self) -> frozenset[str]:
        """The vchannels in it; made when the first reader asks."""
        names = self._names
        if names is None:
            names = self._names = frozenset([name for name, _ in self.frame.vchannels])
        return names

    def stored(self) -> StoredFrame:
        """The decoded frame, the same for all readers."""
        stored = self._stored
        if stored is None:
            head, *blocks = self.frame.buffers
            starts = [0]
            for block in blocks:
                starts.append(starts[-1] + len(block))

            def body(start: int, end: int) -> bytes:
                first, last = bisect_left(starts, start), bisect_left(starts, end)
                return blocks[first] if last == first + 1 else b"".join(blocks[first:last])

            view = FrameView.decode(head, body)
            stored = self._stored = StoredFrame(self.position, self.position + 1, view)
        return stored


class _Read:
    """A frame that was read."""

    __slots__ = ("_stored", "header", "names", "pchannel_wide", "position")

    def __init__(self, stored: StoredFrame) -> None:
        view = stored.view
        self.position = stored.position
        self.header = view.header
        kinds = {run.kind for run in view.runs}
        self.pchannel_wide = RunKind.PCHANNEL in kinds
        self.names = frozenset([run.name for run in view.runs if run.kind in (RunKind.VCHANNEL, RunKind.COPY)])
        self._stored = stored

    def stored(self) -> StoredFrame:
        return self._stored
