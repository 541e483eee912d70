"""The promised tick of a pchannel, what waits for it, and when it is written to the log. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = [
    "BarrierHeap",
    "PromiseLedger",
    "TickFrames",
]


class PromiseLedger:
    """`promise` is the tick promised so far; `in_flight` the first ticks of the frames handed over and not yet durable."""

    __slots__ = ("in_flight", "promise")

    def __init__(self, promise: int) -> None:
        self.promise: int = promise
        self.in_flight: deque[int] = deque()

    def submitted(self, first_tick: int) -> None:
        """A frame with this first tick was handed over."""
        self.in_flight.append(first_tick)

    def settled(self, last_tick: int, *, durable: bool) -> int:
        """The oldest frame in flight is durable (or failed for good and is not in the log); returns the promise now."""
        self.in_flight.popleft()
        if self.in_flight:
            self._raise(self.in_flight[0] - 1)
        elif durable:
            self._raise(last_tick)
        return self.promise

    def advance(self, fresh: Callable[[], int | None]) -> int:
        """As far as it can be now: a fresh tick if nothing is in flight (`fresh` answers None when there is none to be had)."""
        if self.in_flight:
            self._raise(self.in_flight[0] - 1)
        elif (tick := fresh()) is not None:
            self._raise(tick)
        return self.promise

    def _raise(self, tick: int) -> None:
        if tick > self.promise:
            self.promise = tick


T = TypeVar("T")


class BarrierHeap(Generic[T]):
    """Items by barrier tick."""

    __slots__ = ("_arrivals", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def smallest(self) -> int | None:
        """The barrier that will be passed next, None when nothing waits."""
        return self._heap[0][0] if self._heap else None

    def wait(self, barrier: int, item: T) -> None:
        """Sets an item aside."""
        heapq.heappush(self._heap, (barrier, self._arrivals, item))
        self._arrivals += 1

    def release(self, promise: int) -> list[T]:
        """Takes out the items whose barrier is at or below the promise, in the order of barriers, then of arrival."""
        released: list[T] = []
        while self._heap and self._heap[0][0] <= promise:
            released.append(heapq.heappop(self._heap)[2])
        return released

    def take_out(self, wanted: Callable[[T], bool]) -> list[T]:
        """Takes out the items that are wanted, in the order of arrival; it walks all of them."""
        taken = [entry for entry in self._heap if wanted(entry[2])]
        if taken:
            self._heap = [entry for entry in self._heap if not wanted(entry[2])]
            heapq.heapify(self._heap)
        return [item for _, _, item in sorted(taken, key=lambda entry: entry[1])]

    def drain(self) -> list[T]:
        """Takes out everything."""
        items = [item for _, _, item in sorted(self._heap, key=lambda entry: entry[1])]
        self._heap.clear()
        return items


AFTER_DATA_S: Final = 0.6
"""Looked at every `time_tick_interval_s` (0.2 by default), the frame is in the log within a second after the data."""
IDLE_S: Final = 10.0


class TickFrames:
    """Of one pchannel; `now_s` is monotonic."""

    __slots__ = ("_data", "_last_s")

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._data = False

    def written(self, now_s: float, *, data: bool) -> None:
        """A frame is durable; `data`: it holds events."""
        self._last_s = now_s
        self._data = data

    def is_due(self, now_s: float) -> bool:
        """Whether one should be written, if nothing else is under way."""
        return now_s - self._last_s >= (AFTER_DATA_S if self._data else IDLE_S)
