"""A topic after lost connections and takeovers, and which of its messages are the log: a naive model, one pass from the beginning.

`Physical` plays a broker and its writers: frames sent again because their answer was lost, frames of a fenced writer after the next owner's
mark, marks of owners that never wrote. `FencingFloor`, `FloorSearch` and the readers are compared with it.
"""

from __future__ import annotations

import random

import msgspec


class Item(msgspec.Struct, frozen=True):
    """A message of `term`: a frame with this `sequence`, or a mark when it is None."""

    term: int
    sequence: int | None


class Physical:
    """Adds to `items` at random. A writer has at most `window` unanswered frames."""

    def __init__(self, rng: random.Random, *, window: int) -> None:
        self.items: list[Item] = []
        self._rng = rng
        self._window = window
        self._term = 0
        self._sequence = 0
        self._unanswered: list[int] = []
        self.take_over()

    def take_over(self) -> None:
        """Begins the next term. The previous writer's frames in flight may still arrive, and do not count."""
        stale = [Item(self._term, sequence) for sequence in self._unanswered]
        if self._rng.random() < 0.2:
            self._term += 1  # an owner that died after its mark
            self.items.append(Item(self._term, None))
        self._term += 1
        self.items.append(Item(self._term, None))
        self.items += stale[: self._rng.randint(0, len(stale))]
        self._sequence = 0
        self._unanswered = []

    def step(self) -> None:
        """Performs one random step."""
        chance = self._rng.random()
        if chance < 0.02:
            self.take_over()
        elif chance < 0.12:
            self._lose_connection()
        elif chance < 0.6 and len(self._unanswered) < self._window:
            self.items.append(Item(self._term, self._sequence))
            self._unanswered.append(self._sequence)
            self._sequence += 1
        elif self._unanswered:
            self._unanswered.pop(0)

    def _lose_connection(self) -> None:
        """Resends the unanswered frames until the next connection is lost; sometimes after another mark of the writer."""
        if self._rng.random() < 0.3:
            self.items.append(Item(self._term, None))
        again = self._unanswered[: self._rng.randint(0, len(self._unanswered))]
        self.items += [Item(self._term, sequence) for sequence in again]


def meaning(items: list[Item]) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns which items are frames of the log, and the (term, sequence) of the last one before each item and after all."""
    term, sequence = 0, -1
    counted: list[int] = []
    floors: list[tuple[int, int]] = []
    for at, item in enumerate(items):
        floors.append((term, sequence))
        if item.term < term:
            continue
        if item.term > term:
            term, sequence = item.term, -1
        if item.sequence is not None and item.sequence > sequence:
            assert item.sequence == sequence + 1, "the model made a gap"
            sequence = item.sequence
            counted.append(at)
    floors.append((term, sequence))
    return counted, floors
