"""FencingFloor: which messages of a topic are the log, and which are not. Pure.

A Pulsar topic can have messages outside the log: a frame twice, when its acknowledgement was lost and the client sent it again; a frame of
a writer that was fenced while the frame was in flight. Every reader applies the same rule, so that all readers see the same log:

    mark of a higher term     from here on only frames of this term count        mark of another term   skipped
    frame of a lower term     written by a fenced writer: skipped
    frame of this term        the next sequence: counts; a sequence up to the last: a duplicate, skipped; a later one: CorruptionError
    frame of a higher term    the first (sequence 0): counts; any other: CorruptionError

A reader that begins in the middle needs the fencing floor there. `FloorSearch` finds it from the preceding messages: a writer has at most
`window` unanswered frames, so a duplicate reaches at most `window` frames back, and more than `window` ascending sequences in a row cannot
be duplicates only: the last of them is the newest frame.
"""

from __future__ import annotations

import msgspec

from wal.errors import CorruptionError
from wal.frame import TermStart
from wal.storage.pulsar.positions import text_of


class FencingFloor(msgspec.Struct, gc=False):
    """The last frame that counted: its `term` and `sequence` (-1: none of that term yet). Each message that is read advances it.

    `before`: the last frame read of an earlier term, as (term, sequence); (0, -1) for none.
    """

    term: int = 0
    sequence: int = -1
    before: tuple[int, int] = (0, -1)

    def mark(self, term: int) -> None:
        """Advances past a mark of this log."""
        if term > self.term:
            if self.sequence >= 0:
                self.before = (self.term, self.sequence)
            self.term = term
            self.sequence = -1

    def takes(self, term: int, sequence: int, position: int) -> bool:
        """Advances past the frame at this position; returns whether it counts. Raises CorruptionError when frames before it are missing."""
        if term < self.term:
            return False
        self.mark(term)
        if sequence <= self.sequence:
            return False
        if sequence != self.sequence + 1:
            raise CorruptionError(
                f"the frame at {text_of(position)} is number {sequence} of term {term}: frames are missing before it",
                expected=f"number {self.sequence + 1}",
            )
        self.sequence = sequence
        return True

    def check_start(self, start: TermStart, position: int) -> None:
        """Raises CorruptionError if the first frame of this term disagrees with what was read of the term before."""
        term, sequence = self.before
        if start.previous_term == term > 0 and start.previous_last_sequence != sequence:
            raise CorruptionError(
                f"the log of term {term} ends with number {sequence} before {text_of(position)}",
                expected=f"number {start.previous_last_sequence}",
            )


class FloorSearch:
    """Finds the fencing floor after messages that are added in their order, from any start. `found` is set once it is known.

    `term`: the last term whose mark is before the first message added.
    """

    def __init__(self, *, window: int, term: int) -> None:
        self.found: FencingFloor | None = None
        self._window = window
        self._term = term
        self._last = -1
        self._row = 0

    def mark(self, term: int) -> None:
        """Adds a mark of this log."""
        if self.found is not None:
            self.found.mark(term)
        elif term >= self._term:
            if term > self._term:
                self.found = FencingFloor(term, -1)
            self._term = term  # the owner of this term wrote this mark after a lost connection: frames may precede it

    def frame(self, term: int, sequence: int, position: int) -> None:
        """Adds a frame."""
        if self.found is not None:
            try:
                self.found.takes(term, sequence, position)
            except CorruptionError:  # a reader that passes it raises; for a later reader this is still the newest frame
                self.found.sequence = sequence
            return
        if term < self._term:
            return
        if term > self._term:
            self._term = term
            self._row = 0
        self._row = self._row + 1 if self._row and sequence == self._last + 1 else 1
        self._last = sequence
        if self._row > self._window:
            self.found = FencingFloor(term, sequence)
