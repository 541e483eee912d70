"""Idempotency by plain keys: the first write wins within the window, in flight, in transactions, and after reopening."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.api.appends.test_no_space import small_disk
from tests.locations import open_wal
from tests.probes import made_on, payloads, read_all, turns
from tests.processes import Line, Other, eventually
from tests.small_disk import fill
from wal import AppendResult, Message, WALAccesser, timestamp
from wal.errors import InvalidArgumentError, NoSpaceError, WALError, WouldBlockError

pytestmark = pytest.mark.everywhere

__all__ = ["small_disk"]


def same_write(first: AppendResult, second: AppendResult) -> bool:
    return (first.message_id, first.time_tick, first.last_confirmed) == (second.message_id, second.time_tick, second.last_confirmed)


async def test_first_write_wins(log: WALAccesser) -> None:
    first = await log.raw_append(Message("orders", b"1"), idempotency_key="k")
    assert first.duplicate is False
    between = await log.raw_append(Message("orders", b"2"))
    again = await log.raw_append(Message("orders", b"other content"), idempotency_key="k")
    assert again.duplicate is True
    assert same_write(first, again)
    assert again.last_confirmed == again.message_id
    assert again.time_tick < between.time_tick
    assert await payloads(log, "orders") == [b"1", b"2"]
    nowait = await log.append_nowait(Message("orders", b"3"), idempotency_key="k")
    assert nowait.duplicate
    assert same_write(first, nowait)
    assert await payloads(log, "orders") == [b"1", b"2"]


async def test_without_a_key_nothing_is_a_duplicate(log: WALAccesser) -> None:
    message = Message("orders", b"1")
    results = [await log.raw_append(message) for _ in range(3)]
    assert [result.duplicate for result in results] == [False] * 3
    assert await payloads(log, "orders") == [b"1"] * 3
    assert [result.duplicate for result in await log.append_bulk([message] * 3)] == [False] * 3
    assert [result.duplicate for result in (await log.append_messages(message, message)).unwrap()] == [False] * 2


async def test_key_is_not_shown(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"1", properties={"a": "b"}), idempotency_key="secret key")
    (message,) = await read_all(log, "orders")
    assert dict(message.properties) == {"a": "b"}


async def test_key_in_flight_shares_its_result(log: WALAccesser) -> None:
    calls = [log.append_nowait(Message("orders", b"%d" % number), idempotency_key="k") for number in range(50)]
    calls += [
        asyncio.ensure_future(log.raw_append(Message("orders", b"50"), idempotency_key="k")),
        log.append_nowait(Message("orders", b"end")),
    ]
    *results, _ = await asyncio.gather(*calls)
    assert [result.duplicate for result in results] == [False] + [True] * 50
    assert all(same_write(results[0], result) for result in results)
    assert await payloads(log, "orders") == [b"0", b"end"]


async def test_cancelled_caller_can_ask_again(log: WALAccesser) -> None:
    for turn_count in range(12):
        key = f"k{turn_count}"
        task = asyncio.ensure_future(log.raw_append(Message("orders", key.encode()), idempotency_key=key))
        await turns(turn_count)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        result = await log.raw_append(Message("orders", key.encode()), idempotency_key=key)
        assert result.message_id is not None
    assert await payloads(log, "orders") == [b"k%d" % number for number in range(12)]


async def test_cancelled_owner_does_not_take_the_others_along(log: WALAccesser) -> None:
    owner = asyncio.ensure_future(log.raw_append(Message("orders", b"1"), idempotency_key="k"))
    await turns(1)
    others = [asyncio.ensure_future(log.raw_append(Message("orders", b"2"), idempotency_key="k")) for _ in range(3)]
    await turns(1)
    owner.cancel()
    results = await asyncio.gather(*others)
    assert len({result.message_id for result in results}) == 1
    assert len(await payloads(log, "orders")) == 1


async def test_key_belongs_to_its_vchannel(log4: WALAccesser) -> None:
    await made_on(log4, "p0", "a", "b")
    await made_on(log4, "p1", "c")
    results = [await log4.raw_append(Message(name, b"1"), idempotency_key="k") for name in ("a", "b", "c")]
    assert [result.duplicate for result in results] == [False] * 3
    again = [await log4.raw_append(Message(name, b"2"), idempotency_key="k") for name in ("a", "b", "c")]
    assert [result.duplicate for result in again] == [True] * 3
    assert all(map(same_write, results, again))


async def test_keys_are_compared_exactly(log: WALAccesser) -> None:
    keys = ["k", "K", "k ", "é", "e\u0301", "k\0", "0", "x" * 254, "x" * 255, "ü" * 127]
    for key in keys:
        assert not (await log.raw_append(Message("orders", b"1"), idempotency_key=key)).duplicate, key
    for key in keys:
        assert (await log.raw_append(Message("orders", b"1"), idempotency_key=key)).duplicate, key
    assert len(await payloads(log, "orders")) == len(keys)


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_keys(log: WALAccesser) -> None:
    message = Message("orders", b"1")
    for wrong in (b"k", 7, ("p", 1), 1.5):
        with pytest.raises(TypeError):
            await log.raw_append(message, idempotency_key=wrong)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            log.append_nowait(message, idempotency_key=wrong)  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            await log.txn("orders", idempotency_key=wrong)  # type: ignore[call-overload]
    for value in ("", "x" * (1 << 20), "\ud800"):
        with pytest.raises(InvalidArgumentError):
            await log.raw_append(message, idempotency_key=value)
        with pytest.raises(InvalidArgumentError):
            await log.txn("orders", idempotency_key=value)
    assert await payloads(log, "orders") == []


async def test_key_of_256_bytes_is_refused_or_kept(log: WALAccesser) -> None:
    """A long key is never shortened to another caller's key."""
    await log.raw_append(Message("orders", b"255"), idempotency_key="x" * 255)
    try:
        result = await log.raw_append(Message("orders", b"256"), idempotency_key="x" * 256)
    except InvalidArgumentError as error:
        assert "256" in str(error)
        assert "255" in str(error), "it says the limit"
        assert await payloads(log, "orders") == [b"255"]
    else:
        assert not result.duplicate
        assert (await log.raw_append(Message("orders", b"x"), idempotency_key="x" * 256)).duplicate


async def test_refused_write_leaves_its_key_free(log: WALAccesser) -> None:
    with pytest.raises(InvalidArgumentError):
        await log.raw_append(Message("orders", bytes(2 << 20)), idempotency_key="k")
    result = await log.raw_append(Message("orders", b"1"), idempotency_key="k")
    assert not result.duplicate
    async with log.txn("orders", idempotency_key="t") as txn:
        await txn.append(b"2")
        await txn.rollback()
    async with log.txn("orders", idempotency_key="t") as txn:
        await txn.append(b"3")
    assert not txn.result.duplicate
    assert await payloads(log, "orders") == [b"1", b"3"]


async def test_transaction_is_judged_at_its_commit(log: WALAccesser) -> None:
    first, second = [await log.txn("orders", idempotency_key="order-7") for _ in range(2)]
    await first.append(b"first")
    await second.append(b"second")
    await second.append(b"second")
    won = await second.commit()
    lost = await first.commit()
    assert (won.duplicate, lost.duplicate) == (False, True)
    assert same_write(won, lost)
    assert await payloads(log, "orders") == [b"second", b"second"]
    async with log.txn("orders", idempotency_key="order-7") as third:
        await third.append(b"third")
    assert third.result.duplicate
    assert same_write(won, third.result)
    assert await payloads(log, "orders") == [b"second", b"second"]


async def test_commits_in_flight_share_their_result(log: WALAccesser) -> None:
    txns = [await log.txn("orders", idempotency_key="k") for _ in range(10)]
    for number, txn in enumerate(txns):
        await txn.append(b"%d" % number)
    results = await asyncio.gather(*(txn.commit() for txn in txns))
    assert sum(not result.duplicate for result in results) == 1
    assert len({result.message_id for result in results}) == 1
    assert len(await payloads(log, "orders")) == 1


async def test_appends_and_transactions_share_keys(log: WALAccesser) -> None:
    plain = await log.raw_append(Message("orders", b"1"), idempotency_key="k")
    async with log.txn("orders", idempotency_key="k") as txn:
        await txn.append(b"2")
    assert txn.result.duplicate
    assert same_write(plain, txn.result)
    async with log.txn("orders", idempotency_key="t") as txn:
        await txn.append(b"3")
    again = await log.raw_append(Message("orders", b"4"), idempotency_key="t")
    assert again.duplicate
    assert same_write(txn.result, again)
    assert await payloads(log, "orders") == [b"1", b"3"]


async def test_wide_transaction_has_keys_of_its_own(log: WALAccesser) -> None:
    for name in ("a", "b"):
        await log.raw_append(Message(name, b"plain"), idempotency_key="k")

    async def wide(names: list[str]) -> AppendResult:
        async with log.txn(vchannels=names, idempotency_key="k") as txn:
            for name in names:
                await txn.append(Message(name, b"wide"))
        assert txn.result is not None
        return txn.result

    first = await wide(["a", "b"])
    assert not first.duplicate, "the set is not one of its vchannels"
    second = await wide(["b", "a"])
    assert second.duplicate, "a set has no order"
    assert same_write(first, second)
    assert not (await wide(["a", "b", "c"])).duplicate
    assert await payloads(log, "a") == [b"plain", b"wide", b"wide"]
    assert await payloads(log, "c") == [b"wide"]


async def test_bodies_of_a_duplicate_are_nowhere(log: WALAccesser) -> None:
    """They do not disturb ids or ticks either: a later event comes after the earlier ones."""
    first = await log.raw_append(Message("orders", b"1"), idempotency_key="k")
    for _ in range(3):
        async with log.txn("orders", idempotency_key="k") as txn:
            for _ in range(100):
                await txn.append(b"2")
    result = await log.raw_append(Message("orders", b"3"))
    assert result.message_id > first.message_id
    assert await payloads(log, "orders") == [b"1", b"3"]


async def test_window_survives_reopening(data: str) -> None:
    async with open_wal(data) as log:
        plain = await log.raw_append(Message("orders", b"1"), idempotency_key="plain")
        async with log.txn("orders", idempotency_key="txn") as txn:
            await txn.append(b"2")
            await txn.append(b"3")
        async with log.txn(vchannels=["a", "b"], idempotency_key="wide") as wide:
            await wide.append(Message("a", b"4"))
    for _ in range(2):
        async with open_wal(data) as log:
            again = await log.raw_append(Message("orders", b"x"), idempotency_key="plain")
            assert again.duplicate
            assert same_write(plain, again)
            async with log.txn("orders", idempotency_key="txn") as retried:
                await retried.append(b"x")
            assert retried.result.duplicate
            assert same_write(txn.result, retried.result)
            async with log.txn(vchannels=["b", "a"], idempotency_key="wide") as retried:
                await retried.append(Message("b", b"x"))
            assert retried.result.duplicate
            assert same_write(wide.result, retried.result)
            assert await payloads(log, "orders") == [b"1", b"2", b"3"]
            assert await payloads(log, "b") == []


async def test_window_survives_the_truncation_of_what_it_names(data: str) -> None:
    async with open_wal(data, segment_bytes=1 << 20) as log:
        first = await log.raw_append(Message("orders", b"1"), idempotency_key="k")
        results = await log.append_bulk([Message("orders", bytes(1 << 18)) for _ in range(30)])
        await log.truncate(up_to=results[-1].message_id)
        again = await log.raw_append(Message("orders", b"2"), idempotency_key="k")
        assert again.duplicate
        assert same_write(first, again)
    async with open_wal(data) as log:
        again = await log.raw_append(Message("orders", b"3"), idempotency_key="k")
        assert again.duplicate
        assert same_write(first, again)


async def test_dropped_vchannel_forgets_its_keys(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"1"), idempotency_key="k")
    await log.drop_vchannel("orders")
    result = await log.raw_append(Message("orders", b"2"), idempotency_key="k")
    assert not result.duplicate
    assert await payloads(log, "orders") == [b"2"]


async def test_window_is_bounded_by_count(location: str) -> None:
    async with open_wal(location, idempotency_window_count=8) as log:
        for number in range(12):
            name = "orders" if number % 2 else "payments"
            await log.raw_append(Message(name, b"%d" % number), idempotency_key=f"k{number}")
        for number in range(4, 12):
            name = "orders" if number % 2 else "payments"
            again = await log.raw_append(Message(name, b"again"), idempotency_key=f"k{number}")
            assert again.duplicate, number
        forgotten = await log.raw_append(Message("payments", b"again"), idempotency_key="k0")
        assert not forgotten.duplicate
        assert (await payloads(log, "payments"))[-1] == b"again"


async def test_window_is_bounded_by_age(location: str) -> None:
    """By the ticks of the two events, since a slow disk may take longer for the first one than the window lasts."""
    async with open_wal(location, idempotency_window_s=0.3) as log:
        first = await log.raw_append(Message("orders", b"1"), idempotency_key="k")

        async def again() -> AppendResult | None:
            result = await log.raw_append(Message("orders", b"2"), idempotency_key="k")
            return None if result.duplicate else result

        second = await eventually(again)
        assert timestamp.parse(second.time_tick)[0] - timestamp.parse(first.time_tick)[0] >= 300
        assert await payloads(log, "orders") == [b"1", b"2"]


async def test_full_window_survives_reopening(data: str) -> None:
    async with open_wal(data) as log:
        calls = [log.append_nowait(Message("orders", b"%d" % n), idempotency_key=f"k{n}") for n in range(20_000)]
        first = await asyncio.gather(*calls)
    async with open_wal(data) as log:
        calls = [log.append_nowait(Message("orders", b"x"), idempotency_key=f"k{n}") for n in range(20_000)]
        again = await asyncio.gather(*calls)
        assert all(result.duplicate for result in again)
        assert all(map(same_write, first, again))
        assert len(await payloads(log, "orders")) == 20_000


@pytest.mark.parametrize("pchannels", [pytest.param(1, marks=pytest.mark.soak("four pchannels show the same")), 4])
async def test_retries_over_kills_write_exactly_once(data: str, pchannels: int) -> None:
    async def write_keyed(line: Line, data: str, pchannels: int, first: int) -> None:
        """Retries some appends with unknown outcome, then continues, sixteen in flight."""
        async with open_wal(data, pchannels=pchannels) as log:
            number = max(first - 20, 0)
            while True:
                calls = [log.append_nowait(Message(f"v{n % 8}", b"%d" % n), idempotency_key=f"k{n}") for n in range(number, number + 16)]
                for n, result in enumerate(await asyncio.gather(*calls), number):
                    line.tell((f"k{n}", str(result.message_id), result.time_tick))
                number += 16

    told: dict[str, tuple[str, int]] = {}
    for target in (60, 120, 180):
        writer = Other(write_keyed, data, pchannels, len(told))
        while len(told) < target:
            key, message_id, tick = await writer.hear()
            assert told.setdefault(key, (message_id, tick)) == (message_id, tick), "a retry has the first result"
        for key, message_id, tick in await writer.kill_and_hear():  # at most one round ahead of its reports
            assert told.setdefault(key, (message_id, tick)) == (message_id, tick), "a retry has the first result"
    async with open_wal(data) as log:
        for number in range(len(told) + 20):
            message = Message(f"v{number % 8}", b"%d" % number)
            result = await log.raw_append(message, idempotency_key=f"k{number}")
            if f"k{number}" in told:
                assert result.duplicate
                assert (str(result.message_id), result.time_tick) == told[f"k{number}"]
        written = [int(payload) for name in range(8) for payload in await payloads(log, f"v{name}")]
        assert sorted(written) == list(range(len(written))), "each once; the writer may have been ahead of its words"
        assert len(written) >= len(told) + 20


async def test_errors_are_of_the_tree(log: WALAccesser) -> None:
    with pytest.raises(WALError) as caught:
        await log.raw_append(Message("orders", b"1"), idempotency_key="")
    assert isinstance(caught.value, ValueError)


async def test_empty_transaction_has_a_key_too(log: WALAccesser) -> None:
    results = []
    for _ in range(2):
        async with log.txn("orders", idempotency_key="nothing") as txn:
            pass
        results.append(txn.result)
    assert [result.duplicate for result in results] == [False, True]
    assert same_write(*results)
    assert len(await read_all(log, "orders")) == 1


async def test_refused_append_leaves_its_key_free(location: str) -> None:
    async with open_wal(location, in_flight_bytes_max=200_000) as log:
        calls = []
        refused = 0
        for number in range(10):
            try:
                calls.append(log.append_nowait(Message("orders", bytes(50_000)), idempotency_key=f"k{number}"))
            except WouldBlockError:
                refused += 1
        assert refused > 0
        await asyncio.gather(*calls)
        results = [await log.raw_append(Message("orders", b"again"), idempotency_key=f"k{n}") for n in range(10)]
        assert [result.duplicate for result in results] == [True] * len(calls) + [False] * refused


async def test_close_drains_keyed_appends(data: str) -> None:
    log = await open_wal(data)
    calls = [log.append_nowait(Message("orders", b"%d" % n), idempotency_key=f"k{n % 50}") for n in range(100)]
    await log.close()
    first = await asyncio.gather(*calls)
    async with open_wal(data) as log:
        for number in range(50):
            again = await log.raw_append(Message("orders", b"x"), idempotency_key=f"k{number}")
            assert again.duplicate
            assert same_write(again, first[number])
            assert same_write(again, first[number + 50])
        assert len(await payloads(log, "orders")) == 50


async def test_failed_write_frees_its_key(small_disk: Path) -> None:
    """The disk is full: both callers of one key get the error, and both can retry."""
    async with open_wal(str(small_disk / "data"), segment_bytes=4 << 20) as log:
        await log.raw_append(Message("orders", b"begin"))
        filler = fill(small_disk)
        failed: list[int] = []
        number = 0
        while not failed:
            calls = {
                n: [log.append_nowait(Message("orders", b"%d" % n + bytes(50_000)), idempotency_key=f"k{n}") for _ in range(2)]
                for n in range(number, number + 20)
            }
            for n, (owner, sharer) in calls.items():
                outcomes = await asyncio.gather(owner, sharer, return_exceptions=True)
                assert len({isinstance(outcome, AppendResult) for outcome in outcomes}) == 1, outcomes
                if not isinstance(outcomes[0], AppendResult):
                    assert all(isinstance(outcome, NoSpaceError) for outcome in outcomes)
                    failed.append(n)
            number += 20
        filler.unlink()
        for n in range(number):
            result = await log.raw_append(Message("orders", b"%d" % n), idempotency_key=f"k{n}")
            assert result.duplicate == (n not in failed)
        written = [int(payload.rstrip(b"\0")) for payload in (await payloads(log, "orders"))[1:]]
        assert sorted(written) == list(range(number))
