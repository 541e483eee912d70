"""A streaming node in the process of a test: its start, and a client on its loop, which continues elsewhere when its vchannels move."""

from __future__ import annotations

import asyncio

import pytest

from tests.operate.cluster.processes import TTL_S, Cluster
from tests.probes import start
from tests.processes import WAIT_TIMEOUT_S, eventually
from wal import Message, open_wal
from wal.channels.cluster import FORMAT, ClusterRecord, create_cluster
from wal.channels.pchannels import PChannelMeta, create_pchannel, new_incarnation
from wal.errors import NotLocalError
from wal.operate.processes.node import ClusterNode
from wal.serve.access import Access
from wal.settings import Settings
from wal.storage.kv import KVBase, MemoryKV


async def test_node_waits_for_every_pchannel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that started with some of the pchannels would take one of them for the place of a vchannel that belongs on a later one."""

    class CountingKV(MemoryKV):
        looks = 0

        async def find(self, key: str) -> str | None:
            self.looks += 1
            return await super().find(key)

    async def opened(_: object) -> KVBase:
        return kv

    async def still_waits() -> bool:
        """Returns whether the node still waits after it has looked twice."""
        looks = kv.looks
        await eventually(lambda: joining.done() or kv.looks > looks + 1)
        return not joining.done()

    kv = CountingKV()
    monkeypatch.setattr("wal.operate.processes.node.open_root", opened)
    record = ClusterRecord("pulsar://host:6650/a/b", {"pchannels": 2}, 1 << 20, FORMAT)
    joining = start(ClusterNode("etcd://host:2379/root", Settings(), Access(listen="127.0.0.1:0"))._joined())
    await create_cluster(kv, record)
    assert await still_waits()
    await create_pchannel(kv, PChannelMeta("p0", new_incarnation(), 0))
    assert await still_waits()
    await create_pchannel(kv, PChannelMeta("p1", new_incarnation(), 0))
    joined, settings = await joining
    assert joined.log == record.log
    assert settings.pchannels == 2


async def test_client_beside_a_node_on_one_loop(cluster: Cluster) -> None:
    async def calls_of_one_process(cluster: Cluster) -> None:
        await cluster.start(coordinators=1, nodes=1)
        settings = Settings().replace(
            pulsar_admin_url=cluster.environment["WAL_PULSAR_ADMIN_URL"], pulsar_token=cluster.environment.get("WAL_PULSAR_TOKEN")
        )
        node = ClusterNode(cluster.root, settings, Access(listen="127.0.0.1:0"), ttl_s=TTL_S)
        closing: asyncio.Future[None] | None = None
        await node.open()
        try:
            await cluster.order("drain", cluster.root, cluster.nodes[0].address)
            await eventually(lambda: len(node.node.pchannels) == cluster.pchannels)
            await cluster.order("undrain", cluster.root, cluster.nodes[0].address)
            async with open_wal(cluster.root) as log:
                async with log.read("orders") as scanner:
                    written = await log.raw_append(Message("orders", b"plain"))
                    async with log.txn("orders") as txn:
                        await txn.append(b"body")
                    assert (await anext(scanner)).message_id == written.message_id
                    assert (await anext(scanner)).message_id == txn.result.message_id
                    assert await log.get_latest_mvcc_timestamp_if_local("orders") >= written.time_tick
                    reading = asyncio.ensure_future(anext(scanner))  # an idle pchannel's tick may be ahead of its messages
                    await scanner.wait_for(await log.latest_tick("orders"))
                    reading.cancel()
                # The read continues on a node of another process.
                closing = asyncio.ensure_future(node.close())
                await asyncio.shield(closing)
                again = await log.raw_append(Message("orders", b"elsewhere"))
                assert again.time_tick > written.time_tick
                with pytest.raises(NotLocalError, match=cluster.nodes[0].address):
                    await log.get_latest_mvcc_timestamp_if_local("orders")
                assert await log.latest_tick("orders") >= again.time_tick
        finally:
            if closing is None:
                await node.close()

    async with asyncio.timeout(3 * WAIT_TIMEOUT_S):
        await calls_of_one_process(cluster)
