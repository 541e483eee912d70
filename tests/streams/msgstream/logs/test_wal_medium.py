"""A log as a medium, on each backend and over the network: ids, cursors, transactions and ticks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.locations import open_wal
from wal import ImmutableTxnMessage, Message, MessageType, ReadPosition, WALAccesser
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError, LockedError, TruncatedError
from wal.message import MessageID
from wal.streams.msgstream import MsgType, Outgoing, Received
from wal.streams.msgstream.media.wal import MSG_TYPE, WalMedium
from wal.streams.msgstream.media.wal_consumer import WalConsumer
from wal.streams.msgstream.media.wal_ids import WalId

ALL = 10_000


def outgoing(*payloads: bytes, msg_type: int = MsgType.INSERT) -> list[Outgoing]:
    return [Outgoing(payload, msg_type) for payload in payloads]


async def receive(consumer: WalConsumer, count: int, count_max: int = ALL) -> list[Received]:
    """Returns the next `count` messages, and the ticks before the last of them."""
    found: list[Received] = []
    while sum(not one.is_tick for one in found) < count:
        found += await asyncio.wait_for(consumer.receive(count_max), 10)
    return found


def payloads(received: list[Received]) -> list[bytes]:
    return [one.payload for one in received if not one.is_tick]


async def mixed(log: WALAccesser) -> list[bytes]:
    """Writes plain messages, transactions, wide ones and those of another vchannel; returns the payloads on `a`."""
    medium = WalMedium(log)
    producer = await medium.producer("a")
    other = await medium.producer("b")
    for step in range(3):
        await producer.send(outgoing(b"%d plain" % step))
        await other.send(outgoing(b"other"))
        await producer.send(outgoing(*[b"%d body %d" % (step, index) for index in range(4)]))
        await log.append_txn(["a", "b"], [Message("a", b"%d wide" % step), Message("b", b"wide"), Message("a", b"2")])
        await log.append_txn("a", [])
        await medium.broadcast({"a": producer, "b": other}, outgoing(b"%d broadcast" % step))
    async with log.read("a", follow=False) as scanner:
        return [body.payload async for message in scanner for body in message.bodies()]


Opener = Callable[[Coroutine[Any, Any, WalConsumer]], Awaitable[WalConsumer]]


@pytest.fixture
async def opened() -> AsyncIterator[Opener]:
    """Awaits the opening of consumers, which are closed after the test."""
    async with AsyncExitStack() as stack:

        async def awaited(opening: Coroutine[Any, Any, WalConsumer]) -> WalConsumer:
            consumer = await opening
            stack.push_async_callback(consumer.close)
            return consumer

        yield awaited


@pytest.fixture
async def one_pchannel(location: str) -> None:
    """Makes the wide transactions possible."""
    async with open_wal(location, pchannels=1):
        pass


async def test_send_is_a_transaction_with_received_ids(log: WALAccesser, opened: Opener) -> None:
    medium = WalMedium(log)
    producer = await medium.producer("a")
    single = await producer.send(outgoing(b"0"))
    several = await producer.send(outgoing(b"1", b"2", b"3"))
    deleted = await producer.send(outgoing(b"4", msg_type=MsgType.DELETE))
    received = await receive(await opened(medium.consumer("a", "s")), 5)
    assert [one.msg_id for one in received] == single + several + deleted
    assert payloads(received) == [b"0", b"1", b"2", b"3", b"4"]
    async with log.read("a", follow=False) as scanner:
        messages = [message async for message in scanner]
    assert [type(message) is ImmutableTxnMessage for message in messages] == [False, True, False]
    assert [one.timestamp for one in received] == [message.time_tick for message in messages for _ in message.bodies()]
    assert [message.bodies()[0].message_type for message in messages] == [MessageType.INSERT, MessageType.INSERT, MessageType.DELETE]
    assert [body.properties[MSG_TYPE] for message in messages for body in message.bodies()] == ["400"] * 4 + ["401"]


async def test_produced_ticks_are_dropped(log: WALAccesser, opened: Opener) -> None:
    medium = WalMedium(log)
    producer, other = await medium.producer("a"), await medium.producer("b")
    tick = outgoing(b"tick", msg_type=MsgType.TIME_TICK)
    before = await producer.send(tick)
    ids = await producer.send([*tick, *outgoing(b"0"), *tick, *outgoing(b"1"), *tick])
    assert ids[0] != ids[1] == ids[2] != ids[3] == ids[4]
    sent = await medium.broadcast({"a": producer, "b": other}, [*tick, *outgoing(b"2"), *tick])
    assert sent["a"][1] == sent["a"][2]
    received = await receive(await opened(medium.consumer("a", "s")), 3)
    assert payloads(received) == [b"0", b"1", b"2"]
    for start, rest in ((before[0], 0), (ids[0], 0), (ids[1], 1), (sent["a"][0], 2), (sent["a"][2], 3)):
        consumer = await opened(medium.consumer("a", f"after {start.hex()[-30:]} {rest}"))
        await consumer.seek(start, inclusive=False)
        await producer.send(outgoing(b"last"))
        assert payloads(await receive(consumer, 1))[0] == [b"0", b"1", b"2", b"last"][rest]
        await consumer.close()


async def test_subscription_continues_exactly_after_what_was_acked(one_pchannel: None, log: WALAccesser, opened: Opener) -> None:
    """The position may be between two bodies of a transaction, and the acks may come in any order."""
    everything = await mixed(log)
    medium = WalMedium(log)
    for count in range(len(everything) + 1):
        consumer = await opened(medium.consumer("a", "s"))
        received = await receive(consumer, len(everything))
        assert payloads(received) == everything
        ids = [one.msg_id for one in received]
        await consumer.ack(ids[count + 1 :])
        await consumer.ack(ids[:count][::-1])
        await consumer.close()
        again = await opened(medium.consumer("a", "s"))
        if count < len(everything):
            assert payloads(await receive(again, len(everything) - count)) == everything[count:], count
        await again.close()
        await log.delete_cursor("s")


async def test_seek_moves_the_subscription_to_any_message(one_pchannel: None, log: WALAccesser, opened: Opener) -> None:
    everything = await mixed(log)
    medium = WalMedium(log)
    consumer = await opened(medium.consumer("a", "all"))
    ids = [one.msg_id for one in await receive(consumer, len(everything))]
    assert len(set(ids)) == len(ids)
    for inclusive in (False, True):
        for number, msg_id in enumerate(ids):
            rest = everything[number + (not inclusive) :]
            seeking = await opened(medium.consumer("a", "s", earliest=False))
            await seeking.check(msg_id)
            await seeking.seek(msg_id, inclusive=inclusive)
            for _ in range(2):  # the second one resumes the subscription where the seek left it
                if rest:
                    received = await receive(seeking, len(rest))
                    assert payloads(received) == rest, (inclusive, number)
                    assert received[0].msg_id == ids[number + (not inclusive)]
                await seeking.close()
                seeking = await opened(medium.consumer("a", "s"))
            await seeking.close()
            await log.delete_cursor("s")


async def test_seek_before_a_truncation_needs_no_loss(one_pchannel: None, log: WALAccesser, opened: Opener) -> None:
    everything = await mixed(log)
    medium = WalMedium(log)
    consumer = await opened(medium.consumer("a", "all"))
    received = await receive(consumer, len(everything))
    await consumer.close()
    await log.delete_cursor("all")
    plain = received[2].msg_id, WalId.parse(received[2].msg_id, "a").message_id
    last = received[4].msg_id, WalId.parse(received[4].msg_id, "a").message_id
    assert last[1] is not None
    await log.truncate(up_to=last[1])
    consumer = await opened(medium.consumer("a", "s"))
    with pytest.raises(TruncatedError):
        await consumer.check(plain[0])
    with pytest.raises(TruncatedError):
        await consumer.seek(plain[0], inclusive=False)
    await consumer.check(last[0])
    await consumer.seek(last[0], inclusive=False)
    assert payloads(await receive(consumer, len(everything) - 5)) == everything[5:]


async def test_foreign_ids_are_refused_and_move_nothing(log: WALAccesser, opened: Opener) -> None:
    medium = WalMedium(log)
    producer, other = await medium.producer("a"), await medium.producer("b")
    (msg_id,) = await producer.send(outgoing(b"0"))
    (foreign,) = await other.send(outgoing(b"1"))
    at = WalId.parse(msg_id, "a").message_id
    assert at is not None
    consumer = await opened(medium.consumer("a", "s"))
    elsewhere = MessageID(at.pchannel, at.incarnation + 1, at.position, at.index)
    above = MessageID(at.pchannel, at.incarnation, at.position + (1 << 40), at.index)
    for wrong in (b"x", bytes(8), msg_id[:-1], foreign, bytes(WalId("a", elsewhere)), bytes(WalId("a", above))):
        with pytest.raises(InvalidArgumentError):
            await consumer.check(wrong)
        with pytest.raises(InvalidArgumentError):
            await consumer.seek(wrong, inclusive=True)
    assert payloads(await receive(consumer, 1)) == [b"0"]


async def test_log_has_one_reader_a_name(log: WALAccesser, opened: Opener) -> None:
    first, second = WalMedium(log), WalMedium(log)
    consumer = await opened(first.consumer("a", "s"))
    await opened(second.consumer("a", "t"))
    await opened(second.consumer("b", "s"))
    with pytest.raises(LockedError, match=r"'a' has a consumer of subscription 's'"):
        await opened(second.consumer("a", "s"))
    await consumer.close()
    await consumer.close()
    await (await opened(second.consumer("a", "s"))).close()


async def test_failed_consumer_frees_its_name(log: WALAccesser, opened: Opener) -> None:
    medium = WalMedium(log)
    with pytest.raises(InvalidArgumentError, match="begins with '_'"):
        await opened(medium.consumer("a", "_s"))
    with pytest.raises(InvalidArgumentError, match="begins with '_'"):
        await opened(medium.consumer("a", "_s"))


async def test_latest_subscription_begins_where_it_was_created(location: str, opened: Opener) -> None:
    if location == "memory:":
        pytest.skip("nothing survives")
    async with open_wal(location) as log:
        medium = WalMedium(log)
        producer = await medium.producer("a")
        await producer.send(outgoing(b"0"))
        await (await opened(medium.consumer("a", "s", earliest=False))).close()
        await producer.send(outgoing(b"1", b"2"))
    async with open_wal(location) as log:
        consumer = await opened(WalMedium(log).consumer("a", "s", earliest=False))
        assert payloads(await receive(consumer, 2)) == [b"1", b"2"]
        await consumer.close()


async def test_ticks_end_grid_cells_and_are_seekable(log: WALAccesser, opened: Opener) -> None:
    """The cells are the same for a reader that follows as for a later one, and from every tick on."""

    async def replay(medium: WalMedium, name: str, count: int, opened: Opener) -> list[Received]:
        consumer = await opened(medium.consumer("a", name, exclusive=True))
        found = await receive(consumer, count)
        while not found[-1].is_tick:
            found += await consumer.receive(ALL)
        await consumer.close()
        return found

    def cells(received: list[Received]) -> dict[bytes, tuple[int, int]]:
        """Returns the ticks around each message."""
        found: dict[bytes, tuple[int, int]] = {}
        inside: list[bytes] = []
        begin = 0
        for one in received:
            if one.is_tick:
                found.update(dict.fromkeys(inside, (begin, one.timestamp)))
                begin, inside = one.timestamp, []
            else:
                inside.append(one.payload)
        first = min((end for _, end in found.values()), default=0)
        return {payload: (begin if end > first else 0, end) for payload, (begin, end) in found.items()}

    medium = WalMedium(log, tick_interval_s=0.02)
    producer = await medium.producer("a")
    following = await opened(medium.consumer("a", "following", exclusive=True))
    live: list[Received] = []

    async def follow() -> None:
        while sum(not one.is_tick for one in live) < 60 or not live[-1].is_tick:
            live.extend(await following.receive(3))

    reading = asyncio.ensure_future(follow())
    for number in range(30):
        await producer.send(outgoing(*[b"%d.%d" % (number, index) for index in range(1 if number % 3 else 4)]))
        await asyncio.sleep(0.005 if number % 7 else 0.07)
    await asyncio.wait_for(reading, 10)
    count = len(payloads(live))
    later = await replay(medium, "later", count, opened)
    assert cells(later) == cells(live)
    assert set(cells(live)) == set(payloads(live))
    ticks = [one for one in live if one.is_tick]
    assert len({one.msg_id for one in ticks}) == len(ticks)
    assert all(one.timestamp % (20 << 18) == 0 for one in ticks)
    for number, tick in enumerate(ticks):
        rest = [one for one in live if not one.is_tick and one.timestamp > tick.timestamp]
        if not rest:
            break
        consumer = await opened(medium.consumer("a", f"after {number}", exclusive=True))
        await consumer.check(tick.msg_id)
        await consumer.seek(tick.msg_id, inclusive=bool(number % 2))
        found = await receive(consumer, len(rest))
        assert payloads(found) == payloads(rest)
        assert [one.timestamp for one in found if one.is_tick and one.timestamp <= tick.timestamp] == (
            [tick.timestamp] if number % 2 else []
        )
        await consumer.close()


async def test_acked_ticks_move_the_cursor(log: WALAccesser, opened: Opener) -> None:
    """A quiet channel beside a busy one holds nothing back."""
    medium = WalMedium(log, tick_interval_s=0.01)
    producer, busy = await medium.producer("a"), await medium.producer("b")
    await producer.send(outgoing(b"0"))
    consumer = await opened(medium.consumer("a", "s", exclusive=True))
    received = await receive(consumer, 1)
    for _ in range(5):
        (last,) = await busy.send(outgoing(b"busy"))
    at = WalId.parse(last, "b").message_id
    while not (received[-1].is_tick and WalId.parse(received[-1].msg_id, "a").message_id == at):
        received += await asyncio.wait_for(consumer.receive(ALL), 10)
    await consumer.ack([one.msg_id for one in received])
    (info,) = await log.cursors()
    assert info.position == ReadPosition(at, received[-1].timestamp) if at else False
    assert info.lag_bytes == 0 or info.position is not None
    await consumer.close()


async def test_cancelled_receive_has_taken_nothing(log: WALAccesser, opened: Opener) -> None:
    medium = WalMedium(log)
    producer = await medium.producer("a")
    consumer = await opened(medium.consumer("a", "s"))
    sent = []
    received: list[bytes] = []
    for number in range(40):
        receiving = asyncio.ensure_future(consumer.receive(3))
        for _ in range(number % 5):
            await asyncio.sleep(0)
        sent.append(b"%d" % number)
        sending = asyncio.ensure_future(producer.send(outgoing(sent[-1])))
        for _ in range(number % 11):
            await asyncio.sleep(0)
        receiving.cancel()
        (got,) = await asyncio.gather(receiving, return_exceptions=True)
        received += [] if isinstance(got, BaseException) else payloads(got)
        await sending
    received += payloads(await receive(consumer, len(sent) - len(received)))
    assert received == sent


@pytest.mark.parametrize("ends", ["consumer", "log"])
async def test_receive_that_waits_is_told_of_the_end(location: str, ends: str, opened: Opener) -> None:
    async with open_wal(location) as log:
        consumer = await opened(WalMedium(log).consumer("a", "s"))
        receiving = asyncio.ensure_future(consumer.receive(1))
        for _ in range(10):
            await asyncio.sleep(0)
        await (consumer.close() if ends == "consumer" else log.close())
        with pytest.raises(ClosedError):
            await asyncio.wait_for(receiving, 10)
        await consumer.close()


async def test_dropped_vchannel_ends_its_consumer(log: WALAccesser, opened: Opener) -> None:
    consumer = await opened(WalMedium(log).consumer("a", "s"))
    receiving = asyncio.ensure_future(consumer.receive(1))
    await asyncio.sleep(0)
    await log.drop_vchannel("a")
    with pytest.raises(ChannelNotExistError):
        await asyncio.wait_for(receiving, 10)
    await consumer.close()


async def test_invalid_messages_are_refused_before_sending(location: str) -> None:
    async with open_wal(location, message_bytes_max=10_000, txn_bytes_max=100_000) as log:
        medium = WalMedium(log)
        producer, other = await medium.producer("a"), await medium.producer("b")
        with pytest.raises(InvalidArgumentError, match="message_bytes_max"):
            await producer.send(outgoing(b"0", bytes(10_001)))
        with pytest.raises(InvalidArgumentError, match="message_bytes_max"):
            await medium.broadcast({"a": producer, "b": other}, outgoing(b"0", bytes(10_001)))
        with pytest.raises(InvalidArgumentError, match="txn_bytes_max"):
            await producer.send(outgoing(*[bytes(9_000)] * 20))
        for name in ("a", "b"):
            async with log.read(name, follow=False) as scanner:
                assert [message async for message in scanner] == []


async def test_log_that_is_only_read_can_be_consumed(location: str, opened: Opener) -> None:
    if not location.startswith("journal:"):
        pytest.skip("only a journal is read beside its writer")
    async with open_wal(location) as log, open_wal(location, read_only=True) as reader:
        medium = WalMedium(reader)
        with pytest.raises(InvalidArgumentError, match="read_only=True"):
            await medium.producer("a")
        producer = await WalMedium(log).producer("a")
        await producer.send(outgoing(b"0", b"1"))
        consumer = await opened(medium.consumer("a", "s", exclusive=True))
        received = await receive(consumer, 2)
        await consumer.ack([one.msg_id for one in received[:-1]])
        await consumer.close()
        consumer = await opened(medium.consumer("a", "s"))
        assert payloads(await receive(consumer, 1)) == [b"1"]
        await consumer.close()


async def test_wrong_arguments_are_told_at_once(log: WALAccesser, opened: Opener) -> None:
    with pytest.raises(TypeError, match="an open log"):
        WalMedium("data/")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="a millisecond"):
        WalMedium(log, tick_interval_s=0)
    medium = WalMedium(log)
    producer = await medium.producer("a")
    await producer.close()
    with pytest.raises(ClosedError):
        await producer.send(outgoing(b""))
    await medium.close()
    with pytest.raises(ClosedError):
        await medium.producer("a")
    with pytest.raises(ClosedError):
        await opened(medium.consumer("a", "s"))
