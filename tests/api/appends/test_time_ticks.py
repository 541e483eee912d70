"""Calls that wait for time ticks, and the promised tick."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults import SavingGate
from tests.probes import local, payloads, start, turns, written
from wal import AppendResult, Latest, Message, MessageType, Txn, WALAccesser
from wal.errors import StorageError
from wal.timestamp import TimestampOracle

pytestmark = pytest.mark.inside


async def test_calls_that_wait_for_ticks_keep_their_order(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction needs an id, which is a tick: while it waits for one, no later call may overtake it."""

    async def begin(log: WALAccesser) -> Txn:
        return await log.txn("orders")

    await log.raw_append(Message("orders", b"0"))
    gate = SavingGate(local(log), monkeypatch)
    pair = start(log.append_messages(Message("orders", b"1"), Message("orders", b"2")))
    await turns(5)
    after = [log.append_nowait(Message("orders", b"3")), log.append_nowait(Message("orders", b"4"))]
    begun = start(begin(log))
    await turns(5)
    after.append(log.append_nowait(Message("orders", b"5", message_type=MessageType.MANUAL_FLUSH)))
    await turns(5)
    gate.open.set()
    first = (await pair)[0]
    ticks = [first.time_tick, *[result.time_tick for result in await asyncio.gather(*after)]]
    assert ticks == sorted(ticks)
    assert await payloads(log, "orders") == [b"0", b"1", b"2", b"3", b"4", b"5"]
    await begun
    assert written(log).pchannels[0].open_transactions == 0, "the flush came after it"
    assert log.statistics().bytes_in_flight == 0


async def test_waiting_calls_fail_without_a_saved_tick(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.raw_append(Message("orders", b"0"))
    gate = SavingGate(local(log), monkeypatch)
    gate.failure = StorageError("the KV does not answer")
    pair = start(log.append_messages(Message("orders", b"1"), Message("orders", b"2")))
    await turns(5)
    plain = log.append_nowait(Message("orders", b"3"))
    dropped = start(log.drop_vchannel("orders"))
    await turns(5)
    gate.open.set()
    assert isinstance((await pair).first_error, StorageError)
    with pytest.raises(StorageError):
        await plain
    await dropped
    assert log.statistics().bytes_in_flight == 0
    gate.failure = None
    await log.raw_append(Message("orders", b"4"))
    assert await payloads(log, "orders") == [b"4"]


async def test_no_event_at_or_below_a_promised_tick(log: WALAccesser) -> None:
    """The promised tick rises at every turn of the loop while writers continue; every later event is above it."""
    opened = local(log)
    pchannel = opened.node.pchannels["p0"]
    promised: list[int] = []
    over = False

    async def write(number: int) -> None:
        for count in range(60):
            before = pchannel.tail.promised_tick
            if count % 5 == 4:
                responses = await log.append_messages(Message("orders", b"a"), Message("orders", b"b"))
                assert isinstance(responses[0], AppendResult)
                tick = responses[0].time_tick
            else:
                tick = (await log.raw_append(Message("orders", b"%d" % number))).time_tick
            assert tick > before

    async def look() -> None:
        while not over:
            pchannel.timer_turn()
            promised.append(pchannel.tail.promised_tick)
            await asyncio.sleep(0)

    async with log.read("orders", deliver_policy=Latest()) as scanner:
        looking = start(look())
        await asyncio.gather(*[write(number) for number in range(8)])
        over = True
        await looking
        last = 0
        for _ in range(8 * 60):
            message = await anext(scanner)
            assert message.time_tick > last
            last = message.time_tick
    assert promised == sorted(promised)
    assert isinstance(opened.node.oracle, TimestampOracle)
