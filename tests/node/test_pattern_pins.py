"""What cursors of patterns hold back in a cluster: homes and truncating nodes meet in etcd at any moment, die, and get an older etcd.

The logs are a few numbers here, and refuse a lower term, as those on Pulsar do. The KV is in memory, and answers after a random pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from wal.errors import ChannelFencedError, UnavailableError, WALError
from wal.message.matching import Matching
from wal.node import pattern_pins
from wal.node.pattern_pins import PatternPins
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.records import CursorRecord
from wal.storage.kv import KVBase, MemoryKV
from wal.write.cursor_table import CursorChange

KEYS = [CursorKey.of(name, Matching("account-*")) for name in ("one", "two")]
NAMES = ("p0", "p1")


class SlowKV:
    """A KV whose calls take a while, before and after they are carried out."""

    def __init__(self, kv: KVBase, chance: random.Random) -> None:
        self.kv = kv
        self.chance = chance

    def under(self, root: str) -> SlowKV:
        return SlowKV(self.kv.under(root), self.chance)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*values: Any, **options: Any) -> Any:
            await pause(self.chance)
            answer = await getattr(self.kv, name)(*values, **options)
            await pause(self.chance)
            return answer

        return call


async def pause(chance: random.Random) -> None:
    for _ in range(chance.choice((0, 0, 1, 2, 5, 20))):
        await asyncio.sleep(0)


class World:
    """The logs: the durable positions of cursors, and how far each pchannel is truncated; each refuses all but its newest term."""

    def __init__(self) -> None:
        self.terms = dict.fromkeys(NAMES, 0)
        self.home_term = 0
        self.cursors: dict[CursorKey, Cursor] = {}
        self.truncated = dict.fromkeys(NAMES, 1)
        self.is_restored = False
        self.lost: set[tuple[CursorKey, str]] = set()
        """The cursors that were saved below a truncation of this pchannel, whose floor a restored KV lacks: their readers get an error."""
        self.counts = {"saved": 0, "refused": 0, "truncated": 0, "held": 0}

    def save(self, key: CursorKey, cursor: Cursor) -> None:
        self.cursors[key] = cursor
        at = cursor.tick_position
        assert at is not None
        for name, tick in self.truncated.items():
            self.lost.discard((key, name))
            if self.is_restored and at.covered(name) < tick:
                self.lost.add((key, name))

    def check(self) -> None:
        for key, cursor in self.cursors.items():
            at = cursor.tick_position
            assert at is not None
            for name, tick in self.truncated.items():
                assert (key, name) in self.lost or tick <= at.covered(name), f"{name} is truncated up to {tick}, past {key} at {at}"


class Home:
    """A process that has the cursors: it saves, commits and deletes them."""

    def __init__(self, world: World, kv: SlowKV) -> None:
        self.world = world
        world.home_term += 1
        self.term = world.home_term
        self.chance = kv.chance
        self.newest = dict(world.cursors)
        self.pins = PatternPins(kv, "p0", check_format=_no_check)  # type: ignore[arg-type]
        self.order = asyncio.Lock()
        self.commits: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        for _ in range(3):
            await pause(self.chance)
        try:
            await self.pins.take_over(self.term, [CursorRecord(key, 1, cursor) for key, cursor in self.newest.items()])
            while True:
                await pause(self.chance)
                key = self.chance.choice(KEYS)
                with contextlib.suppress(WALError):
                    match self.chance.randrange(8):
                        case 0:
                            await self.write(key, None)
                        case 1 | 2 | 3:
                            change = CursorChange(
                                key, cursor_at(key, max(1, max(self.world.truncated.values()) + self.chance.randrange(-5, 30)))
                            )
                            async with self.pins.lowered(key, change):
                                await self.write(key, change)
                        case _ if key in self.newest:
                            tick = self.newest[key].time_tick + self.chance.randrange(15)
                            commit = asyncio.create_task(self.commit(key, CursorChange(key, cursor_at(key, tick))))
                            self.commits.add(commit)
                            commit.add_done_callback(self.commits.discard)
        finally:
            for task in self.commits:
                task.cancel()
            await self.pins.close()

    async def commit(self, key: CursorKey, change: CursorChange) -> None:
        with contextlib.suppress(WALError):
            await self.pins.cover(key, newest=self.newest.get(key))
            await self.write(key, change)

    async def write(self, key: CursorKey, change: CursorChange | None) -> None:
        """Writes a record: it is decided in a turn, and durable later, in the order of the turns."""
        await pause(self.chance)
        if change is not None:
            assert change.cursor is not None
            self.pins.check(key, change, newest=self.newest.get(key))
            at = change.cursor.tick_position
            assert at is not None
            if any(floor.tick > at.covered(name) for name, floor in self.pins.floors(key).items()):
                self.world.counts["refused"] += 1
                if key not in self.newest:
                    self.pins.drop(key)
                raise UnavailableError("truncated")
            self.newest[key] = change.cursor
        else:
            self.newest.pop(key, None)
        async with self.order:
            for _ in range(3):
                await pause(self.chance)
            if self.term != self.world.home_term:
                raise ChannelFencedError("another home")
            if change is not None and change.cursor is not None:
                self.world.save(key, change.cursor)
                self.world.counts["saved"] += 1
                self.pins.moved(key, change.cursor, self.newest.get(key))
            else:
                self.world.cursors.pop(key, None)
                if key not in self.newest:
                    self.pins.drop(key)
            self.world.check()


class Node:
    """A process that has a pchannel, and truncates it."""

    def __init__(self, world: World, kv: SlowKV, name: str) -> None:
        self.world = world
        self.name = name
        world.terms[name] += 1
        self.term = world.terms[name]
        self.chance = kv.chance
        self.pins = PatternPins(kv, "p0", check_format=_no_check)  # type: ignore[arg-type]

    async def run(self) -> None:
        await self.pins.open_floor(self.name, self.term, (self.world.truncated[self.name], 0))
        while True:
            await pause(self.chance)
            if not await self.pins.is_seen(self.name):
                continue
            tick = self.world.truncated[self.name] + self.chance.randrange(1, 8)
            await self.pins.intend(self.name, tick, (tick, 0))
            is_free = all(at.covered(self.name) >= tick for copy in await self.pins.copies() if (at := copy.tick_position) is not None)
            await pause(self.chance)
            if is_free:
                if self.term != self.world.terms[self.name]:
                    raise ChannelFencedError("another node")
                self.world.truncated[self.name] = tick
                self.world.check()
            self.world.counts["truncated" if is_free else "held"] += 1
            await self.pins.settle(self.name, is_truncated=is_free)


async def _no_check() -> None:
    pass


def cursor_at(key: CursorKey, tick: int) -> Cursor:
    return Cursor(key, (), "p1", 0, (0, 0), None, tick, 0.0)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PUBLISH_S", 0), ("_POLL_S", 0), ("SETTLED_S", 0.001)):
        monkeypatch.setattr(pattern_pins, name, value)


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if outcome is not None and not isinstance(outcome, (asyncio.CancelledError, WALError)):
            raise outcome


async def test_truncation_passes_no_cursor(soak: int) -> None:
    """Homes and nodes are replaced while the ones before them still run, killed, and started over an older copy of the KV."""

    @contextlib.asynccontextmanager
    async def stored(values: dict[str, str]) -> AsyncIterator[MemoryKV]:
        async with MemoryKV() as kv:
            if values:
                await kv.multi_save(values)
            yield kv

    counts: dict[str, int] = {}
    for seed in range(15 * soak):
        chance = random.Random(f"{random.random()} {seed}")
        world = World()
        values: dict[str, str] = {}
        for _ in range(3):
            async with stored(values) as kv:
                slow = SlowKV(kv, chance)
                tasks = [asyncio.create_task(Home(world, slow).run()), *(asyncio.create_task(Node(world, slow, n).run()) for n in NAMES)]
                copies: list[dict[str, str]] = []
                for _ in range(6):
                    for _ in range(chance.randrange(100, 600)):
                        await asyncio.sleep(0)
                    copies.append(dict(zip(*await kv.load_with_prefix(""), strict=True)))
                    victim = chance.randrange(len(tasks))
                    if chance.random() < 0.5:  # otherwise the one before goes on for a while
                        await _ended([tasks[victim]])
                    role = chance.choice(("home", *NAMES))
                    tasks.append(asyncio.create_task(Home(world, slow).run() if role == "home" else Node(world, slow, role).run()))
                await _ended(tasks)
            values, world.is_restored = chance.choice(copies), True  # etcd is restored, after every process has ended
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert all(count > 10 * soak for count in counts.values()), counts


@pytest.mark.parametrize(("durable", "newest"), [(10, 20), (20, 10)], ids=["forward", "back"])
async def test_copy_waits_for_an_unwritten_save(durable: int, newest: int) -> None:
    """A save that is submitted may fail, or be the one that is left: until it is settled, the copy is at the earlier of both positions."""
    key = KEYS[0]
    async with MemoryKV() as kv:
        pins = PatternPins(kv, "p0", check_format=_no_check)
        await pins.take_over(1, [CursorRecord(key, 1, cursor_at(key, 5))])
        pins.moved(key, cursor_at(key, durable), cursor_at(key, newest))
        async with asyncio.timeout(5):
            while (copy := (await pins.copies())[0]).time_tick == 5:
                await asyncio.sleep(0)
        assert copy.time_tick == 10
        await pins.close()
