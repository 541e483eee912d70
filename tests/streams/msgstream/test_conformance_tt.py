"""The conformance suite of media: streams with time ticks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.streams.msgstream.media import Place
from tests.streams.msgstream.packs import consume, consume_messages, number, numbers, produce, row, tick
from tests.streams.msgstream.tick_model import Event, messages, model
from wal.errors import InvalidArgumentError
from wal.streams.msgstream import MsgPack, MsgPosition, MsgStream, Outgoing, Refused, TsMsg, TtMsgStream

Opener = Callable[..., Any]


@pytest.fixture
async def opened(place: Place) -> AsyncIterator[Opener]:
    """Opens streams with time ticks on channels of this place; they are closed after the test."""
    async with AsyncExitStack() as stack:

        async def open_stream(channels: Sequence[str], sub_name: str = "subscription", **settings: Any) -> TtMsgStream:
            stream = await stack.enter_async_context(TtMsgStream(await place.medium(), **settings))
            await stream.as_consumer(channels, sub_name)
            return stream

        yield open_stream


@pytest.fixture
async def producers(place: Place) -> AsyncIterator[Callable[[str], Any]]:
    """Returns the producing stream of a channel."""
    async with AsyncExitStack() as stack:
        streams: dict[str, MsgStream] = {}

        async def of(channel: str) -> MsgStream:
            if channel not in streams:
                streams[channel] = await stack.enter_async_context(MsgStream(await place.medium()))
                await streams[channel].as_producer([channel])
            return streams[channel]

        yield of


async def send(producers: Callable[[str], Any], channel: str, *msgs: TsMsg) -> None:
    await produce(await producers(channel), *msgs)


def cut(packs: Sequence[MsgPack]) -> list[tuple[int, int, list[int]]]:
    return [(pack.begin_ts, pack.end_ts, numbers([pack])) for pack in packs]


async def packs_after(stream: TtMsgStream, count: int, *positions: MsgPosition) -> list[MsgPack]:
    """Returns the packs that follow these positions, and closes the stream."""
    await stream.seek(*positions)
    packs = [await consume(stream) for _ in range(count)]
    await stream.close()
    return packs


@pytest.mark.on_pulsar
async def test_restart_at_any_pack_continues_exactly_after_it(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    """This holds also for media with ticks of their own: a pack is cut alike when it is read again."""

    def filled(packs: Sequence[MsgPack]) -> list[MsgPack]:
        return [pack for pack in packs if pack.msgs]

    channels = place.channels(2)
    stream = await opened(channels, "first")
    packs: list[MsgPack] = []
    for n in range(0, 40, 4):
        for index, channel in enumerate(channels):
            msgs = [row(n + 2 * index + at, n + at + 1, n + 3 * at + 2) for at in range(2)]
            await send(producers, channel, *msgs, *([] if place.own_ticks else [tick(n + index + 2)]))
        if n % 8 == 0:
            packs += await consume_messages(stream, 1)
    if not place.own_ticks:
        for channel in channels:
            await send(producers, channel, tick(1_000))
    packs += await consume_messages(stream, 40 - len(numbers(packs)))
    assert sorted(numbers(packs)) == list(range(40))
    assert [pack.begin_ts for pack in packs] == [0, *(pack.end_ts for pack in packs[:-1])]
    for pack in packs:
        assert all(pack.begin_ts < msg.end_ts <= pack.end_ts for msg in pack.msgs)
        assert all(msg.msg_type.name == "INSERT" for msg in pack.msgs)  # type: ignore[attr-defined]
        assert {one.channel_name for one in pack.end_positions} == set(channels)
    assert [pack.start_positions for pack in packs[1:]] == [pack.end_positions for pack in packs[:-1]]
    for at, pack in enumerate(packs[:-1]):
        rest = packs[at + 1 :]
        stream = await opened(channels, f"after {at}")
        if place.own_ticks:  # promises depend on timing: empty packs may be merged, and ids of ticks differ
            await stream.seek(*pack.end_positions)
            again = await consume_messages(stream, len(numbers(rest)))
            await stream.close()
            assert cut(filled(again)) == cut(filled(rest))
            continue
        again = await packs_after(stream, len(rest), *pack.end_positions)
        assert cut(again) == cut(rest)
        assert [[p.msg_id for p in one.end_positions] for one in again] == [[p.msg_id for p in one.end_positions] for one in rest]
    for at in (0, len(packs) - 1):
        if place.own_ticks and at == 0:
            continue
        again = await packs_after(await opened(channels, f"at {at}"), 1, *packs[at].start_positions)
        assert cut(again) == cut(packs[at : at + 1])


@pytest.mark.parametrize("seed", range(4))
async def test_random_channels_give_the_packs_of_the_model(
    place: Place, opened: Opener, producers: Callable[[str], Any], seed: int
) -> None:
    if place.own_ticks:
        pytest.skip("the ticks of this medium are its own")
    dice = random.Random(seed)
    channels = place.channels(3)
    logs: list[list[Event]] = []
    for _ in channels:
        log: list[Event] = []
        for at in range(40):
            time = at + dice.randint(-3, 5)
            log.append(max(time, 1) if dice.random() < 0.3 else (max(time, 1), max(time, 1) + dice.randint(0, 9)))
        logs.append([*log, 100])
    for index, log in enumerate(logs):
        msgs = messages(index, log)
        while msgs:
            size = dice.randint(1, 12)
            await send(producers, channels[index], *msgs[:size])
            del msgs[:size]
    expected, late = model(logs)
    refused: list[Refused] = []
    stream = await opened(channels, "first", on_refused=refused.append)
    packs = [await consume(stream) for _ in expected]
    assert cut(packs) == expected
    assert {number(one.msg) for one in refused if one.msg is not None} == late
    assert len(refused) == len(late)
    assert sum(counts.late for counts in stream.statistics().channels) == len(late)
    for at in range(0, len(packs) - 1, 1 + len(packs) // 8):
        again = await packs_after(await opened(channels, f"after {at}"), len(packs) - at - 1, *packs[at].end_positions)
        assert cut(again) == cut(packs[at + 1 :])


async def test_pack_ends_at_the_smallest_tick(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    if place.own_ticks:
        pytest.skip("the ticks of this medium are its own")
    fast, slow = channels = place.channels(2)
    stream = await opened(channels)
    await send(producers, fast, row(1, 1), tick(5), row(2, 6), row(3, 4, 12), tick(10), tick(20))
    await send(producers, slow, row(4, 2), row(5, 9), tick(7))
    packs = [await consume(stream), await consume(stream)]
    assert cut(packs) == [(0, 5, [1, 4]), (5, 7, [2])]
    waiting = asyncio.ensure_future(consume(stream))
    while stream.statistics().waits_for != (slow,):
        await asyncio.sleep(0)
    assert not waiting.done()
    await send(producers, slow, tick(25))
    assert cut([await waiting, await consume(stream)]) == [(7, 10, [5]), (10, 20, [3])]
    assert {counts.channel_name: counts.tick for counts in stream.statistics().channels} == {fast: 20, slow: 25}


async def test_message_that_was_sent_twice_is_delivered_once(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    if place.own_ticks:
        pytest.skip("the ticks of this medium are its own")
    (channel,) = place.channels(1)
    stream = await opened([channel])
    again = row(1, 3, id=9, source_id=4)
    await send(producers, channel, again, row(2, 3), row(2, 3), again, row(3, 3, id=9), tick(5))
    assert cut([await consume(stream)]) == [(0, 5, [1, 2, 2, 3])]
    (counts,) = stream.statistics().channels
    assert (counts.delivered, counts.repeated, counts.received) == (4, 1, 6)


async def test_byte_limit_before_a_tick_ends_the_stream(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    if place.own_ticks:
        pytest.skip("the ticks of this medium are its own")
    small, large = channels = place.channels(2)
    stream = await opened(channels, tick_bytes_max=20_000)
    await send(producers, small, row(0, 1), tick(2), row(1, 3))
    await send(producers, large, tick(2), *(row(n, 5, size=1_000) for n in range(2, 30)))
    assert cut([await consume(stream)]) == [(0, 2, [0])]
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=f"'{large}'.*tick_bytes_max=20000"):
            await consume(stream)
    with pytest.raises(InvalidArgumentError, match="tick_bytes_max"):
        await stream.start()


async def test_bad_messages_are_skipped_and_handled(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    (channel,) = place.channels(1)
    refused: list[Refused] = []
    stream = await opened([channel], on_refused=refused.append)
    raw = await (await place.medium()).producer(channel)
    await raw.send([Outgoing(b"no message", 400)])
    await raw.send([Outgoing(row(1, 1).marshal(), 400), Outgoing(b"\x0a\xff", 400)])
    await raw.close()
    await send(producers, channel, row(2, 2), *([] if place.own_ticks else [tick(5)]))
    packs = await consume_messages(stream, 2)
    assert numbers(packs) == [1, 2]
    assert [one.payload for one in refused] == [b"no message", b"\x0a\xff"]
    await stream.ack(packs[-1])
    await stream.close()
    await send(producers, channel, row(3, 7), *([] if place.own_ticks else [tick(9)]))
    again = await opened([channel], on_refused=refused.append)
    assert numbers(await consume_messages(again, 1)) == [3]
    assert len(refused) == 2


@pytest.mark.on_pulsar
async def test_subscription_continues_after_what_was_acknowledged(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    channels = place.channels(2)
    delivered: list[int] = []
    for turn in range(5):
        stream = await opened(channels)
        for index, channel in enumerate(channels):
            n = 10 * turn + 2 * index
            msgs = [row(n, 10 * turn + 1, 10 * turn + 9 + index), row(n + 1, 10 * turn + 2)]
            await send(producers, channel, *msgs, *([] if place.own_ticks else [tick(10 * turn + 5), tick(10 * turn + 9)]))
        packs = await consume_messages(stream, 2)
        await stream.ack(packs[0])
        delivered += numbers(packs)
        await stream.close()
    if not place.own_ticks:
        for channel in channels:
            await send(producers, channel, tick(1_000))
    everything = {10 * turn + at for turn in range(5) for at in range(4)}
    last = await opened(channels)
    while set(delivered) != everything:
        delivered += numbers([await consume(last)])


async def test_cancelled_consume_loses_nothing(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    channels = place.channels(2)
    stream = await opened(channels)
    packs: list[MsgPack] = []
    for turns in range(40):
        task = asyncio.ensure_future(consume(stream))
        if turns % 4 == 0:
            for index, channel in enumerate(channels):
                n = 2 * turns + 4 * index
                msgs = [row(n + at, turns + 1) for at in range(4)]
                await send(producers, channel, *msgs, *([] if place.own_ticks else [tick(turns + 1)]))
        for _ in range(turns % 7):
            await asyncio.sleep(0)
        task.cancel()
        try:
            packs.append(await task)
        except asyncio.CancelledError:
            pass
    packs += await consume_messages(stream, 80 - len(numbers(packs)))
    assert sorted(numbers(packs)) == list(range(80))
    assert [pack.begin_ts for pack in packs[1:]] == [pack.end_ts for pack in packs[:-1]]


async def test_close_ends_a_consume(place: Place, opened: Opener) -> None:
    stream = await opened(place.channels(2))
    blocked = asyncio.ensure_future(anext(stream.chan(), None))
    await asyncio.sleep(0)
    await asyncio.gather(stream.close(), stream.close())
    while (pack := await blocked) is not None:  # a medium with ticks of its own has empty packs
        assert pack.msgs == []
        blocked = asyncio.ensure_future(anext(stream.chan(), None))
    assert await stream.consume() is None


async def test_seek_that_is_refused_moves_no_channel(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    one, other = channels = place.channels(2)
    ticks = [] if place.own_ticks else [tick(5)]
    await send(producers, one, row(1, 1), *ticks)
    await send(producers, other, row(2, 1), *ticks)
    packs = await consume_messages(await opened(channels, "first"), 2)
    good, there = sorted(packs[-1].end_positions, key=lambda position: channels.index(position.channel_name))
    stream = await opened(channels)
    with pytest.raises(InvalidArgumentError, match="start_positions"):
        await stream.seek(good, there, inclusive=True)
    for bad in (MsgPosition(other, b""), MsgPosition(other, good.msg_id), MsgPosition("unknown", there.msg_id)):
        with pytest.raises(InvalidArgumentError):
            await stream.seek(good, bad)
    assert sorted(numbers(await consume_messages(stream, 2))) == [1, 2]
    with pytest.raises(InvalidArgumentError, match="before start"):
        await stream.seek(good)


async def test_channels_may_be_sought_one_after_the_other(place: Place, opened: Opener, producers: Callable[[str], Any]) -> None:
    if place.own_ticks:
        pytest.skip("the ticks of this medium are its own")
    channels = place.channels(2)
    for channel, early in zip(channels, (1, 2), strict=True):
        # The first message waits for the second tick, so the position is before the other message, which must not be redelivered.
        await send(producers, channel, row(10 * early, 7), row(early, 3), tick(5), tick(9))
    pack = await consume(await opened(channels, "first"))
    stream = await opened(channels)
    for position in pack.end_positions:
        await stream.seek(position)
    assert cut([pack, await consume(stream)]) == [(0, 5, [1, 2]), (5, 9, [10, 20])]
