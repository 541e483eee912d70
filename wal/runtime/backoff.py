"""Backoff: the lengths of the pauses between attempts. Pure: the caller waits on a loop, in a thread, or on a virtual clock."""

from __future__ import annotations


class Backoff:
    """Each pause is twice as long as the one before it, from `first_s` up to `max_s` seconds, until `reset`. No pause is random."""

    __slots__ = ("first_s", "max_s", "next_s")

    def __init__(self, first_s: float, max_s: float) -> None:
        self.first_s: float = first_s
        self.max_s: float = max_s
        self.next_s: float = first_s
        """The length of the next pause."""

    def reset(self) -> None:
        """Begins again with the shortest pause, because an attempt has succeeded."""
        self.next_s = self.first_s

    def next(self) -> float:
        """Returns the length in seconds of the pause after a failed attempt."""
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, self.max_s)
        return pause_s
