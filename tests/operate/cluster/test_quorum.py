"""An etcd of three members: its leader freezes under appends, and then two of the three stop, so that the quorum is lost."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.cluster.processes import Cluster
from tests.operate.cluster.workload import Workload
from tests.processes import eventually
from tests.servers import etcd
from tests.servers.etcd import EtcdServer
from wal import open_wal


@pytest.fixture
def members(etcd_binary: Path) -> Iterator[list[EtcdServer]]:
    with etcd.cluster(etcd_binary, 3) as started:
        yield started


@pytest.fixture
def cluster_over(
    members: list[EtcdServer], pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, pulsar_namespace: str, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster over that etcd."""
    log, addresses = f"pulsar://{pulsar_host}/{pulsar_namespace}", ",".join(member.address for member in members)
    made = Cluster(addresses, log, f"http://{pulsar_admin_host}", pulsar_token, tmp_path, name="cluster")
    yield made
    made.close()


@pytest.mark.soak("the member stands still for 15 s; test_node_that_wakes_up_answers_nothing lets a node do so by default")
async def test_leader_of_etcd_that_stands_still_loses_nothing(cluster_over: Cluster, members: list[EtcdServer]) -> None:
    frozen_s = 15.0

    def leads(member: EtcdServer) -> bool:
        """Returns whether this member is the leader of its etcd."""
        request = urllib.request.Request(f"http://{member.address}/v3/maintenance/status", data=b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=5.0) as answer:
            status = json.loads(answer.read())
        return bool(status["leader"] == status["header"]["member_id"])

    cluster = cluster_over
    cluster.ttl_s = 10.0  # a session outlives an election
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        (frozen,) = [member for member in members if await asyncio.to_thread(leads, member)]
        await asyncio.to_thread(frozen.stop)
        async with cluster.supervised():
            await asyncio.sleep(frozen_s)
            frozen.cont()
            await work.progress()
            await cluster.settled(nodes=3)
        await work.stop()
        await work.judge(long_outage=True)


@pytest.mark.soak(
    "test_etcd_that_restarts_moves_nothing has an outage of etcd by default, and test_node_that_wakes_up_answers_nothing lost leases"
)
async def test_no_quorum_is_told_and_loses_nothing(cluster_over: Cluster, members: list[EtcdServer]) -> None:
    cluster = cluster_over
    await cluster.start(coordinators=1, nodes=2)
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        await asyncio.gather(*(asyncio.to_thread(member.kill) for member in members[:2]))
        for node in cluster.nodes:  # it could not renew its lease, and holds nothing
            await eventually(lambda node=node: node.exit_code() is not None)  # type: ignore[misc]
            assert node.exit_code() == 3, node.text()[-2000:]
        said = await cluster.order("status", cluster.root, code=None)
        assert len(said.strip().splitlines()) == 1, said
        assert any(member.address in said for member in members), said
        await asyncio.gather(*(asyncio.to_thread(member.start) for member in members[:2]))
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in cluster.nodes))
        await work.progress()
        await cluster.settled(nodes=2)
        await work.stop()
        await work.judge()
