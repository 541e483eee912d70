"""Pauses: the pauses between attempts to find a server that does what is asked for. Pure.

SharedCalls: the calls to a server that are under way, for other callers that want the same answer.

All readers that wait at the tail ask for the same page when the tail moves, so one of them asks the server and all of them take its page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

__all__ = [
    "PAUSE_MAX_S",
    "Pauses",
    "SharedCalls",
]

PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5


class Pauses:
    """Each pause is twice as long as the one before it, up to `PAUSE_MAX_S`, until an attempt succeeds."""

    __slots__ = ("_next_s", "_told", "waited_s")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begins again with the shortest pause, because an attempt has succeeded."""
        self._next_s = PAUSE_FIRST_S
        self.waited_s: float = 0.0
        """How long the pauses since the last success took in all; a caller may add what its attempts took."""
        self._told = False

    def next(self) -> float:
        """Returns the length in seconds of the pause after an attempt that failed."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, PAUSE_MAX_S)
        self.waited_s += pause_s
        return pause_s

    def to_tell(self) -> bool:
        """Returns True once between two resets, when the attempts have failed for about half a second: then a user should know of it."""
        told, self._told = self._told, self._next_s == PAUSE_MAX_S
        return self._told and not told


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
