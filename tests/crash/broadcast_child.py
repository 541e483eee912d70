"""A process that broadcasts, acknowledges and aborts until it is killed: by its parent at any time, or by itself at a persist point.

    python -m tests.crash.broadcast_child load <directory> <seed>
    python -m tests.crash.broadcast_child point <directory> <number>

It reports everything that is durable on its standard output: `appended <id>`, `acked <id> <vchannel>`, `aborted <id>`, `points <count>`.
There is a persist point before and after each operation of the metadata, and before and after each frame, before any caller gets its
result.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from typing import Any

from tests.probes import local
from wal import BroadcastMessage, ResourceKey, WALAccesser, open_wal
from wal.errors import InvalidArgumentError, ResourceAcquiredError, UnrecoverableError
from wal.storage.kv import SqliteKV
from wal.write.pipeline import FramePipeline

PCHANNELS = 2
NAMES = [f"v{number}" for number in range(8)]
KEYS = [ResourceKey("collection", str(number)) for number in range(4)]
CALLERS = 6


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Points:
    """Counts persist points, and kills the process at one."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def passed(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        commit, hand_over, settled = SqliteKV._commit, FramePipeline._hand_over, FramePipeline._settled

        async def committed(kv: SqliteKV, batch: Any) -> str | None:
            self.passed()
            done = await commit(kv, batch)
            self.passed()
            return done

        def handed_over(pipeline: FramePipeline, *args: Any, **more: Any) -> None:
            self.passed()
            hand_over(pipeline, *args, **more)

        def durable(pipeline: FramePipeline, position: int, error: BaseException | None) -> None:
            self.passed()
            settled(pipeline, position, error)

        SqliteKV._commit = committed  # type: ignore[assignment, method-assign]
        FramePipeline._hand_over = handed_over  # type: ignore[assignment, method-assign]
        FramePipeline._settled = durable  # type: ignore[assignment, method-assign]


async def script(log: WALAccesser) -> None:
    """Broadcasts over several pchannels and over one, acknowledges and aborts, with a checkpoint in between."""
    broadcast = log.broadcast()
    one_pchannel = [info.name for info in await log.vchannels() if info.pchannel == "p0"]
    for round_number, names in enumerate((NAMES, one_pchannel, NAMES[:3], one_pchannel)):
        message = BroadcastMessage(vchannels=names, payload=b"%d" % round_number, resource_keys=[KEYS[0]])
        result = await broadcast.append(message)
        say("appended", result.broadcast_id)
        for name in names[: 2 if round_number > 1 else None]:
            await broadcast.ack(result.broadcast_id, name)
            say("acked", result.broadcast_id, name)
        if round_number > 1:
            await broadcast.abort(result.broadcast_id, "no more of it")
            say("aborted", result.broadcast_id)
        for pchannel in local(log).node.pchannels.values():
            assert pchannel.checkpointer is not None
            pchannel.checkpointer.request()
            await pchannel.checkpointer.make_room()
    left = BroadcastMessage(vchannels=NAMES, payload=b"left", resource_keys=[KEYS[1]])
    say("appended", (await broadcast.append(left)).broadcast_id)


async def caller(log: WALAccesser, chance: random.Random) -> None:
    broadcast = log.broadcast()
    while True:
        names = chance.sample(NAMES, chance.randint(1, len(NAMES)))
        key = ResourceKey("collection", str(chance.randrange(len(KEYS))), shared=chance.random() < 0.3)
        message = BroadcastMessage(vchannels=names, payload=bytes(200), resource_keys=[key])
        try:
            result = await broadcast.append(message, wait=chance.random() < 0.7)
        except ResourceAcquiredError:
            await asyncio.sleep(0)
            continue
        except UnrecoverableError:
            continue  # another caller aborted it before all its copies were in
        say("appended", result.broadcast_id)
        if chance.random() < 0.1:
            try:
                await broadcast.abort(result.broadcast_id, "changed my mind")
            except InvalidArgumentError:
                continue  # its consumers were faster
            say("aborted", result.broadcast_id)


async def consumer(log: WALAccesser, name: str) -> None:
    async with log.read(name) as scanner:
        async for message in scanner:
            if message.broadcast is not None:
                await log.broadcast().ack(message)
                say("acked", message.broadcast.broadcast_id, name)


async def run(mode: str, directory: str, number: int) -> None:
    if mode == "point":
        points = Points(number)
        points.watch()
        async with open_wal(directory, segment_bytes=1 << 20) as log:
            await script(log)
        say("points", points.count)
        return
    chance = random.Random(number)
    log = await open_wal(directory, segment_bytes=1 << 20)
    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(consumer(log, name))
        for _ in range(CALLERS):
            group.create_task(caller(log, random.Random(chance.random())))
        while True:
            await asyncio.sleep(0.05)
            for pchannel in local(log).node.pchannels.values():
                assert pchannel.checkpointer is not None
                pchannel.checkpointer.request()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
