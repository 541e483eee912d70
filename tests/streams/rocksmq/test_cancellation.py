"""A caller that is cancelled in any turn: its messages go to the group's next call, in order, even after a reopening."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from wal.errors import WouldBlockError
from wal.streams.rocksmq import ConsumerMessage, RocksMQ, RocksMQSettings


def payloads(messages: list[ConsumerMessage]) -> list[bytes]:
    return [message.payload for message in messages]


async def filled(directory: Path, messages: int, **settings: int) -> RocksMQ:
    mq = await RocksMQ.open(directory, settings=RocksMQSettings(**settings))  # type: ignore[arg-type]
    await mq.create_channel("x")
    await mq.create_consumer_group("g", "x")
    if messages:
        await mq.produce("x", [b"%d" % index for index in range(messages)])
    return mq


async def cancelled_with_an_answer(mq: RocksMQ, n: int, *, auto_ack: bool = True) -> None:
    """Cancels a consumer in the very turn in which its answer came."""
    before = mq.statistics().consumed
    consumer = asyncio.ensure_future(mq.consume("g", "x", n, auto_ack=auto_ack))
    while mq.statistics().consumed == before:
        assert not consumer.done()
        await asyncio.sleep(0)
    assert consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer


@pytest.mark.parametrize("auto_ack", [True, False])
async def test_messages_of_a_cancelled_consumer_reappear(directory: Path, auto_ack: bool) -> None:
    mq = await filled(directory, 5)
    assert payloads(await mq.consume("g", "x", 1)) == [b"0"]
    await cancelled_with_an_answer(mq, 3, auto_ack=auto_ack)
    await mq.close()
    async with await RocksMQ.open(directory) as mq:
        assert payloads(await mq.consume("g", "x", 9)) == [b"1", b"2", b"3", b"4"]


async def test_messages_given_back_are_unconsumed_until_taken_again(directory: Path) -> None:
    mq = await filled(directory, 5, page_bytes=1, retention_bytes=0)
    await cancelled_with_an_answer(mq, 2)
    assert await mq.retain() == 0, "what nobody has got was dropped"
    assert mq.channels()[0].groups[0].current_id < 1
    assert payloads(await mq.consume("g", "x", 1)) == [b"0"]
    assert mq.channels()[0].groups[0].current_id == 1
    assert payloads(await mq.consume("g", "x", 1)) == [b"1"]
    assert payloads(await mq.consume("g", "x", 2)) == [b"2", b"3"]
    assert await mq.retain() == 4
    await mq.close()
    async with await RocksMQ.open(directory) as mq:
        assert payloads(await mq.consume("g", "x", 9)) == [b"4"]


async def test_messages_that_two_give_back_come_in_order(directory: Path) -> None:
    mq = await filled(directory, 7)
    consumers = [asyncio.ensure_future(mq.consume("g", "x", 2)) for _ in range(3)]
    while mq.statistics().consumed < 6:
        await asyncio.sleep(0)
    for consumer in (consumers[1], consumers[0], consumers[2]):
        consumer.cancel()
    assert [type(each) for each in await asyncio.gather(*consumers, return_exceptions=True)] == [asyncio.CancelledError] * 3
    await mq.close()
    async with await RocksMQ.open(directory) as mq:
        first = asyncio.ensure_future(mq.consume("g", "x", 2))
        later = asyncio.ensure_future(mq.consume("g", "x", 2))
        while mq.statistics().consumed < 4:
            await asyncio.sleep(0)
        first.cancel()
        later.cancel()
        await asyncio.wait([first, later])
        assert payloads(await mq.consume("g", "x", 9)) == [b"0", b"1", b"2", b"3"]
        assert payloads(await mq.consume("g", "x", 9)) == [b"4", b"5", b"6"]
        assert mq.channels()[0].groups[0].current_id == 7


async def test_seeking_forgets_messages_given_back(directory: Path) -> None:
    mq = await filled(directory, 5)
    await cancelled_with_an_answer(mq, 2)
    await mq.seek("g", "x", None)
    assert await mq.consume("g", "x", 9) == []
    assert mq.channels()[0].groups[0].current_id == 5
    await mq.seek("g", "x", 3)
    assert payloads(await mq.consume("g", "x", 9)) == [b"3", b"4"]
    await mq.close()


async def test_cancelled_consumer_without_room_takes_nothing(directory: Path) -> None:
    mq = await filled(directory, 4, calls_max=1)
    cancelled = 0
    for others in range(1, 4):
        for turns in range(40):
            seeks = [asyncio.ensure_future(mq.seek("g", "x", -1)) for _ in range(others)]
            await asyncio.sleep(0)
            consumer = asyncio.ensure_future(mq.consume("g", "x", 2))
            for _ in range(turns):
                await asyncio.sleep(0 if turns < 20 else 0.0002)
            consumer.cancel()
            await asyncio.gather(*seeks)
            (got,) = await asyncio.gather(consumer, return_exceptions=True)
            if isinstance(got, asyncio.CancelledError):
                cancelled += 1
                found: list[bytes] = []
                while messages := payloads(await mq.consume("g", "x", 4)):
                    found += messages  # returned messages come in a separate answer
                assert found == [b"0", b"1", b"2", b"3"], (others, turns)
    assert cancelled
    await mq.close()


@pytest.mark.parametrize("calls_max", [1, 64])
async def test_cancelled_producers_leave_no_bytes_in_flight(directory: Path, calls_max: int) -> None:
    mq = await filled(directory, 0, calls_max=calls_max)
    sent, answered = 0, set()
    for turns in range(40):
        producers = []
        for _ in range(4):
            producers.append(asyncio.ensure_future(mq.produce("x", [b"%d" % sent])))
            sent += 1
        for _ in range(turns % 10):
            await asyncio.sleep(0)
        for producer in producers[turns % 4 :]:
            producer.cancel()
        for index, result in enumerate(await asyncio.gather(*producers, return_exceptions=True)):
            if isinstance(result, range):
                answered.add(b"%d" % (sent - 4 + index))
        assert mq.statistics().in_flight_bytes >= 0
    await mq.produce("x", [b"last"])
    assert mq.statistics().in_flight_bytes == 0
    found = payloads(await mq.consume("g", "x", 1000))
    assert len(found) == len(set(found))
    assert answered <= set(found)
    await mq.close()


async def test_seek_wakes_waiting_calls(directory: Path) -> None:
    mq = await filled(directory, 3)
    await mq.consume("g", "x", 9)
    waiting = asyncio.ensure_future(mq.consume("g", "x", 9, timeout_s=None))
    while not mq.channels()[0].groups[0].waiting:
        await asyncio.sleep(0)
    await mq.seek("g", "x", 1)
    assert payloads(await asyncio.wait_for(waiting, 10)) == [b"1", b"2"]
    await mq.close()


async def test_calls_take_effect_in_their_order(directory: Path) -> None:
    mq = await filled(directory, 4)
    got, _ = await asyncio.gather(mq.consume("g", "x", 9), mq.seek("g", "x", None))
    assert payloads(got) == [b"0", b"1", b"2", b"3"]
    await mq.seek("g", "x", -1)
    got, _, after = await asyncio.gather(mq.consume("g", "x", 3), mq.seek("g", "x", -1), mq.consume("g", "x", 1))
    assert (payloads(got), payloads(after)) == ([b"0", b"1", b"2"], [b"0"])
    await mq.seek("g", "x", -1)
    got, _ = await asyncio.gather(mq.consume("g", "x", 3), mq.destroy_channel("x"))
    assert payloads(got) == [b"0", b"1", b"2"]
    await mq.close()


async def test_bound_of_bytes_in_flight_holds_after_cancellations(directory: Path) -> None:
    mq = await filled(directory, 0, calls_max=1, message_bytes_max=100, batch_bytes_max=100, in_flight_bytes_max=300)
    for turns in range(20):
        producers = [asyncio.ensure_future(mq.produce("x", [bytes(100)])) for _ in range(3)]
        for _ in range(turns % 8):
            await asyncio.sleep(0)
        for producer in producers:
            producer.cancel()
        await asyncio.gather(*producers, return_exceptions=True)
    results = await asyncio.gather(*(mq.produce("x", [bytes(100)]) for _ in range(10)), return_exceptions=True)
    assert sum(isinstance(result, WouldBlockError) for result in results) >= 7
    await mq.close()
