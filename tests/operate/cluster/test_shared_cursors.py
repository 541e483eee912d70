"""Members of a shared cursor in a cluster: the node that hands out dies or hands its pchannel over, and each message is finished once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.consumers.test_shared import members_with_other_options, shared_and_exclusive_consumers
from tests.operate.cluster.processes import Cluster
from tests.processes import eventually
from wal import Delivery, Log, Matching, Message, open_wal
from wal.read.options import TickPosition

COUNT = 120
KEYS = 6
TOKEN = "servers-and-clients"


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


@pytest.mark.parametrize("refusals", [shared_and_exclusive_consumers, members_with_other_options])
async def test_refusals_of_members_on_a_cluster(cluster: Cluster, refusals: Callable[[Log], Awaitable[None]]) -> None:
    await cluster.start(coordinators=1, nodes=1)
    async with open_wal(cluster.root) as log:
        await refusals(log)


async def test_members_share_a_pattern_while_its_home_moves(cluster: Cluster) -> None:
    """Vchannels on two nodes, of which one is created and one dropped meanwhile; the home of the cursor ends in order. The nodes read from
    each other with the token of the servers."""
    cluster.environment["WAL_SERVER_TOKEN"] = TOKEN
    await cluster.start(coordinators=1, nodes=2)
    handled: Counter[bytes] = Counter()

    async def handle(delivery: Delivery) -> None:
        handled[delivery.value] += 1
        delivery.append("out", delivery.value)
        delivery.append("elsewhere", delivery.value)

    options: dict[str, Any] = {"cursor": "sums", "shared": True, "concurrency": 2, "attempts": 2}
    async with contextlib.AsyncExitStack() as stack:
        one, two, beside = [await stack.enter_async_context(open_wal(cluster.root, token=TOKEN)) for _ in range(3)]
        for name, pchannel in (("account-0", "p0"), ("account-1", "p1"), ("account-2", "p2"), ("out", "p0"), ("elsewhere", "p1")):
            await one.create_vchannel(name, pchannel=pchannel)

        async def append(first: int, *accounts: int) -> None:
            for number in range(first, first + COUNT // 4):
                await beside.append(f"account-{accounts[number % len(accounts)]}", b"%d" % number)

        consumers = [log.consume(Matching("account-*"), handle, **options) for log in (one, two)]
        async with consumers[0], consumers[1]:
            await append(0, 0, 1, 2)
            await asyncio.gather(*[consumer.caught_up() for consumer in consumers])
            (shared,) = await beside.shared_consumers()
            assert (shared.cursor, shared.pattern, len(shared.members)) == ("sums", "account-*", 2)
            await beside.drop_vchannel("account-2")
            await beside.create_vchannel("account-3", pchannel="p3")
            await append(COUNT // 4, 0, 1, 3)
            home = await cluster.owner("p0")
            home.terminate()
            await append(COUNT // 2, 3, 1, 0)
            await asyncio.gather(*[consumer.caught_up() for consumer in consumers])
            await eventually(lambda: home.exit_code() is not None)
            assert home.exit_code() == 0, home.text()[-2000:]
        for name in ("out", "elsewhere"):
            assert sorted(map(int, await payloads(one, name))) == list(range(3 * COUNT // 4))
        assert await one.peek("sums") == []
        (info,) = await one.cursors()
        assert isinstance(info.position, TickPosition)
