"""SharedCalls: one call for all callers that want the same answer.

All readers at the tail ask for the same page when it moves, and all tasks of a client for the same list of vchannels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class SharedCalls(Generic[Answer]):
    """The running calls, by request. The failure or cancellation of a call concerns its own caller: the others call by themselves."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, _UnderWay[Answer]] = {}

    async def join(self, question: Hashable, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Returns the answer of a call that is under way, or else of this one; raises what this one raises."""
        while (other := self._under_way.get(question)) is not None:
            await other.ended.wait()
            if other.answers:
                return other.answers[0]
        own = self._under_way[question] = _UnderWay()
        try:
            answer = await call()
            own.answers.append(answer)
            return answer
        finally:
            del self._under_way[question]
            own.ended.set()

    async def join_next(self, question: Hashable, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Does as `join`, but with no call that was under way already, whose answer may be older than this caller's question."""
        if (earlier := self._under_way.get(question)) is not None:
            await earlier.ended.wait()
        return await self.join(question, call)


class _UnderWay(Generic[Answer]):
    """A call under way, and its answer if it got one."""

    __slots__ = ("answers", "ended")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.answers: list[Answer] = []
