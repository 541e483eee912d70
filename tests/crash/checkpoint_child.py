"""A process that constantly appends keyed messages, truncates them and writes checkpoints, until it is killed.

    python -m tests.crash.checkpoint_child <directory> <first number>

It prints each result on its standard output: number, message id and time tick.
"""

from __future__ import annotations

import asyncio
import os
import sys

from wal import Message, ProducerKey, WALAccesser, open_wal
from wal.node.local.log import LocalLog
from wal.write.recovery import CheckpointRule

WRITERS = 4
PAYLOAD = bytes(20_000)
TRUNCATE_EVERY = 40


def key_of(number: int) -> str | ProducerKey:
    """Returns the key of an append; every fourth writer uses a producer's key."""
    writer, at = number % WRITERS, number // WRITERS
    return ProducerKey("p", at) if writer == 0 else f"{writer}-{at}"


async def write(log: WALAccesser, number: int) -> None:
    """Appends every WRITERS-th number from this one on, one after the other, each on the condition that the one before it is the last."""
    vchannel = f"v{number % WRITERS}"
    last = await log.last(vchannel)
    while True:
        result = await log.raw_append(Message(vchannel, PAYLOAD), idempotency_key=key_of(number), expected_last=last)
        assert result.message_id is not None
        last = result.message_id
        os.write(1, b"%d %s %d\n" % (number, str(result.message_id).encode(), result.time_tick or 0))
        if number % TRUNCATE_EVERY == 0:
            await log.truncate(up_to=result.message_id)
        number += WRITERS


async def run(directory: str, first: int) -> None:
    LocalLog.checkpoint_rule = CheckpointRule(keyed_events=12)
    log = await open_wal(directory, segment_bytes=1 << 20, time_tick_interval_s=0.01)
    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(write(log, first + writer))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
