"""Floor: which of the messages of a topic are the log, and which are nobody's. Pure.

A Pulsar topic can hold more than the log: a frame twice, when its acknowledgement was lost and the client sent it again; a frame of a
writer that was fenced while it was under way. Every reader goes by the same rule, so that all of them see the same log:

    mark of a higher term     from here on only this term counts                mark of another term   passed over
    frame of a lower term     of a fenced writer: passed over
    frame of this term        the next sequence: taken; one up to the last: a repeat, passed over; a later one: CorruptionError, loud
    frame of a higher term    its first (sequence 0): taken; any other: CorruptionError

A reader that begins in the middle has to know the floor there. `FloorSearch` finds it from the messages before: a writer has at most
`window` frames unanswered, so what it sends again reaches at most `window` back, and a row of more than `window` ascending sequences
cannot be a repeat: it ends with the newest frame.
"""

from __future__ import annotations

import msgspec

from wal.backends.pulsar.layout import text_of
from wal.errors import CorruptionError
from wal.frame import TermStart

__all__ = ["Floor", "FloorSearch"]


class Floor(msgspec.Struct, gc=False):
    """The last frame that counted: its `term` and `sequence` (-1: none of that term yet). Moved on by what is read.

    `before`: the last frame of an earlier term that was read, as (term, sequence); (0, -1) when none was.
    """

    term: int = 0
    sequence: int = -1
    before: tuple[int, int] = (0, -1)

    def mark(self, term: int) -> None:
        """A mark of this log was read."""
        if term > self.term:
            if self.sequence >= 0:
                self.before = (self.term, self.sequence)
            self.term = term
            self.sequence = -1

    def takes(self, term: int, sequence: int, position: int) -> bool:
        """Whether the frame at this position counts. CorruptionError when frames before it are missing."""
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
        """What the first frame of this term says of the term before, against what was read of that. CorruptionError."""
        term, sequence = self.before
        if start.previous_term == term > 0 and start.previous_last_sequence != sequence:
            raise CorruptionError(
                f"the log of term {term} ends with number {sequence} before {text_of(position)}",
                expected=f"number {start.previous_last_sequence}",
            )


class FloorSearch:
    """Finds the floor behind messages that are given in their order, beginning anywhere. `found` once it is known.

    `term`: the last term whose mark lies before the first message given.
    """

    def __init__(self, *, window: int, term: int) -> None:
        self.found: Floor | None = None
        self._window = window
        self._term = term
        self._last = -1
        self._row = 0

    def mark(self, term: int) -> None:
        """A mark of this log was read."""
        if self.found is not None:
            self.found.mark(term)
        elif term >= self._term:
            if term > self._term:
                self.found = Floor(term, -1)
            self._term = term  # one of this very term is of its owner, after a lost connection: frames may precede it

    def frame(self, term: int, sequence: int, position: int) -> None:
        """A frame was read."""
        if self.found is not None:
            try:
                self.found.takes(term, sequence, position)
            except CorruptionError:  # loud for who reads over it; where it lies before, this is the newest all the same
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
            self.found = Floor(term, sequence)
