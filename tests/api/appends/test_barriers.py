"""Barriers: an append gets its tick only once everything up to the barrier is in the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import bodies, close_all, payloads, read_all, run_until, start, turns, written
from tests.processes import eventually
from wal import AppendOption, Message, WALAccesser, timestamp
from wal.errors import ClosedError, InvalidArgumentError

pytestmark = pytest.mark.on_pulsar


def in_the_future(tick: int, milliseconds: int) -> int:
    return timestamp.compose(timestamp.parse(tick)[0] + milliseconds, 0)


async def test_barrier_that_was_passed(log: WALAccesser) -> None:
    first = await log.raw_append(Message("orders", b"1"))
    second = await log.raw_append(Message("orders", b"2"), barrier_time_tick=first.time_tick)
    assert second.time_tick > first.time_tick


async def test_fresh_barrier_does_not_wait_for_the_timer(location: str) -> None:
    async with open_wal(location, time_tick_interval_s=3600.0) as log:
        for _ in range(20):
            barrier = await log.allocate_time_tick()
            result = await log.raw_append(Message("orders", b"1"), barrier_time_tick=barrier)
            assert result.time_tick > barrier


async def test_barrier_above_appends_of_another_pchannel(log4: WALAccesser) -> None:
    await log4.create_vchannel("a", pchannel="p0")
    await log4.create_vchannel("b", pchannel="p3")
    for _ in range(20):
        first = await log4.raw_append(Message("a", b"1"))
        second = await log4.raw_append(Message("b", b"2"), barrier_time_tick=first.time_tick)
        assert second.time_tick > first.time_tick


async def test_everything_up_to_the_barrier_comes_first(log: WALAccesser) -> None:
    """What the barrier covers is durable when the append returns, and no later event is at or below the barrier."""
    futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(100)]
    await futures[0]
    barrier = await log.allocate_time_tick()
    result = await log.raw_append(Message("orders", b"after"), barrier_time_tick=barrier)
    assert result.time_tick > barrier
    assert futures[0].result().time_tick < barrier
    for message in await read_all(log, "orders"):
        assert (message.time_tick <= barrier) == (message.message_id < result.message_id)


@pytest.mark.inside
async def test_barrier_in_the_future_waits_and_is_overtaken(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    first = await log.raw_append(Message("orders", b"1"))
    barrier = in_the_future(first.time_tick, 300)
    waiting = log.append_nowait(Message("orders", b"after"), barrier_time_tick=barrier)
    second = await log.raw_append(Message("orders", b"2"))
    assert second.time_tick < barrier
    assert not waiting.done()
    assert written(log).pchannels[0].barriers == 1
    await run_until(clock, waiting.done)
    assert (await waiting).time_tick > barrier
    assert await payloads(log, "orders") == [b"1", b"2", b"after"]
    await close_all(log)


@pytest.mark.inside
async def test_appends_with_one_barrier_keep_their_order(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.create_vchannel("orders")
    barrier = in_the_future(await log.allocate_time_tick(), 200)
    futures = [log.append_nowait(Message("orders", b"%d" % number), barrier_time_tick=barrier) for number in range(20)]
    early = log.append_nowait(Message("orders", b"early"), barrier_time_tick=barrier - 1000)
    await eventually(lambda: written(log).pchannels[0].barriers == 21)
    await run_until(clock, asyncio.gather(early, *futures).done)
    assert await payloads(log, "orders") == [b"early", *(b"%d" % number for number in range(20))]
    await close_all(log)


@pytest.mark.parametrize("how", ["append", "whole", "messages", "atomic", "txn"])
async def test_close_during_a_barrier_writes_nothing(location: str, how: str) -> None:
    log = await open_wal(location)
    barrier = in_the_future(await log.allocate_time_tick(), 30_000)
    if how == "append":
        waiting = start(log.raw_append(Message("orders", b"1"), barrier_time_tick=barrier))
    elif how == "whole":
        waiting = start(log.append_txn("orders", [b"1"], barrier_time_tick=barrier))
    elif how == "txn":
        txn = await log.txn("orders")
        await txn.append(b"1", barrier_time_tick=barrier)
        waiting = start(txn.commit())
    else:
        messages = [Message("orders", b"1")] * (1 if how == "messages" else 2)
        waiting = start(log.append_messages_with_option(AppendOption(barrier), *messages))
    await turns()
    assert not waiting.done()
    await log.close()
    if how in ("messages", "atomic"):
        error = (await waiting).first_error
    else:
        with pytest.raises(ClosedError, match="barrier") as caught:
            await waiting
        error = caught.value
    assert isinstance(error, ClosedError)
    assert not error.outcome_unknown
    if location != "memory:":
        async with open_wal(location) as log:
            assert await payloads(log, "orders") == []


@pytest.mark.inside
async def test_cancelled_barrier_append_is_not_written(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await log.create_vchannel("orders")
    barrier = in_the_future(await log.allocate_time_tick(), 150)
    waiting = start(log.raw_append(Message("orders", bytes(1000)), barrier_time_tick=barrier))
    atomic = start(log.append_messages_with_option(AppendOption(barrier), *[Message("orders", b"2")] * 2))
    await turns()
    for task in (waiting, atomic):
        task.cancel()
    last = start(log.raw_append(Message("orders", b"3"), barrier_time_tick=barrier))
    await run_until(clock, last.done)
    assert (await last).time_tick > barrier
    assert await payloads(log, "orders") == [b"3"]
    assert log.statistics().bytes_in_flight == 0
    await close_all(log)


async def test_barrier_of_a_body_applies_to_the_commit(log: WALAccesser) -> None:
    barrier = in_the_future(await log.allocate_time_tick(), 200)
    txn = await log.txn("orders")
    await txn.append(b"1", barrier_time_tick=barrier)
    await txn.append(b"2", barrier_time_tick=1)
    result = await txn.commit()
    assert result.time_tick > barrier
    assert bodies(await read_all(log, "orders")) == [b"1", b"2"]


@pytest.mark.inside
async def test_transaction_that_waits_for_its_barrier_cannot_expire(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    barrier = in_the_future(await log.allocate_time_tick(), 2000)
    txn = await log.txn("orders", keepalive=0.1)
    await txn.append(b"1", barrier_time_tick=barrier)
    commit = start(txn.commit())
    while not written(log).pchannels[0].barriers:  # a client's commit takes a moment to arrive
        await asyncio.sleep(0)
    await clock.run(1.9)
    assert not commit.done()
    await clock.run(0.2)
    assert (await commit).time_tick > barrier
    assert written(log).pchannels[0].expired_transactions == 0
    await log.close()


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_barriers(log: WALAccesser) -> None:
    message = Message("orders", b"1")
    txn = await log.txn("orders")
    for wrong in (-1, 1 << 64):
        with pytest.raises(InvalidArgumentError, match=str(wrong)):
            await log.raw_append(message, barrier_time_tick=wrong)
        with pytest.raises(InvalidArgumentError, match=str(wrong)):
            log.append_nowait(message, barrier_time_tick=wrong)
        with pytest.raises(InvalidArgumentError, match=str(wrong)):
            await txn.append(message, barrier_time_tick=wrong)
        with pytest.raises(InvalidArgumentError, match=str(wrong)):
            await log.append_messages_with_option(AppendOption(wrong), message)
    odd: Any
    for odd in ("7", 7.0, None, True):
        with pytest.raises(TypeError):
            await log.raw_append(message, barrier_time_tick=odd)
        with pytest.raises(TypeError):
            log.append_nowait(message, barrier_time_tick=odd)
        with pytest.raises(TypeError):
            await txn.append(message, barrier_time_tick=odd)
        with pytest.raises(TypeError):
            await log.append_messages_with_option(AppendOption(odd), message)
    await txn.rollback()
    assert await payloads(log, "orders") == []
