"""A process that writes to RocksMQ and migrates it, until it is killed: `python -m tests.streams.msgstream.migrating DIRECTORY SEED`."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from tests.streams.msgstream.packs import produce, row, tick
from wal import open_wal
from wal.streams.msgstream.media.rocksmq import RmqMsgStream
from wal.streams.msgstream.migrate import migrate

CHANNELS = {"a": "a", "b": "copied b"}


async def run(directory: Path, seed: int) -> None:
    draw = random.Random(seed)
    async with (
        open_wal(f"journal:{directory / 'log'}") as log,
        RmqMsgStream(directory / "mq") as producer,
        RmqMsgStream(directory / "mq") as stream,
    ):
        await producer.as_producer([*CHANNELS])
        print("ready", flush=True)

        async def write() -> None:
            number = seed * 1_000_000
            while True:
                count = draw.randrange(1, 60)
                rows = [row(number + index, key=draw.randrange(2)) for index in range(count)]
                number += count
                await produce(producer, *rows, *([tick(number, key=count % 2)] if count % 3 == 0 else []))
                print("sent", flush=True)
                await asyncio.sleep(draw.random() * 0.005)

        await asyncio.gather(write(), migrate(stream, log, channels=CHANNELS, name="move"))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2])))
