"""SharedCalls: the calls to a server that are under way, for other callers that want the same answer.

All readers that wait at the tail ask for the same page when the tail moves, so one of them asks the server and all of them take its page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["SharedCalls"]

Answer = TypeVar("Answer")


class SharedCalls(Generic[Answer]):
    """The calls under way, by what they ask for. One that fails or is cancelled concerns its own caller: the others call by themselves."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _UnderWay[Answer]] = {}

    async def join(self, wanted: Hashable, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Returns the answer of a call that is under way, or else of this one; raises what this one raises."""
        while (other := self._under_way.get(wanted)) is not None:
            await other.ended.wait()
            if other.answers:
                return other.answers[0]
        own = self._under_way[wanted] = _UnderWay()
        try:
            answer = await call()
            own.answers.append(answer)
            return answer
        finally:
            del self._under_way[wanted]
            own.ended.set()

    async def join_next(self, wanted: Hashable, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Does as `join`, but with no call that was under way already, whose answer may be older than this caller's question."""
        if (earlier := self._under_way.get(wanted)) is not None:
            await earlier.ended.wait()
        return await self.join(wanted, call)


class _UnderWay(Generic[Answer]):
    """A call under way, and its answer if it got one."""

    __slots__ = ("answers", "ended")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.answers: list[Answer] = []
