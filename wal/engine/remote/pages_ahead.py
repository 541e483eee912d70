"""PagesAhead: the pages that the server sends to one reader before the reader asks for them.

Owns one call and the task that takes its pages, at most `AHEAD_PAGES` before the reader does. The rest waits at the server: HTTP/2 has a
window for each call, so a reader that is slow costs a few pages of memory, and holds up no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from wal.backends import FramePage
from wal.rpc.encoded_page import EncodedPage

__all__ = ["PagesAhead"]

AHEAD_PAGES: Final = 2
"""The pages that are kept for the reader. One arrives while the reader works on another; a third makes no measurable difference."""


class PagesAhead:
    """The pages of one call, in order, up to the position `end`. `task` runs the call; cancel it to end the call."""

    def __init__(self, responses: AsyncGenerator[EncodedPage, None], *, end: int, name: str) -> None:
        self.end: int = end
        self._pages: deque[FramePage] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._moved = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._take(responses), name=name)

    async def next(self) -> FramePage | None:
        """Returns the next page, None after the last one; raises the error with which the call ended. Cancelling it loses no page."""
        while not self._pages:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._moved.clear()
            await self._moved.wait()
        self._moved.set()
        return self._pages.popleft()

    async def _take(self, responses: AsyncGenerator[EncodedPage, None]) -> None:
        try:
            async with aclosing(responses):
                async for response in responses:
                    self._pages.append(response.page())
                    self._moved.set()
                    while len(self._pages) >= AHEAD_PAGES:
                        self._moved.clear()
                        await self._moved.wait()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._moved.set()
