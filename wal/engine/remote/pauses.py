"""Pauses: the pauses between attempts to find a server that does what is asked for. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["PAUSE_MAX_S", "Pauses"]

PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5


class Pauses:
    """Each pause is twice as long as the one before it, up to `PAUSE_MAX_S`, until an attempt succeeds."""

    __slots__ = ("_next_s", "_told", "waited_s")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins again with the shortest pause, because an attempt has succeeded."""
        self._next_s = PAUSE_FIRST_S
        self.waited_s: float = 0.0
        """How long the pauses since the last success took in all; a caller may add what its attempts took."""
        self._told = False

    def next(self) -> float:
        """Returns the length in seconds of the pause after an attempt that failed."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSE_MAX_S)
        self.waited_s += pause_s
        return pause_s

    def to_tell(self) -> bool:
        """Returns True once between two resets, when the attempts have failed for about half a second: then a user should know of it."""
        told, self._told = self._told, self._next_s == PAUSE_MAX_S
        return self._told and not told
