"""The broadcaster of a cluster, for the crash points: a `ServedWorld` on etcd and Pulsar. A life is one process with the whole cluster.

The sessions of a killed process end in time. The test revokes their leases instead of waiting, since the process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.broadcaster.served import Served, ServedWorld
from tests.broadcaster.served_child import Cluster
from tests.broadcaster.world import InLogs, count_log
from tests.processes import eventually
from tests.storage.pulsar.conftest import admin, location_of, new_namespace
from wal import Settings
from wal.channels.cluster import LEADER, NODES
from wal.channels.metadata import BROADCAST_ROOT, open_metadata
from wal.location import parse_location
from wal.read.pulsar_source import ReadOnlyPulsarSource
from wal.storage.kv.etcd import EtcdKV
from wal.storage.pulsar.address import PulsarAddress


class ClusteredWorld(ServedWorld):
    """The state in etcd and in a namespace of its own on Pulsar, and the client."""

    def __init__(self, server: PulsarAddress, etcd: str, vchannels: Mapping[str, str]) -> None:
        super().__init__(Path(), vchannels)
        self._pulsar = new_namespace(server)
        root = f"etcd://{etcd}/test-{secrets.token_hex(6)}"
        log, settings = location_of(self._pulsar, Path())
        self._settings: dict[str, Any] = {**settings, "kv": root}
        self.place = Cluster(root, log, self._settings)

    async def load_with_prefix(self, _prefix: str) -> tuple[list[str], list[str]]:
        async with await open_metadata(self._settings["kv"]) as kv:
            return await kv.under(BROADCAST_ROOT).load_with_prefix("")

    async def killed(self) -> None:
        """Revokes the sessions of the killed process, and waits until Pulsar has written what it had received from it."""
        async with await open_metadata(self._settings["kv"]) as kv:
            assert isinstance(kv, EtcdKV)
            for prefix in (NODES, LEADER):
                keys, _ = await kv.load_with_prefix(prefix)
                for key in keys:
                    await kv.revoke(int(key.rpartition("/")[2], 16))
        for pchannel in self.pchannels:
            await eventually(lambda pchannel=pchannel: asyncio.to_thread(self._is_quiet, pchannel))  # type: ignore[misc]

    def in_logs(self) -> InLogs:
        """Returns the copies in the frames themselves."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._read_topics).result()

    def _read_topics(self) -> InLogs:
        found = InLogs()
        location = parse_location(self.place.log if isinstance(self.place, Cluster) else "")
        assert location.pulsar is not None
        source = ReadOnlyPulsarSource(location.pulsar, Settings().replace(**self._settings))
        source.open()
        with contextlib.closing(source):
            for pchannel in self.pchannels:
                count_log(source.open_log(pchannel), found)
        return found

    def _is_quiet(self, pchannel: str) -> bool:
        """Returns whether the topic has no producer, and every received message was written."""
        path = self._pulsar.topic(pchannel).replace("://", "/")
        publishers = json.loads(admin(self._pulsar, "GET", f"{path}/stats"))["publishers"]
        return not publishers and json.loads(admin(self._pulsar, "GET", f"{path}/internalStats"))["pendingAddEntriesCount"] == 0


class Clustered(Served):
    """The location: clusters on this Pulsar and this etcd."""

    together = 2

    def __init__(self, server: PulsarAddress, etcd: str, *, rounds_max: int) -> None:
        super().__init__(Path(), rounds_max=rounds_max)
        self._server = server
        self._etcd = etcd

    @contextlib.asynccontextmanager
    async def world(self, vchannels: Mapping[str, str]) -> AsyncIterator[ServedWorld]:
        world = await asyncio.to_thread(ClusteredWorld, self._server, self._etcd, vchannels)
        try:
            yield world
        finally:
            await world.close()
            self.unknown += world.unknown
            self.sent_again += world.sent_again
