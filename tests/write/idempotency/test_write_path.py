"""Idempotency keys combined with the rest of the write path: frames that wait or fail, barriers, exclusive messages, drops, bounds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import grouped, local, made_on, payloads, read_all, start, turns, written
from tests.storage.journal.faults import FaultyDisk
from wal import AppendResult, Message, MessageType, ProducerInfo, ProducerKey, WALAccesser, errors, timestamp
from wal.frame import EncodedFrame
from wal.storage.journal import backend as journal_backend

pytestmark = pytest.mark.on_pulsar


class Gate:
    """Withholds the frames of a pchannel from its backend until the test releases them, or refuses them as a full disk does."""

    def __init__(self, log: WALAccesser, monkeypatch: pytest.MonkeyPatch, name: str = "p0") -> None:
        self._log = local(log).node.pchannels[name].log
        self._append = self._log.append
        self.held: list[tuple[EncodedFrame, Any]] = []
        self.shut = True
        monkeypatch.setattr(self._log, "append", self._take)
        monkeypatch.setattr("wal.client.outbox.GROW_MESSAGES", 0)  # what the withheld frames leave without an answer delays nothing

    def _take(self, frame: EncodedFrame, done: Any) -> None:
        if self.shut:
            self.held.append((frame, done))
        else:
            self._append(frame, done)

    def open(self) -> None:
        self.shut = False
        for frame, done in self.held:
            self._append(frame, done)
        self.held = []

    def open_one(self) -> None:
        """Hands over the first frame that it withholds."""
        self._append(*self.held.pop(0))

    def refuse(self) -> None:
        """Releases all frames that it withholds, in order, as the journal does; later frames pass at once."""
        self.shut = False
        held, self.held = self.held, []
        for _, done in held:
            done(-1, errors.NoSpaceError("no room for the next segment: nothing was written"))


def key(sequence: int, producer: str = "p") -> ProducerKey:
    return ProducerKey(producer, sequence)


def nowait(log: WALAccesser, payload: bytes, idempotency_key: Any, **options: Any) -> asyncio.Future[AppendResult]:
    return log.append_nowait(Message("orders", payload), idempotency_key=idempotency_key, **options)


def the_first(first: AppendResult, again: AppendResult) -> bool:
    """Returns whether the first result is a duplicate of the second."""
    fields = ("message_id", "time_tick", "last_confirmed", "txn_context")
    same = all(getattr(first, field) == getattr(again, field) for field in fields)
    return same and again.duplicate and not first.duplicate


async def outcomes(futures: list[asyncio.Future[AppendResult]]) -> list[AppendResult | BaseException]:
    return await asyncio.gather(*futures, return_exceptions=True)


# -- frames that wait or fail


@pytest.mark.inside
async def test_key_in_flight_shares_result_and_room(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.create_vchannel("orders")
    gate = Gate(log, monkeypatch)
    first = nowait(log, b"1", "k")
    in_flight = local(log).node.in_flight
    await turns()
    size = in_flight.size
    sharers = [nowait(log, b"other", "k") for _ in range(5)]
    await turns()
    assert in_flight.size - size > 0
    gate.open()
    result = await first
    assert all([the_first(result, await future) for future in sharers])
    await turns()
    assert in_flight.size == 0
    assert await payloads(log, "orders") == [b"1"]


@pytest.mark.inside
async def test_refused_frame_frees_shared_keys(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.create_vchannel("orders")
    gate = Gate(log, monkeypatch)
    first = nowait(log, b"1", "k")
    first.cancel()
    sharer = nowait(log, b"1", "k")
    await turns()
    gate.refuse()
    with pytest.raises(errors.NoSpaceError):
        await sharer
    assert not (await nowait(log, b"2", "k")).duplicate
    assert local(log).node.in_flight.size == 0
    assert await payloads(log, "orders") == [b"2"]


@pytest.mark.inside
@pytest.mark.not_on("pulsar", "counts on two frames in flight")
async def test_sequences_after_a_failed_one_fail(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some appends wait in a later frame, some for the next frame, some for a barrier; appends without that producer continue."""
    tick = (await log.raw_append(Message("orders", b"0"))).time_tick
    later = timestamp.compose(timestamp.parse(tick)[0] + 30_000, 0)
    gate = Gate(log, monkeypatch)
    futures = []
    for sequence in (1, 2, 3):
        futures.append(nowait(log, b"%d" % sequence, key(sequence)))
        await turns()
    plain = log.append_nowait(Message("orders", b"plain"))
    other = nowait(log, b"other", key(1, "q"))
    sharer = nowait(log, b"3", key(3))
    waiting = nowait(log, b"4", key(4), barrier_time_tick=later)
    after = nowait(log, b"5", key(5))
    await turns()
    assert len(gate.held) == 2
    assert written(log).pchannels[0].barriers == 2
    gate.refuse()
    found = await outcomes([*futures, sharer, waiting, after])
    assert [type(error) for error in found] == [errors.NoSpaceError] + [errors.InvalidRequestSeqError] * 5
    assert "sequence 3 of producer 'p'" in str(found[2])
    assert not (await other).duplicate
    await plain
    assert written(log).pchannels[0].barriers == 0
    assert local(log).node.in_flight.size == 0
    results = [await nowait(log, b"%d" % sequence, key(sequence)) for sequence in (1, 2, 3)]
    assert not any(result.duplicate for result in results)
    assert await payloads(log, "orders") == [b"0", b"plain", b"other", b"1", b"2", b"3"]
    assert [info.last_sequence for info in await log.producers()] == [3, 1]


@pytest.mark.inside
async def test_waiting_sequence_fails_with_a_refused_frame(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal of the first frame makes room for another one, which must not hold what the refusal of the second one fails."""
    await log.raw_append(Message("orders", b"0"))
    gate = Gate(log, monkeypatch)
    plain = log.append_nowait(Message("orders", b"plain"))
    await turns()
    first = nowait(log, b"1", key(1))
    await turns()
    second = nowait(log, b"2", key(2))
    await turns()
    assert len(gate.held) == 2
    gate.refuse()
    found = await outcomes([plain, first, second])
    assert [type(error) for error in found] == [errors.NoSpaceError, errors.NoSpaceError, errors.InvalidRequestSeqError]
    assert not (await nowait(log, b"1", key(1))).duplicate
    assert not (await nowait(log, b"2", key(2))).duplicate
    assert local(log).node.in_flight.size == 0
    assert await payloads(log, "orders") == [b"0", b"1", b"2"]


@pytest.mark.inside
async def test_refused_frames_keep_sequences_in_order(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.raw_append(Message("orders", b"0"))
    gate = Gate(log, monkeypatch)
    plain = [log.append_nowait(Message("orders", b"plain"))]
    await turns()
    plain.append(log.append_nowait(Message("orders", b"plain")))
    await turns()
    first = nowait(log, b"1", key(1), barrier_time_tick=gate.held[0][0].header.first_tick)
    await turns()
    assert written(log).pchannels[0].barriers == 1
    gate.refuse()
    second = nowait(log, b"2", key(2))
    assert [type(error) for error in await outcomes(plain)] == [errors.NoSpaceError] * 2
    assert not any(result.duplicate for result in [await second, await first])
    assert await payloads(log, "orders") == [b"0", b"1", b"2"]


@pytest.mark.inside
async def test_frame_waiting_for_ticks_is_drafted_again(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await log.raw_append(Message("orders", b"0"))
    gate = Gate(log, monkeypatch)
    first = nowait(log, b"1", key(1))
    await turns()
    opened = local(log)
    pchannel = opened.node.pchannels["p0"]
    take = opened.node.oracle.take
    monkeypatch.setattr(opened.node.oracle, "take", lambda count: None)
    asked = asyncio.Event()
    monkeypatch.setattr(pchannel.ticks, "_request", asked.set)
    second = nowait(log, b"2", key(2))
    plain = log.append_nowait(Message("orders", b"plain"))
    async with asyncio.timeout(60):
        await asked.wait()  # so the frame is drafted
    gate.refuse()
    assert [type(error) for error in await outcomes([first, second])] == [errors.NoSpaceError, errors.InvalidRequestSeqError]
    monkeypatch.setattr(opened.node.oracle, "take", take)
    pchannel.ticks_extended(None)
    await plain
    assert await payloads(log, "orders") == [b"0", b"plain"]


@pytest.mark.inside
async def test_single_appends_are_withdrawn_from_a_group(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """One submission holds them all: those of the failed producer fail, the others keep their order, and later ones follow."""
    await made_on(log, "p0", "orders", "a", "b")
    gate = Gate(log, monkeypatch)
    failing = [nowait(log, b"p1", key(1)), nowait(log, b"q1", key(1, "q"))]
    await turns()
    filling = log.append_nowait(Message("orders", b"filling"))
    await turns()

    def put(vchannel: str, body: bytes, idempotency_key: Any) -> asyncio.Future[AppendResult]:
        return log.append_nowait(Message(vchannel, body), idempotency_key=idempotency_key)

    kept = [put("orders", b"0", "k0"), put("a", b"1", key(7))]
    lost = [put("orders", b"p2", key(2)), put("orders", b"q2", key(2, "q")), put("orders", b"p3", key(3))]
    kept += [put("orders", b"2", "k2"), put("orders", b"3", key(1, "r"))]
    cancelled = put("b", b"4", "k4")
    cancelled.cancel()
    sharers = [put("orders", b"never", "k0"), put("b", b"never", "k4")]
    lost.append(put("orders", b"p4", key(4)))
    await turns()
    assert len(gate.held) == 2
    assert written(log).pchannels[0].waiting == 9
    gate.refuse()
    kept.append(put("orders", b"5", "k5"))  # must not join what was taken apart
    assert [type(error) for error in await outcomes([*failing, filling])] == [errors.NoSpaceError] * 3
    assert [type(error) for error in await outcomes(lost)] == [errors.InvalidRequestSeqError] * 4
    results = await outcomes(kept)
    assert all(isinstance(result, AppendResult) and not result.duplicate for result in results), results
    ticks = [result.time_tick for result in results if isinstance(result, AppendResult)]
    assert ticks == sorted(ticks), "the order of the calls"
    again = await outcomes(sharers)
    assert isinstance(again[0], AppendResult)
    assert isinstance(results[0], AppendResult)
    assert the_first(results[0], again[0])
    assert isinstance(again[1], AppendResult)
    assert again[1].duplicate, "its first caller was cancelled, the append goes on"
    assert await payloads(log, ["orders", "a", "b"]) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert local(log).node.in_flight.size == 0


@pytest.mark.inside
async def test_defect_in_a_batch_answers_every_caller_once(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await nowait(log, b"0", "known")
    vchannel = local(log).node.routes.actors["orders"]
    monkeypatch.setattr(vchannel.pchannel.frames, "submit_keyed", lambda *_: 1 / 0)
    futures = [nowait(log, b"1", "k"), nowait(log, b"0", "known"), nowait(log, b"1", "k"), nowait(log, b"2", key(1))]
    found = await outcomes(futures)
    assert [type(outcome) for outcome in found] == [errors.UnknownError, AppendResult, errors.UnknownError, errors.UnknownError]
    assert local(log).node.in_flight.size == 0
    monkeypatch.undo()
    other = log.append_nowait(Message("other", b"1"), idempotency_key="k")
    assert not (await other).duplicate
    scopes = local(log).node.pchannels["p0"].keyed.table.scopes.by_names.values()
    assert [entry.claim for scope in scopes for entry in scope.keys.values()] == [None, None], "nothing is pending"


async def test_failed_disk_fails_all_until_reopening(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    monkeypatch.setattr(journal_backend, "Disk", lambda: disk)
    log = await open_wal(data)
    first = await nowait(log, b"1", key(1))
    disk.fail_sync = True
    futures = [nowait(log, b"%d" % sequence, key(sequence)) for sequence in (2, 2, 3)]
    found = await outcomes(futures)
    assert all(isinstance(error, errors.StorageError) and error.outcome_unknown for error in found)
    with pytest.raises(errors.StorageError):
        await nowait(log, b"4", key(4))
    await log.close()
    async with open_wal(data) as log:
        assert the_first(first, await nowait(log, b"1", key(1)))
        results = [await nowait(log, b"%d" % sequence, key(sequence)) for sequence in (2, 3, 4)]
        assert [result.duplicate for result in results][2] is False
        assert await payloads(log, "orders") == [b"1", b"2", b"3", b"4"]


# -- transactions


@pytest.mark.inside
async def test_transactions_over_one_set_share_results(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await made_on(log, "p0", "a", "b")
    gate = Gate(log, monkeypatch)
    txns = [await log.txn(vchannels=names, idempotency_key="k") for names in (["a", "b"], ["b", "a"], ["a"])]
    for txn in txns:
        await txn.append(Message("a", b"body"))
    commits = [start(txn.commit()) for txn in txns]
    await turns()
    commits[0].cancel()
    await turns()
    gate.open()
    again, alone = await commits[1], await commits[2]
    assert again.duplicate
    assert again.txn_context == txns[0].context
    assert not alone.duplicate
    assert txns[1].result == again
    assert grouped(await read_all(log, ["a", "b"])) == [[b"body"], [b"body"]]
    assert written(log).pchannels[0].open_transactions == 0
    assert written(log).pchannels[0].open_transaction_bytes == 0
    with pytest.raises(errors.InvalidTransactionStateError):
        await txns[1].commit()


async def test_context_is_the_same_after_reopening(data: str) -> None:
    async with open_wal(data) as log, log.txn("orders", keepalive=30.0123456, idempotency_key="k") as txn:
        pass
    async with open_wal(data) as log:
        async with log.txn("orders", idempotency_key="k") as again:
            await again.append(b"dropped")
        assert again.result is not None
        assert txn.result is not None
        assert the_first(txn.result, again.result)
        assert [message.txn_context for message in await read_all(log, "orders")] == [txn.context]


async def test_commit_that_finds_no_room_stays_open(location: str) -> None:
    async with open_wal(location, producers_max=1) as log:
        await nowait(log, b"1", key(1))
        async with log.txn("orders", idempotency_key=key(1, "q")) as txn:
            await txn.append(b"body")
            with pytest.raises(errors.WouldBlockError, match="producers_max=1"):
                await txn.commit()
            await txn.append(b"more")
            await log.forget_producer("p")
        assert grouped(await read_all(log, "orders")) == [[b"1"], [b"body", b"more"]]


@pytest.mark.inside
async def test_full_inbox_leaves_a_transaction_open(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    txn = await log.txn("orders")
    await txn.append(b"body")
    group = local(log).node.pchannels["p0"].actor_group
    monkeypatch.setattr(group, "_inbox_max", 0)
    with pytest.raises(errors.WouldBlockError):
        await txn.commit()
    with pytest.raises(errors.WouldBlockError):
        await nowait(log, b"refused", "k")
    assert local(log).node.in_flight.size == 0
    monkeypatch.undo()
    await txn.commit()
    assert not (await nowait(log, b"1", "k")).duplicate
    assert grouped(await read_all(log, "orders")) == [[b"body"], [b"1"]]


@pytest.mark.inside
async def test_commit_out_of_order_is_over(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    txn = await log.txn("orders", idempotency_key=key(1))
    await txn.append(b"body")
    gate = Gate(log, monkeypatch)
    second = nowait(log, b"2", key(2))
    with pytest.raises(errors.InvalidRequestSeqError, match="ascending"):
        await txn.commit()
    assert written(log).pchannels[0].open_transactions == 0
    gate.open()
    await second


@pytest.mark.inside
@pytest.mark.not_on("pulsar", "runs by a virtual clock, in memory")
async def test_expired_one_leaves_its_key_free(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    txn = await log.txn("orders", keepalive=1.0, idempotency_key="k")
    for _ in range(20):
        clock.advance(0.2)
        await turns()
    with pytest.raises(errors.TransactionExpiredError):
        await txn.commit()
    assert not (await nowait(log, b"1", "k")).duplicate
    await log.close()


# -- barriers and exclusive messages


@pytest.mark.inside
@pytest.mark.not_on("pulsar", "runs by a virtual clock, in memory")
async def test_append_at_its_barrier_is_not_overtaken(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    tick = (await log.raw_append(Message("orders", b"0"))).time_tick
    later = timestamp.compose(timestamp.parse(tick)[0] + 1000, 0)
    txn = await log.txn("orders", keepalive=60.0, idempotency_key=key(1))
    await txn.append(b"1")
    await txn.append(Message("orders", b"1b"), barrier_time_tick=later)
    commit = start(txn.commit())
    await turns()
    second = nowait(log, b"2", key(2), barrier_time_tick=tick)
    third = nowait(log, b"3", "plain key", barrier_time_tick=later)
    third.cancel()
    sharer = nowait(log, b"3", "plain key")
    commit.cancel()
    overtaking = await log.raw_append(Message("orders", b"plain"))
    assert not second.done()
    assert not sharer.done()
    for _ in range(10):
        clock.advance(0.2)
        await turns()
    assert (await second).time_tick > later > overtaking.time_tick
    assert (await sharer).duplicate, "its first caller was cancelled, the append goes on"
    assert grouped(await read_all(log, "orders")) == [[b"0"], [b"plain"], [b"1", b"1b"], [b"2"], [b"3"]]
    await log.close()


async def test_append_waiting_at_close_was_not_sent(data: str) -> None:
    log = await open_wal(data)
    tick = (await log.raw_append(Message("orders", b"0"))).time_tick
    later = timestamp.compose(timestamp.parse(tick)[0] + 30_000, 0)
    futures = [nowait(log, b"1", "k", barrier_time_tick=later) for _ in range(2)]
    futures += [nowait(log, b"%d" % sequence, key(sequence), barrier_time_tick=later) for sequence in (1, 2)]
    await turns()
    await log.close()
    assert [type(error) for error in await outcomes(futures)] == [errors.ClosedError] * 4
    async with open_wal(data) as log:
        assert not (await nowait(log, b"1", "k")).duplicate
        assert not (await nowait(log, b"2", key(2))).duplicate


async def test_exclusive_duplicate_fails_no_transaction(log: WALAccesser) -> None:
    exclusive = Message("orders", b"schema", message_type=MessageType.SCHEMA_CHANGE)
    spanned = await log.txn("orders")
    first = await log.raw_append(exclusive, idempotency_key="k")
    with pytest.raises(errors.TransactionExpiredError):
        await spanned.commit()
    txn = await log.txn("orders")
    assert the_first(first, await log.raw_append(exclusive, idempotency_key="k"))
    await txn.commit()


@pytest.mark.inside
async def test_exclusive_message_fails_a_keyed_commit_that_waits(log: WALAccesser) -> None:
    tick = (await log.raw_append(Message("orders", b"0"))).time_tick
    later = timestamp.compose(timestamp.parse(tick)[0] + 30_000, 0)
    txn = await log.txn("orders", idempotency_key=key(1))
    await txn.append(Message("orders", b"body"), barrier_time_tick=later)
    commit = start(txn.commit())
    await turns()
    after = nowait(log, b"2", key(2))
    await log.raw_append(Message("orders", b"", message_type=MessageType.SCHEMA_CHANGE))
    with pytest.raises(errors.TransactionExpiredError):
        await commit
    with pytest.raises(errors.InvalidRequestSeqError):
        await after
    assert await log.producers() == []
    assert local(log).node.in_flight.size == 0
    assert not (await nowait(log, b"1", key(1))).duplicate


# -- forgotten keys


@pytest.mark.inside
async def test_drop_with_keys_in_flight(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await made_on(log, "p0", "orders", "stock")
    async with log.txn(vchannels=["orders", "stock"], idempotency_key=key(5)):
        pass
    async with log.txn(vchannels=["stock"], idempotency_key=key(4)):
        pass
    await nowait(log, b"1", "k")
    gate = Gate(log, monkeypatch)
    futures = [nowait(log, b"2", "in flight"), nowait(log, b"2", "in flight"), nowait(log, b"3", key(1))]
    await turns()
    dropping = start(log.drop_vchannel("orders"))
    await turns()
    gate.open()
    assert [result.duplicate for result in await asyncio.gather(*futures)] == [False, True, False]
    await dropping
    assert await log.producers() == [ProducerInfo("p", ("stock",), 4)]
    await made_on(log, "p0", "orders")
    for again in ("k", "in flight", key(1)):
        assert not (await nowait(log, b"new", again)).duplicate
    async with log.txn(vchannels=["orders", "stock"], idempotency_key=key(5)) as txn:
        pass
    assert txn.result is not None
    assert not txn.result.duplicate


async def test_keys_of_a_dropped_vchannel_stay_forgotten(data: str) -> None:
    async with open_wal(data) as log:
        await nowait(log, b"1", key(1))
        await nowait(log, b"1", "k")
        await log.raw_append(Message("stock", b"1"), idempotency_key=key(1))
        await log.drop_vchannel("orders")
        await log.create_vchannel("orders")
    async with open_wal(data) as log:
        assert await log.producers() == [ProducerInfo("p", ("stock",), 1)]
        assert not (await nowait(log, b"1", "k")).duplicate
        assert not (await nowait(log, b"1", key(1))).duplicate


@pytest.mark.inside
async def test_forgetting_keeps_the_order_of_calls(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    await nowait(log, b"5", key(5))
    gate = Gate(log, monkeypatch)
    sixth = nowait(log, b"6", key(6))
    with pytest.raises(errors.WouldBlockError, match="1 appends in flight"):
        await log.forget_producer("p")
    gate.open()
    await sixth
    gate = Gate(log, monkeypatch)
    forgetting = start(log.forget_producer("p"))
    await turns()
    for refused in (log.forget_producer("p"), log.raw_append(Message("orders", b""), idempotency_key=key(6))):
        with pytest.raises(errors.WouldBlockError, match="being forgotten"):
            await refused
    gate.refuse()
    with pytest.raises(errors.NoSpaceError):
        await forgetting
    assert (await nowait(log, b"6", key(6))).duplicate
    forgetting = start(log.forget_producer("p"))
    await turns()
    forgetting.cancel()
    async with asyncio.timeout(60):
        while await log.producers():
            await turns(1)
    assert not (await nowait(log, b"0", key(0))).duplicate
    assert await payloads(log, "orders") == [b"5", b"6", b"0"]
    for unknown in ("q", ""):
        with pytest.raises(errors.InvalidArgumentError, match=r"log\.producers\(\)"):
            await log.forget_producer(unknown)
    with pytest.raises(TypeError):
        await log.forget_producer(b"p")  # type: ignore[arg-type]


async def test_producer_is_forgotten_on_all_pchannels(data: str) -> None:
    async with open_wal(data, pchannels=4) as log:
        for number in range(4):
            await log.create_vchannel(f"v{number}", pchannel=f"p{number}")
            await log.raw_append(Message(f"v{number}", b""), idempotency_key=key(number))
            await log.raw_append(Message(f"v{number}", b""), idempotency_key=key(number, "q"))
        assert [info.vchannels for info in await log.producers()] == [(f"v{number}",) for number in range(4)] * 2
        await log.forget_producer("p")
    async with open_wal(data) as log:
        assert {info.name for info in await log.producers()} == {"q"}


# -- windows


@pytest.mark.inside
@pytest.mark.not_on("pulsar", "runs by a virtual clock, in memory")
async def test_window_is_bounded_by_count_and_by_age(location: str) -> None:
    clock = VirtualClock()
    log = await open_virtual(location, clock, idempotency_window_count=3, idempotency_window_s=100.0)
    for name in ("a", "b", "c", "d"):
        await log.raw_append(Message("orders" if name == "a" else "stock", b""), idempotency_key=name)
    assert not (await nowait(log, b"", "a")).duplicate, "three more keys came, on another vchannel"
    clock.advance(96.0)
    await log.allocate_time_tick()
    assert (await nowait(log, b"", "a")).duplicate
    clock.advance(9.0)
    await log.allocate_time_tick()
    assert not (await nowait(log, b"", "a")).duplicate
    await log.close()


async def test_cut_window_is_warned_of_and_shown(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    log = await open_virtual(str(data_dir), clock, idempotency_window_count=3, idempotency_window_s=100.0)

    def shown() -> tuple[int, float]:
        (pchannel,) = log.statistics().pchannels
        return pchannel.idempotency_keys, round(pchannel.idempotency_reach_s)

    for number in range(3):
        await log.raw_append(Message("orders", b""), idempotency_key=f"{number}")
        await clock.run(10.0)
    assert shown() == (3, 100)
    assert caplog.messages == []
    await log.raw_append(Message("orders", b""), idempotency_key="3")  # forgets the first, 30 s old
    assert shown() == (3, 30)
    await clock.run(30.0)
    text = "pchannel p0 remembers idempotency keys for 30 s only"
    assert [text in message for message in caplog.messages] == [True]
    await log.raw_append(Message("orders", b""), idempotency_key="4")
    await clock.run(28.0)
    assert len(caplog.messages) == 1
    await clock.run(10.0)
    assert len(caplog.messages) == 2
    caplog.clear()
    await log.close()


async def test_window_without_a_count_follows_the_age(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        messages = [Message("orders", b"") for _ in range(70_000)]  # more than the 65,536 of earlier versions
        for start in range(0, len(messages), 10_000):
            await asyncio.gather(
                *(
                    log.append_nowait(message, idempotency_key=f"{start + at}")
                    for at, message in enumerate(messages[start : start + 10_000])
                )
            )
        assert (await log.raw_append(Message("orders", b""), idempotency_key="0")).duplicate
        assert [pchannel.idempotency_reach_s for pchannel in log.statistics().pchannels] == [3600.0]
    async with open_wal(data_dir) as log:
        assert (await log.raw_append(Message("orders", b""), idempotency_key="0")).duplicate


@pytest.mark.parametrize("setting", ["idempotency_window_count", "idempotency_window_s"])
async def test_without_a_window_plain_keys_are_refused(setting: str) -> None:
    window: Any = {setting: 0}
    async with open_wal("memory:", **window) as log:
        with pytest.raises(errors.InvalidArgumentError, match=f"{setting}=0"):
            nowait(log, b"", "k")
        with pytest.raises(errors.InvalidArgumentError, match="ProducerKey"):
            await log.txn("orders", idempotency_key="k")
        await nowait(log, b"", key(1))
        assert (await nowait(log, b"", key(1))).duplicate
        assert await log.vchannels() != []


@pytest.mark.inside
async def test_no_room_in_flight(location: str) -> None:
    async with open_wal(location, in_flight_bytes_max=100) as log:
        large = log.append_nowait(Message("orders", bytes(200)))
        with pytest.raises(errors.WouldBlockError):
            nowait(log, b"1", "k")
        waiting = [start(log.raw_append(Message("orders", b"1"), idempotency_key="k")) for _ in range(3)]
        assert sorted([(await task).duplicate for task in waiting]) == [False, True, True]
        await large
        assert local(log).node.in_flight.size == 0


async def test_wide_transaction_counts_its_key_in_the_frame(location: str) -> None:
    """The key is in each commit row: a transaction whose key would not fit is refused when it begins."""
    async with open_wal(location, message_bytes_max=1000, txn_bytes_max=1000, txn_bodies_max=1 << 15) as log:
        names = [f"vchannel-{number:05d}" for number in range(22_000)]
        for name in names[:1]:
            await log.create_vchannel(name)
        await (await log.txn(vchannels=names[:10_000], idempotency_key="k" * 255)).rollback()
        with pytest.raises(errors.InvalidArgumentError, match="one frame"):
            await log.txn(vchannels=names, idempotency_key="k" * 255)


@pytest.mark.inside
async def test_unknown_vchannel_makes_no_key(location: str) -> None:
    async with open_wal(location, create_vchannels=False) as log:
        for idempotency_key in ("k", key(1)):
            with pytest.raises(errors.ChannelNotExistError):
                await nowait(log, b"", idempotency_key)
        await log.create_vchannel("orders")
        assert not (await nowait(log, b"", "k")).duplicate
        assert local(log).node.in_flight.size == 0


async def test_keys_survive_an_unsaved_drop(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vchannel's record still exists, so the next opening finds it with the messages that were appended, and with their keys."""
    plain, sequence = "k", ProducerKey("p", 7)
    async with open_wal(data) as log:
        first = await log.raw_append(Message("orders", b"1"), idempotency_key=plain)
        second = await log.raw_append(Message("orders", b"2"), idempotency_key=sequence)
        kv = local(log).coordinator.kv
        save = kv.multi_save_and_remove

        async def keep(saves: Any, removals: Any) -> None:
            if removals:
                raise errors.StorageError("the disk is full")
            await save(saves, removals)

        monkeypatch.setattr(kv, "multi_save_and_remove", keep)
        with pytest.raises(errors.StorageError):
            await log.drop_vchannel("orders")
        await log.raw_append(Message("other", b"3"), idempotency_key="k")  # so that closing writes a checkpoint
    async with open_wal(data) as log:
        for key, result in ((plain, first), (sequence, second)):
            again = await log.raw_append(Message("orders", b"again"), idempotency_key=key)
            assert again.duplicate
            assert again.message_id == result.message_id
        assert await payloads(log, "orders") == [b"1", b"2"]
        await log.drop_vchannel("orders")
        assert not (await log.raw_append(Message("orders", b"again"), idempotency_key=sequence)).duplicate
        assert [tuple(info.vchannels) for info in await log.producers()] == [("orders",)]


async def test_duplicates_in_flight_take_room(location: str) -> None:
    async with open_wal(location, in_flight_bytes_max=1 << 16, time_tick_interval_s=60) as log:
        await log.create_vchannel("orders")
        barrier = await log.allocate_time_tick() + (30_000 << 18)
        first = log.append_nowait(Message("orders", bytes(1000)), barrier_time_tick=barrier, idempotency_key="k")
        await turns(2)
        one = log.statistics().bytes_in_flight
        shared: list[asyncio.Future[AppendResult]] = []
        with pytest.raises(errors.WouldBlockError, match="in_flight_bytes_max"):
            while len(shared) < 1000:
                shared.append(log.append_nowait(Message("orders", bytes(1000)), idempotency_key="k"))
                await turns(2)
        assert 50 < len(shared) < 65
        all_of_them = log.statistics().bytes_in_flight - one
        for future in shared[::2]:
            future.cancel()
        while log.statistics().bytes_in_flight - one > all_of_them * len(shared[1::2]) // len(shared):
            await asyncio.sleep(0.001)  # a server has to be asked
        assert log.statistics().bytes_in_flight - one == all_of_them * len(shared[1::2]) // len(shared)
        last = log.append_nowait(Message("orders", bytes(1000)), idempotency_key="k")
    for future in (first, *shared[1::2], last):
        with pytest.raises(errors.ClosedError):
            await future


async def test_shared_room_is_given_back(log: WALAccesser) -> None:
    for number in range(3):
        calls = [log.append_nowait(Message("orders", b"1"), idempotency_key=f"k{number}") for _ in range(100)]
        results = await asyncio.gather(*calls)
        assert sum(result.duplicate for result in results) == 99
    await turns(2)
    assert log.statistics().bytes_in_flight == 0
