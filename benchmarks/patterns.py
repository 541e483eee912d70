"""Patterns: a pattern that matches everything, beside one vchannel with the same messages: `python -m benchmarks.patterns [--rounds 7]`.

Logs of 65,536 messages of 100 B over 1, 64 and 1,024 vchannels, in frames of 1,024 messages, and over 64 vchannels in frames of 64. Each is
read in turns with the log of one vchannel in frames of the same size. The output is the rate of the pattern by processor time, and its
ratio to that of the vchannel, as medians.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.cell import Row
from benchmarks.reading import write_log
from benchmarks.stores import vchannel_name
from wal import Matching, WALAccesser, open_wal

MESSAGES: Final = 1 << 16
LOGS: Final = ((1, 1024), (64, 1024), (1024, 1024), (64, 64))
"""The vchannels of a log, and the messages of its frames."""


async def read(log: WALAccesser, vchannels: str | Matching, *, pages: bool) -> float:
    """Reads all messages; returns the processor time that it took, in seconds."""
    began_s, count = time.process_time(), 0
    async with log.read(vchannels, follow=False) as scanner:
        if pages:
            async for page in scanner.batches():
                count += sum(1 for message in page if message.payload)
        else:
            async for message in scanner:
                count += bool(message.payload)
    if count != MESSAGES:
        raise RuntimeError(f"{vchannels} has {count} of {MESSAGES} messages")
    return time.process_time() - began_s


async def measure(rounds: int, directory: Path) -> None:
    """Prints a line for each log and way to read it."""
    for vchannels, frame_messages in LOGS:
        row = Row(workload="patterns", engines=(), payload_bytes=100)
        one, many = directory / f"1.{vchannels}.{frame_messages}", directory / f"{vchannels}.{frame_messages}"
        await write_log(one, row, frame_messages, MESSAGES, 1)
        await write_log(many, row, frame_messages, MESSAGES, vchannels)
        async with open_wal(one) as alone, open_wal(many) as log:
            for pages in (True, False):
                times = [
                    (await read(alone, vchannel_name(0), pages=pages), await read(log, Matching("*"), pages=pages))
                    for _ in range(rounds + 1)
                ][1:]
                rate = MESSAGES / statistics.median([of_pattern for _, of_pattern in times])
                ratio = statistics.median([of_one / of_pattern for of_one, of_pattern in times])
                way = "pages" if pages else "async for"
                print(f"{vchannels:5} vchannels, frames of {frame_messages:5}, {way:9}: {rate:10,.0f} msg/s, {ratio:.2f} of one vchannel")


def main() -> None:
    """Measures in a directory of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(rounds, Path(directory)))


if __name__ == "__main__":
    main()
