"""Stretch: the bodies of a consumer with one lane while all of them are handled at their first attempt. Pure.

The bodies are finished in their order, so a few numbers replace the states that the table has for each body in general:

    0 <= front  <=  at  <=  at + running  <=  recorded  <=  handed  <=  length
       passed   ended    with the handler    handed out   being recorded   waiting

So a body costs nothing between its delivery and its end, and its `_state` is unused. Waiting bodies are pages: their messages and
deliveries are created as a handler gets them, while the previous ones are still in the processor's cache. The table (`table.py`) uses a
stretch until anything else happens: a failure, a release, a skipped body, or a body that a death left unfinished. Then it takes over the
bodies, with a state for each, and returns to a stretch when everything is finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Final

from wal.consumers.delivery import Delivery, Handling, position_of
from wal.consumers.plan import ConsumerPlan
from wal.consumers.sequence import BodySequence, event_of
from wal.consumers.state import UnfinishedRun
from wal.message import LogPosition
from wal.read.assembly import PlainMessages

TRIM_MIN: Final = 1024
"""The number of passed bodies that may stay in the list."""


class Stretch:
    """The bodies of one lane; see the top of the file. `sequence` has the position, and no bodies meanwhile."""

    __slots__ = (
        "_lane",
        "_page_at",
        "_pages",
        "_passed",
        "_sizes",
        "_taken",
        "at",
        "bytes",
        "front",
        "handed",
        "items",
        "length",
        "plan",
        "recorded",
        "running",
        "sequence",
        "span",
    )

    def __init__(self, plan: ConsumerPlan, sequence: BodySequence, lane: Hashable) -> None:
        self.plan: ConsumerPlan = plan
        self.sequence: BodySequence = sequence
        self.items: list[Delivery] = []
        """The bodies that have a delivery: the first of `length`, and all that a handler had."""
        self.length: int = 0
        self.front: int = 0
        self.at: int = 0
        self.running: int = 0
        self.recorded: int = 0
        self.handed: int = 0
        self.bytes: int = 0
        """The size of the payloads that are not passed. Payloads that were taken together count until the last of them is passed."""
        self._lane = lane
        self._pages: deque[tuple[PlainMessages, Handling]] = deque()
        """The bodies after `items`, with the owner of their deliveries; those of the first page from `_page_at` on."""
        self._page_at = 0
        self.span: tuple[LogPosition, LogPosition] | None = None
        """The first and the last of the bodies that run."""
        self._taken = 0
        self._passed = 0
        self._sizes: deque[tuple[int, int]] = deque()
        """For bodies that were taken together: the total number of bodies up to their last one, and their bytes."""

    def take(self, deliveries: Sequence[Delivery], size: int) -> None:
        """Adds the next bodies, whose payloads have `size` bytes."""
        self.create(self.length)
        self.items.extend(deliveries)
        self._add(len(deliveries), size)

    def take_page(self, page: PlainMessages, owner: Handling) -> None:
        """Adds the next bodies, which have no delivery yet; `owner` is the owner of their deliveries."""
        page.detach()
        self._pages.append((page, owner))
        self._add(len(page), page.payload_bytes)

    def _add(self, count: int, size: int) -> None:
        self.length += count
        self._taken += count
        self._sizes.append((self._taken, size))
        self.bytes += size

    def create(self, end: int) -> None:
        """Creates the deliveries of the bodies before this index."""
        items = self.items
        while (missing := end - len(items)) > 0:
            page, owner = self._pages[0]
            first, stop = self._page_at, min(self._page_at + missing, len(page))
            items += map(Delivery, page.build()[first:stop], repeat(owner), repeat(self._lane))
            self._page_at = stop
            if stop == len(page):
                self._pages.popleft()
                self._page_at = 0

    def hand_out(self) -> bool:
        """Chooses the bodies to hand out next; returns whether there are any."""
        plan = self.plan
        count = min(plan.lane_quota - (self.handed - self.at), plan.page - (self.handed - self.front), self.length - self.handed)
        if count <= 0:
            return False
        self.handed += count
        return True

    def recall(self) -> None:
        """Recalls handed-out bodies that do not run."""
        self.handed = self.recorded = self.at + self.running

    def start(self, size: int) -> list[Delivery]:
        """Returns the next bodies for a handler, `size` at most; empty while a handler has bodies."""
        if self.running or self.recorded <= self.at:
            return []
        at = self.at
        self.running = min(size, self.recorded - at)
        self.create(at + self.running)
        work = self.items[at : at + self.running]
        self.span = position_of(work[0]), position_of(work[-1])
        return work

    def end(self, work: Sequence[Delivery]) -> None:
        """Records that the first of the running bodies are handled."""
        self.at += len(work)
        self.running -= len(work)
        self.span = (position_of(self.items[self.at]), self.span[1]) if self.running and self.span is not None else None

    def finish(self, count: int) -> None:
        """Finishes the first `count` ended bodies: the position moves to the last event that is finished as a whole."""
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
            self.length -= end
            self.at -= end
            self.recorded -= end
            self.handed -= end
            end = 0
        self.front = end

    def saved(self) -> tuple[list[UnfinishedRun], LogPosition | None]:
        """Returns the saved form: the bodies that are handed out and unfinished, and the last body that this form covers."""
        if self.handed == self.front:
            return [], self.sequence.covered
        last = self._position(self.handed - 1)
        return [UnfinishedRun(self._position(self.front), last, handed=True)], last

    def _position(self, index: int) -> LogPosition:
        """Returns the log position of the body at this index."""
        if index < len(self.items):
            return position_of(self.items[index])
        index += self._page_at - len(self.items)
        for page, _ in self._pages:
            if index < len(page):
                return page.position(index)
            index -= len(page)
        raise IndexError(index)
