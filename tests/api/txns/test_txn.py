"""Transactions: one event at the commit, or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import bodies, close_all, grouped, made_on, payloads, read_all, run_until, start, turns, written
from wal import AppendResult, ImmutableTxnMessage, Message, MessageType, TxnContext, WALAccesser
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError, InvalidTransactionStateError, TransactionExpiredError

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar]


@pytest.mark.on_pulsar(cluster=True)
async def test_commit(log: WALAccesser) -> None:
    txn = await log.txn(vchannel="orders", keepalive=5.0)
    assert isinstance(txn.context, TxnContext)
    assert txn.context.keepalive == 5.0
    with pytest.raises(InvalidTransactionStateError, match="no result"):
        _ = txn.result
    await txn.append(b"1")
    await txn.append(Message("orders", b"2", message_type=MessageType.DELETE, properties={"k": "v"}))
    assert await payloads(log, "orders") == [], "nothing of it is in the log before its commit"
    between = await log.raw_append(Message("orders", b"between"))
    result = await txn.commit()
    assert isinstance(result, AppendResult)
    assert txn.result == result
    assert result.txn_context == txn.context
    assert result.last_confirmed == result.message_id
    assert result.time_tick > between.time_tick
    plain, message = await read_all(log, "orders")
    assert plain.payload == b"between"
    assert isinstance(message, ImmutableTxnMessage)
    assert message.message_type is MessageType.TXN
    assert (message.message_id, message.time_tick) == (result.message_id, result.time_tick)
    assert (message.vchannel, message.vchannels) == ("orders", ("orders",))
    assert message.txn_context == txn.context
    one, two = message.bodies()
    assert message.messages == (one, two)
    assert [one.payload, two.payload] == [b"1", b"2"]
    assert (one.message_type, two.message_type) == (MessageType.INSERT, MessageType.DELETE)
    assert two.properties == {"k": "v"}
    assert one.time_tick == two.time_tick == message.time_tick
    assert one.txn_context == two.txn_context == txn.context
    assert one.message_id < two.message_id < message.message_id
    assert one.vchannel == "orders"


@pytest.mark.inside
async def test_rollback(log: WALAccesser) -> None:
    txn = await log.txn("orders")
    await txn.append(b"1")
    await txn.rollback()
    with pytest.raises(InvalidTransactionStateError, match="no result"):
        _ = txn.result
    await log.raw_append(Message("orders", b"2"))
    assert await payloads(log, "orders") == [b"2"]
    assert written(log).pchannels[0].open_transactions == 0
    assert written(log).pchannels[0].open_transaction_bytes == 0


async def test_transaction_without_bodies_is_delivered(log: WALAccesser) -> None:
    async with log.txn("orders") as txn:
        pass
    (message,) = await read_all(log, "orders")
    assert isinstance(message, ImmutableTxnMessage)
    assert txn.result is not None
    assert (message.message_id, message.bodies()) == (txn.result.message_id, ())


async def test_async_with_commits_or_rolls_back(log: WALAccesser) -> None:
    async with log.txn("orders") as committed:
        await committed.append(b"1")
    with pytest.raises(ZeroDivisionError):
        async with log.txn("orders") as failed:
            await failed.append(b"2")
            raise ZeroDivisionError
    assert committed.result is not None
    with pytest.raises(InvalidTransactionStateError, match="no result"):
        _ = failed.result
    assert await payloads(log, "orders") == [b"1"]


async def test_ending_it_inside_is_fine(log: WALAccesser) -> None:
    async with log.txn("orders") as txn:
        await txn.append(b"1")
        result = await txn.commit()
    assert txn.result == result
    async with log.txn("orders") as txn:
        await txn.append(b"2")
        await txn.rollback()
    with pytest.raises(ZeroDivisionError):
        async with log.txn("orders") as txn:
            await txn.append(b"3")
            await txn.commit()
            raise ZeroDivisionError
    assert await payloads(log, "orders") == [b"1", b"3"]


async def test_transaction_ends_once(log: WALAccesser) -> None:
    for end in ("commit", "rollback"):
        txn = await log.txn("orders")
        await txn.append(b"1")
        await getattr(txn, end)()
        for again in (txn.commit(), txn.rollback(), txn.append(b"2")):
            with pytest.raises(InvalidTransactionStateError):
                await again
    both = await log.txn("orders")
    outcomes = await asyncio.gather(both.commit(), both.commit(), both.rollback(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1:]] == [InvalidTransactionStateError] * 2
    assert isinstance(outcomes[0], AppendResult)
    assert len(await read_all(log, "orders")) == 2


async def test_concurrent_appends_keep_the_order_of_the_calls(log: WALAccesser) -> None:
    async with log.txn("orders") as txn:
        await asyncio.gather(*(txn.append(b"%d" % number) for number in range(200)))
    assert await payloads(log, "orders") == [b"%d" % number for number in range(200)]


@pytest.mark.inside
async def test_cancelled_block_is_rolled_back(log: WALAccesser) -> None:
    appended = asyncio.Event()

    async def work() -> None:
        async with log.txn("orders") as txn:
            await txn.append(b"1")
            appended.set()
            await asyncio.Event().wait()

    task = start(work())
    await appended.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written(log).pchannels[0].open_transactions == 0
    assert await payloads(log, "orders") == []


async def test_open_transactions_and_close(location: str) -> None:
    log = await open_wal(location)
    txn = await log.txn("orders")
    await txn.append(b"1")
    await log.close()
    for call in (lambda: txn.append(b"2"), txn.commit):
        with pytest.raises(ClosedError):
            await call()
    if location != "memory:":
        async with open_wal(location) as log:
            assert await payloads(log, "orders") == []


@pytest.mark.parametrize("kind", [MessageType.CREATE_COLLECTION, MessageType.SCHEMA_CHANGE, MessageType.MANUAL_FLUSH])
async def test_exclusive_message_fails_its_vchannels_transactions(log: WALAccesser, kind: MessageType) -> None:
    failed, wide, other = await log.txn("a"), await log.txn(vchannels=["b", "a"]), await log.txn("b")
    for txn in (failed, wide, other):
        await txn.append(Message("b" if txn is other else "a", b"1"))
    await log.raw_append(Message("a", b"ddl", message_type=kind))
    for txn in (failed, wide):
        with pytest.raises(TransactionExpiredError, match=kind.name):
            await txn.append(Message("a", b"2"))
        with pytest.raises(TransactionExpiredError, match=kind.name):
            await txn.commit()
    await other.commit()
    async with log.txn("a") as after:
        await after.append(b"3")
    assert grouped(await read_all(log, "a")) == [[b"ddl"], [b"3"]]
    assert grouped(await read_all(log, "b")) == [[b"1"]]


async def test_ordinary_message_leaves_transactions_alone(log: WALAccesser) -> None:
    async with log.txn("a") as txn:
        await txn.append(b"1")
        await log.raw_append(Message("a", b"2", message_type=MessageType.IMPORT))
    assert await payloads(log, "a") == [b"2", b"1"]


@pytest.mark.inside
async def test_late_exclusive_message_fails_open_transactions(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    before = await log.txn("a")
    await before.append(b"1")
    barrier = await log.allocate_time_tick() + (100 << 18)
    ddl = log.append_nowait(Message("a", b"ddl", message_type=MessageType.DROP_PARTITION), barrier_time_tick=barrier)
    await turns()
    await before.commit()
    open_then = await log.txn("a")
    await run_until(clock, ddl.done)
    with pytest.raises(TransactionExpiredError, match="DROP_PARTITION"):
        await open_then.commit()
    assert await payloads(log, "a") == [b"1", b"ddl"]
    await close_all(log)


@pytest.mark.on_pulsar
async def test_over_several_vchannels(log4: WALAccesser) -> None:
    await made_on(log4, "p2", "a", "b", "c", "d")
    async with log4.txn(vchannels=["a", "b", "c"]) as txn:
        await txn.append(Message("b", b"1"))
        await txn.append(Message("a", b"2"))
        await txn.append(Message("b", b"3"))
    assert txn.result is not None
    found = {}
    for names in ("a", "b", "c", "d", ["a", "b"], ["c", "b", "a"], ["c", "d"]):
        messages = await read_all(log4, names)
        for message in messages:
            assert (message.message_id, message.time_tick) == (txn.result.message_id, txn.result.time_tick)
            assert isinstance(message, ImmutableTxnMessage)
            assert set(message.vchannels) == set(names) & set("abc")
            assert message.vchannel == (message.vchannels[0] if len(message.vchannels) == 1 else "")
            assert all(body.vchannel in names and body.time_tick == message.time_tick for body in message.bodies())
        found[str(names)] = grouped(messages)
    assert found == {
        "a": [[b"2"]],
        "b": [[b"1", b"3"]],
        "c": [[]],
        "d": [],
        "['a', 'b']": [[b"1", b"2", b"3"]],
        "['c', 'b', 'a']": [[b"1", b"2", b"3"]],
        "['c', 'd']": [[]],
    }


async def test_wide_transaction_ends_with_any_of_its_vchannels(log: WALAccesser) -> None:
    for end in ("commit", "append"):
        await made_on(log, "p0", "a", "b")
        txn = await log.txn(vchannels=["a", "b"])
        await txn.append(Message("b", b"1"))
        await log.drop_vchannel("b")
        with pytest.raises(ChannelNotExistError):
            await (txn.commit() if end == "commit" else txn.append(Message("a", b"2")))
        await txn.rollback() if end == "append" else None
        assert bodies(await read_all(log, "a")) == []
        await log.drop_vchannel("a")


async def test_different_pchannels_need_a_broadcast(log4: WALAccesser) -> None:
    await made_on(log4, "p0", "a")
    await made_on(log4, "p1", "b")
    for opening in (log4.txn(vchannels=["a", "b"]), log4.txn(vchannels=["b", "a"])):
        with pytest.raises(InvalidArgumentError, match="broadcast") as caught:
            await opening
        assert "p0" in str(caught.value)
        assert "p1" in str(caught.value)


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_arguments(log: WALAccesser) -> None:
    wrong: dict[str, Any]
    for wrong in ({}, {"vchannel": "a", "vchannels": ["b"]}, {"vchannels": []}, {"vchannel": ""}):
        with pytest.raises(InvalidArgumentError):
            log.txn(**wrong)
    for odd in ({"vchannel": 7}, {"vchannels": "ab"}, {"vchannels": [1]}, {"vchannel": "a", "keepalive": "1"}):
        with pytest.raises(TypeError):
            log.txn(**odd)
    for keepalive in (-1.0, 0.0009, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="keepalive"):
            log.txn("a", keepalive=keepalive)
    txn = await log.txn("a")
    with pytest.raises(TypeError):
        await txn.append("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="'b'"):
        await txn.append(Message("b", b"1"))
    for kind in (MessageType.CREATE_COLLECTION, MessageType.IMPORT, MessageType.COMMIT_TXN):
        with pytest.raises(InvalidArgumentError, match=kind.name):
            await txn.append(Message("a", b"1", message_type=kind))
    with pytest.raises(InvalidArgumentError, match="message_bytes_max"):
        await txn.append(bytes((1 << 20) + 1))
    await txn.append(b"fine")
    await txn.commit()
    wide = await log.txn(vchannels=["a", "b"])
    with pytest.raises(InvalidArgumentError, match="bytes name none"):
        await wide.append(b"1")
    await wide.rollback()
    assert await payloads(log, "a") == [b"fine"]


async def test_default_keepalive_is_the_setting(location: str) -> None:
    async with open_wal(location, txn_keepalive=3.5) as log:
        async with log.txn("a") as txn:
            assert txn.context.keepalive == 3.5
        async with log.txn("a", keepalive=30.001) as txn:
            assert txn.context.keepalive == 30.001


async def test_ids_of_transactions_are_unique_over_reopening(location: str) -> None:
    ids = []
    for _ in range(2):
        async with open_wal(location, pchannels=2) as log:
            for name in ("a", "b", "c"):
                async with log.txn(name) as txn:
                    ids.append(txn.context.txn_id)
    if location != "memory:":
        assert len(set(ids)) == 6


@pytest.mark.inside
async def test_waiting_commit_spans_no_exclusive_message(location: str) -> None:
    """The bodies were appended before the exclusive message, so the commit must not come after it."""
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    barrier = await log.allocate_time_tick() + (150 << 18)
    txn = await log.txn("a")
    await txn.append(b"1", barrier_time_tick=barrier)
    commit = start(txn.commit())
    await turns()
    await log.raw_append(Message("a", b"ddl", message_type=MessageType.DROP_COLLECTION))
    await run_until(clock, commit.done)
    with pytest.raises(TransactionExpiredError, match="DROP_COLLECTION"):
        await commit
    assert await payloads(log, "a") == [b"ddl"]
    await close_all(log)


@pytest.mark.inside
async def test_waiting_wide_commit_ends_with_its_vchannel(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    await made_on(log, "p0", "a", "b")
    barrier = await log.allocate_time_tick() + (150 << 18)
    txn = await log.txn(vchannels=["a", "b"])
    await txn.append(Message("a", b"1"), barrier_time_tick=barrier)
    commit = start(txn.commit())
    await turns()
    await log.drop_vchannel("b")
    with pytest.raises(ChannelNotExistError):
        await commit
    after = start(log.raw_append(Message("a", b"2"), barrier_time_tick=barrier))
    await run_until(clock, after.done)
    assert await payloads(log, "a") == [b"2"]
    assert log.statistics().bytes_in_flight == 0
    await close_all(log)
