"""Pauses: the time between a client's attempts to reach a server, and when a user should learn of failed ones."""

from __future__ import annotations

from typing import Final

from wal.runtime.backoff import Backoff

PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5


class Pauses(Backoff):
    """The pauses of a client between attempts to reach a server; they say when a user should know."""

    __slots__ = ("_at_max", "waited_s")

    def __init__(self) -> None:
        super().__init__(PAUSE_FIRST_S, PAUSE_MAX_S)
        self.waited_s: float = 0.0
        """How long the pauses since the last success took in all; a caller may add what its attempts took."""
        self._at_max = False

    def reset(self) -> None:
        self.next_s = PAUSE_FIRST_S
        self.waited_s = 0.0
        self._at_max = False

    def next(self) -> float:
        pause_s = super().next()
        self.waited_s += pause_s
        return pause_s

    def to_tell(self) -> bool:
        """Returns True once between two resets, when the attempts have failed for about half a second: then a user should know of it."""
        was_at_max, self._at_max = self._at_max, self.next_s == PAUSE_MAX_S
        return self._at_max and not was_at_max
