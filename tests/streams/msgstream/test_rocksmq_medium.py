"""RocksMQ as a medium: shared subscriptions, the position of the group, and one open RocksMQ for all media of a directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import run_python
from wal.errors import ClosedError, InvalidArgumentError, LockedError, StorageError
from wal.streams.msgstream import Outgoing, PartialSendError, Received
from wal.streams.msgstream.media.rocksmq import RmqMsgStream, RocksMQConsumer, RocksMQMedium, RocksMQSubscription
from wal.streams.rocksmq import RocksMQ, RocksMQSettings


def outgoing(*payloads: bytes) -> list[Outgoing]:
    return [Outgoing(payload, 400) for payload in payloads]


def payloads(received: list[Received]) -> list[bytes]:
    return [one.payload for one in received]


def ids(received: list[Received]) -> list[bytes]:
    return [one.msg_id for one in received]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "mq"


@pytest.fixture
async def mq(directory: Path) -> AsyncIterator[RocksMQ]:
    async with await RocksMQ.open(directory) as opened:
        yield opened


async def position(mq: RocksMQ) -> int:
    (channel,) = mq.channels()
    (group,) = channel.groups
    return group.current_id


async def filled(mq: RocksMQ, count: int) -> RocksMQMedium:
    medium = RocksMQMedium(mq)
    await (await medium.producer("x")).send(outgoing(*[b"%d" % number for number in range(count)]))
    return medium


async def test_position_is_below_the_first_unhandled_message(mq: RocksMQ) -> None:
    medium = await filled(mq, 9)
    one, other = await medium.consumer("x", "g"), await RocksMQMedium(mq).consumer("x", "g")
    first, second, third = await one.receive(3), await other.receive(3), await one.receive(3)
    assert payloads(first + second + third) == [b"%d" % number for number in range(9)]
    await other.ack(ids(second)[1:])
    await one.ack(ids(third))
    assert await position(mq) < 1
    await one.ack(ids(first)[1:])
    assert await position(mq) < 1
    await one.ack(ids(first)[:1])
    assert await position(mq) == 3
    await other.ack(ids(second)[:1])
    assert await position(mq) == 9


async def test_messages_of_a_closed_consumer_are_redistributed(mq: RocksMQ) -> None:
    medium = await filled(mq, 6)
    one, other = await medium.consumer("x", "g"), await medium.consumer("x", "g")
    taken = await one.receive(6)
    await one.ack(ids(taken)[2:3])
    waiting = asyncio.ensure_future(other.receive(10))
    while not mq.channels()[0].groups[0].waiting:
        await asyncio.sleep(0)
    await one.close()
    again = await asyncio.wait_for(waiting, 10)
    assert payloads(again) == [b"0", b"1", b"3", b"4", b"5"]
    await one.ack(ids(taken))  # it has no message any more
    assert await position(mq) < 1
    await other.ack(ids(again))
    assert await position(mq) == 6
    await other.close()


async def test_later_consumer_gets_what_was_not_handled(mq: RocksMQ) -> None:
    medium = await filled(mq, 5)
    consumer = await medium.consumer("x", "g")
    await consumer.ack(ids(await consumer.receive(10))[3:])
    await consumer.close()
    consumer = await medium.consumer("x", "g")
    received = await consumer.receive(10)
    assert payloads(received) == [b"0", b"1", b"2"]
    await consumer.ack(ids(received)[:1])
    assert await position(mq) == 1
    await consumer.close()
    consumer = await medium.consumer("x", "g")
    received = await consumer.receive(10)
    assert payloads(received) == [b"1", b"2"]
    await consumer.ack(ids(received))
    await (await medium.producer("x")).send(outgoing(b"5"))
    received = await consumer.receive(10)
    assert payloads(received) == [b"5"]
    await consumer.ack(ids(received))
    assert await position(mq) == 6
    await consumer.close()


async def test_seek_moves_the_group(mq: RocksMQ) -> None:
    medium = await filled(mq, 5)
    consumer = await medium.consumer("x", "g")
    received = await consumer.receive(10)
    await consumer.ack(ids(received))
    for number, msg_id in enumerate(ids(received)[:-1]):
        await consumer.check(msg_id)
        await consumer.seek(msg_id, inclusive=True)
        assert payloads(await consumer.receive(10)) == [b"%d" % each for each in range(number, 5)]
        await consumer.seek(msg_id, inclusive=False)
        again = await consumer.receive(10)
        assert payloads(again) == [b"%d" % each for each in range(number + 1, 5)]
        await consumer.ack(ids(again)[:1])
        assert await position(mq) == number + 2
    await consumer.close()


@given(st.permutations(range(1, 13)), st.permutations(range(1, 13)), st.lists(st.integers(1, 5), max_size=12))
def test_subscription_never_passes_what_is_not_handled(delivered: list[int], handled: list[int], sizes: list[int]) -> None:
    subscription = RocksMQSubscription()
    subscription.delivered(delivered)
    subscription.delivered(delivered[:3])  # returned, and redelivered
    done: set[int] = set()
    reached = 0
    for size in [*sizes, 12]:
        part, handled = handled[:size], handled[size:]
        done |= set(part)
        last = subscription.handled(part)
        expected = next(each for each in range(13) if each + 1 not in done)
        assert last == (expected if expected > reached else None)
        reached = expected
    assert reached == 12


async def test_exclusive_consumer_is_alone(mq: RocksMQ) -> None:
    medium = await filled(mq, 1)
    shared = await medium.consumer("x", "g")
    with pytest.raises(LockedError, match=r"'g' of channel 'x' is open in 1 streams.*under another name"):
        await medium.consumer("x", "g", exclusive=True)
    await shared.close()
    alone = await medium.consumer("x", "g", exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(LockedError):
            await RocksMQMedium(mq).consumer("x", "g", exclusive=exclusive)
    await (await medium.consumer("x", "h")).close()
    await alone.close()
    await (await medium.consumer("x", "g")).close()


async def test_media_of_a_directory_share_one_rocksmq(directory: Path) -> None:
    one, other = RocksMQMedium(directory), RocksMQMedium(str(directory))
    producer, _ = await asyncio.gather(one.producer("x"), other.producer("x"))
    consumer = await other.consumer("x", "g")
    await producer.send(outgoing(b"0"))
    assert payloads(await consumer.receive(1)) == [b"0"]
    with pytest.raises(LockedError):
        await RocksMQ.open(directory)
    with pytest.raises(InvalidArgumentError, match="with other settings"):
        await RocksMQMedium(directory, settings=RocksMQSettings(page_bytes=1)).producer("x")
    await one.close()
    with pytest.raises(ClosedError):
        await one.producer("x")
    await (await other.producer("x")).send(outgoing(b"1"))
    assert payloads(await consumer.receive(1)) == [b"1"]
    await consumer.close()
    closing = asyncio.ensure_future(other.close())
    await asyncio.sleep(0)
    third = RocksMQMedium(directory, settings=RocksMQSettings(page_bytes=1))
    again = await third.consumer("x", "g")
    await closing
    await other.close()
    assert payloads(await again.receive(9)) == [b"0", b"1"]
    await again.close()
    await third.close()
    async with await RocksMQ.open(directory):
        pass


async def test_another_process_cannot_open_the_directory(directory: Path) -> None:
    medium = RocksMQMedium(directory)
    await medium.producer("x")
    program = f"""
import asyncio
from wal.errors import LockedError
from wal.streams.msgstream.media.rocksmq import RocksMQMedium

async def main():
    try:
        await RocksMQMedium({str(directory)!r}).producer("x")
    except LockedError as error:
        print("locked")

asyncio.run(main())
"""
    assert (await asyncio.to_thread(run_python, "-c", program)).out == "locked\n"
    await medium.close()


async def test_large_send_is_several_batches(directory: Path) -> None:
    settings = RocksMQSettings(message_bytes_max=100, batch_bytes_max=250, in_flight_bytes_max=500)
    medium = RocksMQMedium(directory, settings=settings)
    producer = await medium.producer("x")
    with pytest.raises(InvalidArgumentError, match="101 bytes exceeds message_bytes_max=100"):
        await producer.send(outgoing(bytes(100), bytes(101)))
    sent = await producer.send(outgoing(*[bytes([number]) * 100 for number in range(9)]))
    consumer = await medium.consumer("x", "g")
    received: list[Received] = []
    while len(received) < 9:
        received += await consumer.receive(9)
    assert ids(received) == sent
    assert payloads(received) == [bytes([number]) * 100 for number in range(9)]
    await consumer.close()
    await medium.close()


async def test_send_that_fails_midway_says_what_is_durable(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await RocksMQ.open(directory, settings=RocksMQSettings(message_bytes_max=100, batch_bytes_max=250)) as mq:
        producer = await RocksMQMedium(mq).producer("x")
        before = mq.produce
        calls = 0

        async def produce(channel: str, messages: list[bytes]) -> range:
            nonlocal calls
            calls += 1
            if calls > 2:
                raise StorageError("the disk failed")
            return await before(channel, messages)

        monkeypatch.setattr(mq, "produce", produce)
        with pytest.raises(PartialSendError, match="the disk failed") as raised:
            await producer.send(outgoing(*[bytes(100)] * 5))
        assert isinstance(raised.value.__cause__, StorageError)
        durable = raised.value.durable["x"]
        assert [None if one is None else int.from_bytes(one, "big") for one in durable] == [1, 2, 3, 4, None]
        with pytest.raises(StorageError):
            await producer.send(outgoing(b"0"))


async def test_cancelled_receives_have_taken_nothing(mq: RocksMQ) -> None:
    medium = RocksMQMedium(mq)
    producer = await medium.producer("x")
    consumers: list[RocksMQConsumer] = [await medium.consumer("x", "g") for _ in range(2)]
    sent: list[bytes] = []
    got: list[bytes] = []
    for number in range(120):
        receiving = [asyncio.ensure_future(one.receive(2)) for one in consumers]
        for _ in range(number % 3):
            await asyncio.sleep(0)
        sent.append(b"%d" % number)
        await producer.send(outgoing(sent[-1]))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        receiving[number % 2].cancel()
        for _ in range(number % 5):
            await asyncio.sleep(0)
        receiving[1 - number % 2].cancel()
        for one in await asyncio.gather(*receiving, return_exceptions=True):
            if isinstance(one, BaseException):
                assert isinstance(one, asyncio.CancelledError)
            else:
                got += payloads(one)
    while len(got) < len(sent):
        got += payloads(await asyncio.wait_for(consumers[0].receive(1000), 10))
    assert sorted(got) == sorted(sent)


async def test_stream_of_a_directory_closes_it(directory: Path) -> None:
    async with RmqMsgStream(directory, buffer_size=2) as stream:
        await stream.as_producer(["x"])
    async with await RocksMQ.open(directory) as mq:
        assert [channel.name for channel in mq.channels()] == ["x"]


async def test_wrong_arguments_are_told_at_once(mq: RocksMQ) -> None:
    with pytest.raises(TypeError, match="a directory or an open RocksMQ"):
        RocksMQMedium(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="give settings with a directory only"):
        RocksMQMedium(mq, settings=RocksMQSettings())
    consumer = await RocksMQMedium(mq).consumer("x", "g")
    await consumer.close()
    await consumer.close()
    with pytest.raises(ClosedError):
        await consumer.receive(1)
    with pytest.raises(InvalidArgumentError, match="300 bytes in UTF-8"):
        await RocksMQMedium(mq).consumer("x" * 300, "g")


async def test_cancelled_opening_allows_the_next(tmp_path: Path) -> None:
    for steps in range(1, 9):
        async with RocksMQMedium(tmp_path / "mq") as medium:
            opening = asyncio.ensure_future(medium.producer("channel"))
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        async with RocksMQMedium(tmp_path / "mq") as medium:
            await medium.producer("channel")


async def test_failed_close_allows_the_next_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = RocksMQ.close

    async def failing(mq: RocksMQ) -> None:
        await close(mq)
        raise StorageError("no close")

    medium = RocksMQMedium(tmp_path / "mq")
    await medium.producer("channel")
    with monkeypatch.context() as patch:
        patch.setattr(RocksMQ, "close", failing)
        with pytest.raises(StorageError, match="no close"):
            await medium.close()
    async with RocksMQMedium(tmp_path / "mq") as another:
        await another.producer("channel")
