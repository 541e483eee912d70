"""TickCutter: cuts the messages of a log into ticks, in the same way at every reading. Pure.

A sink that writes each tick once relies on the cut: if a tick were replayed with other messages, some would be lost or written twice. So
the cut depends on the messages alone, never on the time at which they arrive. A tick ends with its frame (a frame is written as a whole,
so it never grows) or, with an interval, where a multiple of it ends in the time ticks; and before a message with which it would exceed a
bound. A reading that begins after any tick of an earlier reading continues with the ticks that followed there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from wal.message import ImmutableMessage
from wal.reading import ReadPosition
from wal.timestamp import LOGICAL_BITS

__all__ = ["TickCutter", "TickOfLog"]


class TickOfLog(msgspec.Struct, frozen=True, gc=False):
    """The messages of one tick: those with a time tick above that of the tick before, and at or below `time_tick`.

    `position` is where a reading continues after it.
    """

    time_tick: int
    messages: list[ImmutableMessage]
    position: ReadPosition | None


class TickCutter:
    """Takes the messages of a scanner in order, and its promised ticks, and returns ticks, ascending."""

    def __init__(self, *, interval_ms: int, messages_max: int, bytes_max: int) -> None:
        """`interval_ms`: 0 for ticks that end with their frame. A tick has at most `messages_max` messages, counting the bodies of
        transactions, and `bytes_max` bytes, or a single message above that."""
        self._width: Final = interval_ms << LOGICAL_BITS
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: list[ImmutableMessage] = []
        self._bodies = 0
        self._bytes = 0
        self._cut_at = -1
        """The last tick that was returned."""

    def add(self, frame: Iterable[ImmutableMessage]) -> Iterator[TickOfLog]:
        """Takes the messages of a frame, all that follow the last position, and yields the ticks that they end."""
        for message in frame:
            bodies, size = len(message.bodies()), message.estimate_size()
            if self._messages:
                if self._width and message.time_tick > (end := self._end_of(self._messages[-1].time_tick)):
                    yield self._cut(end)
                elif self._bodies + bodies > self._messages_max or self._bytes + size > self._bytes_max:
                    yield self._cut(self._messages[-1].time_tick)
            self._messages.append(message)
            self._bodies += bodies
            self._bytes += size
        if not self._width and self._messages:
            yield self._cut(self._messages[-1].time_tick)

    def promise(self, time_tick: int, position: ReadPosition | None) -> Iterator[TickOfLog]:
        """Takes a promised tick, with the scanner's position there, and yields the ticks that it ends; the last one may be empty."""
        promised = time_tick
        if self._width:
            promised -= promised % self._width  # the last end of an interval that is promised
            if self._messages and (end := self._end_of(self._messages[-1].time_tick)) <= promised:
                yield self._cut(end)
        if promised > self._cut_at and not self._messages:
            self._cut_at = promised
            yield TickOfLog(promised, [], position)

    def _end_of(self, time_tick: int) -> int:
        """Returns the end of the interval that a time tick is in. Its end belongs to an interval, its beginning does not."""
        return -(-time_tick // self._width) * self._width

    def _cut(self, time_tick: int) -> TickOfLog:
        messages, self._messages = self._messages, []
        self._bodies = self._bytes = 0
        self._cut_at = time_tick
        last = messages[-1]
        return TickOfLog(time_tick, messages, ReadPosition(last.message_id, last.time_tick))
