"""Transactions over several calls, over the network: each against a real server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.serve.servers import Child, Serving, serving
from wal import Message, MessageType, WALAccesser, errors, open_wal
from wal.client import producer as unknown
from wal.client.producer import Producer
from wal.message import MessageID

PATIENCE_S = 20.0


async def stored(log: WALAccesser, vchannel: str) -> list[list[bytes]]:
    """Returns the payloads of each event."""
    async with log.read(vchannel, follow=False) as scanner:
        return [[body.payload for body in message.bodies()] async for message in scanner]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def on_server(served: Serving) -> tuple[int, int]:
    """Returns the open transactions and their bytes, as the server counts them."""
    pchannels = served.log.statistics().pchannels
    return sum(one.open_transactions for one in pchannels), sum(one.open_transaction_bytes for one in pchannels)


async def test_transaction_is_one_event(log: WALAccesser, served: Serving) -> None:
    async with log.txn("orders") as txn:
        await txn.append(b"1")
        await txn.append_many([b"2", Message("orders", b"3", properties={"k": "v"})])
        await txn.append_many([])
        assert on_server(served)[0] == 1
        assert await stored(log, "orders") == []
    assert await stored(log, "orders") == [[b"1", b"2", b"3"]]
    assert txn.result.txn_context == txn.context
    assert on_server(served) == (0, 0)
    assert log.statistics().bytes_in_flight == 0


async def test_transaction_over_two_vchannels(log: WALAccesser) -> None:
    for name in ("a", "b"):
        await log.create_vchannel(name, pchannel="p1")
    await log.create_vchannel("c", pchannel="p2")
    after = (await log.raw_append(Message("c", b"x"))).time_tick
    txn = await log.txn(vchannels=["a", "b"])
    await txn.append(Message("a", b"1"), barrier_time_tick=after)
    await txn.append(Message("b", b"2"))
    assert (await txn.commit()).time_tick > after
    assert (await stored(log, "a"), await stored(log, "b")) == ([[b"1"]], [[b"2"]])
    with pytest.raises(errors.InvalidArgumentError, match="cannot span pchannels"):
        await log.txn(vchannels=["a", "c"])


async def test_commit_with_a_key_is_written_once(log: WALAccesser) -> None:
    ids = list[MessageID]()
    for payload in (b"1", b"2"):
        async with log.txn("orders", idempotency_key="once") as txn:
            await txn.append(payload)
        ids.append(txn.result.message_id)
    assert txn.result.duplicate
    assert ids[0] == ids[1]
    assert await stored(log, "orders") == [[b"1"]]


async def test_rollback_leaves_nothing(log: WALAccesser, served: Serving) -> None:
    txn = await log.txn("orders")
    await txn.append(b"1")
    await txn.rollback()
    assert on_server(served) == (0, 0)
    with pytest.raises(ZeroDivisionError):
        async with log.txn("orders") as failing:
            await failing.append(b"2")
            raise ZeroDivisionError
    assert on_server(served) == (0, 0)
    assert await stored(log, "orders") == []


async def test_transaction_that_nobody_holds_is_rolled_back(log: WALAccesser, served: Serving) -> None:
    txn = await log.txn("orders")
    await txn.append(b"1")
    with pytest.warns(ResourceWarning, match="garbage-collected"):
        del txn
    await until(lambda: on_server(served)[0] == 0)


async def test_bodies_renew_the_lease(log: WALAccesser, served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.client.txn.RENEWALS", 1000)
    txn = await log.txn("orders", keepalive=30)
    txn_id = txn.context.txn_id
    (table,) = [one.table for one in served.log.node.pchannels.values() if txn_id in one.table]

    def deadline() -> float:
        return table.get(txn_id, now=0.0).deadline

    for _ in range(3):
        before = deadline()
        await txn.append(b"12345")
        await until(lambda: deadline() > before)  # noqa: B023 - it is called before the next round
        assert on_server(served) == (1, 0), "the bodies are with the client"
    await txn.commit()
    assert await stored(log, "orders") == [[b"12345"] * 3]


async def test_transaction_expires_with_its_lease() -> None:
    async with serving(time_tick_interval_s=0.01) as served, open_wal(f"wal://{served.address}") as log:
        silent, noticing = await log.txn("orders", keepalive=0.02), await log.txn("orders", keepalive=0.02)
        await until(lambda: on_server(served)[0] == 0)
        with pytest.raises(errors.TransactionExpiredError, match="expired"):
            await silent.commit()
        with pytest.raises(errors.TransactionExpiredError, match="expired"):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await noticing.append(b"1")
                    await asyncio.sleep(0.01)
        await noticing.rollback()
        assert await stored(log, "orders") == []


async def test_exclusive_message_ends_it(log: WALAccesser) -> None:
    txn = await log.txn("orders")
    await txn.append(b"1")
    await log.raw_append(Message("orders", b"", message_type=MessageType.DROP_PARTITION))
    with pytest.raises(errors.TransactionExpiredError, match="DROP_PARTITION"):
        await txn.commit()


async def test_dropped_vchannel_ends_it(log: WALAccesser) -> None:
    committing, appending = await log.txn("orders"), await log.txn("orders")
    await committing.append(b"1")
    await log.drop_vchannel("orders")
    await log.raw_append(Message("orders", b"new"))
    with pytest.raises(errors.ChannelNotExistError, match="dropped"):
        await committing.commit()
    with pytest.raises(errors.ChannelNotExistError, match="dropped"):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await appending.append(b"1")
                await asyncio.sleep(0.01)
    await appending.rollback()
    assert await stored(log, "orders") == [[b"new"]]


async def test_bounds_are_kept_before_anything_is_sent() -> None:
    async with serving(txn_bytes_max=1000, txn_bodies_max=5, open_txn_bytes_max=1500) as served, open_wal(f"wal://{served.address}") as log:
        first, second = await log.txn("orders"), await log.txn("orders")
        await first.append(b"x" * 900)
        with pytest.raises(errors.InvalidArgumentError, match="txn_bytes_max=1000"):
            await first.append(b"x" * 100)
        with pytest.raises(errors.InvalidArgumentError, match="txn_bodies_max=5"):
            await second.append_many([b""] * 6)
        with pytest.raises(errors.WouldBlockError, match="open_txn_bytes_max=1500"):
            await second.append(b"x" * 700)
        with pytest.raises(errors.InvalidArgumentError, match="name every vchannel"):
            await second.append(Message("other", b"1"))
        await first.commit()
        await second.append(b"x" * 700)  # both stayed open, and there is room again
        await second.commit()
        assert [[len(body) for body in bodies] for bodies in await stored(log, "orders")] == [[900], [700]]


async def committing_to_a_stopped_server(server: Child, txn: Any) -> asyncio.Task[Any]:
    """Commits while the server is stopped, and kills it when the commit is on its way."""
    server.process.send_signal(signal.SIGSTOP)
    commit: asyncio.Task[Any] = asyncio.ensure_future(txn.commit())
    await until(lambda: txn._served._producer.outbox.sent)
    await server.kill()
    return commit


async def test_outcome_of_an_unanswered_commit_is_unknown(server: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server that could say more, its caller learns so after a while."""
    monkeypatch.setattr(unknown, "UNKNOWN_S", 0.5)
    async with open_wal(f"wal://{server.address}") as log:
        txn = await log.txn("orders")
        await txn.append(b"1")
        commit = await committing_to_a_stopped_server(server, txn)
        with pytest.raises(errors.UnknownOutcomeError, match="idempotency key"):
            await commit
        assert log.statistics().bytes_in_flight == 0


async def test_unanswered_commit_with_a_key_is_sent_again(server: Child, data_dir: object) -> None:
    async with open_wal(f"wal://{server.address}") as log:
        txn = await log.txn("orders", idempotency_key="once")
        await txn.append_many([b"1", b"2"])
        commit = await committing_to_a_stopped_server(server, txn)
        again = await Child.start(str(data_dir), listen=server.address)
        try:
            await commit
            assert await stored(log, "orders") == [[b"1", b"2"]]
            async with log.txn("orders", idempotency_key="once") as second:
                await second.append(b"3")
            assert second.result.duplicate
            assert second.result.message_id == txn.result.message_id
        finally:
            await again.kill()


async def test_commit_whose_answer_is_lost_gets_its_result_by_the_key(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    take = Producer._take
    lost: list[Any] = []

    def lose(producer: Producer, outcomes: Any) -> None:
        if outcomes.appended and not lost:
            lost.append(outcomes)
            raise errors.UnavailableError("the connection is gone")
        take(producer, outcomes)

    monkeypatch.setattr(Producer, "_take", lose)
    async with log.txn("orders", idempotency_key="once") as txn:
        await txn.append(b"1")
    assert lost
    assert txn.result.duplicate
    assert await stored(log, "orders") == [[b"1"]]


async def test_open_transaction_outlives_its_server(server: Child, data_dir: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.client.txn.RENEWALS", 1000)
    async with open_wal(f"wal://{server.address}") as log:
        txn = await log.txn("orders", keepalive=10)
        await txn.append(b"1")
        await server.kill()
        again = await Child.start(str(data_dir), listen=server.address)
        try:
            await txn.append(b"2")
            inside: Any = txn
            await until(lambda: inside._served._renewal is None)  # the new server has refused it
            await log.append_txn("orders", [b"between"])
            await txn.append(b"3")
            await txn.commit()
            assert await stored(log, "orders") == [[b"between"], [b"1", b"2", b"3"]]
        finally:
            await again.kill()


async def test_begins_are_answered_while_results_of_appends_are_sent(log: WALAccesser) -> None:
    """The server sends the results that it has while a begin is under way."""

    async def transactions(number: int) -> None:
        for step in range(10):
            async with log.txn(f"v{number}") as txn:
                await txn.append(b"t%d" % step)

    async def appends(number: int) -> None:
        for step in range(20):
            await log.raw_append(Message(f"v{number}", b"%d" % step))

    async with asyncio.timeout(60):
        await asyncio.gather(*(kind(number) for number in range(4) for kind in (transactions, appends)))
