"""PromiseLedger: up to which tick everything is in the log. Pure.

D4: the promise is the first tick of the oldest frame that is not yet durable, less one; with no such frame it is the last
durable tick, or a fresh tick that is given for this alone. It never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

__all__ = ["PromiseLedger"]


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
