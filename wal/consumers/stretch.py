"""Stretch: the bodies of a consumer with one lane while all of them are handled at their first attempt. Pure.

What the table knows of each body in general is here a few numbers for all of them, because they are finished in their order:

    0 <= front  <=  at  <=  at + running  <=  recorded  <=  handed  <=  len(items)
       passed   ended    with the handler    handed out   being recorded   waiting

So a body costs nothing but its place in a list between its delivery and its end. The table (`table.py`) uses it until something else
happens than that a body is handled: a failure, a release, a body that is skipped, or what a death has left. Then it takes over what is
here, with a state for each body, and comes back when everything is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from wal.consumers.delivery import Delivery, DeliveryState, position_of
from wal.consumers.plan import Plan
from wal.consumers.sequence import BodySequence, event_of
from wal.consumers.state import Run
from wal.message import LogPosition

TRIM_MIN: Final = 1024
"""So many passed bodies may stay in the list."""
_ENDED: Final = int(DeliveryState.ENDED)


class Stretch:
    """The bodies of one lane; see the top of the file. `sequence` has the position, and no bodies meanwhile."""

    __slots__ = ("_passed", "_sizes", "_taken", "at", "bytes", "front", "handed", "items", "plan", "recorded", "running", "sequence")

    def __init__(self, plan: Plan, sequence: BodySequence) -> None:
        self.plan: Plan = plan
        self.sequence: BodySequence = sequence
        self.items: list[Delivery] = []
        self.front: int = 0
        self.at: int = 0
        self.running: int = 0
        self.recorded: int = 0
        self.handed: int = 0
        self.bytes: int = 0
        """The bytes of the payloads that are not passed, where those that were taken together count until the last of them is."""
        self._taken = 0
        self._passed = 0
        self._sizes: deque[tuple[int, int]] = deque()
        """Of the bodies that were taken together: how many were taken up to their last one, and their bytes."""

    def take(self, deliveries: Sequence[Delivery], size: int) -> None:
        """Takes the next bodies, with so many bytes of payloads."""
        self.items.extend(deliveries)
        self._taken += len(deliveries)
        self._sizes.append((self._taken, size))
        self.bytes += size

    def hand_out(self) -> bool:
        """Chooses what is handed out next; returns whether there is anything."""
        plan = self.plan
        count = min(plan.lane_quota - (self.handed - self.at), plan.page - (self.handed - self.front), len(self.items) - self.handed)
        if count <= 0:
            return False
        self.handed += count
        return True

    def recall(self) -> None:
        """Takes back what is handed out and does not run."""
        self.handed = self.recorded = self.at + self.running

    def start(self, size: int) -> list[Delivery]:
        """Returns the bodies that a handler gets next, `size` at most; none while a handler has some."""
        if self.running or self.recorded <= self.at:
            return []
        at = self.at
        self.running = min(size, self.recorded - at)
        return self.items[at : at + self.running]

    def end(self, work: Sequence[Delivery]) -> None:
        """Notes that the first of the bodies that run are handled."""
        for delivery in work:
            delivery._state = _ENDED
        self.at += len(work)
        self.running -= len(work)

    def finish(self, count: int) -> None:
        """Finishes so many of the bodies that have ended: the position moves to the last event that is finished as a whole."""
        items, front = self.items, self.front
        end = front + count
        assert end <= self.at, "they have ended"
        sequence = self.sequence
        sequence.covered = position_of(items[end - 1])
        for index in range(end - 1, front - 1, -1):
            if (event := event_of(items[index])) is not None:
                sequence.mark = event
                break
        sequence.finished += count
        self._passed += count
        sizes = self._sizes
        while sizes and sizes[0][0] <= self._passed:
            self.bytes -= sizes.popleft()[1]
        if end > TRIM_MIN and 2 * end > len(items):
            del items[:end]
            self.at -= end
            self.recorded -= end
            self.handed -= end
            end = 0
        self.front = end

    def runs(self) -> tuple[list[Run], LogPosition | None]:
        """Returns what is saved of the bodies: those that are handed out and unfinished, and the body up to which this says everything."""
        if self.handed == self.front:
            return [], self.sequence.covered
        last = position_of(self.items[self.handed - 1])
        return [Run(position_of(self.items[self.front]), last, handed=True)], last
