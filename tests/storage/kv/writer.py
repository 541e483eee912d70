"""A process that writes until it is killed: `python -m tests.storage.kv.writer <file> <first number>`.

Each number is saved on all KEYS by one multi_save, while other saves keep the thread's groups full, and is printed once it is
acknowledged. Every third time some keys are removed by the same operation.
"""

from __future__ import annotations

import asyncio
import sys

from wal.storage.kv import SqliteKV

KEYS = [f"all/{number:02}" for number in range(40)]
PADDING = "x" * 500


async def write(path: str, number: int) -> None:
    kv = await SqliteKV.open(path)

    async def noise(name: str) -> None:
        count = 0
        while True:
            await kv.save(f"noise/{name}", str(count))
            count += 1

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(noise(name))
        while True:
            text = f"{number} {PADDING}"
            if number % 3:
                await kv.multi_save(dict.fromkeys(KEYS, text))
            else:
                await kv.multi_save_and_remove(dict.fromkeys(KEYS[:20], text), KEYS[20:])
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2])))
