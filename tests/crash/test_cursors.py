"""A killed reader continues exactly where it saved and finds every later event, while retention drops the events that it has passed."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from pathlib import Path

from tests.processes import Child
from wal import Message, WALAccesser, open_wal


def test_killed_reader_goes_on_where_it_saved(tmp_path: Path, soak: int) -> None:
    async def append_and_save(directory: str, first: int) -> None:
        """Appends, and prints `try n` before a save and `saved n` when it has returned, where n is the number of the reader's next
        message."""

        async def write(log: WALAccesser) -> None:
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

        async with open_wal(directory, segment_bytes=1 << 20, retention_bytes=2 << 20) as log:
            await asyncio.gather(write(log), read(log))

    def run_and_kill(directory: str, first: int, after: int) -> list[tuple[str, int]]:
        """Runs the process until it has printed this many lines, kills it, and returns everything that it printed."""
        with Child(append_and_save, directory, first) as child:
            said = list(child.lines_now(kill_after=after))
            child.end_now(-signal.SIGKILL)
        return [(word, int(number)) for word, number in map(str.split, said)]

    async def rest(directory: str) -> tuple[list[int], int]:
        """Returns what the reader of the cursor gets after a reopening, and the number after the last one in the log; saves nothing."""
        async with open_wal(directory, segment_bytes=1 << 20, retention_bytes=2 << 20) as log:
            async with log.read("numbers", cursor="reader", follow=False) as scanner:
                found = [int(message.payload[:8]) async for message in scanner]
            async with log.read("numbers", follow=False) as scanner:
                return found, [int(message.payload[:8]) async for message in scanner][-1] + 1

    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    directory = str(tmp_path / "data")
    saved = tried = written = 0
    for round_number in range(2 * soak):
        lines = run_and_kill(directory, written, chance.randrange(1, 400))
        for word, number in lines:
            saved, tried = (saved, max(tried, number)) if word == "try" else (number, tried)
        found, end = asyncio.run(rest(directory))
        message = f"seed {seed}, round {round_number}: saved {saved}, tried {tried}, found {found[:3]}…, end {end}"
        following = found[0] if found else end
        assert saved <= following <= tried, message
        assert found == list(range(following, end)), message
        written = end
