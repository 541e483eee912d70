"""A process that produces, consumes and reports until it is killed: `python -m tests.streams.rocksmq.child DIRECTORY SEED`."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from wal.streams.rocksmq import RocksMQ

CHANNELS = ("a", "a/b")


async def run(directory: Path, seed: int) -> None:
    draw = random.Random(seed)
    number = 0
    async with await RocksMQ.open(directory) as mq:
        for name in CHANNELS:
            if name not in {channel.name for channel in mq.channels()}:
                await mq.create_channel(name)
            if not any(group.name == "g" for channel in mq.channels() if channel.name == name for group in channel.groups):
                await mq.create_consumer_group("g", name)
        print("ready", flush=True)

        async def produce(name: str) -> None:
            nonlocal number
            while True:
                count = draw.randrange(1, 20)
                batch = [f"{seed}:{number + index}".encode() for index in range(count)]
                number += count
                print("sent", name, *(payload.decode() for payload in batch), flush=True)
                ids = await mq.produce(name, batch)
                print("done", name, batch[0].decode(), ids.start, ids.stop, flush=True)

        async def consume(name: str) -> None:
            while True:
                messages = await mq.consume("g", name, 50, timeout_s=None, auto_ack=False)
                await mq.ack("g", name, messages[-1].message_id)
                print("acked", name, messages[-1].message_id, flush=True)

        await asyncio.gather(*(produce(name) for name in CHANNELS for _ in range(4)), *map(consume, CHANNELS))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
