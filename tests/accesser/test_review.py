"""What a stranger who has to trust the log with money asked of it: rare moments, each with the answer it must have."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.accesser.probes import local, made_on, payloads, start, turns
from tests.backends.faults import FaultyDisk
from wal import Latest, Message, MessageType, Txn, WALAccesser, open_wal
from wal.backends.journal import JournalBackend, JournalLog
from wal.backends.journal import backend as journal_backend
from wal.engine.local.log import LocalLog
from wal.errors import (
    ChannelFencedError,
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    StorageError,
    UnknownError,
    WALError,
)
from wal.pchannel import pipeline
from wal.pchannel.tail import Tail
from wal.timestamp import TimestampOracle


async def begin(log: WALAccesser) -> Txn:
    return await log.txn("orders")


class Gate:
    """Holds the KV's compare-and-swap, by which the oracle saves its limit, until it is opened or told to fail."""

    def __init__(self, log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.failure: Exception | None = None
        self.waiting = 0
        real = log.kv.compare_and_swap

        async def compare_and_swap(*arguments: Any) -> bool:
            self.waiting += 1
            await self.open.wait()
            self.waiting -= 1
            if self.failure is not None:
                raise self.failure
            return await real(*arguments)

        monkeypatch.setattr(log.kv, "compare_and_swap", compare_and_swap)
        while log.oracle.take(262_144) is not None:
            pass


async def test_what_waits_for_ticks_keeps_the_order_of_the_calls(
    log: WALAccesser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction needs an id, which is a tick: without one nothing that is called behind it may go first."""
    await log.raw_append(Message("orders", b"0"))
    gate = Gate(local(log), monkeypatch)
    pair = start(log.append_messages(Message("orders", b"1"), Message("orders", b"2")))
    await turns(5)
    behind = [log.append_nowait(Message("orders", b"3")), log.append_nowait(Message("orders", b"4"))]
    begun = start(begin(log))
    await turns(5)
    behind.append(log.append_nowait(Message("orders", b"5", message_type=MessageType.MANUAL_FLUSH)))
    await turns(5)
    gate.open.set()
    first = (await pair)[0]
    ticks = [first.time_tick, *[result.time_tick for result in await asyncio.gather(*behind)]]
    assert ticks == sorted(ticks)
    assert await payloads(log, "orders") == [b"0", b"1", b"2", b"3", b"4", b"5"]
    await begun
    assert log.statistics().pchannels[0].open_transactions == 0, "the flush came behind it"
    assert log.statistics().bytes_in_flight == 0


async def test_what_waits_for_ticks_fails_when_there_are_none_to_be_had(
    log: WALAccesser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.raw_append(Message("orders", b"0"))
    gate = Gate(local(log), monkeypatch)
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


async def test_a_call_behind_a_failure_is_known_not_to_be_written(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what was under way when the disk failed has an outcome that is not known."""
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


async def test_frames_under_way_when_the_oracle_is_fenced_have_no_known_outcome(log: WALAccesser) -> None:
    """The backend has them and may well write them: an error that says otherwise invites a second copy."""
    await log.raw_append(Message("orders", b"0"))
    opened = local(log)
    pchannel = opened.pchannels["p0"]
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


async def test_a_defect_in_making_a_frame_reaches_every_caller(
    log: WALAccesser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.raw_append(Message("orders", b"0"))

    def defect(*_: object, **__: object) -> None:
        raise MemoryError("no memory for a frame")

    monkeypatch.setattr(pipeline, "encode_frame", defect)
    futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(3)]
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(outcome, UnknownError)
    assert log.statistics().bytes_in_flight == 0


async def test_a_failed_pchannel_does_not_stop_the_others(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers and ticks serve all pchannels: one that failed must not take them from its neighbours."""
    async with open_wal(location, pchannels=2, time_tick_interval_s=0.001) as log:
        await made_on(log, "p0", "broken")
        await made_on(log, "p1", "sound")
        opened = local(log)
        broken, sound = opened.pchannels["p0"], opened.pchannels["p1"]
        real = pipeline.encode_frame

        def defect(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(pipeline, "encode_frame", real)
            raise MemoryError("no memory for a frame")

        monkeypatch.setattr(pipeline, "encode_frame", defect)
        failing = log.append_nowait(Message("broken", b"1"))
        await asyncio.gather(failing, return_exceptions=True)
        before = sound.promised.tick
        while sound.promised.tick == before or broken.actor_group.failure is None:
            await asyncio.sleep(0.001)
        gate = Gate(opened, monkeypatch)
        waiting = log.append_nowait(Message("sound", b"1"))
        opened._hosting._ticks.tell(broken)
        await turns(5)
        gate.open.set()
        await waiting
        while opened.oracle.take(262_144) is not None:
            pass
        await log.raw_append(Message("sound", b"2"))
        assert await payloads(log, "sound") == [b"1", b"2"]


async def test_an_opening_that_fails_leaves_nothing_behind(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pchannel of four is damaged: those that opened well, and only after it was found, are closed again."""
    real = JournalBackend.open

    async def slowly(
        self: JournalBackend, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None
    ) -> JournalLog:
        try:
            return await real(self, pchannel, incarnation=incarnation, term=term, checkpoint=checkpoint)
        finally:
            await turns(0 if pchannel == "p0" else 2000)

    monkeypatch.setattr(JournalBackend, "open", slowly)
    async with open_wal(data, pchannels=4) as log:
        await log.raw_append(Message("orders", b"0"))
    directory = Path(data) / "pchannels" / "p0"
    (segment,) = directory.glob("*.wal")
    intact = segment.read_bytes()
    segment.unlink()
    before = set(threading.enumerate())
    for _ in range(3):
        with pytest.raises(CorruptionError):
            async with open_wal(data):
                pass
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
    segment.write_bytes(intact)
    async with open_wal(data) as log:
        assert await payloads(log, "orders") == [b"0"]


async def test_close_lets_go_of_everything_when_the_kv_breaks(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    log = await open_wal(location)
    await log.raw_append(Message("orders", b"0"))
    gate = Gate(local(log), monkeypatch)
    gate.failure = RuntimeError("a client of a KV that nobody foresaw")
    gate.open.set()
    await asyncio.gather(log.close(), return_exceptions=True)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
    if location != "memory:":
        async with open_wal(location) as again:
            assert await payloads(again, "orders") == [b"0"]


async def test_waiting_readers_that_give_up_are_forgotten() -> None:
    """An idle log with one patient reader, and others that look in with a timeout, for as long as it likes."""
    tail = Tail(durable_end=0, promised_tick=0, newest=None)
    patient = tail.waiter(ticks=False)
    for _ in range(10_000):
        tail.waiter(ticks=False).cancel()
    assert len(tail._data) < 1_000
    tail.data_moved(durable_end=1, promised_tick=1, newest=None)
    assert patient.done()


async def test_a_group_that_is_cut_off_settles_every_call(log: WALAccesser) -> None:
    """What waited is settled also when the batch before it ended in its middle."""
    async with log.txn("orders") as txn:
        await txn.append(b"1")
        ahead = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(5)]
    await asyncio.gather(*ahead)
    opened = local(log)
    group = opened.pchannels["p0"].actor_group
    group.pause()
    waiting = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(8)]
    group.cut_off()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, WALError)
    assert log.statistics().bytes_in_flight == 0
    group._pauses = 0


async def test_a_transaction_of_more_bodies_than_a_range_of_ticks_holds(location: str) -> None:
    """Refused where it is set, not by the failure of a whole pchannel at its commit."""
    with pytest.raises(InvalidArgumentError, match="txn_bodies_max"):
        async with open_wal(location, txn_bodies_max=262_144, txn_bytes_max=64 << 20):
            pass
    async with open_wal(location, txn_bodies_max=262_143, txn_bytes_max=64 << 20) as log:
        await log.raw_append(Message("orders", b"0"))


async def test_a_vchannel_that_failed_cannot_be_dropped_and_says_so(
    log: WALAccesser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.raw_append(Message("orders", b"0"))
    vchannel = local(log).vchannels.routes["orders"]
    monkeypatch.setattr(vchannel.pchannel.frames, "submit_plain", lambda *_: 1 / 0)
    with pytest.raises(UnknownError):
        await log.raw_append(Message("orders", b"1"))
    monkeypatch.undo()
    with pytest.raises(UnknownError):
        await log.drop_vchannel("orders")
    with pytest.raises(UnknownError):
        await log.raw_append(Message("orders", b"2"))
    assert [info.name for info in await log.vchannels()] == ["orders"]
    assert await payloads(log, "orders") == [b"0"]


async def test_close_while_a_vchannel_is_being_made(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken while its record is saved is written before the log is closed, or refused; never forgotten."""
    opened = local(log)
    gate = asyncio.Event()
    real = opened.kv.multi_save_and_remove

    async def save(*arguments: Any) -> None:
        await gate.wait()
        await real(*arguments)

    monkeypatch.setattr(opened.kv, "multi_save_and_remove", save)
    made = start(log.create_vchannel("explicit"))
    implied = log.append_nowait(Message("orders", b"1"))
    closing = start(log.close())
    await turns()
    assert not closing.done()
    gate.set()
    await closing
    assert (await made).name == "explicit"
    assert (await implied).time_tick
    with pytest.raises(ClosedError):
        await log.raw_append(Message("orders", b"2"))


async def test_no_event_at_or_below_a_tick_that_was_promised(log: WALAccesser) -> None:
    """Promises are taken at every turn of the loop while writers go on; whatever comes later lies above them."""
    opened = local(log)
    pchannel = opened.pchannels["p0"]
    promised: list[int] = []
    over = False

    async def write(number: int) -> None:
        for count in range(60):
            before = pchannel.tail.promised_tick
            if count % 5 == 4:
                responses = await log.append_messages(Message("orders", b"a"), Message("orders", b"b"))
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
    assert isinstance(opened.oracle, TimestampOracle)
