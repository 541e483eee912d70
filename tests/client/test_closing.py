"""Closing a client, and dropping vchannels, while something is under way; each against a real server."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.outages.proxy import Proxy
from tests.probes import turns
from tests.serve.servers import Child, Serving
from wal import BroadcastMessage, Message, ResourceKey, WALAccesser, open_wal
from wal.client import producer
from wal.client.pauses import PAUSE_MAX_S
from wal.errors import BulkAppendError, ChannelFencedError, ChannelNotExistError, ClosedError, UnknownOutcomeError
from wal.message import MessageID
from wal.serve.produce import ProduceStream


async def test_client_that_closes_rolls_its_transactions_back(log: WALAccesser, served: Serving) -> None:
    txn = await log.txn("orders")
    await txn.append(b"1")
    assert sum(one.open_transactions for one in served.log.statistics().pchannels) == 1
    await log.close()
    assert sum(one.open_transactions for one in served.log.statistics().pchannels) == 0
    with pytest.raises(ClosedError):
        await txn.append(b"2")


async def test_append_with_a_key_that_is_not_answered_is_not_said_to_be_unwritten(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written, and its answer is lost: the close ends the repetition that its caller was promised."""
    monkeypatch.setattr(producer, "QUIET_S", 0.3)
    async with Proxy(int(served.address.rpartition(":")[2])) as proxy, open_wal(f"wal://{served.address}") as direct:
        log = await open_wal(f"wal://{proxy.address}")
        await log.raw_append(Message("orders", b"1"))
        proxy.stall_one_way(up=False)
        waiting = log.append_nowait(Message("orders", b"2"), idempotency_key="k")
        async with direct.read("orders") as scanner, asyncio.timeout(60):
            async for message in scanner:
                if message.payload == b"2":
                    break
        await log.close()
        with pytest.raises(UnknownOutcomeError, match="repeat it with the same idempotency key"):
            await waiting


async def test_close_does_not_wait_for_a_server_that_refuses_for_ever(
    log: WALAccesser, served: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "QUIET_S", 2 * PAUSE_MAX_S)
    await log.raw_append(Message("orders", b"1"))
    fenced = ChannelFencedError("another owner has the pchannel")
    monkeypatch.setattr(ProduceStream, "_begin", lambda *_: fenced)
    waiting = log.append_nowait(Message("orders", b"2"))
    await turns()
    async with asyncio.timeout(60):
        await log.close()
    with pytest.raises(ClosedError) as caught:
        await waiting
    assert not caught.value.outcome_unknown


async def test_close_does_not_wait_for_a_server_that_is_gone_to_find_a_vchannel(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    log = await open_wal(f"wal://{served.address}")
    await log.raw_append(Message("orders", b"1"))
    await served.node.close()
    waiting = log.append_nowait(Message("never seen", b"2"))
    await turns()
    await log.close()
    with pytest.raises(ClosedError) as caught:
        await waiting
    assert not caught.value.outcome_unknown


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets clients that are opened from now on wait so long for answers that a close which does so hangs."""
    monkeypatch.setattr("wal.client.log.TIMEOUT_S", 3600.0)
    monkeypatch.setattr(producer, "QUIET_S", 3600.0)


async def test_close_does_not_wait_for_a_server_that_is_frozen(server: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stands, so only the silence shows that no answer will come."""
    patient(monkeypatch)
    log = await open_wal(f"wal://{server.address}")
    await log.raw_append(Message("orders", b"1"))
    server.process.send_signal(signal.SIGSTOP)
    try:
        sent = log.append_nowait(Message("orders", b"2"))
        located = log.append_nowait(Message("never seen", b"2"))
        await turns()
        await log.close()
        with pytest.raises(ClosedError) as caught:
            await located
        assert not caught.value.outcome_unknown
        with pytest.raises(UnknownOutcomeError):
            await sent
    finally:
        server.process.send_signal(signal.SIGCONT)


async def test_call_under_way_at_the_close_is_a_closed_error(log: WALAccesser, served: Serving) -> None:
    message = BroadcastMessage(vchannels=["a", "b"], payload=b"1", resource_keys=[ResourceKey("test", "k")])
    await log.broadcast().append(message)
    waiting = asyncio.ensure_future(log.broadcast().append(message, wait=True))
    while not served.log.broadcasts.statistics().waiting:
        await asyncio.sleep(0.005)
    await log.close()
    with pytest.raises(ClosedError) as caught:
        await waiting
    assert caught.value.outcome_unknown


async def test_drop_ends_what_waits_for_its_barrier(log: WALAccesser) -> None:
    # In ticks.
    half_a_minute = 30_000 << 18
    await log.create_vchannel("orders")
    barrier = await log.allocate_time_tick() + half_a_minute
    whole = asyncio.ensure_future(log.append_txn("orders", [b"2"], barrier_time_tick=barrier))
    await turns()
    async with asyncio.timeout(60):
        await log.drop_vchannel("orders")
        with pytest.raises(ChannelNotExistError):
            await whole


async def test_bulk_does_not_recreate_a_vchannel_that_it_has_used(log: WALAccesser, served: Serving) -> None:
    await log.create_vchannel("orders")
    async with open_wal(f"wal://{served.address}", in_flight_bytes_max=100_000) as slow:
        bulk = asyncio.ensure_future(slow.append_bulk([Message("orders", bytes(50_000))] * 200))
        while not slow.statistics().pchannels[0].frames + slow.statistics().pchannels[1].frames + slow.statistics().pchannels[2].frames:
            await asyncio.sleep(0)
        await log.drop_vchannel("orders")
        with pytest.raises(BulkAppendError) as caught:
            await bulk
        assert isinstance(caught.value, ChannelNotExistError)
        assert 0 < len(caught.value.results) < 200


async def test_client_counts_the_frames_and_the_events_that_it_wrote(log: WALAccesser) -> None:
    ids: list[MessageID | None] = []
    for number in range(5):
        ids.append((await log.raw_append(Message("orders", b"%d" % number))).message_id)
    await asyncio.gather(*(log.raw_append(Message("orders", b"x"), idempotency_key="k") for _ in range(3)))
    counts = log.statistics().pchannels
    assert sum(one.events for one in counts) == 6
    assert sum(one.frames for one in counts) == 6
