"""A process that appends by N writers (256), and prints a line once it has begun: `python -m tests.operate.backup.writer DIRECTORY [N]`."""

import asyncio
import sys

from wal import Message, WALAccesser, open_wal


async def write(log: WALAccesser, number: int) -> None:
    at = 0
    while True:
        await log.raw_append(Message(f"v{number % 7}", b"%d-%d " % (number, at) * 40))
        at += 1
        if number == 0 and at == 3:
            print("writing", flush=True)


async def main() -> None:
    async with open_wal(sys.argv[1], pchannels=2) as log:
        await asyncio.gather(*(write(log, number) for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else 256)))


asyncio.run(main())
