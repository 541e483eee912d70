"""A node that reaches etcd and clients, but not Pulsar: its appends wait, nothing moves, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.operate.cluster.links import Link
from tests.operate.cluster.processes import TTL_S, Cluster
from tests.operate.cluster.workload import Workload
from tests.servers.etcd import EtcdServer
from tests.servers.pulsar import PulsarServer
from tests.servers.pulsar_fixtures import make_namespace
from wal import open_wal


@pytest.mark.soak(
    "it starts a Pulsar whose broker has clients come through a link; tests/storage/pulsar/test_frozen.py stops the broker by default"
)
async def test_node_cut_off_from_pulsar_goes_on(own_etcd: EtcdServer, tmp_path: Path) -> None:
    clusters: list[Cluster] = []
    async with contextlib.AsyncExitStack() as opened:
        link = await opened.enter_async_context(Link(0, lambda: [pid for each in clusters for pid in each.processes()]))
        # A lookup returns the address that the broker advertises: that of the link, for all of a client's connections.
        listeners = {"advertisedListeners": f"internal:pulsar://{link.address}", "internalListenerName": "internal"}
        pulsar = PulsarServer(options=listeners)
        opened.push_async_callback(asyncio.to_thread, pulsar.close)
        link.port = int(pulsar.url.rpartition(":")[2])
        await asyncio.to_thread(pulsar.start)
        namespace = await asyncio.to_thread(make_namespace, pulsar.admin_url, None)
        cluster = Cluster(own_etcd.address, f"pulsar://{link.address}/{namespace}", pulsar.admin_url, "", tmp_path, name="cluster")
        opened.callback(cluster.close)
        clusters.append(cluster)
        await cluster.start(nodes=2)
        before = await cluster.settled()
        async with open_wal(cluster.root) as log:
            work = Workload(log)
            work.start()
            await work.progress()
            link.cut((await cluster.owner("p0")).pid)
            await asyncio.sleep(3 * TTL_S)
            assert (await cluster.settled())["pchannels"] == before["pchannels"]
            link.mend()
            await work.progress()
            await work.stop()
            await work.judge()
            assert not work.written.errors, work.written.errors[:5]
