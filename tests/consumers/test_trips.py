"""A consumer that pauses itself after too many dead letters in a row, and continues when it is resumed."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.consumers.test_consume import NO_PAUSE, append, payloads
from tests.processes import eventually
from wal import All, Consumer, Delivery, Reject, WALAccesser
from wal.errors import HandlerFailedError, InvalidArgumentError

COUNT = 50


class Shop:
    """A handler that fails while the shop is closed."""

    def __init__(self) -> None:
        self.is_open = False
        self.handled: list[bytes] = []

    async def handle(self, delivery: Delivery) -> None:
        if not self.is_open:
            raise ConnectionError("the shop is closed")
        self.handled.append(delivery.value)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def texts(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


async def tripped(consumer: Consumer) -> None:
    await eventually(lambda: consumer.statistics().state == "tripped")


@pytest.mark.on_pulsar
async def test_backlog_outlives_a_broken_handler(log: WALAccesser, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    await log.append_txn("jobs", numbers(0, COUNT))
    caplog.set_level(logging.ERROR, "wal.consumers")
    async with log.consume("jobs", shop.handle, cursor="worker", dead_letter="dead", attempts=2, backoff_s=NO_PAUSE) as consumer:
        with pytest.raises(HandlerFailedError, match=r"20 messages in a row became dead letters .* ConnectionError: the shop is closed"):
            await consumer.caught_up()
        await eventually(lambda: log.consumers()[0].dead_lettered == 20)
        (info,) = log.consumers()
        assert (info.state, info.in_hand, info.failed, info.stopped_at is None) == ("tripped", 0, 40, False)
        assert info.error.startswith("HandlerFailedError: consumer 'worker' has tripped")
        assert [record.__dict__["wal_event"] for record in caplog.records] == ["consumer tripped"]
        assert await payloads(log, "dead") == texts(0, 20)
        shop.is_open = True
        consumer.resume()
        (info,) = log.consumers()
        assert (info.message_id, info.stopped_at, info.error) == (None, None, "")
        await consumer.caught_up()
        assert shop.handled == numbers(20, COUNT)
        assert await log.redrive("dead") == 20
        await consumer.caught_up()
        assert shop.handled == numbers(20, COUNT) + numbers(0, 20)


async def test_next_consumer_continues_after_the_letters(log: WALAccesser) -> None:
    shop = Shop()
    await log.append_txn("jobs", numbers(0, 10))
    options: dict[str, Any] = {"cursor": "worker", "dead_letter": "dead", "attempts": 1, "trip_after": 3}
    for _ in range(2):
        async with log.consume("jobs", shop.handle, **options) as consumer:
            await tripped(consumer)
    assert await payloads(log, "dead") == texts(0, 6)
    shop.is_open = True
    async with log.consume("jobs", shop.handle, **options) as consumer:
        await consumer.caught_up()
    assert shop.handled == numbers(6, 10)


async def test_handled_message_begins_the_count_again(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"r":
            raise Reject("of no use")
        if delivery.value == b"x":
            raise ValueError("cannot be handled")

    await append(log, "xxgxxrxx" * 3 + "rrrrr")
    async with log.consume("jobs", handle, cursor="worker", dead_letter="dead", attempts=1, trip_after=3) as consumer:
        with pytest.raises(HandlerFailedError):  # the last two of one group, and the first of the next one
            await consumer.caught_up()
    assert await payloads(log, "dead") == list("xxxxrxxx")


async def test_undecodable_payloads_trip(log: WALAccesser) -> None:
    async def handle(delivery: Delivery[dict[str, int]]) -> None: ...

    await append(log, "abcdef")
    async with log.consume("jobs", handle, cursor="worker", dead_letter="dead", type=dict[str, int], trip_after=4) as consumer:
        await tripped(consumer)
        await eventually(lambda: log.consumers()[0].dead_lettered == 4)


@pytest.mark.parametrize("options", [{"batch": 4}, {"order": "none", "concurrency": 8}])
async def test_running_handlers_end_after_a_trip(log: WALAccesser, options: dict[str, Any]) -> None:
    """The messages that handlers have at the moment of the trip may become dead letters, and no further one."""

    async def fail(delivery: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("cannot be handled")

    await log.append_txn("jobs", numbers(0, COUNT))
    async with log.consume("jobs", fail, cursor="worker", dead_letter="dead", attempts=1, trip_after=6, **options) as consumer:
        await tripped(consumer)
        await eventually(lambda: consumer.statistics().in_hand == 0)
    assert 6 <= len(await payloads(log, "dead")) <= 6 + 8
    assert consumer.statistics().error == ""


async def test_trip_can_be_turned_off(log: WALAccesser) -> None:
    await log.append_txn("jobs", numbers(0, COUNT))
    async with log.consume("jobs", Shop().handle, cursor="worker", dead_letter="dead", attempts=1, trip_after=0) as consumer:
        await consumer.caught_up()
    assert len(await payloads(log, "dead")) == COUNT


async def test_tripped_consumer_closes(log: WALAccesser) -> None:
    await append(log, "abc")
    consumer = log.consume("jobs", Shop().handle, cursor="worker", dead_letter="dead", attempts=1, trip_after=1)
    running = asyncio.ensure_future(consumer.run())
    await tripped(consumer)
    consumer.pause()
    assert consumer.statistics().state == "tripped"
    await consumer.close()
    await running
    assert log.consumers() == []
    consumer.resume()
    assert consumer.statistics().state == "ended"


async def test_trip_without_a_dead_letter_is_refused(log: WALAccesser) -> None:
    with pytest.raises(InvalidArgumentError, match="trip_after=5 has no effect without dead_letter="):
        log.consume("jobs", Shop().handle, cursor="worker", trip_after=5)
    with pytest.raises(InvalidArgumentError, match="trip_after=-1 is out of range"):
        log.consume("jobs", Shop().handle, cursor="worker", dead_letter="dead", trip_after=-1)
    with pytest.raises(TypeError, match="trip_after must be an int"):
        log.consume("jobs", Shop().handle, cursor="worker", dead_letter="dead", trip_after=1.5)  # type: ignore[call-overload]
    async with log.consume("jobs", Shop().handle, cursor="worker", trip_after=0) as consumer:
        await consumer.caught_up()


async def test_members_trip_and_resume_together(log: WALAccesser) -> None:
    shop = Shop()
    await log.append_txn("jobs", numbers(0, COUNT))
    options: dict[str, Any] = {"cursor": "workers", "shared": True, "order": "none", "dead_letter": "dead", "attempts": 1, "trip_after": 7}
    consumers = [log.consume("jobs", shop.handle, **options) for _ in range(3)]
    async with consumers[0], consumers[1], consumers[2]:
        for consumer in consumers:
            await tripped(consumer)
            with pytest.raises(HandlerFailedError, match=r"7 messages in a row became dead letters .*ConnectionError: the shop is closed"):
                await consumer.caught_up()
        shop.is_open = True
        consumers[1].resume()
        await eventually(lambda: {consumer.statistics().state for consumer in consumers} == {"running"})
        await asyncio.gather(*[consumer.caught_up() for consumer in consumers])
        letters = await payloads(log, "dead")
        assert 7 <= len(letters) < 2 * 7 * len(consumers)  # with those that members had in hand
        assert sorted([*letters, *map(bytes.decode, shop.handled)], key=int) == texts(0, COUNT)


async def test_handled_message_of_a_member_resets_the_count(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None:
        if int(delivery.value) % 5:
            raise ConnectionError("closed")

    await log.append_txn("jobs", numbers(0, COUNT))
    options: dict[str, Any] = {"cursor": "workers", "shared": True, "order": "vchannel", "dead_letter": "dead", "attempts": 1}
    consumers = [log.consume("jobs", handle, trip_after=5, **options) for _ in range(2)]
    async with consumers[0], consumers[1]:
        await asyncio.gather(*[consumer.caught_up() for consumer in consumers])
        assert {consumer.statistics().state for consumer in consumers} == {"running"}
        with pytest.raises(InvalidArgumentError, match=r"trip_after=5, and this consumer has .*trip_after=6"):
            await log.consume("jobs", handle, trip_after=6, **options).run()


async def test_members_stay_tripped_when_their_home_ends(log: WALAccesser) -> None:
    """A seek ends the home's table, as a move or a restart does. Members that join the next one bring the trip, and resume together."""
    shop = Shop()
    await append(log, texts(0, COUNT))  # each has a position: inside of a transaction, the seek would change none
    options: dict[str, Any] = {"cursor": "workers", "shared": True, "order": "none", "dead_letter": "dead", "attempts": 1, "trip_after": 7}
    consumers = [log.consume("jobs", shop.handle, **options) for _ in range(2)]
    later = log.consume("jobs", shop.handle, **options)
    async with consumers[0], consumers[1]:
        for consumer in consumers:
            await tripped(consumer)
        fence = consumers[0].statistics().fence
        await log.seek("workers", to=All())
        await eventually(lambda: all(consumer.statistics().fence > fence for consumer in consumers))
        letters = await payloads(log, "dead")  # with those that members had in hand
        async with later:
            await tripped(later)
            assert [info.state for info in await log.shared_consumers()] == ["tripped"]
            assert "the shop is closed" in later.statistics().error
            assert {consumer.statistics().state for consumer in consumers} == {"tripped"}
            assert await payloads(log, "dead") == letters
            shop.is_open = True
            later.resume()
            await eventually(lambda: {consumer.statistics().state for consumer in (*consumers, later)} == {"running"})
            await later.caught_up()
