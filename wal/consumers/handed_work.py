"""HandedWork: the bodies that a member of a shared cursor has, in the place of the table of a consumer that has its cursor alone. Pure.

Owns the contents of the next settlement. Which bodies may run, and when a failed or released body runs again, the table of the home
decides. A unit is handled by one handler, body after body; while a lane has a body in a unit of this member, all its handed-out bodies are
in this unit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from wal.consumers.delivery import Delivery, DeliveryState
from wal.consumers.plan import Dead, Failed, Outcome, Rejected
from wal.requests.work import FailedWork

_WAITING: Final = int(DeliveryState.WAITING)
_ENDED: Final = int(DeliveryState.ENDED)
_RUNNING: Final = int(DeliveryState.RUNNING)


class HandedWork:
    """The bodies of one member; see the top of the file. `attempts` and `blocks` are those of the plan.

    With `merges` a handler may have several units.
    """

    is_regular: bool = False

    def __init__(self, attempts: int, *, blocks: bool, merges: bool) -> None:
        self.units: deque[list[Delivery]] = deque()
        """The bodies that no handler has, those of a lane in one unit."""
        self.waiting: int = 0
        """Their number."""
        self.ended: deque[Delivery] = deque()
        """The handled bodies that are not in a settlement."""
        self.failed: list[FailedWork] = []
        self.released: list[int] = []
        self.restarted: list[int] = []
        self._running: set[Delivery] = set()
        self._attempts = attempts
        self._blocks = blocks
        self._merges = merges
        self._starting_over: set[Delivery] = set()

    @property
    def in_hand(self) -> int:
        """The number of bodies that are not ended."""
        return self.waiting + len(self._running)

    @property
    def startable(self) -> int:
        """The number of units that no handler has."""
        return len(self.units)

    @property
    def ended_count(self) -> int:
        """The number of handled bodies that are not in a settlement."""
        return len(self.ended)

    def add(self, unit: list[Delivery]) -> None:
        """Adds a unit that the home has handed out."""
        self.units.append(unit)
        self.waiting += len(unit)

    def start(self, size: int = 1) -> list[Delivery]:
        """Returns the next bodies for a handler: a unit, or several that have at most `size` bodies."""
        work: list[Delivery] = []
        units = self.units
        while units and (not work or (self._merges and len(work) + len(units[0]) <= size)):
            work += units.popleft()
        for delivery in work:
            delivery._state = _RUNNING
        self.waiting -= len(work)
        self._running.update(work)
        return work

    def has_ended(self, delivery: Delivery) -> bool:
        """Returns whether no handler has this delivery any longer. The thread of a sync handler may call it."""
        return delivery._state != _RUNNING

    def end(self, work: Sequence[Delivery]) -> None:
        """Records that these bodies are handled."""
        for delivery in work:
            delivery._state = _ENDED
        self._running.difference_update(work)
        self.ended.extend(work)

    def settle(self, work: Sequence[Delivery], outcomes: Iterable[Outcome], _now: float) -> tuple[list[Delivery], list[Dead]]:
        """Records the outcomes of attempts; see `Deliveries.settle`. The home decides when a failed body is handed out again."""
        ended: list[Delivery] = []
        dead: list[Dead] = []
        stopped: set[Hashable] = set()
        for delivery, outcome in zip(work, outcomes, strict=True):
            self._running.discard(delivery)
            lane = delivery._lane
            delivery._state = _WAITING
            if lane is not None and lane in stopped:
                continue  # the home has released the rest of the lane with its first body
            if outcome is None:
                delivery._state = _ENDED
                ended.append(delivery)
            elif isinstance(outcome, Rejected) or (isinstance(outcome, Failed) and delivery.attempt >= self._attempts):
                delivery._state = _ENDED
                dead.append(Dead(delivery, delivery.attempt, outcome.reason))
            elif isinstance(outcome, Failed):
                self.failed.append(FailedWork(delivery._number, outcome.delay_s))
                if self._blocks and lane is not None:
                    stopped.add(lane)
            else:
                (self.restarted if delivery in self._starting_over else self.released).append(delivery._number)
                self._starting_over.discard(delivery)
                if lane is not None:
                    stopped.add(lane)
        self.ended.extend(ended)
        return ended, dead

    def start_over(self, delivery: Delivery) -> None:
        """Resets the attempts at a body before it is released."""
        self._starting_over.add(delivery)

    def recall(self) -> None:
        """Releases what no handler has."""
        for unit in self.units:
            self.released.extend([delivery._number for delivery in unit])
        self.units.clear()
        self.waiting = 0
