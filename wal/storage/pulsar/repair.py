"""Repair: the steps of a writer after an answer that does not follow the previous answer, a lost producer, or a fence. Pure.

Owns: the table of its states, and `Outage`, which bounds how long a writer retries. The writer is the shell: it reports events and carries
out the action in the table.

    WRITING      frames are sent, and answered as Pulsar answers
    READING      an answer left a gap in the positions: the writer reads the messages between, and sends nothing meanwhile
    READING_LOST the same, and the producer was lost meanwhile
    REPLACING    the writer creates a new producer if the term is still its own, writes a mark, reads up to it, and resends only frames
                 that the topic does not hold. A frame in flight is before the mark, or never arrives: no outcome is guessed
    FAILED       nothing is written any more
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar, Final

from wal.runtime.backoff import Backoff


class WriterState(enum.Enum):
    """The states of a writer; see the module."""

    WRITING = "writing"
    READING = "reading"
    READING_LOST = "reading, and the producer is lost"
    REPLACING = "replacing the producer"
    FAILED = "failed"


class WriterEvent(enum.Enum):
    """The events that a writer reports."""

    GAP = "an answer does not follow the one before"
    LOST = "the producer is lost: fenced, closed, or without a connection for too long"
    FOUND = "every position is known up to where the writer has read"
    ERROR = "an error that a new producer does not fix: a fence by a higher term, a frame that can never be written, too long an outage"


class WriterAction(enum.Enum):
    """The actions in the table."""

    NOTHING = "nothing"
    READ = "read up to the answer that left a gap"
    REPLACE = "replace the producer"
    ANSWER = "answer the frames whose position is known, and continue sending"
    FAIL = "fail every frame"


_S, _E, _A = WriterState, WriterEvent, WriterAction
TRANSITIONS: Final[Mapping[tuple[WriterState, WriterEvent], tuple[WriterState, WriterAction]]] = {
    (_S.WRITING, _E.GAP): (_S.READING, _A.READ),
    (_S.WRITING, _E.LOST): (_S.REPLACING, _A.REPLACE),
    (_S.WRITING, _E.ERROR): (_S.FAILED, _A.FAIL),
    (_S.READING, _E.FOUND): (_S.WRITING, _A.ANSWER),
    (_S.READING, _E.LOST): (_S.READING_LOST, _A.NOTHING),
    (_S.READING, _E.ERROR): (_S.FAILED, _A.FAIL),
    (_S.READING_LOST, _E.FOUND): (_S.REPLACING, _A.REPLACE),
    (_S.READING_LOST, _E.LOST): (_S.READING_LOST, _A.NOTHING),
    (_S.READING_LOST, _E.ERROR): (_S.FAILED, _A.FAIL),
    (_S.REPLACING, _E.FOUND): (_S.WRITING, _A.ANSWER),
    (_S.REPLACING, _E.LOST): (_S.REPLACING, _A.REPLACE),
    (_S.REPLACING, _E.ERROR): (_S.FAILED, _A.FAIL),
    **{(_S.FAILED, event): (_S.FAILED, _A.NOTHING) for event in _E},
}
"""State and event → next state and action. A missing pair is a defect of the writer: while it reads or replaces, it takes no answers, so it
cannot find a gap."""


class Repair:
    """The state of one writer."""

    def __init__(self) -> None:
        self.state: WriterState = WriterState.WRITING

    def on(self, event: WriterEvent) -> WriterAction:
        """Moves to the next state and returns the action. Raises RuntimeError for an event that the table does not have in this state."""
        transition = TRANSITIONS.get((self.state, event))
        if transition is None:
            raise RuntimeError(f"a writer in the state {self.state.value!r} cannot handle the event {event.value!r}")
        self.state, action = transition
        return action


class Outage:
    """The time since a frame of a writer last got through, across all its producers. The caller passes the time, in seconds."""

    limit_s: ClassVar[float] = 120.0
    """The time for which a broker may be unavailable before the writer fails, across several producers, as long as no frame gets
    through.
    """
    pause_min_s: ClassVar[float] = 0.2
    pause_max_s: ClassVar[float] = 2.0

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._backoff = Backoff(self.pause_min_s, self.pause_max_s)

    def begin(self, now_s: float) -> float:
        """Records that the producer was lost; returns the pause before the first attempt: 0 unless the previous producer was also lost
        before a frame got through."""
        self._backoff.reset()
        if self._since_s is not None:
            return self.pause_max_s
        self._since_s = now_s
        return 0.0

    def end(self) -> None:
        """Records that a frame got through."""
        self._since_s = None

    def is_too_long(self, now_s: float) -> bool:
        """Whether the writer must give up."""
        return self._since_s is not None and now_s - self._since_s > self.limit_s

    def next_pause_s(self) -> float:
        """Returns the pause before the next attempt, twice the previous one, up to `pause_max_s`."""
        return self._backoff.next()
