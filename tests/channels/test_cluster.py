"""The record of a cluster, which its nodes find once its first leader has created everything that they need."""

from __future__ import annotations

import pytest

from wal.channels.cluster import FORMAT, ClusterRecord, create_cluster, load_created_cluster
from wal.channels.pchannels import PChannelMeta, create_pchannel, new_incarnation
from wal.storage.kv import MemoryKV


@pytest.mark.parametrize(("settings", "count"), [({}, 1), ({"pchannels": None}, 1), ({"pchannels": 3}, 3)])
async def test_cluster_is_created_with_its_last_pchannel(settings: dict[str, int], count: int) -> None:
    record = ClusterRecord("pulsar://host:6650/a/b", settings, 1 << 20, FORMAT)
    async with MemoryKV() as kv:
        assert await load_created_cluster(kv) is None
        assert await create_cluster(kv, record)
        for number in range(count):
            assert await load_created_cluster(kv) is None
            await create_pchannel(kv, PChannelMeta(f"p{number}", new_incarnation(), 0))
        created = await load_created_cluster(kv)
    assert created is not None
    assert created.log == record.log
