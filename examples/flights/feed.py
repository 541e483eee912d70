"""A process that writes the first flights of the year into a log in two halves, for examples that read a log while it is written.

    python -m examples.flights.feed DIRECTORY COUNT

It prints `half` when half of them are durable, with the log still open, and continues when it gets a line on stdin; then it closes the log
and ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from typing import Final

from examples.flights.table import flights
from wal import WALAccesser, open_wal

BODIES: Final = 250
"""The maximum number of rows in a transaction: it has the flights of one airport among this many rows."""


class Feed:
    """The process from its parent's view: the first half of the flights is durable, and the process waits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def finish(self) -> None:
        """Requests the second half; returns when the log is closed."""
        _, _ = self._process.communicate("go on\n")
        if self._process.returncode != 0:
            raise SystemExit(f"the writer ended with status {self._process.returncode}")


@contextmanager
def feed(directory: str, count: int) -> Iterator[Feed]:
    """Starts the process, waits until the first half is durable, and ends the process with the block."""
    command = [sys.executable, "-m", "examples.flights.feed", directory, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "half\n":
                raise SystemExit("the writer ended before it had written half of the flights")
            yield Feed(process)
        finally:
            if process.poll() is None:
                process.kill()


async def write(directory: str, count: int) -> None:
    """The main function of the process."""
    async with open_wal(directory) as log:
        await append(log, 0, count // 2)
        print("half", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await append(log, count // 2, count)


async def append(log: WALAccesser, first: int, end: int) -> None:
    """Writes these flights: for every few rows, one transaction for each airport."""
    rows = islice(flights(), first, end)
    for _, some in groupby(enumerate(rows), key=lambda row: row[0] // BODIES):
        ordered = sorted((row for _, row in some), key=lambda row: row[1])
        for airport, its in groupby(ordered, key=lambda row: row[1]):
            async with log.txn(airport) as txn:
                for _, _, message in its:
                    await txn.append(message)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2])))
