"""One process writes a log; another one reads it as it grows, and continues when the writer is killed and a second one takes over.

    python -m examples.read_from_another_process [directory]      (default: data/read_from_another_process/)

The reader opens the journal with `read_only=True`: it reads the writer's files, sends nothing, and makes no process wait.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator

from wal import Message, ProducerKey, Scanner, open_wal
from wal.errors import InvalidArgumentError, NotLocalError

KILL_AT = 100
"""The first writer would never end; it is killed after this many of its orders were read."""
MORE = 100
"""The number of orders that the second writer appends."""


async def main(directory: str = "data/read_from_another_process/") -> None:
    written = writer(directory, first=0, count=sys.maxsize)
    first = await anext(written)  # the journal exists now
    async with open_wal(directory, read_only=True) as log, log.read("orders") as scanner:
        numbers = await read_to(scanner, first)
        print(f"reading beside the writer, from the beginning: {numbers == [0]}")

        async for tick in written:
            numbers += await read_to(scanner, tick)
            if len(numbers) >= KILL_AT:
                break
        await written.aclose()
        print(f"the first writer was killed; the reader has all that it reported: {numbers == list(range(len(numbers)))}")

        async with log.read("orders", follow=False) as whole:  # no process writes now
            durable = [int(body.payload) async for _, body in whole.bodies()]
        print(f"without a writer the read ends after the last durable event: {durable[: len(numbers)] == numbers}")

        # The last orders of the first writer may have become durable after its reports; their keys identify their writer.
        async for tick in writer(directory, first=len(durable), count=MORE):
            numbers += await read_to(scanner, tick)
        print(f"a second writer took over, and the scanner continued: {numbers == list(range(len(durable) + MORE))}")

        try:
            await log.raw_append(Message("orders", b"mine"))
        except InvalidArgumentError as error:
            print(f"writing is refused here: {'read_only' in str(error)}")
        try:
            await log.get_latest_mvcc_timestamp_if_local("orders")
        except NotLocalError:
            print("only the writer has its newest tick: pass the tick to the reader")


async def read_to(scanner: Scanner, tick: int) -> list[int]:
    """Waits for the orders up to this tick, which include everything that the other process wrote before it reported the tick."""
    numbers = []
    while scanner.position is None or scanner.position.time_tick < tick:
        numbers.append(int((await anext(scanner)).payload))
    return numbers


async def writer(directory: str, *, first: int, count: int) -> AsyncGenerator[int, None]:
    """Runs a writer in its own process, and yields the tick of each order that it reports. Closing the generator kills it."""
    command = [sys.executable, "-m", "examples.read_from_another_process", "--write", directory, str(first), str(count)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            yield int(line)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def write(directory: str, first: int, count: int) -> None:
    async with open_wal(directory) as log:
        for number in range(first, first + count):
            result = await log.raw_append(Message("orders", b"%d" % number), idempotency_key=ProducerKey("shop", number))
            print(result.time_tick, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        asyncio.run(write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        asyncio.run(main(*sys.argv[1:]))
