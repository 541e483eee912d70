"""The process of `tests.broadcaster.served`: a server of a log, or a whole cluster, whose crash points are counted, and which stops at one
of them.

A point is a save of the broadcaster or of a checkpoint, or a frame with events: it is durable, and its caller has no answer. Each is
counted on the loop, which blocks at the chosen one until the parent kills the process; threads may continue until then, as in any crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import AsyncIterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from broadcaster import BroadcasterLimits
from tests.processes import eventually
from wal import Settings
from wal.channels.metadata import BROADCAST_ROOT
from wal.channels.pchannels import CHECKPOINT_PREFIX
from wal.coordinator import coordinator, copies
from wal.location import parse_location
from wal.node.local.log import LocalLog
from wal.node.node import StreamingNode
from wal.operate.processes.coordinator import ClusterCoordinator
from wal.operate.processes.node import ClusterNode
from wal.operate.processes.opening import open_root
from wal.operate.processes.standalone import LogServer
from wal.serve.access import Access
from wal.storage.kv import KVBase, SqliteKV
from wal.storage.kv.etcd import EtcdKV
from wal.storage.kv.etcd.kv import LeaderFence
from wal.write.pipeline import FramePipeline

_SAVES = (f"{BROADCAST_ROOT}/", CHECKPOINT_PREFIX)
_PAUSES_MAX = 6


class Points:
    """Counts the points, once `counting`. At number `at` it reports to the parent and blocks. With `seed` saves begin in another order."""

    def __init__(self, line: Connection, at: int | None, seed: int | None) -> None:
        self.counting = False
        self.count = 0
        self._line = line
        self._at = at
        self._chance = None if seed is None else random.Random(seed)

    def passed(self) -> None:
        if self.counting:
            self.count += 1
            if self.count == self._at:
                self._line.send(("cut", self.count))
                while True:
                    time.sleep(60)

    def watch(self) -> None:
        commit, commit_as, settled = SqliteKV._commit, EtcdKV.commit_as, FramePipeline._settled

        async def save(saving: Any, batch: Any) -> str | None:
            if self._chance is not None:
                for _ in range(self._chance.randrange(_PAUSES_MAX)):
                    await asyncio.sleep(0)
            done: str | None = await saving()
            if any(saved in key for key in (*batch.saves, *batch.removals) for saved in _SAVES):
                self.passed()
            return done

        async def committed(kv: SqliteKV, batch: Any) -> str | None:
            return await save(lambda: commit(kv, batch), batch)

        async def committed_as(kv: EtcdKV, leader: LeaderFence | None, batch: Any) -> str | None:
            return await save(lambda: commit_as(kv, leader, batch), batch)

        def durable(pipeline: FramePipeline, position: int, error: BaseException | None) -> None:
            if error is None and pipeline.fault is None and pipeline.flights[0].indices:
                self.passed()
            settled(pipeline, position, error)

        SqliteKV._commit = committed  # type: ignore[assignment, method-assign]
        EtcdKV.commit_as = committed_as  # type: ignore[assignment, method-assign]
        FramePipeline._settled = durable  # type: ignore[assignment, method-assign]


class Journal(msgspec.Struct):
    """A log in this directory, and its server."""

    directory: str

    @contextlib.asynccontextmanager
    async def served(self, listen: str) -> AsyncIterator[tuple[str, list[StreamingNode], KVBase]]:
        """Yields the server's address, the node, and the metadata."""
        log = LocalLog(parse_location(self.directory), Settings(pchannels=3, segment_bytes=1 << 20))
        await log.open()
        server = await LogServer.start(log, Access(listen=listen))
        yield server.address, [log.node], log.coordinator.kv
        await server.close()
        await log.close()


class Cluster(msgspec.Struct):
    """A coordinator and two nodes over this root and this log on Pulsar."""

    root: str
    log: str
    settings: dict[str, Any]

    @contextlib.asynccontextmanager
    async def served(self, listen: str) -> AsyncIterator[tuple[str, list[StreamingNode], KVBase]]:
        """Yields the coordinator's address, the nodes, and the metadata, once every pchannel is assigned."""
        settings = Settings(pchannels=3).replace(**self.settings)
        async with contextlib.AsyncExitStack() as opened, await open_root(self.root) as kv:
            leader = ClusterCoordinator(self.root, settings, Access(listen=listen), log=self.log, expected_nodes=2, ttl_s=TTL_S)
            await leader.open()
            opened.push_async_callback(leader.close)
            nodes = [ClusterNode(self.root, settings, Access(listen="127.0.0.1:0"), ttl_s=TTL_S) for _ in range(2)]
            for node in nodes:
                await node.open()
                opened.push_async_callback(node.close)
            await eventually(lambda: sum(len(node.node.pchannels) for node in nodes) == 3)
            yield leader.server.advertised, [node.node for node in nodes], kv


TTL_S = 5.0
"""The lifetime of the sessions of a cluster. The parent revokes those of a process that it has killed."""


async def serve(line: Connection, place: Journal | Cluster, listen: str, at: int | None, seed: int | None, counting: bool) -> None:
    """Serves the log until the parent sends `close`."""
    points = Points(line, at, seed)
    points.watch()
    points.counting = counting
    # Done marks are removed as soon as no log lists their copies, so that a too early removal shows.
    coordinator.BroadcasterLimits = partial(BroadcasterLimits, tombstones_max=0)  # type: ignore[assignment, attr-defined]
    copies.FORGET_S = 0.05  # type: ignore[misc]
    async with place.served(listen) as (address, nodes, kv):
        line.send(("listening", address))
        await answer(line, points, nodes, kv)
    line.send(("closed", points.count))


async def answer(line: Connection, points: Points, nodes: list[StreamingNode], kv: KVBase) -> None:
    """Carries out the commands of the parent, until `close`."""
    while (word := await asyncio.to_thread(line.recv))[0] != "close":
        match word:
            case ("count",):
                points.counting = True
                line.send(("counting",))
            case ("checkpoint", name):
                checkpointer = next(node.pchannels[name] for node in nodes if name in node.pchannels).checkpointer
                assert checkpointer is not None
                checkpointer.request()
                await checkpointer.make_room()
                line.send(("checkpointed", name))
            case ("records",):
                line.send(("records", await kv.under(BROADCAST_ROOT).load_with_prefix("")))


def run(line: Connection, *args: Any) -> None:
    try:
        asyncio.run(serve(line, *args))
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the test is gone
