"""Rounds of faults in a cluster: a process dies, freezes, is stopped in order, or is cut off; then the whole log is checked."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
from typing import Final

import pytest

from tests.operate.cluster.processes import TTL_S, Cluster
from tests.operate.cluster.workload import Workload
from tests.processes import eventually
from tests.servers.etcd import EtcdServer
from wal import BroadcastMessage, BroadcastState, WALAccesser, open_wal

SOAK: Final = os.environ.get("SOAK", "0") not in ("", "0")
ROUNDS: Final = 30 if SOAK else 1
"""By default one: a node is killed, and another is cut off from etcd. `tests/simulation` has the combinations."""


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_round(number: int, cluster_over: Cluster, own_etcd: EtcdServer) -> None:
    kills = ("kill a node", "stop a node", "freeze a node", "kill the leader", "freeze the leader", "kill both", "restart etcd")
    # In the soak alone: a client waits a quarter of a minute until it accepts a leader whose revisions went back.
    RESTORED = "restore etcd"
    cuts = ("node from etcd", "leader from etcd", "leader from a node", "client from a node", "client from etcd")

    async def happens(fault: str, cluster: Cluster, etcd: EtcdServer, rng: random.Random) -> None:
        """Causes the fault and repairs it: afterwards all processes run again."""
        node, leader = rng.choice(cluster.nodes), await cluster.leader()
        await eventually(lambda: node.running and leader.running)
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
            case "restore etcd":
                copy = cluster.folder / "copy"
                await asyncio.to_thread(etcd.kill)
                await asyncio.to_thread(shutil.copytree, etcd.data_dir, copy)
                await asyncio.to_thread(etcd.start)
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
                await cluster.settled()
                await asyncio.to_thread(etcd.kill)
                await asyncio.to_thread(shutil.rmtree, etcd.data_dir)
                await asyncio.to_thread(copy.rename, etcd.data_dir)
                await asyncio.to_thread(etcd.start)
            case _:
                assert cluster.etcd is not None, "links are cut where there are some"
                link, process = {
                    "node from etcd": (cluster.etcd, node.pid),
                    "leader from etcd": (cluster.etcd, leader.pid),
                    "leader from a node": (cluster.link_to(node), leader.pid),
                    "client from a node": (cluster.link_to(node), os.getpid()),
                    "client from etcd": (cluster.etcd, os.getpid()),
                }[fault]
                link.cut(process)
                await asyncio.sleep(TTL_S * rng.uniform(0.3, 3.0))
                link.mend()
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await cluster.start_ended()

    async def finish_broadcasts(log: WALAccesser, *, restored: bool) -> bool:
        """Returns whether all broadcasts have ended. A broadcast that the copy of etcd restored, of a client that dropped its vchannel
        since, is aborted, as its operator would (docs/howto/cluster.md).
        """
        tasks = await log.broadcast().tasks()
        for task in tasks if restored else ():
            if task.state is BroadcastState.STUCK and all(name.startswith("begun") for name in task.missing_appends):
                await log.broadcast().abort(task.broadcast_id, "its vchannel was dropped")
        return not tasks

    seed = random.randrange(1 << 32) if SOAK else number
    print(f"seed {seed}")
    rng = random.Random(seed)
    cluster = cluster_over
    await cluster.link()
    await cluster.start()
    async with open_wal(cluster.root) as log, cluster.supervised():
        work = Workload(log, location=lambda: "wal://" + ",".join(member.address for member in cluster.coordinators))
        work.start()
        await work.progress()
        for fault in (rng.choice((*kills, RESTORED)), rng.choice(cuts)) if SOAK else (kills[number % len(kills)], cuts[number % len(cuts)]):
            print(fault)
            broadcast = asyncio.create_task(
                log.broadcast().append(BroadcastMessage(vchannels=["b0", "b1", "b2", "b3"], payload=fault.encode(), needs_ack=False))
            )
            await happens(fault, cluster, own_etcd, rng)
            if fault == RESTORED:
                work.went_back()
            await work.progress()
            await asyncio.gather(broadcast, return_exceptions=True)  # its outcome may be unknown
        await cluster.settled(nodes=3)
        sent = await log.broadcast().append(BroadcastMessage(vchannels=["b0", "b1", "b2", "b3"], payload=b"last", needs_ack=False))
        await eventually(lambda: finish_broadcasts(log, restored=work.is_restored))
        await work.stop()
        await work.judge()
        copies: dict[str, list[bytes]] = {}
        for name in sent.append_results:
            async with log.read(name, follow=False) as scanner:
                copies[name] = [message.payload async for message in scanner]
        assert all(each == copies["b0"] for each in copies.values()), copies
        assert len(set(copies["b0"])) == len(copies["b0"])
    await cluster.stack.aclose()
