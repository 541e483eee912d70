"""A process that appends with idempotency keys until it is killed: `python -m tests.crash.keyed_child '<json of a KeyedPlan>'`.

Its workers append numbered messages, which are the same in every process: a process that begins at a number appends everything from there
on again, including messages that the previous process had written. It prints each result on its standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from typing import Any, Final

import msgspec

from wal import AppendResult, Message, MessageType, ProducerKey, WALAccesser, open_wal
from wal.node.local.log import LocalLog
from wal.write.checkpoint_ledger import CheckpointRule

WORKERS: Final = 5
PIPELINED: Final = 6
"""The number of appends that a worker with a producer's key has in flight."""
CHECKPOINT_EVENTS: Final = 100
TIME_TICK_INTERVAL_S: Final = 0.02
"""The interval at which the process checks whether a checkpoint is due."""


class KeyedPlan(msgspec.Struct, frozen=True):
    """`first`: the number at which each worker begins."""

    directory: str
    first: list[int]
    pchannels: int


class Done(msgspec.Struct, frozen=True):
    """The result of the append `number` of a worker."""

    worker: int
    number: int
    message_id: str | None
    time_tick: int | None
    last_confirmed: str | None
    txn: tuple[int, float] | None
    duplicate: bool


def payloads_of(worker: int, number: int) -> list[bytes]:
    """Returns the messages of one event."""
    return [b"%d %d %d" % (worker, number, body) for body in range(1 if worker < 3 else 3)]


async def append(log: WALAccesser, worker: int, number: int) -> AppendResult[Any, Any]:
    """Workers 0 to 2 append messages (0 also exclusive ones and ones with a barrier), 3 and 4 transactions, 4 over several vchannels.

    About half of the transactions are appended in one call, and a retry in another process may use the other way.
    """
    payloads = payloads_of(worker, number)
    if worker == 0:
        kind = MessageType.SCHEMA_CHANGE if number % 7 == 0 else MessageType.INSERT
        barrier = await log.allocate_time_tick() if number % 5 == 0 else 0
        message = Message("keyed", payloads[0], message_type=kind)
        return await log.raw_append(message, barrier_time_tick=barrier, idempotency_key=f"0-{number}")
    if worker == 1:
        return await log.raw_append(Message("other", payloads[0], properties={"n": str(number)}), idempotency_key=f"1-{number}")
    vchannels, key = (["txns"], f"3-{number}") if worker == 3 else (["txns", "wide"], ProducerKey("wide", number))
    messages = [Message(vchannels[at % len(vchannels)], payload) for at, payload in enumerate(payloads)]
    if (number + os.getpid()) % 2:
        return await log.append_txn(vchannels, messages, idempotency_key=key)
    txn = await log.txn(vchannels=vchannels, idempotency_key=key)
    await txn.append_many(messages)
    return await txn.commit()


async def work(log: WALAccesser, worker: int, number: int) -> None:
    """Appends from this number on, for ever."""
    under_way: deque[tuple[int, asyncio.Future[AppendResult[Any, Any]]]] = deque()
    while True:
        if worker == 2:
            while len(under_way) < PIPELINED:
                message = Message("produced", payloads_of(worker, number)[0])
                under_way.append((number, log.append_nowait(message, idempotency_key=ProducerKey("p", number))))
                number += 1
            done, future = under_way.popleft()
            tell(worker, done, await future)
        else:
            tell(worker, number, await append(log, worker, number))
            number += 1


def tell(worker: int, number: int, result: AppendResult) -> None:
    context = result.txn_context
    done = Done(
        worker,
        number,
        None if result.message_id is None else str(result.message_id),
        result.time_tick,
        None if result.last_confirmed is None else str(result.last_confirmed),
        None if context is None else (context.txn_id, context.keepalive),
        result.duplicate,
    )
    os.write(1, msgspec.json.encode(done) + b"\n")  # whole, or this process is gone


async def run(plan: KeyedPlan) -> None:
    LocalLog.checkpoint_rule = CheckpointRule(keyed_events=CHECKPOINT_EVENTS)
    log = await open_wal(plan.directory, pchannels=plan.pchannels, segment_bytes=1 << 20, time_tick_interval_s=TIME_TICK_INTERVAL_S)
    names = {info.name for info in await log.vchannels()}
    for name in ("txns", "wide"):
        if name not in names:
            await log.create_vchannel(name, pchannel="p0")
    async with asyncio.TaskGroup() as group:
        for worker in range(WORKERS):
            group.create_task(work(log, worker, plan.first[worker]))


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=KeyedPlan)
    os.write(1, b"ready\n")
    if sys.stdin.readline() != "go\n":
        return
    asyncio.run(run(plan))


if __name__ == "__main__":
    main()
