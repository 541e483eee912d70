"""A process that drops and recreates vchannels until it is killed.

    python -m tests.crash.incarnation_child held <directory>            the map of the vchannels is never replaced from the first drop on
    python -m tests.crash.incarnation_child load <directory> <seed>     any vchannels, as quickly as it can

It reports each acknowledgement as a line on its standard output: `appended <vchannel> <number>`, `dropped <vchannel> <number>`; and before
each drop `dropping <vchannel> <number>`. The number is unique to an incarnation, and its messages contain it. A line `held` means that it
can do no more without a new map.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
import threading
from pathlib import Path
from typing import Final

from wal import Message, WALAccesser, open_wal
from wal.channels import map_keeper
from wal.channels.vchannel_map import VChannelMap, write_map

PCHANNELS: Final = 2
NAMES: Final = [f"v{number}" for number in range(6)]
STAYS: Final = "stays"


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def append(log: WALAccesser, name: str, number: int) -> None:
    await log.raw_append(Message(name, b"%d" % number))
    say("appended", name, number)


async def drop(log: WALAccesser, name: str, number: int) -> None:
    say("dropping", name, number)
    await log.drop_vchannel(name)
    say("dropped", name, number)


async def held(directory: str) -> None:
    """Drops and recreates a vchannel, while the thread that would replace the map is blocked."""
    stands_still = threading.Event()

    def write_or_stop(folder: Path, content: VChannelMap, *, durably: bool = False) -> bool:
        if content.records.get(NAMES[0]) != first and content.next_incarnation > first:
            stands_still.set()
            threading.Event().wait()
        return write_map(folder, content, durably=durably)

    async with open_wal(directory) as log:
        await append(log, NAMES[0], 1)
        await append(log, STAYS, 0)
        first = next(info.incarnation for info in await log.vchannels() if info.name == NAMES[0])
    setattr(map_keeper, "write_map", write_or_stop)  # noqa: B010 - the name is not exported
    async with open_wal(directory) as log:

        async def again() -> None:
            await drop(log, NAMES[0], 1)
            await append(log, NAMES[0], 2)

        going_on = asyncio.create_task(again())
        await asyncio.to_thread(stands_still.wait)
        for _ in range(20):  # each takes longer than an acknowledgement that did not wait for the map
            await append(log, STAYS, 0)
        say("held")
        await going_on


async def load(directory: str, seed: int) -> None:
    """Runs every vchannel through messages, a drop and a recreation, sometimes on another pchannel or after a pause."""
    numbers = itertools.count(seed * 1_000_000)
    async with open_wal(directory, pchannels=PCHANNELS) as log:

        async def live(name: str, chance: random.Random) -> None:
            while True:
                number = next(numbers)
                if chance.random() < 0.3 and name not in {info.name for info in await log.vchannels()}:
                    await log.create_vchannel(name, pchannel=f"p{chance.randrange(PCHANNELS)}")
                for _ in range(chance.randrange(1, 4)):
                    await append(log, name, number)
                await drop(log, name, number)

        for info in await log.vchannels():
            await log.drop_vchannel(info.name)
        say("begun")
        await asyncio.gather(*(live(name, random.Random(f"{seed} {name}")) for name in NAMES))


if __name__ == "__main__":
    mode, directory, *rest = sys.argv[1:]
    asyncio.run(held(directory) if mode == "held" else load(directory, int(rest[0])))
