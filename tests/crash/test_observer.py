"""Readers in other processes that are stopped in the middle of a segment while it is recycled, or whose writers are killed.

A reader delivers the written messages in order, or its read ends with TruncatedError; nothing else happens.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from pathlib import Path

import pytest

from tests.crash.observer import VCHANNEL, payload
from tests.processes import Child
from wal import AppendResult, Message, WALAccesser, open_wal

WAIT_TIMEOUT_S = 60.0
_ROOT = Path(__file__).parents[2]


@pytest.mark.one_loop
@pytest.mark.parametrize("how", ["pages", "scanner"])
async def test_stopped_in_a_segment_that_is_recycled(data_dir: Path, how: str, soak: int) -> None:
    """Many times over, a reader is stopped anywhere, the log is truncated and overwritten, and the reader continues."""
    SEGMENTS = 40
    segment_bytes = 1 << 20

    class Reader(Child):
        """A reading process, and its reports so far."""

        def __init__(self, how: str, directory: Path) -> None:
            super().__init__("-m", "tests.crash.observer", how, directory)
            self.at = -1
            self.truncated = 0
            self.wrong = ""
            self.ready = False
            self._news = asyncio.Event()
            self._hearing = asyncio.ensure_future(self._hear())

        async def __aexit__(self, *_: object) -> None:
            self.send_signal(signal.SIGKILL)
            await self._hearing
            await super().__aexit__()

        async def until(self, number: int) -> None:
            """Waits until it has read this number; AssertionError for any wrong report."""
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while self.at < number:
                    self.check()
                    self._news.clear()
                    await self._news.wait()
            self.check()

        def check(self) -> None:
            assert not self.wrong
            assert self.runs, "it ended by itself"

        async def _hear(self) -> None:
            async for line in self.lines():
                word, _, rest = line.partition(" ")
                if word == "at":
                    self.at = int(rest)
                elif word == "truncated":
                    self.truncated += 1
                elif word == "wrong":
                    self.wrong = rest
                else:
                    self.ready = True
                self._news.set()
            self._news.set()

    class Numbers:
        """Appends the numbers in order, in groups."""

        def __init__(self, log: WALAccesser) -> None:
            self._log = log
            self.following = 0
            self.results: list[AppendResult] = []

        async def append(self, segments: int) -> None:
            """Appends about this many segments of numbers."""
            goal = self._segment + segments
            while self._segment < goal:
                some = range(self.following, self.following + 12)
                self.results += await self._log.append_bulk([Message(VCHANNEL, payload(number)) for number in some])
                self.following = some.stop

        @property
        def _segment(self) -> int:
            return self.results[-1].message_id.position // segment_bytes if self.results else 0

    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with open_wal(data_dir, segment_bytes=segment_bytes) as log:
        numbers = Numbers(log)
        await numbers.append(4)
        async with Reader(how, data_dir) as reader:
            await reader.until(0)
            done = 0
            while done < SEGMENTS * soak or not reader.truncated:
                count = rng.randrange(2, 7)
                ahead = asyncio.ensure_future(numbers.append(count))
                await reader.until(min(numbers.following - 1, reader.at + rng.randrange(1, 20)))
                await reader.stop()
                await ahead
                # The log is truncated up to near its end, and the freed segments are overwritten.
                keep = rng.randrange(1, 30)
                await log.truncate(up_to=numbers.results[-keep].message_id)
                await numbers.append(3)
                if rng.random() < 0.5:
                    await log.truncate(up_to=numbers.results[-1].message_id)
                    await numbers.append(1)
                reader.cont()
                done += count + 3
                if rng.random() < 0.3:
                    await reader.until(numbers.following - 1)
            await reader.until(numbers.following - 1)


async def test_messages_acknowledged_by_killed_writers_are_read(data_dir: Path) -> None:
    """A lasting reader also gets vchannels that were created a moment before the kill, and the messages of the next writer."""

    async def create_vchannels(directory: Path, number: int) -> None:
        """Creates vchannels by appending to them; prints the name of each, which is also the message there, when that is durable."""
        async with open_wal(directory) as log:

            async def create(name: str) -> None:
                await log.raw_append(Message(name, name.encode()))
                os.write(1, f"{name}\n".encode())

            for turn in itertools.count():
                await asyncio.gather(*(create(f"{number}-{turn}-{each}") for each in range(3)))

    kills = 3
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with open_wal(data_dir) as log:
        await log.raw_append(Message("first", b"x"))
    async with open_wal(data_dir, read_only=True) as reader:
        for kill in range(kills):
            async with Child(create_vchannels, data_dir, kill) as writer:
                acked = [await writer.line() for _ in range(rng.randrange(1, 40))]
                acked += await writer.kill()
            for name in acked:
                async with reader.read(name, follow=False) as scanner:
                    assert [message.payload async for message in scanner] == [name.encode()], name
        async with reader.read("first") as scanner:
            assert (await anext(scanner)).payload == b"x"
            async with open_wal(data_dir) as log, asyncio.timeout(WAIT_TIMEOUT_S):
                await log.raw_append(Message("first", b"y"))
                assert (await anext(scanner)).payload == b"y"
                expected = await log.vchannels()
        assert await reader.vchannels() == expected
