"""The histogram of a consumer's handler calls: each call once, in the bucket of its time, whatever way the handler runs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from wal import Delivery, WALAccesser

SLOW_S = 0.03


async def suspend(delivery: Delivery) -> None:
    await asyncio.sleep(SLOW_S if delivery.value == b"slow" else 0)


async def compute(delivery: Delivery) -> None:
    until_s = time.perf_counter() + SLOW_S
    while delivery.value == b"slow" and time.perf_counter() < until_s:
        pass


def block(delivery: Delivery) -> None:
    if delivery.value == b"slow":
        time.sleep(SLOW_S)


async def fail(delivery: Delivery) -> None:
    await suspend(delivery)
    if delivery.attempt == 1:
        raise ValueError("once")


@pytest.mark.parametrize(
    ("handler", "options", "calls"),
    [
        (suspend, {}, 68),
        (compute, {}, 68),
        (block, {}, 68),
        (suspend, {"concurrency": 4, "order": "none"}, 68),
        (suspend, {"timeout_s": 60}, 68),
        (fail, {"backoff_s": (0.0, 0.0)}, 136),
    ],
)
async def test_calls_are_counted_by_their_time(log: WALAccesser, handler: Any, options: dict[str, Any], calls: int) -> None:
    # the first page is measured together: from its slow message on, the calls of further ones are measured one by one
    await log.append_txn("jobs", [b"fast"] * 60 + [b"slow"] + [b"fast"] * 3 + [b"slow"] * 3 + [b"fast"])
    async with log.consume("jobs", handler, cursor="worker", **options) as consumer:
        await consumer.caught_up()
        times = consumer.statistics().handler_s
    assert sum(times.counts) == calls
    below = sum(count for bound, count in zip(times.bounds, times.counts, strict=False) if bound < SLOW_S)
    assert calls - below >= calls // 17, "the slow calls"
    assert times.total >= SLOW_S * calls // 17


async def test_batch_is_one_call(log: WALAccesser) -> None:
    async def handle(deliveries: list[Delivery]) -> None:
        await asyncio.sleep(SLOW_S)

    await log.append_txn("jobs", [b"x"] * 10)
    async with log.consume("jobs", handle, cursor="worker", batch=10) as consumer:
        await consumer.caught_up()
        times = consumer.statistics().handler_s
    assert 1 <= sum(times.counts) <= 10
    assert sum(times.counts[: times.bounds.index(0.025) + 1]) == 0
