"""HomeLoop: the event loop that a system and everything in it belong to.

Owns one check. Actors hold no locks, so a call from another thread or loop has to be refused.
"""

from __future__ import annotations

import asyncio

from actors.errors import WrongLoopError

__all__ = ["HomeLoop"]


class HomeLoop:
    """The loop that ran when this object was created; `owner` names what belongs to it in error messages."""

    __slots__ = ("loop", "owner")

    def __init__(self, owner: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.owner = owner

    def check(self) -> None:
        """Raises WrongLoopError unless this loop runs in this thread now (about 0.1 µs)."""
        try:
            if asyncio.get_running_loop() is self.loop:
                return
        except RuntimeError:
            pass  # no loop runs here, which is as wrong as another loop
        raise WrongLoopError(
            f"{self.owner} belongs to another event loop: call it there, "
            "or hand the call over with loop.call_soon_threadsafe(...)"
        )
