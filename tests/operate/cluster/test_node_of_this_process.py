"""A client in the process of a streaming node, on its loop: it uses the local vchannels, and continues elsewhere when they move."""

from __future__ import annotations

import asyncio

import pytest

from tests.operate.cluster.processes import TTL_S, Cluster
from tests.processes import WAIT_TIMEOUT_S, eventually
from wal import Message, open_wal
from wal.errors import NotLocalError
from wal.operate.processes.node import ClusterNode
from wal.serve.access import Access
from wal.settings import Settings


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
