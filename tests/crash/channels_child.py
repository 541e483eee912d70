"""A process that creates and destroys channels until it is killed.

    python -m tests.crash.channels_child <directory> <seed>

Every call has an owner of its own, whose role names the call. The process reports on its standard output `creating <role> <count>` before a
call, and `created <role> <name>…` after it; `destroying <name>…` and `destroyed <name>…` likewise.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys

from wal import Message, OwnerDescription, WALAccesser, open_wal

PCHANNELS = 2


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def live(log: WALAccesser, chance: random.Random, numbers: itertools.count[int]) -> None:
    """Creates channels, uses some, and destroys them, all in one call or some first."""
    while True:
        role, count = f"call-{next(numbers)}", chance.choice([1, 2, 5, 30, 60])
        say("creating", role, count)
        names = await log.create_channels(OwnerDescription(role), count)
        say("created", role, *names)
        await asyncio.gather(*(log.raw_append(Message(name, name.encode())) for name in names[:3]))
        first = chance.randrange(count + 1)
        for part in (names[:first], names[first:]):
            if part and chance.random() < 0.8:
                say("destroying", *part)
                await log.destroy_channels(part)
                say("destroyed", *part)


async def main(directory: str, seed: int) -> None:
    numbers = itertools.count(seed * 1_000_000)
    async with open_wal(directory, pchannels=PCHANNELS) as log:
        say("begun")
        await asyncio.gather(*(live(log, random.Random(f"{seed} {number}"), numbers) for number in range(3)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
