"""Readers in other processes after a kill: they show the acknowledged state of a vchannel that was dropped and recreated.

The writer is killed before it can update the copy of the vchannels; no process opens the log for writing before the reader looks.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.crash.incarnation_child import NAMES, STAYS
from tests.processes import Child
from wal import ImmutableMessage, open_wal
from wal.bridge import iterate

ROOT: Final = Path(__file__).parents[2]
WAIT_TIMEOUT_S: Final = 60.0


class Said(msgspec.Struct):
    """The state of a vchannel that the killed process reported.

    The number in its messages (-1: it was dropped, or never created) and the count of messages; whether a drop was requested; and the
    largest number of a former incarnation, whose drop was acknowledged.
    """

    number: int = -1
    messages: int = 0
    dropping: bool = False
    over: int = -1


async def killed(*arguments: object, last: str | None = None, lines_max: int | None = None) -> dict[str, Said]:
    """Runs a child, kills it after this line or after this many lines, and returns its reports of each vchannel."""
    said = {name: Said() for name in (*NAMES, STAYS)}
    async with Child("-m", "tests.crash.incarnation_child", *arguments) as child:
        async for line in child.lines(kill_after=lines_max):
            what, *rest = line.split()
            if what == last:
                child.send_signal(signal.SIGKILL)
            if not rest:
                continue
            name, number = rest[0], int(rest[1])
            if what == "dropped":
                said[name] = Said(over=number)
            elif what == "dropping":
                said[name].dropping = True
            else:
                said[name].number = number
                said[name].messages += 1
        await child.end(-signal.SIGKILL)
    return said


def check(name: str, said: Said, messages: list[ImmutableMessage]) -> None:
    """Checks that a reader shows the acknowledged state, or that state after the one requested step, which may have happened."""
    shown = [int(message.payload) for message in messages]
    assert len(set(shown)) <= 1, f"{name} shows several incarnations"
    assert all(number > said.over for number in shown), f"{name} shows {shown}, of an incarnation that was dropped: {said}"
    if said.number >= 0 and not said.dropping:
        assert shown[: said.messages] == [said.number] * said.messages, f"{name} shows {shown} of {said}"


async def look(directory: Path, said: dict[str, Said]) -> None:
    """Checks both kinds of readers in another process."""
    async with open_wal(directory, read_only=True) as log:
        for name, told in said.items():
            found = [message async for message in log.read(name, follow=False)]
            check(name, told, found)
            blocking = await asyncio.to_thread(lambda name=name: list(iterate(directory, name, follow=False)))  # type: ignore[misc]
            assert [message.message_id for message in blocking] == [message.message_id for message in found]


async def test_killed_before_the_map_is_replaced(data_dir: Path) -> None:
    said = await killed("held", data_dir, last="held")
    assert said[STAYS].messages > 1
    await look(data_dir, said)


@pytest.mark.one_loop
async def test_killed_at_any_moment(data_dir: Path, soak: int) -> None:
    rounds = 3
    lines_max = 300
    seed = random.randrange(1 << 20)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(1, rounds * soak + 1):
        said = await killed("load", data_dir, number, lines_max=chance.randrange(2, lines_max))
        for told in said.values():
            told.over = max(told.over, number * 1_000_000 - 1)  # a child drops everything before it begins
        await look(data_dir, said)
