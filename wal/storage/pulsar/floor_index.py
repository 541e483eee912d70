"""FloorIndex: the positions of a log whose fencing floor is known.

Owns: the floors at the marks and at the earliest event, and at some hundred positions that were read or written recently. A read that
begins near one of them reads no message before it. Thread-safe: readers query and add in threads, the writer adds on the loop.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import deque
from typing import Final

from wal.storage.pulsar.fencing_floor import FencingFloor

RECENT_MAX: Final = 512
"""The number of floors kept in addition to the lasting ones."""


class FloorIndex:
    """Fencing floors by position: `add(p, floor)` stores the floor after all messages below `p`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._positions: list[int] = []
        self._floors: dict[int, tuple[int, int]] = {}
        self._recent: deque[int] = deque()

    def add(self, position: int, floor: FencingFloor, *, lasting: bool = False) -> None:
        """Stores the floor at this position: for good if it is `lasting`, else until RECENT_MAX others were added."""
        with self._lock:
            if position in self._floors:
                return
            self._floors[position] = (floor.term, floor.sequence)
            insort(self._positions, position)
            if not lasting:
                self._recent.append(position)
                if len(self._recent) > RECENT_MAX:
                    self._forget(self._recent.popleft())

    def before(self, position: int) -> tuple[int, FencingFloor] | None:
        """Returns the nearest known position at or below this one, and the floor there; None without one."""
        with self._lock:
            at = bisect_right(self._positions, position)
            if not at:
                return None
            floor_position = self._positions[at - 1]
            return floor_position, FencingFloor(*self._floors[floor_position])

    def first(self) -> tuple[int, FencingFloor]:
        """Returns the lowest known position, where the log begins, and the floor there."""
        with self._lock:
            return self._positions[0], FencingFloor(*self._floors[self._positions[0]])

    def drop_below(self, position: int) -> None:
        """Forgets the positions below this one."""
        with self._lock:
            first_kept = bisect_right(self._positions, position - 1)
            for one in self._positions[:first_kept]:
                del self._floors[one]
            del self._positions[:first_kept]
            self._recent = deque(one for one in self._recent if one >= position)

    def _forget(self, position: int) -> None:
        if self._floors.pop(position, None) is not None:
            del self._positions[bisect_right(self._positions, position) - 1]
