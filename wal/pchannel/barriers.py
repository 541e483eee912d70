"""BarrierHeap: what waits for the promise to pass its barrier. Pure.

An append with a barrier is given its tick only once everything up to the barrier is in the log; it is the only thing that may be
overtaken. Items with the same barrier are released in the order they came.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BarrierHeap"]

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
