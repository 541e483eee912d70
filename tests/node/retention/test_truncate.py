"""Truncation: inclusive, with an exact result, and never silent."""

from __future__ import annotations

import pytest

from tests.locations import open_wal
from tests.probes import bodies, made_on, payloads, read_all
from wal import All, AppendResult, Message, MessageID, ReadPosition, StartAfter, StartFrom, WALAccesser
from wal.errors import InvalidArgumentError, StreamingCode, TruncatedError

pytestmark = [pytest.mark.everywhere, pytest.mark.on_pulsar]


async def numbered(log: WALAccesser, count: int, name: str = "orders", size: int = 0) -> list[AppendResult]:
    return await log.append_bulk([Message(name, b"%05d" % number + bytes(size)) for number in range(count)])


async def numbers(log: WALAccesser, name: str = "orders", **options: object) -> list[int]:
    return [int(payload[:5]) for payload in await payloads(log, name, **options)]


@pytest.mark.on_pulsar
async def test_truncation_is_exact_within_a_frame(log: WALAccesser) -> None:
    results = await numbered(log, 20)
    for number in (0, 7, 7, 3, 18):
        await log.truncate(up_to=results[number].message_id)
        first = max(number, 7 if number == 3 else number) + 1
        assert await numbers(log) == list(range(first, 20))
    await log.truncate(up_to=results[19].message_id)
    assert await numbers(log) == []
    result = await log.raw_append(Message("orders", b"00020"))
    assert result.message_id > results[19].message_id
    assert await numbers(log) == [20]


async def test_truncated_start_says_what_is_there(log: WALAccesser) -> None:
    results = await numbered(log, 10)
    await log.truncate(up_to=results[4].message_id)
    for policy in (StartFrom(results[4].message_id), StartFrom(results[0].message_id), StartAfter(results[3].message_id)):
        scanner = log.read("orders", deliver_policy=policy)
        with pytest.raises(TruncatedError, match=str(policy.message_id)) as caught:
            async with scanner:
                pass
        assert caught.value.earliest == results[5].message_id
        assert caught.value.code == StreamingCode.TRUNCATED
        assert str(results[5].message_id) in str(caught.value)
        assert isinstance(scanner.error, TruncatedError)
        with pytest.raises(TruncatedError):
            await anext(log.read("orders", deliver_policy=policy))
    with pytest.raises(TruncatedError):
        await read_all(log, "orders", resume=ReadPosition(results[2].message_id, results[2].time_tick))
    assert await numbers(log, deliver_policy=StartAfter(results[4].message_id)) == [5, 6, 7, 8, 9]
    assert await numbers(log, resume=ReadPosition(results[4].message_id, results[4].time_tick)) == [5, 6, 7, 8, 9]
    assert await numbers(log, deliver_policy=StartFrom(results[5].message_id)) == [5, 6, 7, 8, 9]
    assert await numbers(log, deliver_policy=All()) == [5, 6, 7, 8, 9]


async def test_earliest_is_none_when_nothing_is_there(log: WALAccesser) -> None:
    results = await numbered(log, 3)
    await log.truncate(up_to=results[2].message_id)
    with pytest.raises(TruncatedError) as caught:
        await read_all(log, "orders", deliver_policy=StartFrom(results[0].message_id))
    assert caught.value.earliest is None
    assert await numbers(log, deliver_policy=StartAfter(results[2].message_id)) == []


async def test_transactions_are_truncated_whole(log: WALAccesser) -> None:
    first = await log.raw_append(Message("orders", b"0"))
    async with log.txn("orders") as txn:
        for number in range(1, 4):
            await txn.append(b"%d" % number)
    await log.raw_append(Message("orders", b"4"))
    _, message, last = await read_all(log, "orders")
    body = message.bodies()[1].message_id
    await log.truncate(up_to=first.message_id)
    assert bodies(await read_all(log, "orders")) == [b"1", b"2", b"3", b"4"]
    await log.truncate(up_to=body)
    assert bodies(await read_all(log, "orders")) == [b"4"]
    for after in (message.message_id, body):
        assert bodies(await read_all(log, "orders", deliver_policy=StartAfter(after))) == [b"4"]
    with pytest.raises(TruncatedError) as caught:
        await read_all(log, "orders", deliver_policy=StartFrom(body))
    assert caught.value.earliest == last.message_id


async def test_truncation_is_of_the_whole_pchannel(log4: WALAccesser) -> None:
    await made_on(log4, "p1", "a", "b")
    await made_on(log4, "p2", "c")
    await numbered(log4, 5, "a")
    results = await numbered(log4, 5, "b")
    await numbered(log4, 5, "c")
    await log4.truncate(up_to=results[1].message_id)
    assert [len(await numbers(log4, name)) for name in "abc"] == [0, 3, 5]


@pytest.mark.not_on("pulsar", "makes ids in the journal's form")
async def test_wrong_ids(log: WALAccesser) -> None:
    result = await log.raw_append(Message("orders", b"1"))
    last = result.message_id
    for wrong in (
        MessageID(last.pchannel, last.incarnation, last.position + (1 << 30), 0),
        MessageID(last.pchannel, last.incarnation, last.position, last.index + 7),
        MessageID(last.pchannel, last.incarnation ^ 1, last.position, last.index),
        MessageID("p7", last.incarnation, last.position, last.index),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            await log.truncate(up_to=wrong)
        assert str(wrong) in str(caught.value)
    with pytest.raises(TypeError):
        await log.truncate(up_to=str(last))  # type: ignore[arg-type]
    assert await payloads(log, "orders") == [b"1"]


async def test_truncation_survives_reopening(data: str) -> None:
    async with open_wal(data, segment_bytes=1 << 20) as log:
        results = await numbered(log, 5000, size=1000)
        await log.truncate(up_to=results[3333].message_id)
    async with open_wal(data) as log:
        assert await numbers(log) == list(range(3334, 5000))
        with pytest.raises(TruncatedError) as caught:
            await read_all(log, "orders", deliver_policy=StartFrom(results[10].message_id))
        assert caught.value.earliest == results[3334].message_id
        await log.truncate(up_to=results[4999].message_id)
    async with open_wal(data) as log:
        assert await numbers(log) == []
        more = await numbered(log, 3)
        assert more[0].message_id > results[4999].message_id
        assert more[0].time_tick > results[4999].time_tick


@pytest.mark.on_pulsar
@pytest.mark.parametrize("last", [2999, 2100])
async def test_overtaken_reader_gets_the_earliest_event(location: str, last: int) -> None:
    """The reader was catching up, and its next event is truncated: the error has the id of an event that exists, or None."""
    async with open_wal(location, segment_bytes=1 << 20) as log:
        results = []
        for first in range(0, 3000, 500):  # a frame each
            some = [Message("orders", b"%05d" % number + bytes(2000)) for number in range(first, first + 500)]
            results += await log.append_bulk(some)
        async with log.read("orders", follow=False) as scanner:
            assert int((await anext(scanner)).payload[:5]) == 0
            await log.truncate(up_to=results[last].message_id)
            seen = [0]
            with pytest.raises(TruncatedError) as caught:
                async for message in scanner:
                    seen.append(int(message.payload[:5]))
        assert seen == list(range(len(seen))), "nothing was skipped before the error"
        assert len(seen) <= last
        assert caught.value.earliest == (results[last + 1].message_id if last + 1 < 3000 else None)
        assert isinstance(scanner.error, TruncatedError)


async def test_follower_at_the_tail_is_not_disturbed(log: WALAccesser) -> None:
    async with log.read("orders") as scanner:
        for number in range(20):
            result = await log.raw_append(Message("orders", b"%05d" % number))
            assert int((await anext(scanner)).payload) == number
            await log.truncate(up_to=result.message_id)
