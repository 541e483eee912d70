"""A migration of a message stream from RocksMQ to a log, which is killed in the middle; its consumer continues at its position.

    python -m examples.migration [directory]      (default: data/migration/)

A service has billed a part of its orders. Another process, which is killed once, copies all orders to a log. Then the service's position is
translated, and the service continues on the log with the next order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from wal import Log, open_wal
from wal.streams.msgstream import InsertMsg, MsgPack, MsgPosition, MsgStream
from wal.streams.msgstream.media.rocksmq import RocksMQMedium
from wal.streams.msgstream.media.wal import WalMedium
from wal.streams.msgstream.migrate import migrate, translate

ORDERS = 20_000
BILLED = 5_000
NAME = "orders to the log"


async def main(directory: str = "data/migration/") -> None:
    old, new = Path(directory) / "mq", Path(directory) / "log"
    await produce(old)
    billed, position = await bill(old)
    async with open_wal(new) as log:
        await log.create_vchannel("orders")
    print(f"billed from RocksMQ: {billed == list(range(len(billed)))}, at least {BILLED}: {len(billed) >= BILLED}")

    copied = await migrate_in_a_process(directory, kill=True)
    print(f"the first migration was killed, with a part in the log: {0 < copied < ORDERS}")
    copied = await migrate_in_a_process(directory)
    print(f"the second one completed it: {copied} orders in the log")

    async with open_wal(new) as log:
        async with log.read("orders", follow=False) as scanner:
            payloads = [body.payload async for message in scanner for body in message.bodies()]
        numbers = [InsertMsg.unmarshal(payload).row_ids[0] for payload in payloads]
        print(f"each once, in order: {numbers == list(range(ORDERS))}")

        async with MsgStream(WalMedium(log)) as stream:
            await stream.as_consumer(["orders"], "billing")
            await stream.seek(await translate(log, position, name=NAME))
            pack = await stream.consume()
            assert pack is not None
            print(f"billing continues after what it had: {orders(pack)[0] == len(billed)}")


async def produce(old: Path) -> None:
    """Sends the orders to RocksMQ."""
    medium = RocksMQMedium(old)
    async with MsgStream(medium, owns_medium=True) as stream:
        await stream.as_producer(["orders"])
        for first in range(0, ORDERS, 1000):
            numbers = range(first, first + 1000)
            pack = MsgPack([InsertMsg([n + 1], [n], [b"order %d" % n], hash_keys=[n]) for n in numbers])
            await stream.produce(pack)


async def bill(old: Path) -> tuple[list[int], MsgPosition]:
    """Consumes some orders from RocksMQ; returns them, and the position after them."""
    billed: list[int] = []
    async with MsgStream(RocksMQMedium(old), owns_medium=True) as stream:
        await stream.as_consumer(["orders"], "billing")
        async for pack in stream:
            billed += orders(pack)
            if len(billed) >= BILLED:
                break
        await stream.ack(pack)
        return billed, pack.end_positions[0]


def orders(pack: MsgPack) -> list[int]:
    return [message.row_ids[0] for message in pack.msgs if isinstance(message, InsertMsg)]


async def migrate_in_a_process(directory: str, *, kill: bool = False) -> int:
    """Migrates in another process, which with `kill` kills itself once a part of the orders is in the log. Returns the number of orders in
    the log.
    """
    mode = "--migrate-and-die" if kill else "--migrate"
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "examples.migration", mode, directory)
    await child.wait()
    async with open_wal(Path(directory) / "log", read_only=True) as log, log.read("orders", follow=False) as scanner:
        return sum([len(message.bodies()) async for message in scanner])


async def migrating(directory: str, *, kill: bool) -> None:
    """Copies the orders of RocksMQ, until nothing comes for half a second."""
    stream = MsgStream(RocksMQMedium(Path(directory) / "mq"), owns_medium=True)
    async with stream, open_wal(Path(directory) / "log") as log, asyncio.TaskGroup() as tasks:
        if kill:
            tasks.create_task(die_after_a_part(log))
        await migrate(stream, log, channels=["orders"], name=NAME, idle_s=0.5)


async def die_after_a_part(log: Log) -> None:
    async with log.read("orders") as scanner:
        await anext(scanner)  # a transaction of the migration
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1:2] in (["--migrate"], ["--migrate-and-die"]):
        asyncio.run(migrating(sys.argv[2], kill=sys.argv[1] == "--migrate-and-die"))
    else:
        asyncio.run(main(*sys.argv[1:]))
