"""A process that appends numbers and runs a stage over them until it is killed.

    python -m tests.crash.stage_child <directory> <first number>

The stage moves each number from "in" to "out", a page at a time, with its cursor in the transaction. It prints `moved n` after each commit,
where n is the next number. The input is on another pchannel than the output, and retention drops what the cursor has passed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys

from wal import All, Log, Message, SettingsOverrides, open_wal

SETTINGS: SettingsOverrides = {"segment_bytes": 1 << 20, "retention_bytes": 2 << 20, "pchannels": 2}


async def main(directory: str, first: int) -> None:
    async with open_wal(directory, **SETTINGS) as log:
        if not first:
            await log.create_vchannel("in", pchannel="p0")
            await log.create_vchannel("out", pchannel="p1")
        writing = asyncio.ensure_future(write(log, first))
        moving = asyncio.ensure_future(move(log))
        await asyncio.wait((writing, moving), return_when=asyncio.FIRST_COMPLETED)
        for task in (writing, moving):
            if task.done():
                task.result()


async def write(log: Log, first: int) -> None:
    for number in itertools.count(first):
        await log.raw_append(Message("in", b"%08d" % number + bytes(number % 5000)))


async def move(log: Log) -> None:
    chance = random.Random()
    async with log.read("in", cursor="stage", deliver_policy=All()) as scanner:
        async for page in scanner.batches(size_max=7):
            async with log.txn("out") as txn:
                if chance.random() < 0.9:
                    await txn.append_many([message.payload[:8] for message in page])
                else:
                    for message in page:
                        await txn.append(message.payload[:8])
                txn.save(scanner)
            print(f"moved {int(page[-1].payload[:8]) + 1}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
