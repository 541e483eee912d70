"""Appends that are withdrawn while they wait: by the cancellation of their callers, and by the close of their client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from actors import VirtualClock
from tests.client.test_dropping import directory
from tests.outages.proxy import Proxy
from tests.probes import payloads, turns
from tests.serve.servers import Child, Serving, serving
from wal import Message, ProducerKey, WALAccesser, open_wal
from wal.client import producer
from wal.errors import ClosedError, UnknownOutcomeError

HOUR_S = 3600.0
FAR_S = 30.0
FAR = round(FAR_S * 1000) << 18
"""The same in ticks."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def waiting_at(served: Serving) -> int:
    """Returns how many operations wait for their barriers at the server."""
    return sum(one.barriers for one in served.log.statistics().pchannels)


async def far_barrier(log: WALAccesser) -> int:
    return await log.allocate_time_tick() + FAR


async def pass_barrier(clock: VirtualClock) -> None:
    clock.advance(FAR_S)
    await clock.run(1.0)  # in which the server looks at the clock


async def test_cancelled_append_is_taken_out_at_the_server_and_gives_its_room_back(log: WALAccesser, served: Serving) -> None:
    await log.create_vchannel("orders")
    barrier = await far_barrier(log)
    calls = [log.append_nowait(Message("orders", bytes(1000)), barrier_time_tick=barrier) for _ in range(100)]
    whole = asyncio.ensure_future(log.append_txn("orders", [b"1", b"2"], barrier_time_tick=barrier))
    await until(lambda: waiting_at(served) == 101)
    for call in (*calls, whole):
        call.cancel()
    await until(lambda: log.statistics().bytes_in_flight == 0)
    assert waiting_at(served) == 0
    assert served.log.node.in_flight.size == 0
    await log.raw_append(Message("orders", b"3"))
    assert await payloads(log, "orders") == [b"3"]


async def test_cancelled_commit_is_taken_out_at_the_server(log: WALAccesser, served: Serving) -> None:
    await log.create_vchannel("orders")
    txn = await log.txn("orders", idempotency_key="k")
    await txn.append(b"1", barrier_time_tick=await far_barrier(log))
    commit = asyncio.ensure_future(txn.commit())
    await until(lambda: waiting_at(served) == 1)
    commit.cancel()
    await until(lambda: log.statistics().bytes_in_flight == 0)
    assert waiting_at(served) == 0
    assert not (await log.append_txn("orders", [b"again"], idempotency_key="k")).duplicate
    assert await payloads(log, "orders") == [b"again"]


async def test_key_that_was_withdrawn_can_be_appended_again(log: WALAccesser, served: Serving) -> None:
    await log.create_vchannel("orders")
    first = log.append_nowait(Message("orders", b"1"), barrier_time_tick=await far_barrier(log), idempotency_key="k")
    await until(lambda: waiting_at(served) == 1)
    first.cancel()
    await until(lambda: log.statistics().bytes_in_flight == 0)
    again = await log.raw_append(Message("orders", b"again"), idempotency_key="k")
    assert not again.duplicate
    assert await payloads(log, "orders") == [b"again"]
    assert served.log.node.in_flight.size == 0


async def test_append_whose_result_others_share_goes_on_until_the_last_of_them_is_cancelled(log: WALAccesser, served: Serving) -> None:
    await log.create_vchannel("orders")
    barrier = await far_barrier(log)
    async with open_wal(f"wal://{served.address}") as other:
        owner = log.append_nowait(Message("orders", b"1"), barrier_time_tick=barrier, idempotency_key="k")
        await until(lambda: waiting_at(served) == 1)
        sharing = [one.append_nowait(Message("orders", b"1"), idempotency_key="k") for one in (log, other)]
        await until(lambda: served.log.node.in_flight.size == 3 * log.statistics().bytes_in_flight // 2)
        owner.cancel()
        sharing[0].cancel()
        await until(lambda: log.statistics().bytes_in_flight == 0)
        assert waiting_at(served) == 1
        assert not sharing[1].done()
        sharing[1].cancel()
        await until(lambda: other.statistics().bytes_in_flight == 0)
        assert waiting_at(served) == 0
    assert await payloads(log, "orders") == []


async def test_sequence_of_a_producer_goes_on_without_its_caller() -> None:
    """The later sequences of the producer wait for it, and would fail with it."""
    clock = VirtualClock()
    async with serving(clock=clock) as served, open_wal(f"wal://{served.address}") as log:
        await log.create_vchannel("orders")
        barrier = await far_barrier(log)
        first = log.append_nowait(Message("orders", b"1"), barrier_time_tick=barrier, idempotency_key=ProducerKey("p", 1))
        second = log.append_nowait(Message("orders", b"2"), idempotency_key=ProducerKey("p", 2))
        await until(lambda: waiting_at(served) == 2)
        first.cancel()
        await turns()
        await pass_barrier(clock)
        assert not (await second).duplicate
        assert await payloads(log, "orders") == [b"1", b"2"]


@pytest.mark.parametrize("name", ["known", "not located"])
async def test_unsent_append_is_withdrawn(server: Child, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close has nothing to wait for: it would hang if it did."""
    monkeypatch.setattr("wal.client.log.UNREACHED_S", HOUR_S)
    monkeypatch.setattr(producer, "QUIET_S", HOUR_S)
    log = await open_wal(f"wal://{server.address}")
    await log.create_vchannel("known")
    await until(lambda: "known" in directory(log).known.records)
    await server.kill()
    call = log.append_nowait(Message(name, b"2"), barrier_time_tick=1)
    assert log.statistics().bytes_in_flight > 0
    call.cancel()
    await until(lambda: log.statistics().bytes_in_flight == 0)
    await log.close()


async def test_withdrawal_is_repeated_on_another_connection(served: Serving) -> None:
    """An append of the lost connection continues: the server cannot see that the repeated append has the same caller."""
    async with Proxy(int(served.address.rpartition(":")[2])) as proxy, open_wal(f"wal://{proxy.address}") as log:
        await log.create_vchannel("orders")
        call = log.append_nowait(Message("orders", b"1"), barrier_time_tick=await far_barrier(log), idempotency_key="k")
        await until(lambda: waiting_at(served) == 1)
        proxy.stall_one_way(up=True)
        call.cancel()
        await turns()
        assert log.statistics().bytes_in_flight > 0
        proxy.cut()
        await until(lambda: log.statistics().bytes_in_flight == 0)
        assert waiting_at(served) == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_close_withdraws_what_waits_for_its_barrier(
    log: WALAccesser, served: Serving, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "QUIET_S", HOUR_S)  # the close would hang if it waited for them
    await log.create_vchannel("orders")
    barrier = await far_barrier(log)
    calls = [log.append_nowait(Message("orders", b"1"), barrier_time_tick=barrier, idempotency_key=key) for _ in "123"]
    await until(lambda: waiting_at(served) == (3 if key is None else 1))
    calls.append(log.append_nowait(Message("orders", b"2"), barrier_time_tick=barrier, idempotency_key=key))
    await log.close()
    for call in calls:
        with pytest.raises(ClosedError, match="barrier") as caught:
            await call
        assert not caught.value.outcome_unknown
    assert waiting_at(served) == 0
    async with open_wal(f"wal://{served.address}") as again:
        assert await payloads(again, "orders") == []


async def test_close_does_not_wait_for_a_producer_either() -> None:
    clock, key = VirtualClock(), ProducerKey("p", 1)
    async with serving(clock=clock) as served:
        async with open_wal(f"wal://{served.address}") as log:
            await log.create_vchannel("orders")
            call = log.append_nowait(Message("orders", b"1"), barrier_time_tick=await far_barrier(log), idempotency_key=key)
            await until(lambda: waiting_at(served) == 1)
        with pytest.raises(UnknownOutcomeError, match="append it again with the same key"):
            await call
        await pass_barrier(clock)
        async with open_wal(f"wal://{served.address}") as again:
            assert (await again.raw_append(Message("orders", b"1"), idempotency_key=key)).duplicate
