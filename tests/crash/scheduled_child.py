"""A process that schedules messages until it is killed: `python -m tests.crash.scheduled_child '<json of a SchedulePlan>'`.

It prints each acknowledgement on its standard output: a scheduled message, and a cancelled one. A process repeats the newest
calls of the one before it with their keys, since their answers may be lost.
"""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from wal import WALAccesser, open_wal
from wal.node.local.log import LocalLog
from wal.write.checkpoint_ledger import CheckpointRule

WORKERS: Final = 8
CHECKPOINT_EVENTS: Final = 60
TIME_TICK_INTERVAL_S: Final = 0.02
VCHANNELS: Final = ("orders", "stock", "mails")
"""On two pchannels."""


class SchedulePlan(msgspec.Struct, frozen=True):
    """`first` is the number at which each worker begins, `seed` that of the times."""

    directory: str
    first: list[int]
    seed: int


class Scheduled(msgspec.Struct, frozen=True):
    """A message of a worker that is durable. `due_us` is its time since 1970, None if its key was known already."""

    worker: int
    number: int
    due_us: int | None


class Cancelled(msgspec.Struct, frozen=True):
    """A message whose cancellation is durable."""

    worker: int
    number: int


def key_of(worker: int, number: int) -> str:
    return f"{worker}-{number}"


def vchannel_of(worker: int) -> str:
    return VCHANNELS[worker % len(VCHANNELS)]


def say(report: Scheduled | Cancelled) -> None:
    sys.stdout.buffer.write(msgspec.json.encode([type(report).__name__, report]) + b"\n")
    sys.stdout.buffer.flush()


async def work(log: WALAccesser, worker: int, number: int, chance: random.Random) -> None:
    """Schedules from this number on, for ever, and cancels every fourth message, perhaps too late."""
    while True:
        name, key = vchannel_of(worker), key_of(worker, number)
        due = datetime.now(UTC) + timedelta(milliseconds=chance.choice((-10, 0, 5, 30, 100, 400)))
        result = await log.append(name, key.encode(), deliver_at=due, idempotency_key=key)
        due_us = None if result.duplicate else int(result.deliver_at.timestamp() * 1_000_000)
        say(Scheduled(worker, number, due_us))
        if number % 4 == 0 and await (await log.scheduled(name)).cancel(key):
            say(Cancelled(worker, number))
        number += 1


async def main(plan: SchedulePlan) -> None:
    LocalLog.checkpoint_rule = CheckpointRule(keyed_events=CHECKPOINT_EVENTS)
    async with open_wal(plan.directory, pchannels=2, time_tick_interval_s=TIME_TICK_INTERVAL_S) as log, asyncio.TaskGroup() as tasks:
        for worker, number in enumerate(plan.first):
            tasks.create_task(work(log, worker, number, random.Random(plan.seed * WORKERS + worker)))


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=SchedulePlan)))
