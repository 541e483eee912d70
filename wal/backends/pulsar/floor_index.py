"""FloorIndex: where the floor is known. Pure.

Owns: the floors at the marks, at the earliest event, and at some hundred places that were read or written lately. Reading that begins
near one of them needs to look at no message before it. Thread-safe: readers in threads ask, the loop adds.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import deque
from typing import Final

from wal.backends.pulsar.floor import Floor

__all__ = ["FloorIndex"]

LATELY_MAX: Final = 512


class FloorIndex:
    """Floors by the position in front of which they hold: `add(p, floor)` says what counted last among all messages below `p`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: list[int] = []
        self._floors: dict[int, tuple[int, int]] = {}
        self._lately: deque[int] = deque()

    def add(self, position: int, floor: Floor, *, lasting: bool = False) -> None:
        """The floor in front of this position; one that is not `lasting` goes when others have come."""
        with self._lock:
            if position in self._floors:
                return
            self._floors[position] = (floor.term, floor.sequence)
            insort(self._positions, position)
            if not lasting:
                self._lately.append(position)
                if len(self._lately) > LATELY_MAX:
                    self._forget(self._lately.popleft())

    def before(self, position: int) -> tuple[int, Floor] | None:
        """The nearest place at or below this position where it is known, and the floor there."""
        with self._lock:
            at = bisect_right(self._positions, position)
            if not at:
                return None
            found = self._positions[at - 1]
            return found, Floor(*self._floors[found])

    def first(self) -> tuple[int, Floor]:
        """The lowest place where it is known, which is where the log begins; and the floor there."""
        with self._lock:
            return self._positions[0], Floor(*self._floors[self._positions[0]])

    def drop_below(self, position: int) -> None:
        """Forgets what lies below."""
        with self._lock:
            for one in self._positions[: bisect_right(self._positions, position - 1)]:
                del self._floors[one]
            del self._positions[: bisect_right(self._positions, position - 1)]
            self._lately = deque(one for one in self._lately if one >= position)

    def _forget(self, position: int) -> None:
        if self._floors.pop(position, None) is not None:
            del self._positions[bisect_right(self._positions, position) - 1]
