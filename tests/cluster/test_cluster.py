"""What a client of a cluster notices when its processes come, go, and stand still: nothing but a pause."""

from __future__ import annotations

import asyncio
import signal

from tests.cluster.processes import TTL_S, Cluster
from tests.cluster.workload import Workload
from wal import Message, open_wal


async def test_every_node_gets_its_share(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=2)
    status = await cluster.settled()
    assert [each["pchannels"] for each in status["nodes"]] == [2, 2]
    async with open_wal(cluster.root) as log:
        result = await log.raw_append(Message("orders", b"1"))
        async with log.read("orders") as scanner:
            assert (await anext(scanner)).message_id == result.message_id


async def test_killed_node_costs_a_pause(cluster: Cluster) -> None:
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        (await cluster.owner("p0")).kill()
        assert await work.progress() <= TTL_S + 5.0
        await cluster.settled(nodes=2)
        await work.stop()
        await work.judge()


async def test_stopped_node_hands_over_and_ends_with_0(cluster: Cluster) -> None:
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        node = await cluster.owner("p0")
        node.signal(signal.SIGTERM)
        await work.progress()
        await cluster.settled(nodes=2)
        while node.exit_code() is None:
            await asyncio.sleep(0.01)
        assert node.exit_code() == 0, node.text()[-2000:]
        await work.stop()
        await work.judge()
        assert not work.written.errors, work.written.errors


async def test_killed_leader_costs_appends_nothing(cluster: Cluster) -> None:
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        leader = await cluster.leader()
        await asyncio.to_thread(leader.kill)
        await work.progress()
        assert await cluster.leader() is not leader
        await work.progress()
        await log.create_vchannel("new")
        await work.stop()
        await work.judge()
        assert not work.written.errors, work.written.errors


async def test_frozen_node_wakes_up_and_answers_nothing(cluster: Cluster) -> None:
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        node = await cluster.owner("p0")
        await asyncio.to_thread(node.stop)
        assert await work.progress() <= TTL_S + 15.0
        await cluster.settled(nodes=2)
        node.cont()
        await work.progress()
        while node.exit_code() is None:
            await asyncio.sleep(0.01)
        assert node.exit_code() == 3
        await work.stop()
        await work.judge()
