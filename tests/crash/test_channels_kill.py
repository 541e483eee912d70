"""Channels after a kill: what was acknowledged is there, and every other call has happened completely or not at all."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.probes import payloads
from tests.processes import Child
from wal import ChannelDescription, open_wal

ROOT: Final = Path(__file__).parents[2]
WAIT_TIMEOUT_S: Final = 60.0


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

    async def listen_and_kill(directory: Path, seed: int, said: Said, *, lines_max: int) -> None:
        """Runs a child, kills it after this many lines, and hears everything it said."""
        async with Child("-m", "tests.crash.channels_child", directory, seed) as child:
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
