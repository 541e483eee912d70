"""BodySequence: the bodies after the position of a consumer, in the order of the log, finished or not. Pure.

Owns the position (`mark`), which moves over finished bodies at the front and stops before the first unfinished one, and the saved form of
the bodies after it. Many consecutive finished bodies are merged into a `Gap`, to free their messages. The sequence is independent of lanes
and handlers: the table changes the state of a delivery, and calls `advance` when bodies are finished.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from wal.consumers.delivery import BodyPosition, Delivery, DeliveryState, PositionOf, log_position
from wal.consumers.state import UnfinishedRun
from wal.message import ImmutableMessage

MERGE_MIN: Final = 1024
"""The number of finished bodies that may stay in the sequence."""
_DONE: Final = int(DeliveryState.DONE)


class Gap(msgspec.Struct, gc=False, eq=False):
    """Consecutive finished bodies, the last of them at `covered`; `event` is the last event that ends among them."""

    count: int
    covered: BodyPosition
    event: ImmutableMessage | None
    _state: int = _DONE


class BodySequence:
    """The bodies after the position; see the top of the file. `position_of` orders them."""

    def __init__(self, position_of: PositionOf = log_position) -> None:
        self.position_of: PositionOf = position_of
        self.mark: ImmutableMessage | None = None
        """The last event that is finished with everything before it; None until the first one since the consumer began."""
        self.finished: int = 0
        """The number of bodies that the position has passed."""
        self.items: list[Delivery | Gap] = []
        self._front = 0
        """The index of the first item that is not passed. Invariant: all items before it are finished."""
        self._done = 0
        """The number of finished items."""
        self._merged = 0
        """The number of bodies in gaps, less one for each gap."""
        self.covered: BodyPosition | None = None
        """The last passed body."""

    @property
    def pending(self) -> int:
        """The number of bodies after the position: unfinished, or finished and remembered."""
        return len(self.items) - self._front + self._merged

    @property
    def unfinished(self) -> int:
        return len(self.items) - self._front - self._done

    @property
    def first(self) -> Delivery | None:
        """The first unfinished body: the position waits for it."""
        for item in self.items[self._front : self._front + 1]:
            return item if isinstance(item, Delivery) else None
        return None

    def clear(self) -> None:
        """Removes all items; all of them must be passed."""
        assert not self.pending
        self.items.clear()
        self._front = self._done = 0

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Finishes bodies of the sequence."""
        for delivery in deliveries:
            delivery._state = _DONE
        self.done(len(deliveries))

    def done(self, count: int) -> None:
        """Counts bodies that have become DONE, and moves the position over finished bodies at the front."""
        self._done += count
        items, front = self.items, self._front
        end = front
        length = len(items)
        while end < length and items[end]._state == _DONE:
            end += 1
        if end == front:
            return
        self.covered = self._end_of(items[end - 1])
        for index in range(end - 1, front - 1, -1):
            if (event := event_of(items[index])) is not None:
                self.mark = event
                break
        self._done -= end - front
        self.finished += end - front
        for item in items[front:end] if self._merged else ():
            if isinstance(item, Gap):
                self._merged -= item.count - 1
                self.finished += item.count - 1
        self._front = end
        if end > 1024 and 2 * end > length:
            del items[:end]
            self._front = 0

    def merge(self) -> None:
        """Merges consecutive finished bodies, if there are many, so that their messages can be freed."""
        if self._done <= MERGE_MIN or 2 * self._done <= len(self.items) - self._front:
            return
        merged: list[Delivery | Gap] = []
        done: list[Delivery | Gap] = []
        for item in self.items[self._front :]:
            if item._state == _DONE:
                done.append(item)
                continue
            if done:
                merged.append(self._gap(done))
                done = []
            merged.append(item)
        if done:
            merged.append(self._gap(done))
        before = self.pending
        self.items, self._front = merged, 0
        self._merged = before - len(merged)
        self._done = sum(item._state == _DONE for item in merged)

    def runs(self, suspects: Mapping[Delivery, int], *, complete: bool) -> tuple[list[UnfinishedRun], BodyPosition | None]:
        """Returns the unfinished bodies in their saved form, and the last body that this form covers.

        With `complete` the runs have every unfinished body; otherwise they omit those at the end that were not handed out.
        """
        items = self.items[self._front :]
        kinds = bytes([item._state for item in items]).translate(_KINDS)
        if suspects:
            marked = bytearray(kinds)
            for index, item in enumerate(items):
                if isinstance(item, Delivery) and (suspicion := suspects.get(item)):
                    marked[index] = suspicion << 1 | (kinds[index] & 1)
            kinds = bytes(marked)
        stored = kinds if complete else kinds.rstrip(b"\0")
        runs: list[UnfinishedRun] = []
        for match in _RUNS.finditer(stored):
            kind = stored[match.start()]
            first, last = items[match.start()], items[match.end() - 1]
            assert isinstance(first, Delivery)
            assert isinstance(last, Delivery)
            kind = 0 if kind == _KEPT else kind
            runs.append(UnfinishedRun(self.position_of(first.message), self.position_of(last.message), bool(kind & 1), kind >> 1))
        return runs, self._end_of(items[len(stored) - 1]) if stored else self.covered

    def _end_of(self, item: Delivery | Gap) -> BodyPosition:
        return item.covered if isinstance(item, Gap) else self.position_of(item.message)

    def _gap(self, done: Sequence[Delivery | Gap]) -> Gap:
        """Returns the gap of these consecutive finished bodies."""
        event = next((event for item in reversed(done) if (event := event_of(item)) is not None), None)
        if event is not None:  # without its payload
            event = ImmutableMessage(event._origin, event._index, event.time_tick, event.vchannel, b"")
        count = sum(item.count if isinstance(item, Gap) else 1 for item in done)
        return Gap(count, self._end_of(done[-1]), event)


_KEPT: Final = 6
"""The kind of a body that is neither handed out nor suspect, and that is saved because it has failed before."""
_KINDS: Final = bytes((0, 1, 1, 1, 1, _KEPT, _KEPT, 255)).ljust(256, b"\0")
"""The kind of a body in each state, for `bytes.translate`."""
_RUNS: Final = re.compile(rb"([^\xff])\1*", re.DOTALL)


def event_of(item: Delivery | Gap) -> ImmutableMessage | None:
    """Returns the event that ends with this body, or the last event of this gap; None if no event ends there."""
    if isinstance(item, Gap):
        return item.event
    event = item._event
    if event is None:
        return item.message
    return event if isinstance(event, ImmutableMessage) else None
