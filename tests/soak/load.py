"""A process that loads a log at full rate and reports its resource usage: `python -m tests.soak.load '<json of a Load>'`.

It measures every half second until its time has passed, then closes the log and ends. It is a separate process so that it measures only
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from wal import Message, WALAccesser, open_wal

MEASURE_S = 0.5


class Load(msgspec.Struct):
    """`writers` append messages of `message_bytes` for this long; one reader follows and saves a cursor."""

    directory: str
    duration_s: float
    segment_bytes: int
    retention_bytes: int
    writers: int = 256
    message_bytes: int = 1024
    messages_min: int = 0
    """On a slow machine it continues after its time until this many messages are appended."""


class Measure(msgspec.Struct):
    """A measurement `at_s` after the beginning: the size of the pchannels' files, the size that the log reports, and the process's
    usage."""

    at_s: float
    messages: int
    read: int
    disk_bytes: int
    held_bytes: int
    rss_bytes: int


async def run(load: Load) -> None:
    began = time.monotonic()
    counts = {"messages": 0, "read": 0}
    async with open_wal(load.directory, segment_bytes=load.segment_bytes, retention_bytes=load.retention_bytes) as log:
        tasks = [asyncio.ensure_future(write(log, load, counts)) for _ in range(load.writers)]
        tasks.append(asyncio.ensure_future(follow(log, counts)))
        while (at_s := time.monotonic() - began) < load.duration_s or counts["messages"] < load.messages_min:
            (told,) = await log.retention()
            disk = await asyncio.to_thread(disk_bytes, Path(load.directory, "pchannels"))
            measure = Measure(at_s, counts["messages"], counts["read"], disk, told.bytes, rss_bytes())
            print(msgspec.json.encode(measure).decode(), flush=True)
            await asyncio.sleep(MEASURE_S)
            for task in tasks:
                if task.done():
                    task.result()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def write(log: WALAccesser, load: Load, counts: dict[str, int]) -> None:
    payload = bytes(load.message_bytes)
    while True:
        await log.raw_append(Message("orders", payload))
        counts["messages"] += 1


async def follow(log: WALAccesser, counts: dict[str, int]) -> None:
    """Reads everything, without which the log could not stay within its bound, and saves every few thousand messages."""
    async with log.read("orders", cursor="soak") as scanner:
        unsaved = 0
        async for page in scanner.batches():
            counts["read"] += len(page)
            unsaved += len(page)
            if unsaved > 10_000:
                unsaved = 0
                await scanner.save()


def disk_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # files may disappear meanwhile
            total += path.stat().st_blocks * 512
    return total


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    gc.freeze()
    uvloop.run(run(msgspec.json.decode(sys.argv[1], type=Load)))
