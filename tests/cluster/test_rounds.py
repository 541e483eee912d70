"""Rounds of what happens to a cluster: something dies, stands still, is stopped in order, or is cut off; then everything is judged."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Final

import pytest

from tests.cluster.processes import TTL_S, Cluster
from tests.cluster.workload import Workload
from tests.processes import eventually
from tests.servers.etcd import EtcdServer
from wal import BroadcastMessage, WALAccesser, open_wal

SOAK: Final = os.environ.get("SOAK", "0") not in ("", "0")
ROUNDS: Final = 30 if SOAK else 3
FAULTS: Final = ("kill a node", "stop a node", "freeze a node", "kill the leader", "freeze the leader", "kill both", "restart etcd")


async def happens(fault: str, cluster: Cluster, etcd: EtcdServer, rng: random.Random) -> None:
    """Does it, and mends it: afterwards all processes run again."""
    node, leader = rng.choice(cluster.nodes), await cluster.leader()
    match fault:
        case "kill a node":
            await asyncio.to_thread(node.kill)
        case "stop a node":
            node.signal(signal.SIGTERM)
            await eventually(lambda: node.exit_code() is not None)
            assert node.exit_code() == 0, node.text()[-2000:]
        case "freeze a node":
            await asyncio.to_thread(node.stop)
            await asyncio.sleep(TTL_S * rng.uniform(0.3, 2.0))
            node.cont()
        case "kill the leader":
            await asyncio.to_thread(leader.kill)
        case "freeze the leader":
            await asyncio.to_thread(leader.stop)
            await asyncio.sleep(TTL_S * rng.uniform(0.3, 2.0))
            leader.cont()
        case "kill both":
            await asyncio.gather(asyncio.to_thread(node.kill), asyncio.to_thread(leader.kill))
        case "restart etcd":
            await asyncio.to_thread(etcd.restart)
    await asyncio.sleep(rng.uniform(0.0, 1.0))
    for member in cluster.members:
        if not member.running:
            await asyncio.to_thread(member.start)


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_round(number: int, cluster_over: Cluster, own_etcd: EtcdServer) -> None:
    seed = random.randrange(1 << 32) if SOAK else number
    print(f"seed {seed}")
    rng = random.Random(seed)
    cluster = cluster_over
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress(20)
        for fault in rng.sample(FAULTS, k=2):
            print(fault)
            broadcast = asyncio.create_task(
                log.broadcast().append(BroadcastMessage(vchannels=["b0", "b1", "b2", "b3"], payload=fault.encode(), needs_ack=False))
            )
            await happens(fault, cluster, own_etcd, rng)
            await work.progress(20)
            await asyncio.wait([broadcast])
        await cluster.settled(nodes=3)
        sent = await log.broadcast().append(BroadcastMessage(vchannels=["b0", "b1", "b2", "b3"], payload=b"last", needs_ack=False))
        await eventually(lambda: _are_complete(log))
        await work.stop()
        await work.judge()
        copies: dict[str, list[bytes]] = {}
        for name in sent.append_results:
            async with log.read(name, follow=False) as scanner:
                copies[name] = [message.payload async for message in scanner]
        assert all(each == copies["b0"] for each in copies.values()), copies
        assert len(set(copies["b0"])) == len(copies["b0"])


async def _are_complete(log: WALAccesser) -> bool:
    return await log.broadcast().tasks() == []
