"""InFlight: the bound on bytes that were accepted and are not yet durable (D11)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from wal.errors import WouldBlockError

_T = TypeVar("_T")


class InFlight:
    """At most `bytes_max` bytes in flight, but always room for one item of any size. Callers that wait are served in order."""

    __slots__ = ("_cause", "_waiters", "bytes_max", "delayed", "queued", "refused", "size")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max: int = bytes_max
        self.size: int = 0
        self.refused: int = 0
        """The number of callers that got a WouldBlockError."""
        self.delayed: int = 0
        """The number of callers that had to wait for room."""
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.queued: bool = False
        """Whether a new caller has to wait or is refused, however small its request."""
        self._cause: Callable[[], BaseException] | None = None

    @property
    def waiting(self) -> int:
        """The number of callers that wait for room."""
        return len(self._waiters)

    def take_nowait(self, size: int) -> None:
        """Takes room, or raises WouldBlockError."""
        if not self.has_room(size):
            raise self.refusal(size)
        self.size += size

    def refusal(self, size: int) -> BaseException:
        """Returns why this many bytes find no room: a WouldBlockError, or the cause given to `fail`."""
        if self._cause is not None:
            return self._cause()
        self.refused += 1
        return WouldBlockError(
            f"{self.size} bytes are in flight and {size} more would pass in_flight_bytes_max={self.bytes_max}: wait for some "
            "of the results, use `await raw_append(…)`, which waits for room, or raise the setting"
        )

    def force(self, size: int) -> None:
        """Takes room without a check, for a commit: its bodies were bounded when they were appended."""
        self.size += size

    def has_room(self, size: int) -> bool:
        """Returns whether `take_nowait` would succeed."""
        return not self.queued and (self.size + size <= self.bytes_max or not self.size)

    async def take(self, size: int) -> None:
        """Takes room, waiting for it in turn."""
        if self.has_room(size):
            self.size += size
            return
        if self._cause is not None:
            raise self._cause()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (size, future)
        self._waiters.append(waiter)
        self.queued = True
        self.delayed += 1
        try:
            await future
        except asyncio.CancelledError:
            if waiter in self._waiters:  # the caller gave up waiting: the next one may fit
                self._waiters.remove(waiter)
                self._serve()
            elif not future.cancelled() and future.exception() is None:  # it got room, but the caller never sees it
                self.release(size)
            raise

    async def sent(self, size: int, send: Callable[[], _T | None]) -> _T:
        """Takes room, waiting for it in turn, and returns the result of `send`, which is not None; gives the room back if it raises."""
        await self.take(size)
        try:
            result = send()
        except BaseException:
            self.release(size)
            raise
        assert result is not None
        return result

    def release(self, size: int) -> None:
        """Gives room back and serves the callers that wait."""
        self.size -= size
        if self._waiters:
            self._serve()

    def fail(self, cause: Callable[[], BaseException]) -> None:
        """Refuses room from now on: every caller, waiting or new, gets this error. Nothing of theirs was sent."""
        self._cause = cause
        self.queued = True
        while self._waiters:
            _, future = self._waiters.popleft()
            if not future.done():
                future.set_exception(cause())

    def _serve(self) -> None:
        while self._waiters:
            size, future = self._waiters[0]
            if future.done():
                self._waiters.popleft()
                continue
            if self.size + size > self.bytes_max and self.size:
                return
            self._waiters.popleft()
            self.size += size
            future.set_result(None)
        self.queued = self._cause is not None
