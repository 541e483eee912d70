"""A process that creates vchannels by appending to them until it is killed: `python -m tests.crash.vchannel_maker DIRECTORY NUMBER`.

It prints the name of each, which is also the message that it appended there, when that is durable.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from wal import Message, open_wal


async def make(directory: str, number: int) -> None:
    async with open_wal(directory) as log:

        async def one(name: str) -> None:
            await log.raw_append(Message(name, name.encode()))
            os.write(1, f"{name}\n".encode())

        for turn in itertools.count():
            await asyncio.gather(*(one(f"{number}-{turn}-{each}") for each in range(3)))


if __name__ == "__main__":
    asyncio.run(make(sys.argv[1], int(sys.argv[2])))
