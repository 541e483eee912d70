"""HandlerCounts: the figures of a consumer's handlers, with a histogram of their times."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import msgspec

TIME_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The bounds of the histogram of handler times, in seconds."""
FAST_S: Final = TIME_BOUNDS_S[0]


class HandlerCounts(msgspec.Struct):
    """Counts of attempts: `failed` raised or timed out; `retried` were not the first at their message.

    `exhausted` messages in a row are out of attempts or undecodable. `times` counts calls of the handler by TIME_BOUNDS_S, `handler_s` is
    the sum of their seconds.
    """

    handled: int = 0
    failed: int = 0
    retried: int = 0
    exhausted: int = 0
    times: list[int] = msgspec.field(default_factory=lambda: [0] * (len(TIME_BOUNDS_S) + 1))
    handler_s: float = 0.0

    def add_time(self, seconds: float) -> None:
        """Counts a call of the handler that took this time."""
        self.times[bisect_left(TIME_BOUNDS_S, seconds)] += 1
        self.handler_s += seconds

    def add_times(self, seconds: float, calls: int) -> None:
        """Counts calls of the handler that took this time together: as one call of it and fast ones, unless all of them were fast."""
        if seconds <= FAST_S:
            self.times[0] += calls
            self.handler_s += seconds
        else:
            self.times[0] += calls - 1
            self.add_time(seconds)
