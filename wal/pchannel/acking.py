"""AckingScanner: a scanner that acknowledges the copies of broadcasts once its consumer has finished with them.

Owns: which copies were handed over and are not acknowledged. A consumer has finished with a message when its handler has returned, or when
it asks for the next message (in a bulk read: for the next page), or saves its position after it. Nothing is acknowledged before that; an
ack that was cancelled or failed is repeated before anything more is handed over. A consumer that ends without asking for more has not
acknowledged the messages it got last: with its own `resume` or cursor they are redelivered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from wal.cursors import CursorUse
from wal.message import ImmutableMessage, MessageType
from wal.pchannel.handler import Handler
from wal.pchannel.read_loop import Attach
from wal.pchannel.scanner import Scanner
from wal.reading import ReadOptions, ReadPosition

__all__ = ["AckingScanner"]

Ack = Callable[[ImmutableMessage], Awaitable[None]]


class AckingScanner(Scanner):
    """A `Scanner` with auto-ack; `ack` is the broadcaster's call."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        attach: Attach,
        ack: Ack,
        handler: Handler | None = None,
        cursor: CursorUse | None = None,
    ) -> None:
        super().__init__(options, attach=attach, handler=handler, cursor=cursor)
        self._ack = ack
        self._unacked: list[ImmutableMessage] = []

    async def __anext__(self) -> ImmutableMessage:
        if self._unacked:
            await self.settle()
        message = await super().__anext__()
        if message.broadcast is not None:
            self._given((message,))
        return message

    async def batches(self, size_max: int = 1024) -> AsyncIterator[list[ImmutableMessage]]:
        """Yields pages of 1 to `size_max` messages; the copies in a page are acknowledged when the next one is asked for."""
        await self.settle()
        async for page in super().batches(size_max):
            yield page
            await self.settle()

    async def bodies(self) -> AsyncIterator[tuple[ImmutableMessage, ImmutableMessage]]:
        """Yields bodies as a `Scanner` does; a copy is acknowledged when the next body is asked for."""
        await self.settle()
        async for pair in super().bodies():
            yield pair
            await self.settle()

    async def page(self) -> list[ImmutableMessage]:
        await self.settle()
        return await super().page()

    def hand_over(self, count: int) -> list[ImmutableMessage]:
        given = super().hand_over(count)
        self._given(given)
        return given

    async def save(self, position: ReadPosition | None = None) -> None:
        """Saves as a `Scanner` does, after acknowledging what is before the position, since no reader would see it again.

        If nothing can be stored, it refuses before anything is acknowledged.
        """
        self._loop.check_cursor()
        await self.settle()
        await super().save(position)

    async def settle(self) -> None:
        """Acknowledges what was handed over: the consumer has finished with it."""
        unacked = self._unacked
        while unacked:
            message = unacked[0]
            await self._ack(message)
            if unacked and unacked[0] is message:  # else another task acknowledged it meanwhile
                del unacked[0]

    def _given(self, messages: Iterable[ImmutableMessage]) -> None:
        self._unacked.extend(
            message
            for message in messages
            if message.broadcast is not None
            and message.broadcast.needs_ack
            and message.message_type is not MessageType.ABORT_BROADCAST
        )
