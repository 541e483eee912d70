"""Dead letters, redriving them, moving the cursor of a consumer, and payloads of a type."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from tests.consumers.test_consume import NO_PAUSE, append, payloads
from wal import All, Delivery, Message, MessageType, StartFrom, WALAccesser
from wal.errors import ChannelNotExistError, HandlerFailedError, InvalidArgumentError, PayloadError, ResourceAcquiredError

pytestmark = pytest.mark.on_pulsar


async def letters_of(log: WALAccesser, vchannel: str = "dead") -> list[Any]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body async for _, body in scanner.bodies()]


async def refuse(delivery: Delivery) -> None:
    raise ValueError("not now")


async def test_redriven_letter_is_for_its_cursor(log: WALAccesser) -> None:
    handled: dict[str, list[bytes]] = {"one": [], "two": []}

    async def handle(delivery: Delivery) -> None:
        handled[name].append(delivery.value)
        assert delivery.message.properties.get("kind") in ("job", None)

    await log.append("jobs", b"a", properties={"kind": "job"})
    async with log.consume("jobs", refuse, cursor="one", attempts=1, dead_letter="dead") as consumer:
        await consumer.caught_up()
    assert await log.redrive("dead") == 1
    assert await log.redrive("dead") == 0
    for name in ("one", "two"):
        async with log.consume("jobs", handle, cursor=name) as consumer:
            await consumer.caught_up()
            assert consumer.statistics().pending == 0
    assert handled == {"one": [b"a"], "two": [b"a"]}  # "two" has the first one, and not the redriven one
    async with log.read("jobs", follow=False) as scanner:
        redriven = [body async for _, body in scanner.bodies()][-1]
    assert redriven.properties == {"kind": "job", "redrive_cursor": "one"}


async def test_consumer_catches_up_after_letters_of_another_cursor(log: WALAccesser) -> None:
    async def handle(_delivery: Delivery) -> None:
        """Succeeds."""

    await log.append("jobs", b"a")
    async with log.consume("jobs", refuse, cursor="one", attempts=1, dead_letter="dead") as consumer:
        await consumer.caught_up()
    async with log.consume("jobs", handle, cursor="two") as consumer:
        await consumer.caught_up()
        assert await log.redrive("dead") == 1
        await consumer.caught_up()
        assert (consumer.statistics().handled, consumer.statistics().pending) == (1, 0)


async def test_redrive_continues_after_its_limit(log: WALAccesser) -> None:
    count = 500
    await append(log, [str(number) for number in range(count)])
    async with log.consume("jobs", refuse, cursor="one", attempts=1, dead_letter="dead", trip_after=0) as consumer:
        await consumer.caught_up()
    steps = []
    while some := await log.redrive("dead", limit_s=0.0001):
        steps.append(some)
    assert sum(steps) == count
    assert len(await letters_of(log, "jobs")) == 2 * count
    with pytest.raises(InvalidArgumentError, match="limit_s=0 is out of range"):
        await log.redrive("dead", limit_s=0)


async def test_letters_of_two_vchannels_are_redriven(log: WALAccesser) -> None:
    for name in ("jobs", "mails"):
        await log.append(name, b"a")
        async with log.consume(name, refuse, cursor=name, attempts=1, dead_letter=f"{name}-dead") as consumer:
            await consumer.caught_up()
    dead = ["jobs-dead", "mails-dead"]
    assert await asyncio.gather(*(log.redrive(name) for name in dead)) == [1, 1]
    assert [await log.redrive(name) for name in dead] == [0, 0]  # each has a cursor of its own, which remembers
    assert [len(await letters_of(log, name)) for name in ("jobs", "mails")] == [2, 2]
    with pytest.raises(ChannelNotExistError, match="'job-dead' does not exist, so it has no dead letters"):
        await log.redrive("job-dead")


async def test_redriven_letter_may_die_again(log: WALAccesser) -> None:
    await append(log, "ab")
    for count in (2, 2):
        async with log.consume("jobs", refuse, cursor="one", attempts=1, dead_letter="dead") as consumer:
            await consumer.caught_up()
        assert await log.redrive("dead") == count
    assert [letter.payload for letter in await letters_of(log)] == [b"a", b"b", b"a", b"b"]
    assert "redrive_cursor" not in (await letters_of(log))[-1].properties


async def test_other_types_become_letters_and_return(log: WALAccesser) -> None:
    await log.raw_append(Message("jobs", b"a", message_type=MessageType.DELETE))
    await log.raw_append(Message("jobs", b"b", message_type=MessageType.FLUSH))
    async with log.consume("jobs", refuse, cursor="one", attempts=1, dead_letter="dead") as consumer:
        await consumer.caught_up()
    assert [letter.message_type for letter in await letters_of(log)] == [MessageType.DELETE, MessageType.INSERT]
    assert await log.redrive("dead") == 2
    kinds = Counter(message.message_type for message in await letters_of(log, "jobs"))
    assert kinds == {MessageType.DELETE: 2, MessageType.FLUSH: 2}


async def test_redrive_refuses_what_is_no_letter(log: WALAccesser) -> None:
    await append(log, "a")
    with pytest.raises(InvalidArgumentError, match="is not a dead letter"):
        await log.redrive("jobs")
    async with log.consume("jobs", refuse, cursor="redrive", backoff_s=(60, 60)):
        while not log.consumers()[0].failed:
            await asyncio.sleep(0)
        with pytest.raises(ResourceAcquiredError):
            await log.redrive("jobs")


async def test_reason_of_a_letter_is_bounded(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None:
        raise ValueError("é" * 2000)

    await append(log, "a")
    async with log.consume("jobs", handle, cursor="one", attempts=1, dead_letter="dead") as consumer:
        await consumer.caught_up()
    assert 1000 < len((await letters_of(log))[0].properties["dead_letter_reason"].encode()) <= 1024


async def test_largest_message_becomes_a_letter(log: WALAccesser) -> None:
    payload = bytes(1024 * 1024)
    await log.append("jobs", payload)
    async with log.consume("jobs", refuse, cursor="one", attempts=1, dead_letter="dead") as consumer:
        await consumer.caught_up()
    assert [letter.payload for letter in await letters_of(log)] == [payload]
    assert await log.redrive("dead") == 1


async def test_outputs_on_other_pchannels_come_once(log4: WALAccesser) -> None:
    failing = True

    async def handle(delivery: Delivery) -> None:
        for number in range(4):
            delivery.append(f"out{number}", delivery.value)
        delivery.append("out0", b"more")
        if failing:
            raise ValueError("broken")

    for number in range(4):
        await log4.create_vchannel(f"out{number}", pchannel=sorted({info.pchannel for info in await log4.vchannels()} or {""})[0] or None)
    await append(log4, "ab")
    with pytest.raises(HandlerFailedError):
        await log4.consume("jobs", handle, cursor="one", attempts=1).run()
    failing = False
    async with log4.consume("jobs", handle, cursor="one", dead_letter="dead") as consumer:
        await consumer.caught_up()
    assert [await payloads(log4, f"out{number}") for number in range(4)] == [["a", "more", "b", "more"], *[["a", "b"]] * 3]


async def test_consumer_goes_on_where_seek_says(log: WALAccesser) -> None:
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.value)

    results = await log.append_bulk([Message("jobs", payload) for payload in (b"a", b"b", b"c")])
    with pytest.raises(InvalidArgumentError, match="no cursor 'one' is saved"):
        await log.seek("one", to=All())
    assert results[1].message_id is not None
    await log.seek("one", to=results[1].message_id, vchannels="jobs")
    async with log.consume("jobs", handle, cursor="one") as consumer:
        await consumer.caught_up()
        assert handled == [b"b", b"c"]
        await log.seek("one", to=All())
        while len(handled) < 5:
            await asyncio.sleep(0.01)
        assert handled[2:] == [b"a", b"b", b"c"]
    assert results[2].message_id is not None
    await log.seek("one", to=StartFrom(results[2].message_id))
    async with log.consume("jobs", handle, cursor="one") as consumer:
        await consumer.caught_up()
    assert handled[5:] == [b"c"]
    with pytest.raises(TypeError, match="to must be a deliver policy"):
        await log.seek("one", to="the end")  # type: ignore[arg-type]


async def test_values_of_a_type_are_delivered(log: WALAccesser) -> None:
    class Order(msgspec.Struct):
        number: int

    orders = log.typed("orders", Order)
    numbers: list[int] = []

    async def handle(delivery: Delivery[Order]) -> None:
        numbers.append(delivery.value.number)

    await orders.append(Order(1))
    await log.append("orders", b"not JSON")
    await log.append("orders", b"{}", properties={"payload_version": "7"})
    await orders.append(Order(2))
    async with orders.consume(handle, cursor="one", dead_letter="dead") as consumer:
        await consumer.caught_up()
    assert numbers == [1, 2]
    letters = await letters_of(log)
    assert [letter.payload for letter in letters] == [b"not JSON", b"{}"]
    assert "has no Order of version 1" in letters[0].properties["dead_letter_reason"]
    assert "has version '7'" in letters[1].properties["dead_letter_reason"]
    assert letters[0].properties["dead_letter_attempts"] == "1"
    with pytest.raises(HandlerFailedError, match="has no Order") as caught:
        await log.consume("orders", handle, cursor="two", type=Order).run()
    assert isinstance(caught.value.__cause__, PayloadError)


async def test_wrong_options_are_refused_at_call(log: WALAccesser, subtests: pytest.Subtests) -> None:
    async def generator(delivery: Delivery) -> Any:
        yield delivery

    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"handler": 5}, TypeError, "handler must be a callable"),
        ({"vchannels": []}, InvalidArgumentError, "names no vchannel"),
        ({"cursor": ""}, InvalidArgumentError, "cursor is empty"),
        ({"concurrency": 0}, InvalidArgumentError, "concurrency=0 is out of range: 1 to 1024"),
        ({"concurrency": True}, TypeError, "concurrency must be an int"),
        ({"concurrency": 8}, InvalidArgumentError, "concurrency=8 has no effect .* order='key' with key= .* or order='none'"),
        ({"handler": generator}, TypeError, "a generator function"),
        ({"order": "keys"}, InvalidArgumentError, "order='keys' is not known"),
        ({"order": "key"}, InvalidArgumentError, "give key="),
        ({"key": len}, InvalidArgumentError, "leave key out"),
        ({"order": "key", "key": 5}, TypeError, "key must be a function .* or the name of a property"),
        ({"order": "key", "key": ""}, InvalidArgumentError, "key='' names no property"),
        ({"order": "key", "key": len, "shared": True}, InvalidArgumentError, "cannot call the function; store the key in a property"),
        ({"shared": 1}, TypeError, "shared must be True or False"),
        ({"shared": True, "lease_s": 0.01}, InvalidArgumentError, "lease_s=0.01 is out of range: 0.1 to 600 s"),
        ({"lease_s": "1"}, TypeError, "lease_s must be a number"),
        ({"lease_s": 5.0}, InvalidArgumentError, "use it with shared=True"),
        ({"attempts": 0}, InvalidArgumentError, "attempts=0 is out of range"),
        ({"backoff_s": 1.0}, TypeError, "backoff_s must be a pair"),
        ({"backoff_s": (2.0, 1.0)}, InvalidArgumentError, "backoff_s"),
        ({"on_failure": "skip"}, InvalidArgumentError, "on_failure='skip' is not known"),
        ({"dead_letter": "jobs"}, InvalidArgumentError, "is a vchannel that this consumer reads"),
        ({"batch": 0}, InvalidArgumentError, "batch=0 is out of range"),
        ({"timeout_s": 0}, InvalidArgumentError, "timeout_s=0 is out of range"),
        ({"timeout_s": float("nan")}, InvalidArgumentError, "timeout_s=nan is out of range"),
        ({"type": lambda: None}, TypeError, "has no codec"),
        ({"exclusive": "no"}, InvalidArgumentError, "exclusive='no' is not known"),
    ]
    for options, error, text in cases:
        with subtests.test(repr(options)):
            given = {"vchannels": "jobs", "handler": refuse, "cursor": "one", **options}
            with pytest.raises(error, match=text):
                log.consume(given.pop("vchannels"), given.pop("handler"), **given)


async def test_cursor_has_one_set_of_vchannels(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None: ...

    await append(log, "a")
    async with log.consume("jobs", handle, cursor="one") as consumer:
        await consumer.caught_up()
        with pytest.raises(InvalidArgumentError, match="cursor 'one' has a consumer of 'jobs' in this process"):
            await log.consume("other", handle, cursor="one").run()
    with pytest.raises(InvalidArgumentError, match="cursor 'one' is saved for 'jobs'"):
        await log.consume(["jobs", "other"], handle, cursor="one").run()


async def test_too_many_outputs_fail_the_attempt(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None:
        for _ in range(5000):
            delivery.append("out", b"x")

    await append(log, "a")
    async with log.consume("jobs", handle, cursor="one", attempts=1, dead_letter="dead", backoff_s=NO_PAUSE) as consumer:
        await consumer.caught_up()
    assert await payloads(log, "out") == []
    assert "exceed the bounds of a transaction: 4097 messages" in (await letters_of(log))[0].properties["dead_letter_reason"]
