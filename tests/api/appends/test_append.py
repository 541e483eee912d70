"""raw_append and append_nowait: results, order, and durability when they return."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import bodies, made_on, payloads, read_all, start, turns
from wal import AppendResult, Message, MessageID, MessageType, WALAccesser
from wal.errors import ClosedError, InvalidArgumentError, WouldBlockError

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar]

NAMES = [f"v{number}" for number in range(8)]


@pytest.mark.on_pulsar(cluster=True)
async def test_result_of_an_append(log: WALAccesser) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    result = await log.raw_append(Message("orders", b"1", properties={"k": "v"}))
    assert isinstance(result, AppendResult)
    assert isinstance(result.message_id, MessageID)
    assert result.last_confirmed == result.message_id
    assert (result.txn_context, result.extra, result.duplicate) == (None, None, False)
    (message,) = await read_all(log, "orders")
    assert (message.message_id, message.time_tick) == (result.message_id, result.time_tick)
    assert (message.vchannel, message.payload, message.properties) == ("orders", b"1", {"k": "v"})
    assert message.message_type is MessageType.INSERT
    assert message.last_confirmed == message.message_id
    assert (message.txn_context, message.broadcast) == (None, None)
    assert message.bodies() == (message,)
    assert before < message.append_time < datetime.now(UTC) + timedelta(seconds=1)
    assert message.append_time.tzinfo is UTC


async def test_same_message_may_be_appended_again(log: WALAccesser) -> None:
    message = Message("orders", b"1", properties={"k": "v"})
    first, second = await log.raw_append(message), await log.raw_append(message)
    assert first.message_id < second.message_id
    assert await payloads(log, "orders") == [b"1", b"1"]
    async with log.txn("orders") as txn:
        await txn.append(message)
        await txn.append(message)
    assert await payloads(log, "orders") == [b"1"] * 4


async def test_every_user_type_is_appended_and_read_back(log: WALAccesser) -> None:
    not_appended = {
        MessageType.UNKNOWN,
        MessageType.TIME_TICK,
        MessageType.BEGIN_TXN,
        MessageType.COMMIT_TXN,
        MessageType.ROLLBACK_TXN,
        MessageType.ABORT_BROADCAST,
        MessageType.TXN,
    }

    kinds = [kind for kind in MessageType if kind not in not_appended]
    for kind in kinds:
        await log.raw_append(Message("orders", kind.name.encode(), message_type=kind))
    assert [message.message_type for message in await read_all(log, "orders")] == kinds


@pytest.mark.not_on("cluster", "ticks are unique in a pchannel, not over several nodes")
async def test_ids_ticks_and_delivery_have_one_order(log4: WALAccesser) -> None:
    """Writers of every kind append to eight vchannels on four pchannels at once."""
    results: dict[bytes, AppendResult] = {}

    async def plain(number: int) -> None:
        for step in range(20):
            payload = b"p%d-%d" % (number, step)
            results[payload] = await log4.raw_append(Message(NAMES[number], payload))

    async def transactions(number: int) -> None:
        for step in range(5):
            payload = b"t%d-%d" % (number, step)
            async with log4.txn(NAMES[number]) as txn:
                await txn.append(payload)
                await txn.append(b"more")
            assert txn.result is not None
            results[payload] = txn.result

    async def many(number: int) -> None:
        found = await log4.append_bulk([Message(NAMES[number], b"b%d-%d" % (number, step)) for step in range(20)])
        results.update({b"b%d-%d" % (number, step): result for step, result in enumerate(found)})

    kinds = (plain, transactions, many)
    await asyncio.gather(*(kind(number) for number in range(8) for kind in kinds))
    ticks = [result.time_tick for result in results.values()]
    assert len(set(ticks)) == len(ticks), "a tick was given twice"
    by_pchannel: dict[str, list[AppendResult]] = {}
    for result in results.values():
        by_pchannel.setdefault(result.message_id.pchannel, []).append(result)
    assert len(by_pchannel) > 1
    for some in by_pchannel.values():
        by_tick = sorted(some, key=lambda result: result.time_tick)
        assert by_tick == sorted(some, key=lambda result: result.message_id)
        assert by_tick == sorted(some, key=lambda result: bytes(result.message_id))
    for name in NAMES:
        messages = await read_all(log4, name)
        assert [message.time_tick for message in messages] == sorted(message.time_tick for message in messages)
        assert len(messages) == 20 + 5 + 20
        for message in messages:
            result = results[message.bodies()[0].payload]
            assert (message.message_id, message.time_tick) == (result.message_id, result.time_tick)


async def test_append_after_another_has_a_larger_tick(log4: WALAccesser) -> None:
    """This holds over pchannels too, and whatever other writers do."""
    await made_on(log4, "p0", "a")
    await made_on(log4, "p1", "b")
    await made_on(log4, "p2", "c")
    await made_on(log4, "p3", "d")
    noise = [start(log4.append_bulk([Message(name, bytes(100)) for _ in range(500)])) for name in "abcd"]
    last = 0
    shuffled = random.Random(7)
    for _ in range(30):
        name = shuffled.choice("abcd")
        result = await log4.raw_append(Message(name, b"1"))
        assert result.message_id.pchannel == f"p{'abcd'.index(name)}"
        assert result.time_tick > last
        allocated = await log4.allocate_time_tick()
        assert allocated > result.time_tick
        last = allocated
    await asyncio.gather(*noise)


async def test_append_nowait_keeps_the_order_of_calls(log: WALAccesser) -> None:
    """This holds within a pchannel, over its vchannels, and with raw_append tasks started in between."""
    futures = [log.append_nowait(Message(NAMES[number % 3], b"%d" % number)) for number in range(500)]
    assert all(isinstance(future, asyncio.Future) for future in futures)
    results = await asyncio.gather(*futures)
    ticks = [result.time_tick for result in results]
    assert ticks == sorted(set(ticks))
    assert [int(payload) for payload in await payloads(log, NAMES[:3])] == list(range(500))


@pytest.mark.on_pulsar
async def test_calls_of_all_kinds_keep_their_order(log: WALAccesser) -> None:
    txn = await log.txn("b")
    await txn.append(b"body")
    first = log.append_nowait(Message("a", b"1"))
    commit = start(txn.commit())
    await turns(1)
    second = log.append_nowait(Message("b", b"2", message_type=MessageType.CREATE_COLLECTION))
    third = log.append_nowait(Message("a", b"3"))
    results = [await first, await commit, await second, await third]
    ticks = [result.time_tick for result in results]
    assert ticks == sorted(set(ticks))
    assert await payloads(log, ["a", "b"]) == [b"1", b"body", b"2", b"3"]


async def test_full_room_in_flight_blocks_or_waits(location: str) -> None:
    async with open_wal(location, in_flight_bytes_max=10_000) as log:
        futures: list[Any] = []
        with pytest.raises(WouldBlockError, match="in_flight_bytes_max=10000") as caught:
            while len(futures) < 100:
                futures.append(log.append_nowait(Message("orders", bytes(1000))))
        assert caught.value.retryable
        assert 8 <= len(futures) <= 10
        waiting = [start(log.raw_append(Message("orders", b"w%d" % number + bytes(1000)))) for number in range(30)]
        await turns(1)
        assert log.statistics().appends_waiting > 0
        await asyncio.gather(*futures, *waiting)
        assert log.statistics().bytes_in_flight == 0
        order = [payload[:3].strip(b"\0") for payload in await payloads(log, "orders") if payload[:1] == b"w"]
        assert order == [b"w%d" % number for number in range(30)]
        log.append_nowait(Message("orders", b"there is room again"))


async def test_message_above_in_flight_bound_is_appended(location: str) -> None:
    async with open_wal(location, in_flight_bytes_max=1000) as log:
        await log.raw_append(Message("orders", bytes(50_000)))
        await log.append_nowait(Message("orders", bytes(50_000)))
        await log.append_bulk([Message("orders", bytes(50_000))] * 3)
        async with log.txn("orders") as txn:
            await txn.append(bytes(50_000))
        assert len(await payloads(log, "orders")) == 6
        assert log.statistics().bytes_in_flight == 0


async def test_cancelled_caller_does_not_take_the_append_back(log: WALAccesser) -> None:
    append = start(log.raw_append(Message("orders", b"1")))
    await turns(1)
    append.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append
    future = log.append_nowait(Message("orders", b"2"))
    future.cancel()
    await log.raw_append(Message("orders", b"3"))
    assert await payloads(log, "orders") == [b"1", b"2", b"3"]
    assert log.statistics().bytes_in_flight == 0


@pytest.mark.on_pulsar(cluster=True)
async def test_appends_in_flight_at_close_are_drained(location: str) -> None:
    log = await open_wal(location)
    futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(300)]
    bulk = start(log.append_bulk([Message("bulk", bytes(1000)) for _ in range(3000)]))
    txn = await log.txn("txns")
    await txn.append(b"body")
    commit = start(txn.commit())
    await turns(1)
    await log.close()
    assert len(await asyncio.gather(*futures)) == 300
    assert (await commit).time_tick > 0
    assert len(await bulk) == 3000
    if location != "memory:":
        async with open_wal(location) as log:
            assert await payloads(log, "orders") == [b"%d" % number for number in range(300)]
            assert bodies(await read_all(log, "txns")) == [b"body"]
            assert len(await payloads(log, "bulk")) == 3000


async def test_append_waiting_at_close_is_not_written(location: str) -> None:
    log = await open_wal(location, in_flight_bytes_max=2000)
    calls = [start(log.raw_append(Message("orders", b"%03d" % number + bytes(900)))) for number in range(40)]
    await turns(1)
    await log.close()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    written = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, AppendResult)]
    assert written == list(range(len(written)))
    assert written
    for outcome in outcomes[len(written) :]:
        assert isinstance(outcome, ClosedError)
        assert not outcome.outcome_unknown
    if location != "memory:":
        async with open_wal(location) as log:
            assert [int(payload[:3]) for payload in await payloads(log, "orders")] == written


async def test_refused_message_makes_no_vchannel(log: WALAccesser) -> None:
    """Wrong values are refused before anything is sent, and before a vchannel is created."""
    refused = [Message("too-large", bytes((1 << 20) + 1)), Message("system", b"", message_type=MessageType.COMMIT_TXN)]
    for message in refused:
        with pytest.raises(InvalidArgumentError):
            await log.raw_append(message)
        with pytest.raises(InvalidArgumentError):
            log.append_nowait(message)
        with pytest.raises(InvalidArgumentError):
            await log.append_bulk([message])
    with pytest.raises(TypeError):
        await log.raw_append(Message("barrier", b""), barrier_time_tick="soon")  # type: ignore[call-overload]
    assert await log.vchannels() == []
