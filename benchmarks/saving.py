"""Saving: cursor saves per second, with 1, 16 and 256 readers that save one after the other: `python benchmarks/saving.py`.

Each reader saves its position repeatedly, and waits for each save, in the process that writes a journal. It needs only the package itself,
so that the previous version can be measured with the same file.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from typing import Final

from wal import Message, Scanner, open_wal

READERS: Final = (1, 16, 256)
SECONDS: Final = 3.0


async def saves(readers: int) -> float:
    """Returns the saves per second with this many readers."""
    count = 0

    async def save(scanner: Scanner, until: float) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await scanner.save()
            count += 1

    with tempfile.TemporaryDirectory() as directory:
        async with open_wal(directory) as log:
            await log.append_bulk([Message("orders", b"%d" % number) for number in range(10)])
            scanners = [log.read("orders", cursor=f"reader {number}", follow=False) for number in range(readers)]
            for scanner in scanners:
                await scanner.__aenter__()
                await anext(scanner)
                await scanner.save()
            began = time.perf_counter()
            await asyncio.gather(*(save(scanner, began + SECONDS) for scanner in scanners))
            took_s = time.perf_counter() - began
            for scanner in scanners:
                await scanner.__aexit__(None, None, None)
    return count / took_s


if __name__ == "__main__":
    for readers in READERS:
        print(f"{readers:4} readers: {asyncio.run(saves(readers)):8.0f} saves/s", flush=True)
