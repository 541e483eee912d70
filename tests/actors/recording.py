"""Members and actors that record their calls, and a way to wait for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from actors import Actor, Member


async def until(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Lets the loop run until the condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0)


class Bang(Exception):
    """The exception that a recording member or actor raises when it gets one as a message."""


class RecordingMember(Member):
    """Records every call as a tuple in `seen`, which several members may share. Raises a Bang that it gets."""

    def __init__(self, label: str, seen: list[Any]) -> None:
        self.label = label
        self.seen = seen

    def receive(self, batch: list[Any]) -> None:
        self.seen.append((self.label, list(batch)))
        for message in batch:
            self.act(message)

    def receive_control(self, message: Any) -> None:
        self.seen.append((self.label, "control", message))
        self.act(message)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self.seen.append((self.label, "poisoned", cause, unhandled))

    def stopped(self) -> None:
        self.seen.append((self.label, "stopped"))

    def act(self, message: Any) -> None:
        if isinstance(message, Bang):
            raise message
        if callable(message):
            message()


class RecordingActor(Actor):
    """An actor that does the same; it awaits a future that it gets, and answers `("ask", reply)` with 42."""

    def __init__(self, label: str, seen: list[Any]) -> None:
        self.label = label
        self.seen = seen

    async def started(self) -> None:
        self.seen.append((self.label, "started"))

    async def receive(self, batch: list[Any]) -> None:
        self.seen.append((self.label, list(batch)))
        for message in batch:
            await self.act(message)

    async def receive_control(self, message: Any) -> None:
        self.seen.append((self.label, "control", message))
        await self.act(message)

    async def stopped(self) -> None:
        self.seen.append((self.label, "stopped"))

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self.seen.append((self.label, "poisoned", cause, unhandled))

    async def act(self, message: Any) -> None:
        if isinstance(message, Bang):
            raise message
        if isinstance(message, asyncio.Future):
            await message
        elif isinstance(message, tuple) and message[0] == "ask":
            message[1].set_result(42)
        elif callable(message):
            message()
