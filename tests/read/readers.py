"""Small logs of numbers and their readers, shared by the tests of cursors and retention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wal import AppendResult, CursorInfo, Matching, Message, WALAccesser


async def numbered(log: WALAccesser, count: int, name: str = "orders", first: int = 0) -> list[AppendResult]:
    return await log.append_bulk([Message(name, b"%d" % number) for number in range(first, first + count)])


async def rest(log: WALAccesser, vchannel: str | Sequence[str] | Matching = "orders", **options: Any) -> list[int]:
    """Returns the numbers that a reader gets now, without saving anything."""
    async with log.read(vchannel, follow=False, **options) as scanner:
        return [int(body.payload) async for message in scanner for body in message.bodies()]


async def take(
    log: WALAccesser, count: int, vchannel: str | Sequence[str] | Matching = "orders", *, cursor: str, **options: Any
) -> list[int]:
    """Reads some numbers and saves the cursor."""
    taken: list[int] = []
    async with log.read(vchannel, follow=False, cursor=cursor, **options) as scanner:
        while len(taken) < count:
            taken += [int(body.payload) for body in (await anext(scanner)).bodies()]
        await scanner.save()
    return taken


async def the_cursor(log: WALAccesser, name: str) -> CursorInfo:
    (found,) = [info for info in await log.cursors() if info.name == name]
    return found
