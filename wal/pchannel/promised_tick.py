"""The promised tick of a pchannel (others call it watermark or closed timestamp), and what depends on it. Pure.

Everything at or below the promised tick is in the log, and nothing at or below it follows (D4). `PromisedTick` computes it, `BarrierHeap`
holds the appends that wait until it passes their barrier, and `TickFrames` says when it should be written to the log.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["BarrierHeap", "PromisedTick", "TickFrames"]

T = TypeVar("T")
AFTER_DATA_S: Final = 0.6
"""The pause after data. The timer checks every `time_tick_interval_s` (0.2), so the frame is in the log within a second."""
IDLE_S: Final = 10.0


class PromisedTick:
    """`tick` is the tick promised so far; `in_flight` are the first ticks of the frames that are handed over and not yet durable.

    The promised tick is one less than the first tick of the oldest frame in flight. Without such a frame it is the last durable tick,
    or a fresh tick that is taken only for this purpose. It never decreases.
    """

    __slots__ = ("in_flight", "tick")

    def __init__(self, tick: int) -> None:
        self.tick: int = tick
        self.in_flight: deque[int] = deque()

    def submitted(self, first_tick: int) -> None:
        """Notes that a frame with this first tick was handed over."""
        self.in_flight.append(first_tick)

    def settled(self, last_tick: int, *, durable: bool) -> int:
        """Notes that the oldest frame in flight is durable, or failed and is not in the log; returns the promised tick.

        A failed frame does not raise it, since nobody looks then for the barriers that it would pass.
        """
        self.in_flight.popleft()
        if durable:
            self._raise(self.in_flight[0] - 1 if self.in_flight else last_tick)
        return self.tick

    def advance(self, fresh: Callable[[], int | None]) -> int:
        """Raises the promised tick as far as possible and returns it. `fresh` returns a fresh tick, or None if none is available."""
        if self.in_flight:
            self._raise(self.in_flight[0] - 1)
        elif (tick := fresh()) is not None:
            self._raise(tick)
        return self.tick

    def _raise(self, tick: int) -> None:
        if tick > self.tick:
            self.tick = tick


class BarrierHeap(Generic[T]):
    """Items that wait until the promised tick passes their barrier; with the same barrier they leave in the order they came.

    An append with a barrier gets its tick only when everything up to the barrier is in the log. No other append may be overtaken.
    """

    __slots__ = ("_arrivals", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def smallest(self) -> int | None:
        """The smallest barrier, which is passed next; None if nothing waits."""
        return self._heap[0][0] if self._heap else None

    def wait(self, barrier: int, item: T) -> None:
        """Sets an item aside."""
        heapq.heappush(self._heap, (barrier, self._arrivals, item))
        self._arrivals += 1

    def release(self, promised_tick: int) -> list[T]:
        """Takes out the items whose barrier is at or below the promised tick, in the order of barriers, then of arrival."""
        released: list[T] = []
        while self._heap and self._heap[0][0] <= promised_tick:
            released.append(heapq.heappop(self._heap)[2])
        return released

    def take_out(self, wanted: Callable[[T], bool]) -> list[T]:
        """Takes out the wanted items, in the order of arrival; visits all items."""
        taken = [entry for entry in self._heap if wanted(entry[2])]
        if taken:
            self._heap = [entry for entry in self._heap if not wanted(entry[2])]
            heapq.heapify(self._heap)
        return [item for _, _, item in sorted(taken, key=lambda entry: entry[1])]

    def drain(self) -> list[T]:
        """Takes out everything, in the order of arrival."""
        return self.take_out(lambda item: True)


class TickFrames:
    """Says when a TimeTick frame is due in a log whose readers learn the promised tick only from the log.

    A frame is due soon after data, so that a reader that waits for a tick above the last event need not wait for the next event; and from
    time to time while nothing is written, so that readers see that the log is alive. `now_s` is monotonic time.
    """

    __slots__ = ("_data", "_last_s")

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._data = False

    def written(self, now_s: float, *, data: bool) -> None:
        """Notes that a frame is durable; `data` says whether it holds events."""
        self._last_s = now_s
        self._data = data

    def is_due(self, now_s: float) -> bool:
        """Returns whether a frame should be written if no other one is in flight."""
        return now_s - self._last_s >= (AFTER_DATA_S if self._data else IDLE_S)
