"""Many broadcasts, callers and keys at once, with consumers that crash; and the bytes that a wide broadcast writes."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc

import pytest

from broadcaster import BroadcasterLimits, BroadcastMessage
from tests.broadcaster.world import Life, World
from wal.errors import ResourceAcquiredError
from wal.message import ResourceKey

KEYS = 64
KIB = 1024


async def test_exclusive_keys_never_overlap_and_all_complete(soak: int) -> None:
    callers = 32

    class Books:
        """The holders of each key as clients see them, from the answer of the append until just before the last vchannel's first ack."""

        def __init__(self) -> None:
            self.holders: dict[str, dict[int, bool]] = {}
            self.missing: dict[int, set[str]] = {}
            self.over: dict[int, asyncio.Event] = {}
            self.messages: dict[int, BroadcastMessage] = {}

        def begin(self, broadcast_id: int, message: BroadcastMessage) -> asyncio.Event:
            for key in message.resource_keys:
                others = self.holders.setdefault(key.key, {})
                assert all(shared and key.shared for shared in others.values()), f"{key} is held twice"
                others[broadcast_id] = key.shared
            self.messages[broadcast_id] = message
            self.missing[broadcast_id] = set(message.vchannels)
            over = self.over[broadcast_id] = asyncio.Event()
            return over

        def acking(self, broadcast_id: int, vchannel: str) -> None:
            missing = self.missing.get(broadcast_id)
            if missing is not None:
                missing.discard(vchannel)
                if not missing:
                    del self.missing[broadcast_id]
                    for key in self.messages.pop(broadcast_id).resource_keys:
                        del self.holders[key.key][broadcast_id]

        def acked(self, broadcast_id: int) -> None:
            if broadcast_id not in self.missing and broadcast_id in self.over:
                self.over.pop(broadcast_id).set()

    class Consumer:
        """Handles the copies of one vchannel in some order; after a crash between handling and ack it handles them again."""

        def __init__(self, life: Life, books: Books, vchannel: str, seed: int) -> None:
            self.life = life
            self.books = books
            self.vchannel = vchannel
            self.inbox: list[int] = []
            self.arrived = asyncio.Event()
            self.chance = random.Random(seed)
            self.crashes = 0

        async def run(self) -> None:
            while True:
                await self.arrived.wait()
                self.arrived.clear()
                while self.inbox:
                    broadcast_id = self.chance.choice(self.inbox)
                    if self.chance.random() < 0.2:
                        self.crashes += 1
                        await asyncio.sleep(0)
                        continue
                    self.books.acking(broadcast_id, self.vchannel)
                    await self.life.broadcast.ack(broadcast_id, self.vchannel)
                    self.books.acked(broadcast_id)
                    if self.chance.random() < 0.1:
                        self.crashes += 1  # after the ack, before it could record it: it acknowledges again
                        continue
                    self.inbox.remove(broadcast_id)

    rounds = 12 if soak == 1 else 320
    vchannels = [f"v{number}" for number in range(12)]
    world = World(vchannels={name: f"p{at % 3}" for at, name in enumerate(vchannels)})
    async with Life(world, limits=BroadcasterLimits(tombstones_max=100)) as life:
        books = Books()
        consumers = {name: Consumer(life, books, name, at) for at, name in enumerate(vchannels)}
        done = refused = 0

        async def caller(number: int) -> None:
            nonlocal done, refused
            chance = random.Random(1000 + number)
            for _ in range(rounds):
                keys = [ResourceKey("k", str(chance.randrange(KEYS)), shared=chance.random() < 0.3) for _ in range(chance.randint(1, 3))]
                message = BroadcastMessage(
                    vchannels=chance.sample(vchannels, chance.randint(1, 6)),
                    payload=chance.randbytes(100),
                    resource_keys=keys,
                    needs_ack=chance.random() < 0.9,
                )
                wait = chance.random() < 0.5
                while True:
                    try:
                        result = await life.broadcast.append(message, wait=wait)
                        break
                    except ResourceAcquiredError as error:
                        refused += 1
                        assert error.holder
                        await life.broadcast.block_until_resource_key_ack_all(error.keys[0])  # type: ignore[arg-type]
                done += 1
                if message.needs_ack:
                    over = books.begin(result.broadcast_id, message)
                    for name in message.vchannels:
                        consumers[name].inbox.append(result.broadcast_id)
                        consumers[name].arrived.set()
                    await over.wait()
                if done % 200 == 0:
                    for pchannel in world.pchannels:
                        await life.checkpoint(pchannel)

        running = [asyncio.create_task(consumer.run()) for consumer in consumers.values()]
        try:
            async with asyncio.timeout(60 * soak):
                await asyncio.gather(*map(caller, range(callers)))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        assert done == callers * rounds
        assert refused > 0
        assert sum(consumer.crashes for consumer in consumers.values()) > 0
        assert await life.broadcast.tasks() == []
        assert set(world.in_logs().copies.values()) == {1}
        for pchannel in world.pchannels:
            await life.checkpoint(pchannel)
        async with asyncio.timeout(60):
            while life.broadcast.statistics().done_marks or len(await world.contents()) > 100:
                await asyncio.sleep(0)  # the tombstones are left
        assert life.broadcast.statistics().bytes_held == 0


@pytest.mark.parametrize("pchannels", [1, 4])
async def test_wide_broadcast_is_stored_once(pchannels: int) -> None:
    names = [f"orders-{number:06d}" for number in range(1024)]
    world = World(pchannels, vchannels={name: f"p{at % pchannels}" for at, name in enumerate(names)})
    async with Life(world) as life:
        result = await life.broadcast.append(BroadcastMessage(vchannels=names, payload=bytes(KIB), resource_keys=[ResourceKey("k", "all")]))
        assert life.frames == pchannels
        for name in names:  # one after the other: no two acks share a save
            await life.broadcast.ack(result.broadcast_id, name)
        assert await life.broadcast.tasks() == []
        assert life.kv.bytes_written <= 512 * KIB
        if pchannels == 1:
            assert life.log_bytes <= 64 * KIB
        contents = await world.contents()
        assert [key.partition("/")[0] for key in contents] == ["done"]


async def test_memory_stays_flat(soak: int) -> None:
    """Only the tombstone of a finished broadcast is kept, and their number is bounded."""
    vchannels = [f"v{number}" for number in range(16)]
    world = World(1, vchannels=dict.fromkeys(vchannels, "p0"))
    limits = BroadcasterLimits(tombstones_max=64)
    async with Life(world, limits=limits) as life:

        async def some(count: int) -> None:
            for number in range(count):
                message = BroadcastMessage(
                    vchannels=vchannels, payload=bytes(4 * KIB), resource_keys=[ResourceKey("k", str(number % KEYS))]
                )
                result = await life.broadcast.append(message)
                await asyncio.gather(*[life.broadcast.ack(result.broadcast_id, name) for name in vchannels])
                if number % 50 == 49:
                    await life.checkpoint("p0")
                    log = life.logs["p0"]
                    await log.truncate(log.durable_end, 0)

        await some(100)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await some(200 * soak)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < 400_000
        statistics = life.broadcast.statistics()
        assert (statistics.tasks, statistics.bytes_held) == (0, 0)
        assert statistics.tombstones <= 64 + statistics.done_marks
