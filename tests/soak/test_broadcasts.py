"""Many broadcasts over few keys on a real log, with consumers that crash: keys never overlap, everything completes, memory stays flat."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path
from typing import Final

from wal import BroadcastMessage, ImmutableMessage, ReadPosition, ResourceKey, WALAccesser, open_wal

NAMES: Final = tuple(f"shard-{number}" for number in range(8))


async def test_keys_never_overlap_and_memory_stays_flat(data_dir: Path, soak: int) -> None:
    callers = 32
    KEYS = 64
    # The share of messages at which a consumer crashes, after handling and before it acknowledges.
    crashes = 0.05
    broadcasts = 1_000
    page_bytes = 4096
    growth_bytes_max = 32 << 20

    class Keys:
        """The keys as consumers see them: a key belongs to its broadcast until every vchannel has begun to acknowledge."""

        def __init__(self) -> None:
            self._holders: dict[str, int] = {}
            self._acking: dict[int, set[str]] = {}
            self.overlaps: list[str] = []
            self.crashes = 0

        def seen(self, message: ImmutableMessage) -> None:
            """Records that a copy was delivered."""
            header = message.broadcast
            assert header is not None
            key, number = header.resource_keys[0].key, header.broadcast_id
            holder = self._holders.get(key, number)
            if holder != number and len(self._acking[holder]) < len(NAMES):
                self.overlaps.append(f"{number} has key {key}, which {holder} still holds")
            if holder != number:
                del self._acking[holder]
            self._holders[key] = number
            self._acking.setdefault(number, set())

        def acking(self, message: ImmutableMessage) -> None:
            """Records that the consumer is about to acknowledge."""
            assert message.broadcast is not None
            self._acking[message.broadcast.broadcast_id].add(message.vchannel)

    async def consume(log: WALAccesser, name: str, keys: Keys, dice: random.Random) -> None:
        """Handles and acknowledges, and restarts after the last acknowledged copy whenever it crashes."""
        position: ReadPosition | None = None
        while True:
            async with log.read(name, resume=position) as scanner:
                async for message in scanner:
                    keys.seen(message)
                    if dice.random() < crashes:
                        keys.crashes += 1
                        break  # handled but not acknowledged: the copy is redelivered after the restart
                    keys.acking(message)
                    await log.broadcast().ack(message)
                    position = scanner.position

    def rss_bytes() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * page_bytes

    dice = random.Random(5)
    keys = Keys()
    left = iter(range(broadcasts * soak))
    done = 0
    early = 0

    async def call(log: WALAccesser) -> None:
        nonlocal done, early
        for number in left:
            key = ResourceKey("collection", str(dice.randrange(KEYS)))
            message = BroadcastMessage(vchannels=NAMES, payload=b"%d" % number, resource_keys=(key,))
            await log.broadcast().append(message, wait=True)
            done += 1
            if done == broadcasts // 4:  # by then every table and cache has been used
                early = rss_bytes()

    async with open_wal(data_dir) as log:
        consumers = [asyncio.ensure_future(consume(log, name, keys, dice)) for name in NAMES]
        await asyncio.gather(*(call(log) for _ in range(callers)))
        for number in range(KEYS):
            await log.broadcast().block_until_resource_key_ack_all(ResourceKey("collection", str(number)))
        assert await log.broadcast().tasks() == []
        grown = rss_bytes() - early
        for consumer in consumers:
            assert not consumer.done(), "a consumer ended by itself"
            consumer.cancel()
        await asyncio.wait(consumers)
    assert done == broadcasts * soak
    assert not keys.overlaps, keys.overlaps[:3]
    assert keys.crashes > broadcasts * soak * len(NAMES) * crashes / 2
    assert grown < growth_bytes_max, f"memory grew by {grown >> 20} MiB"
