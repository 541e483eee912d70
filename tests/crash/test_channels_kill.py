"""Channels after a kill: what was acknowledged is there, and every other call has happened completely or not at all."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from tests.probes import payloads
from tests.processes import Child
from wal import ChannelDescription, Message, OwnerDescription, WALAccesser, open_wal


@pytest.mark.one_loop
async def test_killed_at_any_moment(data_dir: Path, soak: int) -> None:
    rounds = 3
    LINES_MAX = 60

    class Said(msgspec.Struct):
        """The reports of all children that were killed in this directory: the owner of each channel that is there for sure, by name, the
        counts of the calls that were not answered, by role, and the groups of names that a call may have destroyed."""

        there: dict[str, str] = {}
        creating: dict[str, int] = {}
        destroying: list[frozenset[str]] = []
        gone: set[str] = set()

        def hear(self, what: str, *rest: str) -> None:
            match what:
                case "creating":
                    self.creating[rest[0]] = int(rest[1])
                case "created":
                    assert len(rest) - 1 == self.creating.pop(rest[0])
                    assert not set(rest[1:]) & (self.gone | self.there.keys()), "a name was given twice"
                    self.there.update(dict.fromkeys(rest[1:], rest[0]))
                case "destroying":
                    self.destroying.append(frozenset(rest))
                case "destroyed":
                    self.destroying.remove(frozenset(rest))
                    self.gone.update(rest)
                    for name in rest:
                        del self.there[name]

        def check(self, channels: list[ChannelDescription]) -> None:
            """Checks these channels against the reports. They are the truth from then on."""
            found = {one.channel_name: one.owner.role for one in channels}
            assert not found.keys() & self.gone, "a destroyed channel is there again"
            for names in self.destroying:
                assert len(names & found.keys()) in (0, len(names)), f"{sorted(names)} were destroyed in part"
            may_be_gone = frozenset[str]().union(*self.destroying)
            assert {name: role for name, role in self.there.items() if name not in may_be_gone}.items() <= found.items()
            others = Counter(role for name, role in found.items() if name not in self.there)
            for role, count in others.items():
                assert count == self.creating.get(role), f"{role} created {self.creating.get(role)} channels in part: {count}"
            self.gone |= self.there.keys() - found.keys()
            self.there, self.creating, self.destroying = found, {}, []

    async def create_and_destroy(directory: Path, seed: int) -> None:
        """Creates and destroys channels. Every call has an owner of its own, whose role names the call.

        Prints `creating <role> <count>` before a call, and `created <role> <name>…` after it; `destroying <name>…` and `destroyed <name>…`
        likewise.
        """
        numbers = itertools.count(seed * 1_000_000)

        def say(*words: object) -> None:
            os.write(1, (" ".join(map(str, words)) + "\n").encode())

        async def live(log: WALAccesser, chance: random.Random) -> None:
            """Creates channels, uses some, and destroys them, all in one call or some first."""
            while True:
                role, count = f"call-{next(numbers)}", chance.choice([1, 2, 5, 30, 60])
                say("creating", role, count)
                names = await log.create_channels(OwnerDescription(role), count)
                say("created", role, *names)
                await asyncio.gather(*(log.raw_append(Message(name, name.encode())) for name in names[:3]))
                first = chance.randrange(count + 1)
                for part in (names[:first], names[first:]):
                    if part and chance.random() < 0.8:
                        say("destroying", *part)
                        await log.destroy_channels(part)
                        say("destroyed", *part)

        async with open_wal(directory, pchannels=2) as log:
            say("begun")
            await asyncio.gather(*(live(log, random.Random(f"{seed} {number}")) for number in range(3)))

    async def listen_and_kill(directory: Path, seed: int, said: Said, *, lines_max: int) -> None:
        """Runs a child, kills it after this many lines, and hears everything it said."""
        async with Child(create_and_destroy, directory, seed) as child:
            async for line in child.lines(kill_after=lines_max):
                said.hear(*line.split())
            await child.end(-signal.SIGKILL)

    seed = random.randrange(1 << 20)
    print(f"seed {seed}")
    chance = random.Random(seed)
    said = Said()
    for number in range(1, rounds * soak + 1):
        await listen_and_kill(data_dir, number, said, lines_max=chance.randrange(2, LINES_MAX))
        async with open_wal(data_dir) as log:
            channels = await log.describe_channels()
            said.check(channels)
            assert {one.channel_name for one in channels} == {info.name for info in await log.vchannels()}
            for name in chance.sample(sorted(said.there), min(5, len(said.there))):
                assert set(await payloads(log, name)) <= {name.encode()}
        async with open_wal(data_dir, read_only=True) as reader:
            assert await reader.describe_channels() == channels
