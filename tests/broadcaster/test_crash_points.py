"""A run is cut after each save and each append in turn; the next run must find everything that was acknowledged, and finish it.

The test counts the points of a run without a cut, then makes a run for every number up to there: the KV and the logs keep everything
durable, nothing else survives. The recovery is cut at its points as well.

Over the network the process that is cut is the server, by kill -9, and the client lives on; not every number is tried outside of a soak.
A soak does so with a cluster too, all of which is one process here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from broadcaster import BroadcasterLimits, BroadcastMessage, BroadcastState, BroadcastTask
from broadcaster.records import StoredBroadcasts, read_records
from tests.broadcaster.clustered import Clustered, ClusteredWorld
from tests.broadcaster.served import Served, ServedLife, ServedWorld
from tests.broadcaster.world import Cut, InLogs, Life, World
from tests.storage.pulsar.conftest import server_at
from wal.errors import ResourceAcquiredError
from wal.message import ResourceKey

PLACES = {"a0": "p0", "a1": "p0", "a2": "p0", "b0": "p1", "b1": "p1", "c0": "p2"}
LIMITS = BroadcasterLimits(tombstones_max=0)
"""Done marks are removed as soon as no log lists their copies, so that a too early removal shows."""


class InMemory:
    """The location of a process with its own broadcaster."""

    together = 1
    """The number of rounds that run at once."""

    @contextlib.asynccontextmanager
    async def world(self, vchannels: Mapping[str, str]) -> AsyncIterator[World]:
        yield World(vchannels=vchannels)

    def life(self, world: World, cut: Cut | None = None) -> Life:
        return Life(world, cut, limits=LIMITS)

    def some(self, rounds: Sequence[Any]) -> Sequence[Any]:
        return rounds


Location = InMemory | Served


OF_A_CLUSTER: Final = [pytest.mark.one_loop, pytest.mark.soak("a served log is cut here, and a cluster in tests/operate/cluster")]


@pytest.fixture(params=["memory", pytest.param("served", marks=pytest.mark.one_loop), pytest.param("cluster", marks=OF_A_CLUSTER)])
def location(request: pytest.FixtureRequest, tmp_path: Path, soak: int) -> Location:
    """Where the broadcaster is: in this process, or in a server or a cluster that is killed."""
    match request.param:
        case "memory":
            return InMemory()
        case "served":
            return Served(tmp_path, rounds_max=3 if soak == 1 else 200)
        case _:
            server = server_at(*(request.getfixturevalue(name) for name in ("pulsar_host", "pulsar_admin_host", "pulsar_token")))
            return Clustered(server, request.getfixturevalue("etcd_address"), rounds_max=40)


class Script:
    """The clients of a run: their calls, and the answers they got. Broadcasts are identified by their payload, the label."""

    def __init__(self, life: Life | ServedLife) -> None:
        self.life = life
        self.messages: dict[str, BroadcastMessage] = {}
        self.ids: dict[str, int] = {}
        self.acked: set[tuple[str, str]] = set()
        self.over: set[str] = set()
        self.aborting: set[str] = set()
        self.aborted: set[str] = set()

    async def run(self) -> None:
        """Six broadcasts at once: over all pchannels and on one, with acks and without, some of them aborted half way."""
        await asyncio.gather(
            self.acknowledge("wide", "a0", "a1", "b0", "b1", "c0"),
            self.acknowledge("narrow", "a0", "a1", "a2"),
            self.append("wide free", "a2", "b1", "c0", needs_ack=False),
            self.append("narrow free", "b0", "b1", needs_ack=False),
            self.abort("wide aborted", "a1", "b0", "c0"),
            self.abort("narrow aborted", "c0"),
        )
        # The same keys are used again: they are free by now.
        await self.append("wide", "c0", "b1", label="wide again")
        await self.append("narrow free", "b1", label="narrow free again", needs_ack=False)
        await self.append("narrow free", "b0", label="narrow held")
        await self.life.checkpoint("p0")
        await asyncio.gather(self.append("wide", "a0", label="wide at last", wait=True), self.again())

    async def again(self) -> None:
        await self.ack("wide again", "b1")
        await self.append("narrow", "a0", "b0", label="narrow again")
        await self.ack("wide again", "c0")

    async def append(self, key: str, *vchannels: str, label: str = "", needs_ack: bool = True, wait: bool = False) -> None:
        label = label or key
        message = self.messages[label] = BroadcastMessage(
            vchannels=vchannels,
            payload=label.encode(),
            properties={"label": label},
            resource_keys=[ResourceKey("test", key)],
            needs_ack=needs_ack,
        )
        result = await self.life.broadcast.append(message, wait=wait)
        assert set(result.append_results) == set(vchannels)
        self.ids[label] = result.broadcast_id
        if not needs_ack:
            self.over.add(label)

    async def acknowledge(self, label: str, *vchannels: str) -> None:
        await self.append(label, *vchannels)
        await self.life.checkpoint("p1")
        await self.ack(label, vchannels[0])
        await asyncio.gather(*[self.ack(label, vchannel) for vchannel in vchannels[1:]])
        await self.life.checkpoint("p0")
        await self.life.checkpoint("p2")

    async def abort(self, label: str, *vchannels: str) -> None:
        await self.append(label, *vchannels)
        if len(vchannels) > 1:
            await self.ack(label, vchannels[0])
        await self.life.checkpoint("p2")
        self.aborting.add(label)
        await self.life.broadcast.abort(self.ids[label], "no more")
        self.aborted.add(label)
        self.over.add(label)
        await self.life.checkpoint("p1")

    async def ack(self, label: str, vchannel: str) -> None:
        await self.life.broadcast.ack(self.ids[label], vchannel)
        self.acked.add((label, vchannel))
        if all((label, name) in self.acked for name in self.messages[label].vchannels):
            self.over.add(label)


async def until_cut(life: Life | ServedLife, work: Coroutine[Any, Any, None]) -> None:
    """Runs until the end, or until the cut, which ends the process."""
    task = asyncio.create_task(work)
    cut = asyncio.create_task(life.cut.dead.wait())
    async with asyncio.timeout(60):
        await asyncio.wait({task, cut}, return_when=asyncio.FIRST_COMPLETED)
    if not life.cut.dead.is_set():
        cut.cancel()
        await task
        return
    await life.leave(task)


class Checks:
    """Checks after a crash, against the durable state and the answers that the clients had received."""

    def __init__(self, world: World | ServedWorld, script: Script) -> None:
        self.world = world
        self.script = script
        self.stored = StoredBroadcasts()
        """The records at the first crash."""
        self.begun: set[int] = set()
        """The broadcasts that a crash found begun: in a log, or with a record and not aborted before their first copy."""

    async def after_crash(self) -> None:
        """Checks, before anything is recovered, that every answer was true."""
        self.stored, logs = await self.look()
        for label, broadcast_id in self.script.ids.items():
            for vchannel in self.script.messages[label].vchannels:
                assert logs.copies[broadcast_id, vchannel] == 1, f"{label!r} returned without its copy for {vchannel}"
        for label in self.script.aborted:
            for vchannel in self.script.messages[label].vchannels:
                assert logs.aborts[self.script.ids[label], vchannel] == 1

    async def look(self) -> tuple[StoredBroadcasts, InLogs]:
        """Returns the durable state after a crash, and records which broadcasts had begun."""
        stored = read_records(*await self.world.kv.load_with_prefix(""))
        logs = self.world.in_logs()
        self.once(logs)
        self.begun |= logs.headers.keys() | stored.tasks.keys() - stored.aborts.keys()
        return stored, logs

    async def recover(self, life: Life | ServedLife) -> None:
        """Checks that the next run finishes every broadcast that had begun, and keeps the keys of the unacknowledged ones."""
        tasks = {task.broadcast_id: task for task in await settled(life)}
        logs = self.world.in_logs()
        self.once(logs)
        assert logs.headers.keys() == self.begun | self.world.late
        labels = {broadcast_id: content.payload.decode() for broadcast_id, content in logs.contents.items()}
        over = {self.script.ids[label] for label in self.script.over} | self.stored.done.keys()
        assert not over & tasks.keys()
        for broadcast_id, label in labels.items():
            message, header = self.script.messages[label], logs.headers[broadcast_id]
            assert header.vchannels == message.vchannels
            assert header.resource_keys == message.resource_keys
            if broadcast_id in self.stored.aborts:
                assert broadcast_id not in tasks
                for vchannel in message.vchannels:
                    assert logs.aborts[broadcast_id, vchannel] == logs.copies[broadcast_id, vchannel]
                continue
            for vchannel in message.vchannels:
                assert logs.copies[broadcast_id, vchannel] == 1, f"{label!r} was not completed on {vchannel}"
            acked = {vchannel for vchannel in message.vchannels if (label, vchannel) in self.script.acked}
            if broadcast_id in tasks:
                task = tasks[broadcast_id]
                assert message.needs_ack
                assert task.state is BroadcastState.WAIT_ACK
                assert not acked & set(task.missing_acks), "an ack that returned was lost"
                await self.is_held(life, task)
            elif broadcast_id not in over:
                saved = self.stored.acks.get(broadcast_id, 0)
                assert not message.needs_ack or saved == (1 << len(message.vchannels)) - 1, f"{label!r} was forgotten"
        assert tasks.keys() <= labels.keys()

    async def is_held(self, life: Life | ServedLife, task: BroadcastTask) -> None:
        with pytest.raises(ResourceAcquiredError) as caught:
            await life.broadcast.append(BroadcastMessage(vchannels=["a0"], payload=b"late", resource_keys=task.resource_keys))
        assert caught.value.holder == task.broadcast_id

    async def finish(self, life: Life | ServedLife) -> None:
        """Acknowledges the rest; then every key is free, and the KV is empty once checkpoints have passed."""
        for task in await settled(life):
            for vchannel in task.missing_acks:
                await life.broadcast.ack(task.broadcast_id, vchannel)
        assert await life.broadcast.tasks() == []
        keys = {key for message in self.script.messages.values() for key in message.resource_keys}
        await life.broadcast.append(BroadcastMessage(vchannels=["a0", "b0"], payload=b"last", resource_keys=tuple(keys), needs_ack=False))
        for pchannel in self.world.pchannels:
            await life.checkpoint(pchannel)
        async with asyncio.timeout(60):
            while await self.world.contents():
                await asyncio.sleep(0)
                if isinstance(self.world, ClusteredWorld):  # nodes get the forgotten broadcasts late: a later checkpoint drops them
                    for pchannel in self.world.pchannels:
                        await life.checkpoint(pchannel)
        self.once(self.world.in_logs())

    def once(self, logs: InLogs) -> None:
        twice = [event for counter in (logs.copies, logs.aborts) for event, count in counter.items() if count != 1]
        assert twice == [], f"appended twice: {twice}"


async def settled(life: Life | ServedLife) -> list[BroadcastTask]:
    """Returns the tasks once no copy remains to be appended."""
    async with asyncio.timeout(60):
        while True:
            tasks = await life.broadcast.tasks()
            if all(task.state is BroadcastState.WAIT_ACK for task in tasks):
                return tasks
            await asyncio.sleep(0)


async def first_life(location: Location, world: Any, at: int | None, shuffle: random.Random | None) -> Script:
    life = location.life(world, Cut(at, shuffle=shuffle))
    await life.open()
    script = Script(life)
    await until_cut(life, script.run())
    await life.close()
    assert life.asked_again == 0
    return script


async def one_round(location: Location, at: int, *, again: int | None, shuffle: random.Random | None = None) -> None:
    """Cuts a run at a point, perhaps also the recovery of the next run, and lets the last run finish."""
    async with location.world(PLACES) as world:
        script = await first_life(location, world, at, shuffle)
        checks = Checks(world, script)
        await checks.after_crash()
        if again is not None:
            life = location.life(world, Cut(again, shuffle=shuffle))  # type: ignore[arg-type]
            await until_cut(life, recovery(life))
            await life.close()
            assert life.asked_again == 0
            await checks.look()
        async with location.life(world) as life:  # type: ignore[arg-type]
            await checks.recover(life)
            await checks.finish(life)
            assert life.asked_again == 0
        async with location.life(world) as life:  # type: ignore[arg-type]
            assert await life.broadcast.tasks() == []
        checks.once(world.in_logs())


async def recovery(life: Life | ServedLife) -> None:
    await life.open()
    await settled(life)
    for pchannel in life.world.pchannels:
        await life.checkpoint(pchannel)


async def points(location: Location) -> int:
    """Returns the number of points in an uncut run."""
    async with location.world(PLACES) as world, location.life(world) as life:  # type: ignore[arg-type]
        script = Script(life)
        await script.run()
    return life.cut.points


async def all_of(location: Location, rounds: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    """Makes the rounds of a location, as many at once as it can."""
    room = asyncio.Semaphore(location.together)

    async def one(begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with room:
            await begin()

    async with asyncio.TaskGroup() as group:
        for begin in location.some(rounds):
            group.create_task(one(begin))


async def test_uncut_run_is_continued_by_the_next(location: Location) -> None:
    async with location.world(PLACES) as world:
        script = await first_life(location, world, None, None)
        checks = Checks(world, script)
        await checks.after_crash()
        async with location.life(world) as life:  # type: ignore[arg-type]
            await checks.recover(life)
            await checks.finish(life)


async def test_cut_at_every_point_of_a_run(location: Location) -> None:
    count = await points(location)
    assert count > 40
    await all_of(location, [partial(one_round, location, at, again=None) for at in range(1, count)])
    if isinstance(location, Served):
        for at in range(1, count):  # the speed of the machine decides which calls are under way at a cut
            if location.unknown and location.sent_again:
                break
            await one_round(location, at, again=None)
        assert location.unknown
        assert location.sent_again


async def test_cut_at_every_point_of_the_recovery(location: Location, soak: int) -> None:
    ats = range(1, await points(location), max(1, 7 // soak))
    await all_of(location, [partial(one_round, location, at, again=again) for at in ats for again in range(1, 16)])


async def test_crash_points_with_reordered_durability(location: Location, soak: int) -> None:
    """Concurrent saves and appends become durable in any order."""

    async def one(seed: int) -> None:
        chance = random.Random(seed)
        try:
            await one_round(location, chance.randrange(1, 70), again=chance.choice([None, 1, 2, 5]), shuffle=chance)
        except BaseException:
            print(f"seed {seed}")
            raise

    await all_of(location, [partial(one, seed) for seed in range(120 * soak)])
