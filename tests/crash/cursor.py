"""A process that appends, reads with a cursor and saves it until it is killed: `python -m tests.crash.cursor <directory> <first number>`.

It prints `try n` before a save and `saved n` when the save has returned, where n is the number of the reader's next message.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from wal import Message, WALAccesser, open_wal


async def main(directory: str, first: int) -> None:
    async with open_wal(directory, segment_bytes=1 << 20, retention_bytes=2 << 20) as log:
        writing = asyncio.ensure_future(write(log, first))
        reading = asyncio.ensure_future(read(log))
        await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
        for task in (writing, reading):
            if task.done():
                task.result()


async def write(log: WALAccesser, first: int) -> None:
    for number in itertools.count(first):
        await log.raw_append(Message("numbers", b"%08d" % number + bytes(number % 5000)))
        await log.raw_append(Message("others", b""))


async def read(log: WALAccesser) -> None:
    async with log.read("numbers", cursor="reader") as scanner:
        async for page in scanner.batches(size_max=7):
            following = int(page[-1].payload[:8]) + 1
            print(f"try {following}", flush=True)
            await scanner.save()
            print(f"saved {following}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
