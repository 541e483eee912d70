"""Three stages from log to log, whose process is killed repeatedly: each input has one output of every stage.

python -m examples.pipeline [directory]      (default: data/pipeline/)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable

from wal import Delivery, ImmutableMessage, Log, open_wal

READINGS = 200
KILL_EVERY = 250
"""The number of handled messages after which a process kills itself with kill -9."""


def main(directory: str = "data/pipeline/") -> None:
    asyncio.run(fill(directory))
    kills, code = 0, 1
    while code:
        command = [sys.executable, "-m", "examples.pipeline", "--run", directory]
        code = subprocess.run(command, check=False).returncode
        kills += code == -signal.SIGKILL
    print(f"killed more than once: {kills > 1}")
    asyncio.run(report(directory))


async def fill(directory: str) -> None:
    async with open_wal(directory) as log:
        await log.append_txn("raw", [b"%d %d" % (number % 4, number) for number in range(READINGS)], idempotency_key="readings")


def sensor(message: ImmutableMessage) -> bytes:
    return message.payload.split()[0]


async def parse(delivery: Delivery) -> None:
    which, value = delivery.value.split()
    delivery.append("parsed", which + b" " + str(int(value) / 10).encode())


async def check(delivery: Delivery) -> None:
    await asyncio.sleep(0)  # stands for a call of another service
    if float(delivery.value.split()[1]) % 1 != 0.5:  # the others are noise
        delivery.append("checked", delivery.value)


async def sum_up(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        delivery.append("shown", b"sensor " + delivery.value)


handled = 0


def killed(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Kills the process in the middle of this handler, when its time has come."""

    async def handle(given: Delivery | list[Delivery]) -> None:
        global handled
        handled += len(given) if isinstance(given, list) else 1
        if handled >= KILL_EVERY:
            os.kill(os.getpid(), signal.SIGKILL)
        await handler(given)

    return handle


async def run(directory: str) -> None:
    async with open_wal(directory) as log, contextlib.AsyncExitStack() as stages:
        first = await stages.enter_async_context(log.consume("raw", killed(parse), cursor="parse"))
        second = await stages.enter_async_context(
            log.consume("parsed", killed(check), cursor="check", concurrency=4, order="key", key=sensor)
        )
        third = await stages.enter_async_context(log.consume("checked", killed(sum_up), cursor="sum up", batch=50))
        for stage in (first, second, third):
            await stage.caught_up()


async def report(directory: str) -> None:
    async with open_wal(directory) as log:
        for name in ("parsed", "checked", "shown"):
            outputs = await bodies(log, name)
            by_sensor: dict[bytes, list[float]] = {}
            for output in outputs:
                which, value = output.split()[-2:]
                by_sensor.setdefault(which, []).append(float(value))
            in_order = all(values == sorted(values) for values in by_sensor.values())
            print(f"{name}: {len(outputs)}, each once: {len(set(outputs)) == len(outputs)}, sensors in order: {in_order}")


async def bodies(log: Log, vchannel: str) -> list[bytes]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload async for _, body in scanner.bodies()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        asyncio.run(run(sys.argv[2]))
    else:
        main(*sys.argv[1:])
