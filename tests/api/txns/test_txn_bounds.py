"""Transactions that expire, and transactions that grow too large."""

from __future__ import annotations

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import bodies, grouped, payloads, read_all, written
from wal import Message, WALAccesser
from wal.errors import InvalidArgumentError, InvalidTransactionStateError, TransactionExpiredError, WouldBlockError


@pytest.mark.inside
async def test_timer_ends_it(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    txn = await log.txn("orders", keepalive=2.0)
    await txn.append(b"1")
    await clock.run(1.8)
    assert written(log).pchannels[0].open_transactions == 1
    await clock.run(0.4)
    statistics = written(log).pchannels[0]
    assert (statistics.open_transactions, statistics.expired_transactions) == (0, 1)
    assert statistics.open_transaction_bytes == 0
    with pytest.raises(TransactionExpiredError, match="keepalive of 2"):
        await txn.commit()
    assert await payloads(log, "orders") == []
    await log.close()


async def test_keepalive_is_checked_at_the_call() -> None:
    clock = VirtualClock()
    log = await open_virtual("memory:", clock, time_tick_interval_s=100.0)
    appended, committed = await log.txn("orders", keepalive=2.0), await log.txn("orders", keepalive=2.0)
    await appended.append(b"1")
    clock.advance(2.5)
    assert written(log).pchannels[0].open_transactions == 2, "the timer had no turn yet"
    with pytest.raises(TransactionExpiredError):
        await appended.append(b"2")
    with pytest.raises(TransactionExpiredError):
        await committed.commit()
    await appended.rollback()
    await log.close()


async def test_every_append_refreshes_the_lease() -> None:
    clock = VirtualClock()
    log = await open_virtual("memory:", clock)
    txn = await log.txn("orders", keepalive=1.0)
    for number in range(8):
        await clock.run(0.8)
        await txn.append(b"%d" % number)
    await clock.run(0.8)
    await txn.commit()
    assert len(await payloads(log, "orders")) == 8
    await log.close()


async def test_rolling_back_an_expired_one_is_quiet() -> None:
    clock = VirtualClock()
    log = await open_virtual("memory:", clock)
    txn = await log.txn("orders", keepalive=0.5)
    await txn.append(b"1")
    await clock.run(2.0)
    await txn.rollback()
    with pytest.raises(ZeroDivisionError):
        async with log.txn("orders", keepalive=0.5):
            await clock.run(2.0)
            raise ZeroDivisionError
    await log.close()


async def test_block_that_expired_says_so_at_its_end() -> None:
    clock = VirtualClock()
    log = await open_virtual("memory:", clock)
    with pytest.raises(TransactionExpiredError):
        async with log.txn("orders", keepalive=0.5) as txn:
            await txn.append(b"1")
            await clock.run(2.0)
    with pytest.raises(InvalidTransactionStateError, match="no result"):
        _ = txn.result
    await log.close()


async def test_process_that_was_stopped_does_not_expire_everything() -> None:
    """A gap between two timer turns counts as at most twice the interval."""
    clock = VirtualClock()
    log = await open_virtual("memory:", clock, time_tick_interval_s=0.2)
    txn = await log.txn("orders", keepalive=1.0)
    clock._now += 3600 * 10**9  # the machine slept: no timer ran meanwhile
    await clock.run(0.0)
    await txn.append(b"1")
    await txn.commit()
    assert await payloads(log, "orders") == [b"1"]
    await log.close()


@pytest.mark.inside
async def test_real_time_expires_it_too(log: WALAccesser) -> None:
    """Waits until the promised tick, which the same timer moves, shows that the lease has expired."""
    txn = await log.txn("orders", keepalive=0.5)
    await txn.append(b"1")
    async with log.read("orders", include_time_ticks=True) as scanner:
        async for _ in scanner:
            if written(log).pchannels[0].expired_transactions:
                break
    with pytest.raises(TransactionExpiredError):
        await txn.commit()


async def test_too_many_bodies(location: str) -> None:
    async with open_wal(location, txn_bodies_max=3) as log:
        txn = await log.txn("orders")
        for number in range(3):
            await txn.append(b"%d" % number)
        with pytest.raises(InvalidArgumentError, match="txn_bodies_max=3"):
            await txn.append(b"3")
        await txn.commit()
        assert grouped(await read_all(log, "orders")) == [[b"0", b"1", b"2"]]


async def test_too_many_bytes(location: str) -> None:
    async with open_wal(location, txn_bytes_max=1000) as log:
        txn = await log.txn("orders")
        await txn.append(Message("orders", bytes(400), properties={"k" * 50: "v" * 50}))
        with pytest.raises(InvalidArgumentError, match="txn_bytes_max=1000"):
            await txn.append(bytes(1000 - 500 - 64 + 1))
        await txn.append(bytes(1000 - 500 - 64))
        await txn.commit()
        responses = await log.append_messages(*[Message("orders", bytes(500 - 32))] * 2)
        assert responses.first_error is None
        responses = await log.append_messages(Message("orders", bytes(500 - 31)), Message("orders", bytes(500 - 32)))
        assert "txn_bytes_max=1000" in str(responses.first_error)
        assert [len(message.bodies()) for message in await read_all(log, "orders")] == [2, 2]


async def test_largest_transaction_by_default(log: WALAccesser) -> None:
    """The transaction has 4,096 bodies, 4 MiB in all, in one frame."""
    size = (4 << 20) // 4096 - 32
    async with log.txn("orders") as txn:
        for number in range(4096):
            await txn.append(b"%04d" % number + bytes(size - 4))
        with pytest.raises(InvalidArgumentError):
            await txn.append(b"")
    (message,) = await read_all(log, "orders")
    assert [int(body.payload[:4]) for body in message.bodies()] == list(range(4096))
    async with log.txn(vchannels=[f"v{number}" for number in range(256)]) as txn:
        for number in range(256):
            await txn.append(Message(f"v{number}", bytes(15_000)))
    (message,) = await read_all(log, [f"v{number}" for number in range(256)])
    assert len(message.bodies()) == 256


@pytest.mark.inside
async def test_open_transactions_together_would_block_and_stay_open(location: str) -> None:
    async with open_wal(location, open_txn_bytes_max=1000) as log:
        first, second = await log.txn("a"), await log.txn("b")
        await first.append(bytes(400))
        await second.append(bytes(400))
        with pytest.raises(WouldBlockError, match="open_txn_bytes_max=1000") as caught:
            await second.append(bytes(400))
        assert caught.value.retryable
        await first.rollback()
        await second.append(bytes(400))
        await second.commit()
        assert [len(body) for body in bodies(await read_all(log, "b"))] == [400, 400]
        assert written(log).pchannels[0].open_transaction_bytes == 0


async def test_bodies_beyond_a_range_of_ticks_are_refused(location: str) -> None:
    """The opening refuses the setting; otherwise a commit would fail the whole pchannel."""
    with pytest.raises(InvalidArgumentError, match="txn_bodies_max"):
        async with open_wal(location, txn_bodies_max=262_144, txn_bytes_max=64 << 20):
            pass
    async with open_wal(location, txn_bodies_max=262_143, txn_bytes_max=64 << 20) as log:
        await log.raw_append(Message("orders", b"0"))
