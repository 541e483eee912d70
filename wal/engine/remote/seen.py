"""SeenTick: the largest tick that a client has seen."""

from __future__ import annotations

__all__ = ["SeenTick"]


class SeenTick:
    """The largest tick that this client has seen: what it appends afterwards gets a larger one, whichever server it is sent to."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0

    def saw(self, tick: int) -> None:
        """Notes a tick."""
        if tick > self.value:
            self.value = tick
