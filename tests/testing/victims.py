"""The functions that tests run in a process that is killed: functions of a service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from wal import Message, open_wal

Report = Callable[[object], None]


async def append_one_by_one(report: Report, directory: Path, count: int) -> None:
    """Appends the numbers from 0 on, and reports each acknowledged one."""
    async with open_wal(directory) as log:
        for number in range(count):
            await log.append("orders", b"%d" % number)
            report(number)


async def append_in_every_way(report: Report, directory: Path) -> None:
    """Makes seven appends, one of each kind, and reports their kinds."""
    async with open_wal(directory) as log:
        await log.append("orders", b"plain")
        report("append")
        await log.append("orders", b"keyed", idempotency_key="k")
        report("keyed")
        await log.append_bulk([_message(b"1"), _message(b"2")])
        report("bulk")
        await log.append_txn("orders", [b"1", b"2"])
        report("append_txn")
        async with log.txn("orders") as txn:
            await txn.append(b"1")
            await txn.append(b"2")
        report("txn")
        await log.append_nowait(_message(b"3"))
        report("nowait")
        await log.append("orders", b"last")
        report("last")


async def save_often(report: Report, directory: Path) -> None:
    """Reads five messages with a cursor, and reports each saved position."""
    async with open_wal(directory) as log:
        for number in range(5):
            await log.append("orders", b"%d" % number)
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            async for message in scanner:
                await scanner.save()
                report(message.time_tick)


async def append_at_once(report: Report, directory: Path) -> None:
    """Appends forty times without waiting in between, and reports the acknowledged ones."""

    async def append(number: int) -> None:
        await log.append(f"orders-{number % 4}", b"%d" % number)
        report(number)

    async with open_wal(directory, pchannels=2) as log:
        for first in range(0, 40, 8):
            await asyncio.gather(*(append(number) for number in range(first, first + 8)))


def fail(report: Report) -> None:
    """Reports once, and raises."""
    report("began")
    raise RuntimeError("the service is broken")


async def wait_for_ever(report: Report) -> None:
    """Reports once, and waits."""
    report("began")
    await asyncio.Event().wait()


def _message(payload: bytes) -> Message:
    return Message("orders", payload)
