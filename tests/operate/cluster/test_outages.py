"""A cluster during an outage of etcd, the death of a leader together with a node, and wrong operation."""

from __future__ import annotations

import asyncio
import secrets
import shutil

import pytest

from tests.operate.cluster.processes import Cluster, Member
from tests.operate.cluster.workload import Workload
from tests.processes import eventually
from tests.servers.etcd import EtcdServer
from wal import BroadcastMessage, Message, open_wal
from wal.errors import LockedError
from wal.node.session import TTL_S


async def test_etcd_that_restarts_moves_nothing(cluster_over: Cluster, own_etcd: EtcdServer) -> None:
    """Sessions have their default lifetime."""
    cluster = cluster_over
    cluster.ttl_s = TTL_S
    await cluster.start()
    before = await cluster.settled()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        await asyncio.to_thread(own_etcd.restart)
        await work.progress()
        await work.stop()
        await work.judge()
        assert not work.written.errors
    assert (await cluster.settled())["pchannels"] == before["pchannels"]


@pytest.mark.soak("etcd is away for two seconds, again and again; test_etcd_that_restarts_moves_nothing has one outage by default")
@pytest.mark.parametrize("way", ["killed", "frozen"])
async def test_short_outage_of_etcd_moves_nothing(way: str, cluster_over: Cluster, own_etcd: EtcdServer, soak: int) -> None:
    """No call gets an error. Sessions have their default lifetime."""
    cluster = cluster_over
    cluster.ttl_s = TTL_S
    await cluster.start()
    before = await cluster.settled()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        for _ in range(soak):
            await work.progress()
            await asyncio.to_thread(own_etcd.kill if way == "killed" else own_etcd.stop)
            await asyncio.sleep(2.0)
            await asyncio.to_thread(own_etcd.start if way == "killed" else own_etcd.cont)
        await work.progress()
        await work.stop()
        await work.judge()
        assert not work.written.errors
    assert (await cluster.settled())["pchannels"] == before["pchannels"]


async def test_leader_and_node_that_die_together(cluster: Cluster) -> None:
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        leader, node = await cluster.leader(), await cluster.owner("p0")
        await asyncio.gather(asyncio.to_thread(leader.kill), asyncio.to_thread(node.kill))
        await work.progress()
        await cluster.settled(nodes=2)
        await work.stop()
        await work.judge()


async def test_all_that_die_come_back(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=2)
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        await asyncio.gather(*(asyncio.to_thread(member.kill) for member in cluster.members))
        await asyncio.gather(*(asyncio.to_thread(member.start) for member in cluster.members))
        await work.progress()
        await work.stop()
        await work.judge()


async def test_drained_node_stays_empty_under_the_next_leader(cluster: Cluster) -> None:
    await cluster.start(nodes=2)
    node = await cluster.owner("p0")
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        await cluster.order("drain", cluster.root, node.address)

        async def is_empty() -> bool:
            status = await cluster.settled()
            return all(each["address"] != node.address for each in status["pchannels"])

        await eventually(is_empty)
        leader = await cluster.leader()
        await asyncio.to_thread(leader.kill)
        assert await cluster.leader() is not leader
        await work.progress()
        status = await cluster.settled()
        assert [each["drains"] for each in status["nodes"] if each["address"] == node.address] == [True]
        assert await is_empty()
        await cluster.order("undrain", cluster.root, node.address)
        assert not any(each["drains"] for each in (await cluster.status())["nodes"])
        await work.stop()
        await work.judge()
        assert not work.written.errors


async def test_cluster_log_refuses_embedded_writers(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=1)
    settings = {"kv": cluster.root, "pulsar_admin_url": cluster.environment["WAL_PULSAR_ADMIN_URL"]}
    if "WAL_PULSAR_TOKEN" in cluster.environment:
        settings["pulsar_token"] = cluster.environment["WAL_PULSAR_TOKEN"]
    with pytest.raises(LockedError, match=cluster.coordinators[0].address):
        await open_wal(cluster.log, **settings)  # type: ignore[arg-type]


async def test_log_of_an_embedded_writer_becomes_a_cluster(cluster: Cluster) -> None:
    settings = {"kv": cluster.root, "pulsar_admin_url": cluster.environment["WAL_PULSAR_ADMIN_URL"]}
    if "WAL_PULSAR_TOKEN" in cluster.environment:
        settings["pulsar_token"] = cluster.environment["WAL_PULSAR_TOKEN"]
    async with open_wal(cluster.log, pchannels=4, **settings) as log:  # type: ignore[arg-type]
        written = [await log.raw_append(Message("orders", b"%d" % number), idempotency_key=str(number)) for number in range(10)]
    await cluster.start(coordinators=1, nodes=2)
    async with open_wal(cluster.root) as log:
        again = await log.raw_append(Message("orders", b"3"), idempotency_key="3")
        assert again.duplicate
        assert again.message_id == written[3].message_id
        newest = await log.raw_append(Message("orders", b"10"))
        assert newest.time_tick > written[-1].time_tick
        async with log.read("orders") as scanner:
            assert [(await anext(scanner)).message_id for _ in range(11)] == [*(each.message_id for each in written), newest.message_id]


async def test_second_cluster_at_a_root_is_refused(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=1)
    other = Member(
        "other", ("coordinator", cluster.root, "--log", f"{cluster.log}-{secrets.token_hex(2)}"), cluster.folder, cluster.environment
    )
    with pytest.raises(RuntimeError, match=r"serves pulsar://.*name another root"):
        await asyncio.to_thread(other.start)
    contradicting = Member("contradicting", ("coordinator", cluster.root, "--pchannels", "7"), cluster.folder, cluster.environment)
    with pytest.raises(RuntimeError, match="pchannels=7 contradicts the cluster"):
        await asyncio.to_thread(contradicting.start)


async def test_coordinator_without_a_log_needs_its_flag(cluster: Cluster) -> None:
    lonely = cluster.coordinator(0, 1, log=False)
    with pytest.raises(RuntimeError, match="--log pulsar://"):
        await asyncio.to_thread(lonely.start)


async def test_node_that_nobody_reaches_gets_nothing(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=2)
    lost = Member("lost", ("node", cluster.root, "--advertise", "127.0.0.1:1"), cluster.folder, cluster.environment)
    cluster.nodes.append(lost)
    await asyncio.to_thread(lost.start)

    async def is_told() -> bool:
        return any("has not answered" in each["trouble"] for each in (await cluster.status())["nodes"])

    await eventually(is_told)
    assert all(each["address"] != "127.0.0.1:1" for each in (await cluster.status())["pchannels"])


async def test_more_nodes_than_pchannels(cluster: Cluster) -> None:
    cluster.pchannels = 2
    await cluster.start(coordinators=1, nodes=3)
    assert sorted(each["pchannels"] for each in (await cluster.status())["nodes"]) == [0, 1, 1]


@pytest.mark.soak("the simulation restores an older copy by default, also under a leader that goes on")
async def test_etcd_restored_from_a_copy_loses_nothing(cluster_over: Cluster, own_etcd: EtcdServer) -> None:
    """The revisions of etcd, the terms and the assignments go back. Processes whose leases the copy lacks end, and are started again."""
    cluster = cluster_over
    copy = cluster.folder / "copy"
    cluster.ttl_s = 6.0
    await cluster.start(coordinators=1, nodes=2)
    async with open_wal(cluster.root) as log, cluster.supervised():
        work = Workload(log)
        work.start()
        await work.progress()
        await asyncio.to_thread(own_etcd.kill)
        await asyncio.to_thread(shutil.copytree, own_etcd.data_dir, copy)
        await asyncio.to_thread(own_etcd.start)
        await work.progress()
        broadcasts = [BroadcastMessage(vchannels=["later0", "later1"], payload=b"%d" % number, needs_ack=False) for number in range(2)]
        await log.broadcast().append(broadcasts[0])
        node = await cluster.owner("p0")
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await work.progress()
        await cluster.settled(nodes=2)
        await asyncio.to_thread(own_etcd.kill)
        await asyncio.to_thread(shutil.rmtree, own_etcd.data_dir)
        await asyncio.to_thread(shutil.copytree, copy, own_etcd.data_dir)
        await asyncio.to_thread(own_etcd.start)
        await work.progress()
        await cluster.settled(nodes=2)
        await work.progress()
        # The copy lacks these vchannels, and the leader leads in the copy too: it has to detect that they are missing.
        assert set((await log.broadcast().append(broadcasts[1])).append_results) == {"later0", "later1"}
        await work.stop()
        await work.judge()
