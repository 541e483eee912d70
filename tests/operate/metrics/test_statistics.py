"""The counts of an open log: each call adds to them once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.locations import open_wal
from tests.probes import local, written
from wal import BroadcastMessage, Message, ProducerKey, ResourceKey
from wal.errors import StorageError, WouldBlockError


@pytest.mark.inside
async def test_histograms_count_each_frame_once(location: str) -> None:
    async with open_wal(location) as log:
        before = written(log).pchannels[0]
        for _ in range(3):
            await log.raw_append(Message("orders", b"x"))
        await asyncio.gather(*(log.raw_append(Message("orders", b"y")) for _ in range(20)))
        counts = written(log).pchannels[0]
        assert counts.events - before.events == 23
        for histogram in (counts.frame_events, counts.append_s, counts.sync_s):
            assert len(histogram.counts) == len(histogram.bounds) + 1
            assert list(histogram.bounds) == sorted(histogram.bounds)
        frames = counts.frames - before.frames
        assert sum(counts.frame_events.counts) == frames <= 23
        assert sum(counts.append_s.counts) == sum(counts.sync_s.counts) == frames
        assert counts.frame_events.total == 23
        assert counts.append_s.total >= counts.sync_s.total >= 0.0


@pytest.mark.inside
async def test_transactions_count_by_their_outcome(location: str) -> None:
    async with open_wal(location) as log:
        async with log.txn("orders") as txn:
            await txn.append(b"committed")
        await log.append_txn("orders", [b"committed at once"])
        rolled_back = await log.txn("orders")
        await rolled_back.rollback()
        failed = await log.txn("dropped")
        await failed.append(b"never written")
        await log.drop_vchannel("dropped")
        counts = written(log).pchannels[0]
        assert (counts.committed_transactions, counts.rolled_back_transactions, counts.failed_transactions) == (2, 1, 1)
        assert counts.open_transactions == 0
        with pytest.raises(Exception, match="dropped"):
            await failed.commit()


async def test_refused_transactions_are_counted() -> None:
    async with open_wal("memory:", open_txn_bytes_max=1000, txn_bytes_max=1000) as log:
        full, txn = await log.txn("orders"), await log.txn("orders")
        await full.append(bytes(900))
        with pytest.raises(WouldBlockError):
            await txn.append(bytes(900))
        assert log.statistics().pchannels[0].refused_transactions == 1
        await full.rollback()
        await txn.rollback()


@pytest.mark.inside
async def test_duplicates_are_counted(location: str) -> None:
    async with open_wal(location) as log:
        for key in ("a", "a", "b", ProducerKey("p", 1), ProducerKey("p", 1)):
            await log.raw_append(Message("orders", b"x"), idempotency_key=key)
        assert written(log).pchannels[0].duplicates == 2


async def test_room_in_flight_is_counted() -> None:
    async with open_wal("memory:", in_flight_bytes_max=1000) as log:
        first = log.append_nowait(Message("orders", bytes(900)))
        with pytest.raises(WouldBlockError):
            log.append_nowait(Message("orders", bytes(900)))
        waiting = asyncio.ensure_future(log.raw_append(Message("orders", bytes(900))))
        await asyncio.gather(first, waiting)
        counts = log.statistics()
        assert (counts.bytes_in_flight_max, counts.appends_refused, counts.appends_delayed) == (1000, 1, 1)


@pytest.mark.inside
async def test_broadcasts_count_by_state(location: str) -> None:
    async with open_wal(location) as log:
        key = ResourceKey("collection", "orders")
        sent = await log.broadcast().append(BroadcastMessage(vchannels=["a", "b"], payload=b"x", resource_keys=[key]))
        counts = written(log).broadcasts
        assert counts is not None
        assert (counts.waiting_acks, counts.pending, counts.stuck, counts.aborting) == (1, 0, 0, 0)
        assert 0.0 <= counts.oldest_s < 3600.0
        for name in sent.append_results:
            await log.broadcast().ack(sent.broadcast_id, name)
        counts = written(log).broadcasts
        assert counts is not None
        assert (counts.waiting_acks, counts.oldest_s) == (0, 0.0)


async def test_opening_is_timed(data_dir: Path) -> None:
    for replayed in (0, 3):
        async with open_wal(f"journal:{data_dir}") as log:
            counts = log.statistics()
            assert 0.0 < counts.pchannels[0].opening_s <= counts.opening_s
            assert counts.pchannels[0].segments >= 1
            assert counts.pchannels[0].checkpoint_age_s >= 0.0
            assert counts.inboxes.actors >= 2
            assert counts.inboxes.stalled == 0
            for number in range(replayed + 3):
                await log.raw_append(Message("orders", b"x"), idempotency_key=f"{replayed} {number}")


async def test_failure_says_why_nothing_is_written(data_dir: Path) -> None:
    async with open_wal(f"journal:{data_dir}") as log:
        assert log.statistics().pchannels[0].failure == ""
        local(log).node.pchannels[log.statistics().pchannels[0].name].fail(StorageError("the disk is gone"))
        assert log.statistics().pchannels[0].failure == "StorageError: the disk is gone"
        assert log.statistics().pchannels[0].segments == 0


async def test_lines_have_fields_for_machines(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="wal"):
        async with open_wal(f"journal:{data_dir}") as log:
            await log.raw_append(Message("orders", b"x"))
    opened, closed = (vars(record) for record in caplog.records if hasattr(record, "wal_event"))
    assert (opened["wal_event"], opened["wal_new"], opened["wal_term"], opened["wal_pchannels"]) == ("opened", True, 1, 1)
    assert (closed["wal_event"], closed["wal_clean"], closed["wal_events"]) == ("closed", True, 1)
