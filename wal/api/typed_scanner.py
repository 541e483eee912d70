"""TypedScanner: the values of a typed vchannel, read in the order of the log.

A value that cannot be decoded raises a PayloadError before its message counts as handed over. So the position and a saved cursor stay
before it, and the next step raises the same error: it is never skipped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Generic, Self

from wal.message import ImmutableMessage
from wal.message.payloads import PayloadType, T
from wal.read.options import ReadPosition
from wal.read.scanner import Scanner


class TypedScanner(Generic[T]):
    """Values in the order of the log, each once: `async with`, then `async for value in scanner`, or `bodies()` for their messages too.

    A message counts as handed over with its last value, so `position` and `save` in the middle of a transaction are before it.
    """

    def __init__(self, scanner: Scanner, kind: PayloadType[T]) -> None:
        self._type = kind
        self._page: Sequence[ImmutableMessage] = ()
        self._at = 0
        """The next message of the page, …"""
        self._body = 0
        """… and its next body."""
        self.scanner: Scanner = scanner
        """The scanner below, for what concerns no values: `wait_for`, `done`, `error`, `statistics`."""

    async def __aenter__(self) -> Self:
        await self.scanner.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        await self.scanner.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        value, _ = await self._next()
        return value

    async def bodies(self) -> AsyncIterator[tuple[T, ImmutableMessage]]:
        """Yields each value with its message: a plain one, or the body of a transaction."""
        while True:
            try:
                pair = await self._next()
            except StopAsyncIteration:
                return
            yield pair

    @property
    def position(self) -> ReadPosition | None:
        """The position after what was handed over; see `Scanner.position`."""
        return self.scanner.position

    async def save(self, position: ReadPosition | None = None) -> None:
        """Stores a position under the name of its cursor; see `Scanner.save`."""
        await self.scanner.save(position)

    async def close(self) -> None:
        """Ends the scanner cleanly. Idempotent."""
        await self.scanner.close()

    async def _next(self) -> tuple[T, ImmutableMessage]:
        while True:
            if self._at == len(self._page) or self.scanner._loop.ended:
                self._page, self._at = await self.scanner._page(), 0
                if not self._page:
                    raise StopAsyncIteration
            bodies = self._page[self._at].bodies()
            if self._body < len(bodies):
                body = bodies[self._body]
                value = self._type.decode(body)
                self._body += 1
                if self._body == len(bodies):
                    self._hand_over()
                return value, body
            self._hand_over()  # a transaction without bodies

    def _hand_over(self) -> None:
        self._at, self._body = self._at + 1, 0
        self.scanner._hand_over(1)
