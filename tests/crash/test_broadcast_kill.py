"""After a kill at any moment or persist point of a broadcast, all vchannels get each broadcast once, and keys and acks hold (D9)."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.crash.broadcast_child import NAMES, PCHANNELS
from tests.crash.conftest import by_loop
from tests.probes import local
from tests.processes import Child
from wal import BroadcastHeader, BroadcastMessage, BroadcastState, BroadcastTask, MessageType, WALAccesser, open_wal
from wal.errors import ResourceAcquiredError

ROOT: Final = Path(__file__).parents[2]
WAIT_TIMEOUT_S: Final = 60.0


class Said(msgspec.Struct):
    """Everything that the killed processes reported as durable."""

    appended: set[int] = msgspec.field(default_factory=set)
    acked: set[tuple[int, str]] = msgspec.field(default_factory=set)
    aborted: set[int] = msgspec.field(default_factory=set)
    points: int = 0

    def take(self, line: str) -> None:
        what, number, *vchannel = line.split()
        if what == "points":
            self.points = int(number)
        elif what == "acked":
            self.acked.add((int(number), vchannel[0]))
        else:
            (self.appended if what == "appended" else self.aborted).add(int(number))


async def run(said: Said, mode: str, directory: Path, number: int, *, lines_max: int | None = None) -> int:
    """Runs a child, kills it after `lines_max` lines, and returns its exit code."""
    async with Child("-m", "tests.crash.broadcast_child", mode, directory, number) as child:
        async for line in child.lines(kill_after=lines_max):
            said.take(line)
        return await child.end(0, -signal.SIGKILL)


async def made(directory: Path) -> None:
    async with open_wal(directory, pchannels=PCHANNELS, segment_bytes=1 << 20) as log:
        for number, name in enumerate(NAMES):
            await log.create_vchannel(name, pchannel=f"p{number % PCHANNELS}")


class InLog(msgspec.Struct):
    headers: dict[int, BroadcastHeader] = msgspec.field(default_factory=dict)
    copies: Counter[tuple[int, str]] = msgspec.field(default_factory=Counter)
    aborts: Counter[tuple[int, str]] = msgspec.field(default_factory=Counter)


async def in_log(log: WALAccesser) -> InLog:
    found = InLog()
    for name in NAMES:
        async with log.read(name, follow=False) as scanner:
            async for message in scanner:
                assert message.broadcast is not None
                broadcast_id = message.broadcast.broadcast_id
                assert found.headers.setdefault(broadcast_id, message.broadcast) == message.broadcast
                kind = found.aborts if message.message_type is MessageType.ABORT_BROADCAST else found.copies
                kind[broadcast_id, name] += 1
    return found


async def settled(log: WALAccesser) -> list[BroadcastTask]:
    """Returns the tasks once every missing copy is in the log, and every abort that had begun is finished."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            tasks = await log.broadcast().tasks()
            if all(task.state is BroadcastState.WAIT_ACK for task in tasks):
                return tasks
            await asyncio.sleep(0)


async def check(directory: Path, said: Said) -> None:
    """Opens the killed process's log: every broadcast that began is completed, none is duplicated, nothing that was reported is missing."""
    async with open_wal(directory, segment_bytes=1 << 20) as log:
        tasks = {task.broadcast_id: task for task in await settled(log)}
        found = await in_log(log)
        assert said.appended <= set(found.headers)
        assert set(tasks) <= set(found.headers)
        assert max(found.copies.values(), default=1) == 1
        assert max(found.aborts.values(), default=1) == 1
        assert set(found.aborts) <= set(found.copies), "told of an abort without a copy"
        aborted = {broadcast_id for broadcast_id, _ in found.aborts}
        for broadcast_id, header in found.headers.items():
            there = {name for one, name in found.copies if one == broadcast_id}
            if broadcast_id in said.appended or broadcast_id not in aborted:
                assert there == set(header.vchannels), f"broadcast {broadcast_id} is not on all its vchannels"
            told = {name for one, name in found.aborts if one == broadcast_id}
            assert told in (set(), there), f"the abort of {broadcast_id} told some only"
        assert said.aborted <= aborted
        assert not said.aborted & set(tasks)
        for broadcast_id, name in said.acked:
            assert broadcast_id not in tasks or name not in tasks[broadcast_id].missing_acks, "an ack was forgotten"
        for task in tasks.values():
            assert task.missing_appends == ()
            assert task.missing_acks != ()
            for key in task.resource_keys:
                with pytest.raises(ResourceAcquiredError):
                    exclusive = msgspec.structs.replace(key, shared=False)
                    await log.broadcast().append(BroadcastMessage(vchannels=NAMES[:1], payload=b"", resource_keys=[exclusive]))


async def finish(directory: Path) -> None:
    """Acknowledges all that is left; then nothing is left in this opening and the next."""
    async with open_wal(directory, segment_bytes=1 << 20) as log:
        for task in await settled(log):
            for name in task.missing_acks:
                await log.broadcast().ack(task.broadcast_id, name)
        assert await log.broadcast().tasks() == []
        before = await in_log(log)
    async with open_wal(directory, segment_bytes=1 << 20) as log:
        assert await log.broadcast().tasks() == []
        assert await in_log(log) == before
        assert all(len(pchannel.copies.table) == 0 for pchannel in local(log).node.pchannels.values())


@by_loop
@pytest.mark.usefixtures("write_path")
async def test_killed_while_it_broadcasts(data_dir: Path, soak: int) -> None:
    lines_max = 400
    chance = random.Random(random.getrandbits(32))
    said = Said()
    async with asyncio.timeout(90 * soak):
        await made(data_dir)
        counts = [lines_max // 8, lines_max // 2] if soak == 1 else [chance.randint(1, lines_max) for _ in range(40)]
        for count in counts:
            await run(said, "load", data_dir, chance.getrandbits(32), lines_max=count)
            await check(data_dir, said)
        await finish(data_dir)
        assert len(said.appended) > len(counts)
        assert len(said.acked) > len(said.appended)


async def test_killed_at_persist_points(tmp_path: Path, soak: int) -> None:
    """A soak kills it at every one of them."""
    said = Said()
    await made(tmp_path / "whole")
    assert await run(said, "point", tmp_path / "whole", -1) == 0
    assert said.points > 60
    await check(tmp_path / "whole", said)
    chosen = [said.points // 9, said.points // 3, said.points // 2] if soak == 1 else range(1, said.points + 1)
    killed = 0
    for point in chosen:
        place = tmp_path / str(point)
        said = Said()
        await made(place)
        killed += await run(said, "point", place, point) != 0  # timers save, too: the number of points varies
        try:
            await check(place, said)
            await finish(place)
        except BaseException:
            print(f"point {point}")
            raise
    assert killed > len(chosen) // 2
