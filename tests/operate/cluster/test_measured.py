"""The metrics of a coordinator and a node of a real cluster."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from tests.operate.metrics.test_collector import samples, values
from tests.processes import eventually
from tests.storage.pulsar.conftest import location_of, new_namespace, server_at
from wal import Message, Settings, open_wal
from wal.operate.metrics import Collector
from wal.operate.metrics.snapshot import SnapshotSource
from wal.operate.processes.coordinator import ClusterCoordinator
from wal.operate.processes.node import ClusterNode
from wal.serve.access import Access


@pytest.fixture
async def processes(
    blockbuster: BlockBuster, pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, etcd_address: str
) -> AsyncIterator[tuple[ClusterCoordinator, ClusterNode]]:
    blockbuster.deactivate()  # two processes of a cluster share one loop here
    root = f"etcd://{etcd_address}/test-{secrets.token_hex(6)}"
    location, given = location_of(new_namespace(server_at(pulsar_host, pulsar_admin_host, pulsar_token)), Path())
    settings, access = Settings().replace(**{**given, "kv": root, "pchannels": 2}), Access(listen="127.0.0.1:0")
    coordinator = ClusterCoordinator(root, settings, access, log=location, expected_nodes=1, ttl_s=5.0)
    await coordinator.open()
    node = ClusterNode(root, settings, access, ttl_s=5.0)
    await node.open()
    yield coordinator, node
    await node.close()
    await coordinator.close()


async def test_cluster_counts_nodes_pchannels_and_appends(processes: tuple[ClusterCoordinator, ClusterNode]) -> None:
    async def scraped(source: SnapshotSource) -> str:
        collector = Collector.of(source)
        text = (await collector.text())[0].decode()
        collector.close()
        return text

    coordinator, node = processes

    async def assigned() -> bool:
        counts = coordinator.statistics()
        return counts.leads and counts.nodes["healthy"] == 1 and counts.pchannels["assigned"] == sum(counts.pchannels.values()) > 0

    await eventually(assigned)
    async with open_wal(f"wal://{coordinator.server.address}") as log:
        await log.raw_append(Message("orders", b"x"))
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            async for _ in scanner:
                pass
            await scanner.save()
    leader = samples(await scraped(coordinator.measured()))
    assert leader["wal_coordinator_leads", ()] == 1
    assert leader["wal_coordinator_nodes", (("state", "healthy"),)] == 1
    served = await scraped(node.measured())
    assert sum(values(served, "wal_events_total")) >= 1
    assert samples(served)["wal_cursor_lag_bytes", (("cursor", "billing"),)] >= 0
