"""Members of a shared cursor in a cluster: the node that hands out dies or hands its pchannel over, and each message is finished once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.operate.cluster.processes import Cluster
from tests.processes import eventually
from wal import Delivery, Log, Message, open_wal

COUNT = 120
KEYS = 6


async def payloads(log: Log, vchannel: str) -> list[bytes]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload async for _, body in scanner.bodies()]


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_members_follow_the_home_of_their_cursor(cluster: Cluster, end: str) -> None:
    await cluster.start(coordinators=1, nodes=3)
    handled: Counter[bytes] = Counter()

    async def handle(delivery: Delivery) -> None:
        handled[delivery.value] += 1
        await asyncio.sleep(0.01)
        delivery.append("out", delivery.value)
        delivery.append("elsewhere", delivery.value)

    options: dict[str, Any] = {"cursor": "workers", "shared": True, "order": "key", "key": "customer", "concurrency": 2, "attempts": 2}
    async with open_wal(cluster.root) as one, open_wal(cluster.root) as two:
        for name, pchannel in (("in", "p0"), ("out", "p0"), ("elsewhere", "p1"), ("dead", "p0")):
            await one.create_vchannel(name, pchannel=pchannel)
        await one.append_bulk([Message("in", b"%d" % number, properties={"customer": str(number % KEYS)}) for number in range(COUNT)])
        consumers = [log.consume("in", handle, dead_letter="dead", **options) for log in (one, two)]
        async with consumers[0], consumers[1]:
            await eventually(lambda: len(handled) > COUNT // 4)
            owner = await cluster.owner("p0")
            if end == "kill":
                owner.kill()
            else:
                owner.terminate()
            await asyncio.gather(*[consumer.caught_up() for consumer in consumers])
        outputs = await payloads(one, "out")
        assert sorted(map(int, outputs)) == list(range(COUNT))
        assert sorted(map(int, await payloads(one, "elsewhere"))) == list(range(COUNT))
        assert await payloads(one, "dead") == []
        for key in range(KEYS):
            of_key = [int(each) for each in outputs if int(each) % KEYS == key]
            assert of_key == sorted(of_key)
