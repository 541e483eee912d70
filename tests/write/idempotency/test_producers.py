"""Idempotency by producer and sequence: remembered for good, bounded in number, with an error when a sequence is missed."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from actors import VirtualClock
from tests.api.appends.test_no_space import small_disk
from tests.locations import open_virtual, open_wal
from tests.probes import close_all, made_on, payloads, turns
from tests.processes import Line, Other
from tests.small_disk import fill
from tests.write.idempotency.test_keys import same_write
from wal import AppendResult, Message, ProducerInfo, ProducerKey, WALAccesser
from wal.errors import InvalidArgumentError, InvalidRequestSeqError, NoSpaceError, WALError, WouldBlockError

__all__ = ["small_disk"]

RESULTS_KEPT = 16


async def put(log: WALAccesser, sequence: int, *, producer: str = "p", vchannel: str = "orders") -> AppendResult[Any, Any]:
    return await log.raw_append(Message(vchannel, b"%d" % sequence), idempotency_key=ProducerKey(producer, sequence))


async def test_sequence_not_above_the_last_is_a_duplicate(log: WALAccesser) -> None:
    first = await put(log, 1)
    third = await put(log, 3)
    assert not first.duplicate
    assert not third.duplicate, "sequences may have gaps"
    for sequence, before in ((1, first), (3, third)):
        again = await put(log, sequence)
        assert again.duplicate
        assert same_write(before, again)
    skipped = await put(log, 2)
    assert skipped.duplicate, "not above the last"
    assert not (await put(log, 4)).duplicate
    assert await payloads(log, "orders") == [b"1", b"3", b"4"]


async def test_last_sixteen_results_are_kept(log: WALAccesser) -> None:
    results = {sequence: await put(log, sequence) for sequence in range(1, 41)}
    for sequence in range(1, 41):
        again = await put(log, sequence)
        assert again.duplicate
        if sequence > 40 - RESULTS_KEPT:
            assert same_write(results[sequence], again)
        else:
            assert (again.message_id, again.time_tick, again.last_confirmed) == (None, None, None)
    assert len(await payloads(log, "orders")) == 40


async def test_results_are_kept_over_reopening(data: str) -> None:
    async with open_wal(data) as log:
        results = {sequence: await put(log, sequence) for sequence in range(1, 41)}
    for _ in range(2):
        async with open_wal(data, idempotency_window_s=0.0, idempotency_window_count=0) as log:
            for sequence in range(1, 41):
                again = await put(log, sequence)
                assert again.duplicate
                if sequence > 40 - RESULTS_KEPT:
                    assert same_write(results[sequence], again)
                else:
                    assert again.message_id is None
            (info,) = await log.producers()
            assert info.last_sequence == 40


async def test_sequence_outlives_the_truncated_log(data: str) -> None:
    async with open_wal(data, segment_bytes=1 << 20) as log:
        await put(log, 7)
        results = await log.append_bulk([Message("orders", bytes(1 << 18)) for _ in range(30)])
        await log.truncate(up_to=results[-1].message_id)
    for _ in range(2):
        async with open_wal(data) as log:
            assert (await put(log, 7)).duplicate
            assert (await put(log, 6)).duplicate


async def test_sequence_in_flight_shares_its_result(log: WALAccesser) -> None:
    calls: list[asyncio.Future[Any]] = [
        log.append_nowait(Message("orders", b"%d" % sequence), idempotency_key=ProducerKey("p", sequence))
        for sequence in (1, 2, 2, 1, 3, 2)
    ]
    one, two, two_again, one_again, three, two_last = await asyncio.gather(*calls)
    assert [one.duplicate, two.duplicate, three.duplicate] == [False] * 3
    for before, again in ((one, one_again), (two, two_again), (two, two_last)):
        assert again.duplicate
        assert same_write(before, again)
    assert await payloads(log, "orders") == [b"1", b"2", b"3"]


async def test_many_in_flight_keep_their_order(log: WALAccesser) -> None:
    for first in (1, 501):
        calls = [
            log.append_nowait(Message("orders", b"%d" % sequence), idempotency_key=ProducerKey("p", sequence))
            for sequence in range(first, first + 1000)
        ]
        results = await asyncio.gather(*calls)
        duplicates = 0 if first == 1 else 500
        assert [result.duplicate for result in results] == [True] * duplicates + [False] * (1000 - duplicates)
    assert [int(payload) for payload in await payloads(log, "orders")] == list(range(1, 1501))


async def test_producers_do_not_know_each_other(log4: WALAccesser) -> None:
    await made_on(log4, "p0", "a", "b")
    await made_on(log4, "p1", "c")
    for producer in ("x", "y"):
        for vchannel in ("a", "b", "c"):
            assert not (await put(log4, 5, producer=producer, vchannel=vchannel)).duplicate
    assert (await put(log4, 5, producer="x", vchannel="b")).duplicate
    assert not (await put(log4, 6, producer="x", vchannel="b")).duplicate
    infos = await log4.producers()
    assert all(isinstance(info, ProducerInfo) for info in infos)
    told = sorted((info.name, tuple(info.vchannels), info.last_sequence) for info in infos)
    assert told == [("x", ("a",), 5), ("x", ("b",), 6), ("x", ("c",), 5), ("y", ("a",), 5), ("y", ("b",), 5), ("y", ("c",), 5)]


async def test_transactions_have_sequences_too(data: str) -> None:
    async def wide(log: WALAccesser, sequence: int) -> AppendResult[Any, Any]:
        async with log.txn(vchannels=["a", "b"], idempotency_key=ProducerKey("p", sequence)) as txn:
            await txn.append(Message("a", b"%d" % sequence))
            await txn.append(Message("b", b"%d" % sequence))
        assert txn.result is not None
        return txn.result

    async with open_wal(data) as log:
        one = await wide(log, 1)
        two = await wide(log, 2)
        assert not (await put(log, 1, vchannel="a")).duplicate, "a vchannel is not the set"
        assert same_write(await wide(log, 1), one)
    async with open_wal(data) as log:
        again = await wide(log, 2)
        assert again.duplicate
        assert same_write(again, two)
        assert not (await wide(log, 3)).duplicate
        assert await payloads(log, "b") == [b"1", b"2", b"3"]
        told = sorted((info.name, tuple(sorted(info.vchannels)), info.last_sequence) for info in await log.producers())
        assert told == [("p", ("a",), 1), ("p", ("a", "b"), 3)]


async def test_rolled_back_one_does_not_count(log: WALAccesser) -> None:
    txn = await log.txn("orders", idempotency_key=ProducerKey("p", 9))
    await txn.append(b"9")
    await txn.rollback()
    assert not (await put(log, 5)).duplicate
    assert not (await put(log, 9)).duplicate


async def test_past_the_bound_there_is_no_room(location: str) -> None:
    async with open_wal(location, producers_max=3) as log:
        for producer in ("a", "b", "c"):
            await put(log, 1, producer=producer)
        for _ in range(2):
            with pytest.raises(WouldBlockError, match="3"):
                await put(log, 1, producer="d")
        with pytest.raises(WouldBlockError):
            async with log.txn("orders", idempotency_key=ProducerKey("d", 1)) as txn:
                await txn.append(b"d")
        assert not (await put(log, 2, producer="a")).duplicate, "those that are there go on"
        assert (await put(log, 1, producer="b")).duplicate
        await log.raw_append(Message("orders", b"plain"), idempotency_key="key")
        assert sorted(info.name for info in await log.producers()) == ["a", "b", "c"]
        await log.forget_producer("b")
        assert sorted(info.name for info in await log.producers()) == ["a", "c"]
        assert not (await put(log, 1, producer="d")).duplicate
        with pytest.raises(WouldBlockError):
            await put(log, 2, producer="b")
        assert await payloads(log, "orders") == [b"1", b"1", b"1", b"2", b"plain", b"1"]


async def test_bound_is_a_pchannel_s(location: str) -> None:
    async with open_wal(location, producers_max=2, pchannels=2) as log:
        await made_on(log, "p0", "a")
        await made_on(log, "p1", "b")
        for vchannel in ("a", "b"):
            for producer in ("x", "y"):
                await put(log, 1, producer=producer, vchannel=vchannel)
            with pytest.raises(WouldBlockError):
                await put(log, 1, producer="z", vchannel=vchannel)


async def test_forgotten_one_is_forgotten_after_a_crash_too(data: str) -> None:
    async def put_and_forget(line: Line, data: str) -> None:
        async with open_wal(data) as log:
            for producer in ("gone", "kept"):
                await put(log, 5, producer=producer)
            await log.forget_producer("gone")
            await log.raw_append(Message("orders", b"after"))
            line.tell("forgotten")
            await line.hear()

    writer = Other(put_and_forget, data)
    assert await writer.hear() == "forgotten"
    await writer.kill()
    async with open_wal(data) as log:
        assert [info.name for info in await log.producers()] == ["kept"]
        assert not (await put(log, 1, producer="gone")).duplicate
        assert (await put(log, 5, producer="kept")).duplicate


async def test_dropped_vchannel_forgets_its_producers(log: WALAccesser) -> None:
    await put(log, 5)
    await put(log, 5, vchannel="other")
    await log.drop_vchannel("orders")
    assert [tuple(info.vchannels) for info in await log.producers()] == [("other",)]
    assert not (await put(log, 1)).duplicate


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_keys(log: WALAccesser) -> None:
    for producer, sequence in ((b"p", 1), (7, 1), ("p", "1"), ("p", 1.0), ("p", True), ("p", None)):
        with pytest.raises(TypeError):
            await log.raw_append(Message("orders", b"1"), idempotency_key=ProducerKey(producer, sequence))  # type: ignore[arg-type]
    for producer, sequence in (("p", -1), ("", 1), ("p", 1 << 64), ("p", 1 << 200), ("\ud800", 1), ("x" * 100_000, 1)):
        with pytest.raises(InvalidArgumentError):
            await log.raw_append(Message("orders", b"1"), idempotency_key=ProducerKey(producer, sequence))
    with pytest.raises(TypeError):
        await log.forget_producer(7)  # type: ignore[arg-type]
    assert await log.producers() == []
    assert await payloads(log, "orders") == []


async def test_key_is_a_value() -> None:
    assert ProducerKey("p", 1) == ProducerKey("p", 1)
    assert len({ProducerKey("p", 1), ProducerKey("p", 1), ProducerKey("p", 2)}) == 2
    with pytest.raises((AttributeError, TypeError)):
        ProducerKey("p", 1).sequence = 2  # type: ignore[misc]


@pytest.mark.parametrize("sequence", [0, 1, (1 << 32) + 1, (1 << 63) - 1, 1 << 63])
async def test_ends_of_the_range(data: str, sequence: int) -> None:
    """A sequence is accepted and remembered exactly, or refused before anything is written."""
    async with open_wal(data) as log:
        try:
            first = await put(log, sequence)
        except InvalidArgumentError:
            assert sequence == 1 << 63, "only beyond 63 bits may it be too large"
            assert await payloads(log, "orders") == []
            return
        assert not first.duplicate
        assert (await put(log, sequence)).duplicate
    async with open_wal(data) as log:
        again = await put(log, sequence)
        assert again.duplicate
        assert same_write(first, again)
        assert (await log.producers())[0].last_sequence == sequence


async def test_sequence_never_overtakes_a_waiting_one(log: WALAccesser) -> None:
    """Sequence 1 waits, sequence 2 does not: neither may be reported as a duplicate before it was written."""
    barrier = await log.allocate_time_tick()
    barrier += 50 << 18
    one = log.append_nowait(Message("orders", b"1"), barrier_time_tick=barrier, idempotency_key=ProducerKey("p", 1))
    two = log.append_nowait(Message("orders", b"2"), idempotency_key=ProducerKey("p", 2))
    outcomes = await asyncio.gather(one, two, return_exceptions=True)
    written = await payloads(log, "orders")
    for body, outcome in zip((b"1", b"2"), outcomes, strict=True):
        if isinstance(outcome, AppendResult):
            assert written.count(body) == 1
            assert not outcome.duplicate
        else:
            assert isinstance(outcome, WALError)
            assert body not in written
    assert b"1" in written or b"2" in written


async def test_later_ones_of_a_failed_sequence_fail(small_disk: Path) -> None:
    """The disk fills up in the middle of many sequences: no later one is written before the failed one is sent again."""
    async with open_wal(str(small_disk / "data"), segment_bytes=4 << 20) as log:
        await put(log, 0)
        filler = fill(small_disk)
        size = 50_000
        sequence = 1
        failed: list[int] = []
        while not failed:
            batch = range(sequence, sequence + 40)
            calls = []
            for number in batch:
                key = ProducerKey("p", number)
                calls.append(log.append_nowait(Message("orders", b"%06d" % number + bytes(size)), idempotency_key=key))
                await turns(number % 3)
            outcomes = dict(zip(batch, await asyncio.gather(*calls, return_exceptions=True), strict=True))
            failed = [number for number, outcome in outcomes.items() if not isinstance(outcome, AppendResult)]
            sequence += 40
        assert isinstance(outcomes[failed[0]], NoSpaceError)
        assert failed == list(range(failed[0], sequence)), "nothing after the failed one was written"
        for number in failed[1:]:
            assert isinstance(outcomes[number], NoSpaceError | InvalidRequestSeqError), outcomes[number]
        filler.unlink()
        for number in failed:
            key = ProducerKey("p", number)
            assert not (await log.raw_append(Message("orders", b"%06d" % number), idempotency_key=key)).duplicate
        written = [int(payload[:6]) for payload in await payloads(log, "orders")]
        assert written == list(range(sequence))
        del outcomes, calls
        gc.collect()


@pytest.mark.inside
async def test_later_ones_of_an_unsent_one_fail(location: str) -> None:
    """A transaction that expired before its commit: its sequence was not written, and can be sent again."""
    clock = VirtualClock()
    log = await open_virtual(location, clock)
    txn = await log.txn("orders", keepalive=0.5, idempotency_key=ProducerKey("p", 1))
    await txn.append(b"lost")
    await clock.run(1.0)
    with pytest.raises(WALError):
        await txn.commit()
    assert not (await put(log, 1)).duplicate
    assert await payloads(log, "orders") == [b"1"]
    await close_all(log)


async def test_many_producers_over_kills(data: str) -> None:
    async def produce(line: Line, data: str) -> None:
        async with open_wal(data) as log:
            known = {info.name: info.last_sequence for info in await log.producers()}
            start = {f"p{n}": max(known.get(f"p{n}", 0) - 3, 0) + 1 for n in range(10)}
            step = 0
            while True:
                sent = [(producer, first + step + offset) for producer, first in start.items() for offset in range(3)]
                await asyncio.gather(
                    *(
                        log.append_nowait(
                            Message("orders", f"{producer} {sequence}".encode()), idempotency_key=ProducerKey(producer, sequence)
                        )
                        for producer, sequence in sent
                    )
                )
                line.tell(sent)
                step += 3

    last: dict[str, int] = {}
    for _ in range(4):
        writer = Other(produce, data)
        for _ in range(20):
            for producer, sequence in await writer.hear():
                last[producer] = max(sequence, last.get(producer, 0))
        await writer.kill()
    async with open_wal(data) as log:
        known = {info.name: info.last_sequence for info in await log.producers()}
        written: dict[str, list[int]] = {}
        for payload in await payloads(log, "orders"):
            producer, sequence = payload.decode().split()
            written.setdefault(producer, []).append(int(sequence))
        for producer, sequence in last.items():
            assert known[producer] >= sequence, "what was acknowledged is remembered"
            assert written[producer] == list(range(1, known[producer] + 1)), "each once, in order"
