"""Members of a shared cursor of a cluster, whose processes die, stop and are cut off, as its nodes and coordinators do.

The default run has 4 rounds over three member processes, and those of `tests/consumers/test_shared_kill.py` make 12; a soak has 300 more,
in two of three of which the members share a pattern.
"""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from tests.conftest import SOAK
from tests.consumers.workers import LEASE_S, MEMBERS, ROUND, Workers, append_round
from tests.operate.cluster.processes import TTL_S, Cluster
from tests.processes import eventually
from wal import open_wal

FAULTS = (
    "cut a member off",
    "kill the home",
    "freeze the home",
    "kill the leader",
    "kill a member",
    "freeze a member",
    "kill the home and a member",
    "stop the home",
    "cut the home off etcd",
    "freeze the leader",
    "kill another node",
)
ROUNDS = 12 if SOAK else 4
"""By default the first four faults. The other ones end the same processes in another way, which the served log shows for members."""


@pytest.mark.parametrize("run", range(25 if SOAK else 1))
async def test_members_finish_each_message_once_in_a_cluster(cluster: Cluster, run: int) -> None:
    await cluster.link()
    await cluster.start()
    names = ("in", "in-1", "in-2") if run % 3 else ("in",)
    async with open_wal(cluster.root) as log, cluster.supervised():
        for name, pchannel in (("in", "p0"), ("in-1", "p1"), ("in-2", "p2"), ("out", "p0"), ("dead", "p0"), ("elsewhere", "p1")):
            await log.create_vchannel(name, pchannel=pchannel)
        workers = Workers(cluster.root, ("out", "elsewhere"), inputs="in*" if len(names) > 1 else "in")
        cluster.clients = lambda: workers.pids
        workers.start()
        for number in range(ROUNDS):
            await workers.progress(log, await append_round(log, number, names))
            fault = random.choice(FAULTS) if SOAK else FAULTS[number]
            print(fault)
            await happens(fault, cluster, workers)
            await cluster.settled(nodes=3)
        await workers.progress(log, ROUNDS * ROUND)
        await workers.end()
        await workers.check(log, ROUNDS * ROUND)
    await cluster.stack.aclose()


async def happens(fault: str, cluster: Cluster, workers: Workers) -> None:
    """Causes the fault and repairs it: afterwards all processes run again."""
    victim = random.randrange(MEMBERS)
    home, leader = await cluster.owner("p0"), await cluster.leader()
    match fault:
        case "kill a member":
            await workers.replace(victim)
        case "freeze a member":
            await workers.stop(victim)
        case "cut a member off":
            for link in cluster.links:
                link.cut(workers.members[victim].pid)
            await asyncio.sleep(LEASE_S + 0.5)
            cluster.mend()
        case "kill another node":
            await asyncio.to_thread(random.choice([node for node in cluster.nodes if node is not home]).kill)
        case "kill the home":
            await asyncio.to_thread(home.kill)
        case "kill the home and a member":
            await asyncio.to_thread(home.kill)
            await workers.replace(victim)
        case "stop the home":
            home.signal(signal.SIGTERM)
            await eventually(lambda: home.exit_code() is not None)
            assert home.exit_code() == 0, home.text()[-2000:]
        case "freeze the home" | "freeze the leader":
            frozen = home if fault == "freeze the home" else leader
            await asyncio.to_thread(frozen.stop)
            await asyncio.sleep(TTL_S * random.uniform(0.3, 2.0))
            frozen.cont()
        case "cut the home off etcd":
            assert cluster.etcd is not None
            cluster.etcd.cut(home.pid)
            await asyncio.sleep(TTL_S * random.uniform(0.3, 2.0))
            cluster.mend()
        case "kill the leader":
            await asyncio.to_thread(leader.kill)
        case _:
            raise AssertionError(fault)
    await cluster.start_ended()
