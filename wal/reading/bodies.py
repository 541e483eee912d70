"""BodyTurns: which bodies of the next message a reader was given, for reads that go body by body. Pure.

A message counts as handed over with its last body. So a position in the middle of a transaction is the one before it: a reader that
resumes there gets the whole transaction again, and none of its bodies is skipped. One that goes on in the same read gets the rest.
"""

from __future__ import annotations

from wal.message import ImmutableMessage

__all__ = ["BodyTurns"]


class BodyTurns:
    """The turns of the bodies of one message after the other."""

    __slots__ = ("_count", "_message")

    def __init__(self) -> None:
        self._message: ImmutableMessage | None = None
        """The message that was given in part; None between messages."""
        self._count = 0

    def next(self, message: ImmutableMessage) -> tuple[ImmutableMessage | None, bool]:
        """Returns the next body of `message`, and whether it is the last; a transaction without bodies has None, and that is its last."""
        if message is not self._message:
            self._message, self._count = message, 0
        bodies = message.bodies()
        body = bodies[self._count] if bodies else None
        self._count += 1
        is_last = self._count >= len(bodies)
        if is_last:
            self._message = None
        return body, is_last
