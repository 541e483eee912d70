"""Consumers that share a cursor: side by side, order, attempts, dead letters, ends, and what they refuse."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import child
from wal import Consumer, Delivery, Log, Message, Reject, Retry, WALAccesser, open_wal
from wal.errors import HandlerFailedError, InvalidArgumentError, NotLocalError, ResourceAcquiredError

NO_PAUSE = (0.0, 0.0)
KEYS = 5


async def append(log: Log, numbers: Iterable[int]) -> None:
    await log.append_bulk([Message("jobs", b"%d" % number, properties={"customer": str(number % KEYS)}) for number in numbers])


async def payloads(log: Log, vchannel: str) -> list[bytes]:
    """Returns the payloads of all bodies of a vchannel."""
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload async for _, body in scanner.bodies()]


async def copy(delivery: Delivery) -> None:
    await asyncio.sleep(0)
    delivery.append("done", delivery.value)


def members(log: Log, count: int, handler: Any, **options: Any) -> list[Consumer]:
    return [log.consume("jobs", handler, cursor="workers", shared=True, **options) for _ in range(count)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "none", "concurrency": 3},
        {"order": "key", "key": "customer", "concurrency": 2},
        {"order": "none", "batch": 7},
        {"order": "key", "key": "customer", "batch": 4, "concurrency": 2},
    ],
    ids=["vchannel", "none", "key", "batches", "batches by key"],
)
async def test_members_finish_each_message_once(log: WALAccesser, options: dict[str, Any]) -> None:
    async def batch(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            await copy(delivery)

    await append(log, range(300))
    one, two, three = members(log, 3, batch if "batch" in options else copy, **options)
    async with one, two:
        await one.caught_up()
        async with three:
            await append(log, range(300, 400))
            await three.caught_up()
            handled = [consumer.statistics().handled for consumer in (one, two, three)]
    done = await payloads(log, "done")
    assert sorted(map(int, done)) == list(range(400))
    assert sum(handled) == 400
    if options.get("order") != "none":
        for key in range(KEYS):
            assert [one for one in done if int(one) % KEYS == key] == [b"%d" % number for number in range(400) if number % KEYS == key]
    (info,) = await log.cursors()
    assert info.lag_bytes == 0


async def test_members_handle_side_by_side(log: WALAccesser) -> None:
    """A stuck member holds back only its own messages; a later member gets work at once."""
    first = asyncio.Event()
    may_return = asyncio.Event()

    async def stuck(delivery: Delivery) -> None:
        first.set()
        await may_return.wait()

    await append(log, [0])
    (slow,) = members(log, 1, stuck, order="key", key="customer")
    async with slow:
        await first.wait()
        await append(log, range(1, 100))
        (quick,) = members(log, 1, copy, order="key", key="customer")
        async with quick:
            while len(done := await payloads(log, "done")) < 80:
                await asyncio.sleep(0.01)
            while [member.handled for member in quick.statistics().members] != [0, 80]:  # the home shows them once a second
                await asyncio.sleep(0.01)
            assert sorted(map(int, done)) == [number for number in range(100) if number % KEYS]
            statistics = quick.statistics()
            assert [member.in_hand for member in statistics.members] == [1, 0]
            assert statistics.members[1].rate > 0
            assert "customer" not in statistics.held_by
            assert "with key '0', attempt 1, is with its handler" in statistics.held_by
            may_return.set()
            await quick.caught_up()
    assert slow.statistics().handled + quick.statistics().handled == 100


async def test_failed_attempts_move_between_members(log: WALAccesser) -> None:
    attempts: Counter[bytes] = Counter()
    numbers: dict[bytes, list[int]] = {}

    async def handle(delivery: Delivery) -> None:
        attempts[delivery.value] += 1
        numbers.setdefault(delivery.value, []).append(delivery.fence)
        assert delivery.attempt == attempts[delivery.value]
        match int(delivery.value):
            case 3 if delivery.attempt < 3:
                raise ConnectionError("twice")
            case 4:
                raise ValueError("always")
            case 5:
                raise Reject("never")
            case 6 if delivery.attempt == 1:
                raise Retry(0.0)
        delivery.append("done", delivery.value)

    await append(log, range(40))
    one, two = members(log, 2, handle, order="key", key="customer", attempts=3, backoff_s=NO_PAUSE, dead_letter="dead")
    async with one, two:
        await two.caught_up()
    counts = [consumer.statistics() for consumer in (one, two)]
    assert attempts == Counter({b"%d" % number: {3: 3, 4: 3, 6: 2}.get(number, 1) for number in range(40)})
    assert all(each == sorted(set(each)) for each in numbers.values())
    assert sorted(map(int, await payloads(log, "done"))) == [number for number in range(40) if number not in (4, 5)]
    async with log.read("dead", follow=False) as scanner:
        letters = [body.properties async for _, body in scanner.bodies()]
    assert sorted((each["dead_letter_reason"], each["dead_letter_attempts"]) for each in letters) == [
        ("ValueError: always", "3"),
        ("never", "1"),
    ]
    assert {each["dead_letter_key"] for each in letters} == {"4", "0"}
    assert sum(each.dead_lettered for each in counts) == 2
    assert sum(each.failed for each in counts) == 6
    assert sum(each.retried for each in counts) == 5
    assert await log.redrive("dead") == 2


async def test_member_without_dead_letter_ends_and_skips_nothing(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"7":
            raise ValueError("always")
        delivery.append("done", delivery.value)

    await append(log, range(20))
    one, two = members(log, 2, handle, attempts=2, backoff_s=NO_PAUSE)
    ends = await asyncio.gather(one.run(), two.run(), return_exceptions=True)
    for error in ends:
        assert isinstance(error, HandlerFailedError)
        assert "after 2 attempts: ValueError: always; nothing was skipped" in str(error)
    assert await payloads(log, "done") == [b"%d" % number for number in range(7)]
    await one.close()
    await two.close()
    async with members(log, 1, copy)[0] as consumer:
        await consumer.caught_up()
    assert await payloads(log, "done") == [b"%d" % number for number in range(20)]


async def test_leaving_member_counts_no_attempt(log: WALAccesser) -> None:
    begun: asyncio.Queue[Delivery] = asyncio.Queue()

    async def stuck(delivery: Delivery) -> None:
        begun.put_nowait(delivery)
        await asyncio.Event().wait()

    await append(log, range(10))
    for _ in range(4):
        (consumer,) = members(log, 1, stuck, order="none", concurrency=3, attempts=2)
        async with consumer:
            for _ in range(3):
                assert (await begun.get()).attempt == 1
            await consumer.close(drain_s=0.0)
    async with members(log, 1, copy, order="none", attempts=2)[0] as consumer:
        await consumer.caught_up()
    assert sorted(map(int, await payloads(log, "done"))) == list(range(10))


async def test_paused_member_leaves_work_to_others(log: WALAccesser) -> None:
    one, two = members(log, 2, copy, order="none")
    async with one, two:
        one.pause()
        await append(log, range(50))
        await two.caught_up()
        assert (one.statistics().handled, two.statistics().handled) == (0, 50)
        two.pause()
        one.resume()
        await append(log, range(50, 60))
        await one.caught_up()
        assert one.statistics().handled == 10


async def test_seek_makes_members_begin_again(log: WALAccesser) -> None:
    from wal import All

    await append(log, range(30))
    one, two = members(log, 2, copy)
    async with one, two:
        await one.caught_up()
        await log.seek("workers", to=All())
        while len(await payloads(log, "done")) < 60:
            await asyncio.sleep(0.01)
        await two.caught_up()
    assert Counter(await payloads(log, "done")) == Counter({b"%d" % number: 2 for number in range(30)})


async def shared_and_exclusive_consumers(log: Log) -> None:
    """Runs a member beside an exclusive consumer: each refuses the other, and works after the other has ended."""
    await append(log, [1])
    (member,) = members(log, 1, copy)
    async with member:
        await member.caught_up()
        with pytest.raises(ResourceAcquiredError, match="held by members that share it"):
            await log.consume("jobs", copy, cursor="workers", exclusive="error").run()
        waiting = log.consume("jobs", copy, cursor="workers")
        await waiting.__aenter__()
    await append(log, [2])
    await waiting.caught_up()
    with pytest.raises(ResourceAcquiredError, match="held by another consumer"):
        await members(log, 1, copy, exclusive="error")[0].run()
    (later,) = members(log, 1, copy)
    async with later:
        await waiting.close()
        await append(log, [3])
        await later.caught_up()
    assert await payloads(log, "done") == [b"1", b"2", b"3"]


async def members_with_other_options(log: Log) -> None:
    """Runs a member beside one with other options, which is refused with the options of both, and one with its own timeout."""
    (member,) = members(log, 1, copy, attempts=3, dead_letter="dead")
    async with member:
        await member.caught_up()
        with pytest.raises(
            InvalidArgumentError,
            match=r"have order='vchannel', attempts=3, .*dead_letter='dead', trip_after=20, and this consumer has .*attempts=5",
        ):
            await members(log, 1, copy, dead_letter="dead")[0].run()
        async with members(log, 1, copy, attempts=3, dead_letter="dead", timeout_s=5)[0] as other:
            await other.caught_up()
        with pytest.raises(InvalidArgumentError, match=r"shared=True with key=a function: .* give its name: key='customer'"):
            members(log, 1, copy, order="key", key=lambda message: message.payload)


async def test_shared_and_exclusive_consumer_exclude_each_other(log: WALAccesser) -> None:
    await shared_and_exclusive_consumers(log)


async def test_member_with_other_options_is_refused(log: WALAccesser) -> None:
    await members_with_other_options(log)


@pytest.mark.parametrize("refusals", [shared_and_exclusive_consumers, members_with_other_options])
async def test_refusals_of_members_on_served_log(data_dir: Path, refusals: Callable[[Log], Awaitable[None]]) -> None:
    async with child(data_dir, "--pchannels", "1") as server, open_wal(f"wal://{server.address}") as log:
        await refusals(log)


async def test_key_is_the_name_of_a_property(log: WALAccesser) -> None:
    await append(log, range(50))
    await log.append("jobs", b"50")
    async with log.consume("jobs", copy, cursor="one", order="key", key="customer", concurrency=4) as consumer:
        await consumer.caught_up()
    done = await payloads(log, "done")
    for key in range(KEYS):
        assert [one for one in done if int(one) % KEYS == key and one != b"50"] == [b"%d" % number for number in range(key, 50, KEYS)]
    assert b"50" in done


async def test_members_continue_after_reopening(data_dir: Any) -> None:
    async with open_wal(data_dir, pchannels=1) as log:
        await append(log, range(100))
        async with members(log, 1, copy, order="none")[0] as consumer:
            while not consumer.statistics().handled:
                await asyncio.sleep(0)
            await consumer.close(drain_s=0.0)
    async with open_wal(data_dir) as log:
        one, two = members(log, 2, copy, order="none")
        async with one, two:
            await one.caught_up()
        assert sorted(map(int, await payloads(log, "done"))) == list(range(100))


async def test_other_clients_see_members_and_trips(data_dir: Path) -> None:
    """A client without a consumer lists the members, what each has, its lease, and why all of them pause."""
    may_return = asyncio.Event()

    async def fail(_delivery: Delivery) -> None:
        await may_return.wait()
        raise ValueError("no such customer")

    async with child(data_dir) as server, open_wal(f"wal://{server.address}") as log, open_wal(f"wal://{server.address}") as outside:
        assert await outside.shared_consumers() == []
        began = datetime.now(UTC)
        await append(log, range(2))  # a third one could begin before the trip
        (consumer,) = members(log, 1, fail, dead_letter="dead", attempts=1, trip_after=2, lease_s=5.0)
        async with consumer:
            while not (infos := await outside.shared_consumers()) or not infos[0].in_hand:
                await asyncio.sleep(0.01)
            (info,) = infos
            assert (info.cursor, info.vchannels, info.pattern, info.state, info.error) == ("workers", ("jobs",), "", "running", "")
            assert info.fence == consumer.statistics().fence
            (member,) = info.members
            assert member.process == f"{os.uname().nodename}:{os.getpid()}"
            assert member.client
            assert member.joined_at is not None
            assert abs((member.joined_at - began).total_seconds()) < 60
            assert member.lease_s is not None
            assert 0 < member.lease_s <= 5.0
            may_return.set()
            while (info := (await outside.shared_consumers())[0]).state != "tripped":
                await asyncio.sleep(0.01)
            assert "no such customer" in info.error
            assert info.stopped_at is not None
            while (info := (await outside.shared_consumers())[0]).dead_lettered < 2:
                await asyncio.sleep(0.01)
            assert (info.handled, info.failed, info.retried) == (0, 2, 0)
        assert await outside.shared_consumers() == []
        async with open_wal(data_dir, read_only=True) as beside:
            with pytest.raises(NotLocalError, match="ask the writer, or its server"):
                await beside.shared_consumers()
