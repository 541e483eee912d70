"""The process of `tests.broadcaster.served`: a server of a log whose crash points are counted, and which stands still at one of them.

A point is a save of the broadcaster or of a checkpoint, or a frame with events: it is durable, and nobody has an answer. Each is counted
on the loop, which stands still at the chosen one until the parent kills the process; threads may go on until then, as in any crash.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from broadcaster import BroadcasterLimits
from wal import Settings
from wal.channels.pchannels import CHECKPOINT_PREFIX
from wal.coordinator import coordinator
from wal.kv import SqliteKV
from wal.local.log import LocalLog
from wal.local.server import LogServer
from wal.location import parse_location
from wal.node.access import Access
from wal.storage.metadata import BROADCAST_ROOT
from wal.write.pipeline import FramePipeline

_SAVES = (f"{BROADCAST_ROOT}/", CHECKPOINT_PREFIX)
_PAUSES_MAX = 6


class Points:
    """Counts the points, once `counting`. At number `at` it says so and stands still. With `seed` saves begin in another order."""

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
        commit, settled = SqliteKV._commit, FramePipeline._settled

        async def committed(kv: SqliteKV, batch: Any) -> str | None:
            if self._chance is not None:
                for _ in range(self._chance.randrange(_PAUSES_MAX)):
                    await asyncio.sleep(0)
            done = await commit(kv, batch)
            if any(key.startswith(_SAVES) for key in (*batch.saves, *batch.removals)):
                self.passed()
            return done

        def durable(pipeline: FramePipeline, position: int, error: BaseException | None) -> None:
            if error is None and pipeline.fault is None and pipeline._flights[0].indices:
                self.passed()
            settled(pipeline, position, error)

        SqliteKV._commit = committed  # type: ignore[assignment, method-assign]
        FramePipeline._settled = durable  # type: ignore[assignment, method-assign]


async def serve(line: Connection, directory: str, listen: str, at: int | None, seed: int | None, counting: bool) -> None:
    """Serves the log until the parent says `close`."""
    points = Points(line, at, seed)
    points.watch()
    points.counting = counting
    # Done marks are removed as soon as no log lists their copies, so that a too early removal shows.
    coordinator.BroadcasterLimits = partial(BroadcasterLimits, tombstones_max=0)  # type: ignore[assignment, attr-defined]
    log = LocalLog(parse_location(directory), Settings(pchannels=3, segment_bytes=1 << 20))
    await log.open()
    node = await LogServer.start(log, Access(listen=listen))
    line.send(("listening", node.address))
    while (word := await asyncio.to_thread(line.recv))[0] != "close":
        match word:
            case ("count",):
                points.counting = True
                line.send(("counting",))
            case ("checkpoint", name):
                checkpointer = log.node.pchannels[name].checkpointer
                assert checkpointer is not None
                checkpointer.request()
                await checkpointer.make_room()
                line.send(("checkpointed", name))
            case ("records",):
                line.send(("records", await log.coordinator.kv.under(BROADCAST_ROOT).load_with_prefix("")))
    await node.close()
    await log.close()
    line.send(("closed", points.count))


def run(line: Connection, *args: Any) -> None:
    try:
        asyncio.run(serve(line, *args))
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the test is gone
