"""The conformance suite of media: streams without time ticks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.streams.msgstream.media import Place
from tests.streams.msgstream.packs import consume, consume_messages, number, numbers, produce, row
from wal.errors import ClosedError, InvalidArgumentError, LockedError
from wal.streams.msgstream import MsgPack, MsgPosition, MsgStream, Outgoing, Refused, TsMsg, TtMsgStream

Opener = Callable[..., Any]


@pytest.fixture
async def opened(place: Place) -> AsyncIterator[Opener]:
    """Opens streams of this place, which are closed after the test."""
    async with AsyncExitStack() as stack:

        async def open_stream(**settings: Any) -> MsgStream:
            return await stack.enter_async_context(MsgStream(await place.medium(), **settings))

        yield open_stream


async def producing(opened: Opener, channels: list[str]) -> MsgStream:
    stream: MsgStream = await opened()
    await stream.as_producer(channels)
    return stream


async def consuming(opened: Opener, channels: list[str], sub_name: str = "subscription", **settings: Any) -> MsgStream:
    stream: MsgStream = await opened(**settings)
    await stream.as_consumer(channels, sub_name)
    return stream


async def test_hash_keys_choose_the_channel(place: Place, opened: Opener) -> None:
    channels = place.channels(3)
    producer = await producing(opened, channels)
    consumer = await consuming(opened, channels)
    positions = await producer.produce(MsgPack([row(n, key=n) for n in range(30)]))
    assert {channel: len(ids) for channel, ids in positions.items()} == dict.fromkeys(channels, 10)
    packs = await consume_messages(consumer, 30)
    for index, channel in enumerate(channels):
        msgs = [msg for pack in packs for msg in pack.msgs if msg.position and msg.position.channel_name == channel]
        assert [number(msg) for msg in msgs] == list(range(index, 30, 3))
        assert [msg.position.msg_id for msg in msgs if msg.position] == [one.msg_id for one in positions[channel]]


async def test_rows_are_distributed_one_by_one(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    producer = await producing(opened, channels)
    consumer = await consuming(opened, channels)
    msg = row(0, 5, 6, 7)
    msg.row_ids, msg.hash_keys = [10, 11, 12], [0, 1, 2]
    await produce(producer, msg)
    packs = [await consume(consumer), await consume(consumer)]
    rows = {pack.end_positions[0].channel_name: [list(msg.row_ids) for msg in pack.msgs] for pack in packs}  # type: ignore[attr-defined]
    assert rows == {channels[0]: [[10, 12]], channels[1]: [[11]]}


async def test_repack_function_of_the_program_chooses(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    producer = await producing(opened, channels)
    buckets_seen: list[list[int]] = []

    def all_to_the_last(msgs: list[TsMsg], buckets: list[list[int]]) -> dict[int, MsgPack]:
        buckets_seen.extend(buckets)
        return {1: MsgPack(msgs)}

    producer.set_repack_func(all_to_the_last)
    positions = await producer.produce(MsgPack([row(n, key=n) for n in range(4)]))
    assert positions.keys() == {channels[1]}
    assert buckets_seen == [[0], [1], [0], [1]]
    consumer = await consuming(opened, channels)
    assert numbers(await consume_messages(consumer, 4)) == [0, 1, 2, 3]


async def test_repack_function_that_chooses_no_producer_sends_nothing(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    producer = await producing(opened, channels)
    producer.set_repack_func(lambda msgs, buckets: {0: MsgPack(msgs[:1]), 2: MsgPack(msgs[1:])})
    with pytest.raises(InvalidArgumentError, match="0 to 1"):
        await producer.produce(MsgPack([row(1), row(2)]))
    producer.set_repack_func(None)
    await produce(producer, row(3))
    assert numbers([await consume(await consuming(opened, channels))]) == [3]


@pytest.mark.on_pulsar
async def test_broadcast_reaches_every_channel(place: Place, opened: Opener) -> None:
    channels = place.channels(3)
    producer = await producing(opened, channels)
    positions = await producer.broadcast(MsgPack([row(1, key=1), row(2, key=2)]))
    assert {channel: len(ids) for channel, ids in positions.items()} == dict.fromkeys(channels, 2)
    packs = await consume_messages(await consuming(opened, channels), 6)
    received = [(msg.position.channel_name, number(msg)) for pack in packs for msg in pack.msgs if msg.position]
    assert sorted(received) == sorted((channel, n) for channel in channels for n in (1, 2))
    ids = [msg.position.msg_id for pack in packs for msg in pack.msgs if msg.position]
    assert sorted(ids) == sorted(one.msg_id for ones in positions.values() for one in ones)


async def test_empty_pack_is_sent_nowhere(place: Place, opened: Opener) -> None:
    producer = await producing(opened, place.channels(1))
    assert await producer.produce(MsgPack([])) == {}
    assert await producer.broadcast(MsgPack([])) == {}


async def test_packs_have_up_to_1024_messages(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    producer = await producing(opened, channels)
    for first in range(0, 3_000, 1_000):
        await produce(producer, *(row(n, key=n) for n in range(first, first + 1_000)))
    packs = await consume_messages(await consuming(opened, channels), 3_000)
    assert max(len(pack.msgs) for pack in packs) <= 1_024
    assert len(packs) < 100
    for pack in packs:
        assert len({msg.position.channel_name for msg in pack.msgs if msg.position}) == 1
        (start,), (end,) = pack.start_positions, pack.end_positions
        assert (start, end) == (pack.msgs[0].position, pack.msgs[-1].position)
        assert start.msg_group == "subscription"
        assert pack.begin_ts == min(msg.begin_ts for msg in pack.msgs)
        assert pack.end_ts == max(msg.end_ts for msg in pack.msgs)
    for index in range(2):
        assert [n for n in numbers(packs) if n % 2 == index] == list(range(index, 3_000, 2))


async def test_traces_travel_with_the_messages(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    producer = await producing(opened, channels)
    traced = row(2)
    traced.set_trace_ctx({"traceparent": "00-1-2-01"})
    await produce(producer, row(1), traced)
    packs = await consume_messages(await consuming(opened, channels), 2)
    assert [dict(msg.trace_ctx) for pack in packs for msg in pack.msgs] == [{}, {"traceparent": "00-1-2-01"}]
    assert {"traceparent": "00-1-2-01"} in [dict(pack.trace_ctx) for pack in packs]


@pytest.mark.on_pulsar
async def test_seek_continues_exactly_after_or_at_a_message(place: Place, opened: Opener) -> None:
    def by_number_of(n: int, at: int) -> int:
        """Returns the number after which the channel of `n` continues, when both channels were sought beside `at`."""
        return at if n % 2 == at % 2 else at ^ 1

    channels = place.channels(2)
    producer = await producing(opened, channels)
    await produce(producer, *(row(n, key=n) for n in range(24)))
    packs = await consume_messages(await consuming(opened, channels), 24)
    by_number = {number(msg): msg.position for pack in packs for msg in pack.msgs}
    for at in (0, 9, 21):
        here, there = by_number[at], by_number[at ^ 1]
        assert here is not None
        assert there is not None
        for inclusive in (False, True):
            stream = await consuming(opened, channels, f"from {at} {inclusive}")
            await stream.seek(here, there, inclusive=inclusive)
            expected = {n for n in range(24) if n > by_number_of(n, at) or (inclusive and n in (at, at ^ 1))}
            assert set(numbers(await consume_messages(stream, len(expected)))) == expected


async def test_seek_to_a_packs_end_is_exact(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    producer = await producing(opened, channels)
    await produce(producer, *(row(n) for n in range(10)))
    first = await consuming(opened, channels, "first")
    packs = await consume_messages(first, 10)
    await produce(producer, *(row(n) for n in range(10, 20)))
    packs += await consume_messages(first, 10)
    for at, pack in enumerate(packs):
        stream = await consuming(opened, channels, f"again {at}")
        await stream.seek(*pack.end_positions)
        await produce(producer, row(100 + at))
        rest = [*numbers(packs[at + 1 :]), *range(100, 101 + at)]
        assert numbers(await consume_messages(stream, len(rest))) == rest
        await stream.close()


@pytest.mark.on_pulsar
async def test_seek_that_is_refused_moves_no_channel(place: Place, opened: Opener) -> None:
    one, other, third = channels = place.channels(3)
    producer = await producing(opened, channels)
    sent = await producer.broadcast(MsgPack([row(1), row(2)]))
    good = sent[one][0]
    stream = await consuming(opened, [one, other])
    refused: list[list[MsgPosition]] = [
        [],
        [sent[third][0]],
        [MsgPosition(other, b"")],
        [MsgPosition(other, sent[one][0].msg_id)],
        [sent[other][0], sent[other][1]],
        *([MsgPosition(other, bad)] for bad in await place.bad_ids(other)),
    ]
    for positions in refused:
        with pytest.raises(InvalidArgumentError):
            await stream.seek(*([good, *positions] if positions else []))
    with pytest.raises(TypeError):
        await stream.seek(good, b"id")  # type: ignore[arg-type]
    packs = await consume_messages(stream, 4)
    assert sorted(numbers(packs)) == [1, 1, 2, 2]
    with pytest.raises(InvalidArgumentError, match="before start"):
        await stream.seek(good)


@pytest.mark.on_pulsar
async def test_every_subscription_gets_all_messages(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    producer = await producing(opened, channels)
    one = await consuming(opened, channels, "one")
    await produce(producer, *(row(n, key=n) for n in range(10)))
    other = await consuming(opened, channels, "other")
    await produce(producer, *(row(n, key=n) for n in range(10, 20)))
    for stream in (one, other):
        assert sorted(numbers(await consume_messages(stream, 20))) == list(range(20))


@pytest.mark.on_pulsar
async def test_new_subscription_can_begin_after_the_last_message(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    producer = await producing(opened, channels)
    await produce(producer, row(1))
    stream = await opened()
    await stream.as_consumer(channels, "subscription", earliest=False)
    await produce(producer, row(2))
    assert numbers([await consume(stream)]) == [2]


@pytest.mark.on_pulsar
async def test_subscription_is_shared_or_locked(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    producer = await producing(opened, channels)
    one = await consuming(opened, channels, buffer_size=1)
    if not place.shares:
        with pytest.raises(LockedError):
            await consuming(opened, channels)
        return
    other = await consuming(opened, channels, buffer_size=1)
    await one.start()
    await other.start()
    taken: list[int] = []

    async def take_all(stream: MsgStream) -> None:
        async for pack in stream:
            taken.extend(numbers([pack]))

    tasks = [asyncio.ensure_future(take_all(stream)) for stream in (one, other)]
    for first in range(0, 400, 10):
        await produce(producer, *(row(n) for n in range(first, first + 10)))
    while len(taken) < 400:
        await asyncio.sleep(0)
    await one.close()
    await other.close()
    await asyncio.gather(*tasks)
    assert sorted(taken) == list(range(400))


@pytest.mark.on_pulsar
async def test_unacknowledged_messages_are_redelivered(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    producer = await producing(opened, channels)
    await produce(producer, row(1))
    stream = await consuming(opened, channels)
    assert numbers([await consume(stream)]) == [1]
    await stream.close()
    stream = await consuming(opened, channels)
    assert numbers([await consume(stream)]) == [1]
    await produce(producer, row(2))
    assert numbers([await consume(stream)]) == [2]  # the call acknowledges 1
    await stream.close()
    stream = await consuming(opened, channels)
    pack = await consume(stream)
    assert numbers([pack]) == [2]
    await stream.ack(pack)
    await stream.ack(pack)
    await stream.close()
    await produce(producer, row(3))
    assert numbers([await consume(await consuming(opened, channels))]) == [3]


@pytest.mark.on_pulsar
async def test_acks_without_auto_ack_take_any_order(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    producer = await producing(opened, channels)
    stream = await consuming(opened, channels, auto_ack=False)
    packs = []
    for n in range(3):
        await produce(producer, row(n))
        packs.append(await consume(stream))
    await stream.ack(packs[1])
    await stream.close()
    stream = await consuming(opened, channels, auto_ack=False)
    packs = [await consume(stream)]
    assert numbers(packs)[0] == 0
    while numbers(packs)[-1] != 2:
        packs.append(await consume(stream))
    assert set(numbers(packs)) - {1} == {0, 2}  # a medium with one position for a subscription repeats 1
    for pack in packs:
        await stream.ack(pack)
    await stream.close()
    await produce(producer, row(3))
    assert numbers([await consume(await consuming(opened, channels))]) == [3]


async def test_pack_of_another_stream_is_not_acknowledged(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    await produce(await producing(opened, channels), row(1))
    one, other = await consuming(opened, channels, "one"), await consuming(opened, channels, "other")
    with pytest.raises(InvalidArgumentError, match="not consumed from this stream"):
        await other.ack(await consume(one))
    with pytest.raises(InvalidArgumentError, match="not consumed from this stream"):
        await other.ack(MsgPack([row(1)]))


@pytest.mark.on_pulsar
async def test_bad_messages_are_skipped_told_and_handled(place: Place, opened: Opener) -> None:
    (channel,) = channels = place.channels(1)
    medium = await place.medium()
    raw = await medium.producer(channel)
    refused: list[Refused] = []
    stream = await consuming(opened, channels, on_refused=refused.append)
    (first,) = await raw.send([Outgoing(b"no message", 400)])
    await raw.send([Outgoing(row(1).marshal(), 400), Outgoing(b"\x0a\xff", 400), Outgoing(row(2).marshal(), 400)])
    (last,) = await raw.send([Outgoing(b"no message either", 400)])
    await raw.close()
    packs = await consume_messages(stream, 2)
    await produce(await producing(opened, channels), row(3))
    packs += await consume_messages(stream, 1)
    assert numbers(packs) == [1, 2, 3]
    assert [one.payload for one in refused] == [b"no message", b"\x0a\xff", b"no message either"]
    assert (refused[0].msg_id, refused[-1].msg_id) == (first, last)
    assert refused[0].channel_name == channel
    assert refused[0].reason
    (counts,) = stream.statistics().channels
    assert (counts.received, counts.delivered, counts.undecodable) == (6, 3, 3)
    await stream.ack(packs[-1])
    await stream.close()
    await produce(await producing(opened, channels), row(4))
    again = await consuming(opened, channels, on_refused=refused.append)
    assert numbers([await consume(again)]) == [4]
    assert len(refused) == 3


async def test_buffer_is_bounded(place: Place, opened: Opener) -> None:
    channels = place.channels(1)
    producer = await producing(opened, channels)
    for first in range(0, 8_000, 1_000):
        await produce(producer, *(row(n) for n in range(first, first + 1_000)))
    stream = await consuming(opened, channels, buffer_size=2)
    await stream.start()
    delivered: list[int] = []
    while len(delivered) < 8_000:
        if len(delivered) < 2_000:
            while stream.statistics().channels[0].packs_waiting < 2:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        (counts,) = stream.statistics().channels
        assert counts.packs_waiting <= 2
        assert counts.received - counts.delivered <= 3 * 1_024
        delivered.extend(numbers([await consume(stream)]))
    assert delivered == list(range(8_000))


async def test_cancelled_consume_loses_nothing(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    producer = await producing(opened, channels)
    stream = await consuming(opened, channels)
    packs: list[MsgPack] = []
    sent = 0
    for turns in range(60):
        task = asyncio.ensure_future(consume(stream))
        if turns % 3 == 0:
            await produce(producer, *(row(n, key=n) for n in range(sent, sent + 4)))
            sent += 4
        for _ in range(turns % 7):
            await asyncio.sleep(0)
        task.cancel()
        try:
            packs.append(await task)
        except asyncio.CancelledError:
            pass
    packs += await consume_messages(stream, sent - len(numbers(packs)))
    assert sorted(numbers(packs)) == list(range(sent))


async def test_close_ends_a_consume_and_leaves_no_task(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    medium = await place.medium()
    warm = await producing(opened, channels)
    await consuming(opened, channels, "another")
    await produce(warm, row(1))
    before = asyncio.all_tasks()
    stream = MsgStream(medium)
    await stream.as_producer(channels)
    await stream.as_consumer(channels, "subscription")
    assert numbers([await consume(stream)]) == [1]
    blocked = asyncio.ensure_future(stream.consume())
    await asyncio.sleep(0)
    closing = [asyncio.ensure_future(stream.close()) for _ in range(3)]
    assert await blocked is None
    await asyncio.gather(*closing)
    await stream.close()
    assert await stream.consume() is None
    assert [pack async for pack in stream.chan()] == []
    for call in (
        stream.produce(MsgPack([row(1)])),
        stream.broadcast(MsgPack([row(1)])),
        stream.as_producer(channels),
        stream.as_consumer(channels, "subscription"),
        stream.seek(MsgPosition(channels[0], b"id")),
        stream.start(),
    ):
        with pytest.raises(ClosedError):
            await call
    assert asyncio.all_tasks() - before <= {asyncio.current_task()}


@pytest.mark.on_pulsar
async def test_exclusive_consumer_has_its_subscription_alone(place: Place, opened: Opener) -> None:
    channels = place.channels(2)
    exclusive = TtMsgStream(await place.medium())
    await exclusive.as_consumer(channels, "subscription")
    for kind in (MsgStream, TtMsgStream):
        async with kind(await place.medium()) as stream:
            with pytest.raises(LockedError):
                await stream.as_consumer(channels[1:], "subscription")
    await exclusive.close()
    async with TtMsgStream(await place.medium()) as stream:
        await stream.as_consumer(channels, "subscription")


async def test_channels_that_a_stream_has_are_skipped(place: Place, opened: Opener) -> None:
    one, other = place.channels(2)
    producer = await producing(opened, [one])
    await producer.as_producer([one, other, one])
    consumer = await consuming(opened, [one])
    await consumer.as_consumer([other, one], "subscription")
    await produce(producer, *(row(n, key=n) for n in range(4)))
    assert sorted(numbers(await consume_messages(consumer, 4))) == [0, 1, 2, 3]
