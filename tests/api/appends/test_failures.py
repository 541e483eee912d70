"""After a failure of the disk, of the oracle or of our own code, every caller learns whether its write certainly did not happen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.faults import SavingGate
from tests.locations import open_wal
from tests.probes import local, made_on, payloads, turns
from tests.storage.journal.faults import FaultyDisk
from wal import Message, WALAccesser
from wal.errors import ChannelFencedError, StorageError, UnknownError, WALError
from wal.storage.journal import backend as journal_backend
from wal.write import pipeline

pytestmark = pytest.mark.inside


async def test_call_after_a_failure_was_not_written(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the frame that was in flight when the disk failed has an unknown outcome."""
    disk = FaultyDisk()
    monkeypatch.setattr(journal_backend, "Disk", lambda: disk)
    async with open_wal(data) as log:
        await log.raw_append(Message("orders", b"0"))
        barrier = await log.allocate_time_tick() + (1 << 40)
        aside = log.append_nowait(Message("orders", b"aside"), barrier_time_tick=barrier)
        disk.fail_sync = True
        with pytest.raises(StorageError) as caught:
            await log.raw_append(Message("orders", b"hit"))
        assert caught.value.outcome_unknown
        for later in (aside, log.append_nowait(Message("orders", b"later"))):
            with pytest.raises(StorageError) as caught:
                await later
            assert not caught.value.outcome_unknown
        assert log.statistics().bytes_in_flight == 0
    async with open_wal(data) as log:
        assert not {b"aside", b"later"} & set(await payloads(log, "orders"))


async def test_calls_with_a_barrier_fail_at_once(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick is promised any more, so their barrier would never pass."""
    disk = FaultyDisk()
    monkeypatch.setattr(journal_backend, "Disk", lambda: disk)
    async with open_wal(data) as log:
        txn = await log.txn("orders", idempotency_key="kept")
        disk.fail_sync = True
        with pytest.raises(StorageError):
            await log.raw_append(Message("orders", b"hit"))
        barrier = await log.allocate_time_tick() + (1 << 40)
        calls: list[Awaitable[Any]] = [
            log.raw_append(Message("orders", b"plain"), barrier_time_tick=barrier),
            log.raw_append(Message("orders", b"keyed"), barrier_time_tick=barrier, idempotency_key="a"),
            log.append_txn("orders", [b"whole"], barrier_time_tick=barrier, idempotency_key="b"),
        ]
        await txn.append(Message("orders", b"body"), barrier_time_tick=barrier)
        calls.append(txn.commit())
        for call in calls:
            with pytest.raises(StorageError) as caught:
                await asyncio.wait_for(call, 5)
            assert not caught.value.outcome_unknown
        assert log.statistics().bytes_in_flight == 0
        assert [pchannel.barriers for pchannel in log.statistics().pchannels] == [0]


@pytest.mark.not_on("wal", "has the pchannel fail: a client waits for another server that takes what this one refuses")
async def test_frames_under_a_fenced_oracle_are_unknown(log: WALAccesser) -> None:
    """The backend has the frames and may write them: an error that said otherwise would invite a duplicate."""
    await log.raw_append(Message("orders", b"0"))
    opened = local(log)
    pchannel = opened.node.pchannels["p0"]
    future = log.append_nowait(Message("orders", b"1"))
    while not pchannel.frames.frames_in_flight:
        await asyncio.sleep(0)
    pchannel.fail(ChannelFencedError("another oracle took over"))
    with pytest.raises(ChannelFencedError) as caught:
        await future
    assert caught.value.outcome_unknown
    with pytest.raises(ChannelFencedError) as caught:
        await log.raw_append(Message("orders", b"2"))
    assert not caught.value.outcome_unknown


@pytest.mark.not_on("wal", "has the pchannel fail: a client waits for another server that takes what this one refuses")
async def test_calls_on_a_taken_oracle_fail(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the oracle was taken over, neither the call that finds it so nor a later one waits for ticks that never come."""
    await log.raw_append(Message("orders", b"0"))

    def taken_over(count: int) -> int | None:
        raise ChannelFencedError("another oracle took over")

    async def begin() -> None:
        await log.txn("orders")

    monkeypatch.setattr(local(log).node.oracle, "take", taken_over)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(begin(), log.raw_append(Message("orders", b"1")), begin(), return_exceptions=True)
        responses = await log.append_messages(Message("orders", b"2"), Message("orders", b"3"))
    assert [type(outcome) for outcome in (*outcomes, *responses)] == [ChannelFencedError] * 5
    assert log.statistics().bytes_in_flight == 0


async def test_defect_in_making_a_frame_reaches_every_caller(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.raw_append(Message("orders", b"0"))

    def defect(*_: object, **__: object) -> None:
        raise MemoryError("no memory for a frame")

    monkeypatch.setattr(pipeline, "encode_frame", defect)
    futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(3)]
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(outcome, UnknownError)
    assert log.statistics().bytes_in_flight == 0


async def test_failed_pchannel_does_not_stop_the_others(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pchannels share the timer and the ticks: one failed pchannel must not stop them for the others."""
    async with open_wal(location, pchannels=2, time_tick_interval_s=0.001) as log:
        await made_on(log, "p0", "broken")
        await made_on(log, "p1", "sound")
        opened = local(log)
        broken, sound = opened.node.pchannels["p0"], opened.node.pchannels["p1"]
        real = pipeline.encode_frame  # type: ignore[attr-defined]

        def defect(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(pipeline, "encode_frame", real)
            raise MemoryError("no memory for a frame")

        monkeypatch.setattr(pipeline, "encode_frame", defect)
        failing = log.append_nowait(Message("broken", b"1"))
        await asyncio.gather(failing, return_exceptions=True)
        before = sound.promised.tick
        while sound.promised.tick == before or broken.actor_group.failure is None:
            await asyncio.sleep(0.001)
        gate = SavingGate(opened, monkeypatch)
        waiting = log.append_nowait(Message("sound", b"1"))
        opened.node.hosting._ticks.tell(broken)
        await turns(5)
        gate.open.set()
        await waiting
        while opened.node.oracle.take(262_144) is not None:
            pass
        await log.raw_append(Message("sound", b"2"))
        assert await payloads(log, "sound") == [b"1", b"2"]


@pytest.mark.not_on("wal", "has the pchannel fail: a client waits for another server that takes what this one refuses")
async def test_group_that_is_cut_off_settles_every_call(log: WALAccesser) -> None:
    """Waiting operations get an outcome, even if the batch before them failed in the middle."""
    async with log.txn("orders") as txn:
        await txn.append(b"1")
        ahead = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(5)]
    await asyncio.gather(*ahead)
    opened = local(log)
    group = opened.node.pchannels["p0"].actor_group
    group.pause()
    waiting = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(8)]
    group.cut_off()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, WALError)
    assert log.statistics().bytes_in_flight == 0
    group._pauses = 0


async def test_dropping_a_vchannel_that_failed_raises_its_error(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.raw_append(Message("orders", b"0"))
    vchannel = local(log).node.routes.actors["orders"]
    for submit in ("submit", "submit_plain"):
        monkeypatch.setattr(vchannel.pchannel.frames, submit, lambda *_: 1 / 0)
    with pytest.raises(UnknownError):
        await log.raw_append(Message("orders", b"1"))
    monkeypatch.undo()
    with pytest.raises(UnknownError):
        await log.drop_vchannel("orders")
    with pytest.raises(UnknownError):
        await log.raw_append(Message("orders", b"2"))
    assert [info.name for info in await log.vchannels()] == ["orders"]
    assert await payloads(log, "orders") == [b"0"]
