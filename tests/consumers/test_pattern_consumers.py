"""Consumers of a pattern: order in each vchannel, attempts, dead letters, outputs and positions, over all pchannels and over kills."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SOAK
from tests.locations import open_wal
from tests.probes import payloads, read_all
from tests.processes import Line, Other, eventually
from wal import BroadcastMessage, Delivery, Matching, MessageID, WALAccesser
from wal.consumers.state import SavedState, Tried, UnfinishedRun, decode_state, encode_state
from wal.errors import HandlerFailedError, InvalidArgumentError

pytestmark = pytest.mark.everywhere

ACCOUNTS = Matching("account-*")
FAMILY = 7


async def spread(log: WALAccesser, first: int, past: int) -> None:
    """Appends numbers to seven vchannels, which lie on all pchannels."""
    for number in range(first, past):
        await log.append(f"account-{number % FAMILY}", b"%d" % number)


def in_order(numbers: list[int]) -> dict[int, list[int]]:
    """Returns the numbers of each vchannel, in the order in which they came."""
    lanes: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        lanes[number % FAMILY].append(number)
    return lanes


# -- order and positions


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_each_vchannel_keeps_its_order(log4: WALAccesser, concurrency: int) -> None:
    ended: list[int] = []

    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(0.001 * random.randrange(2))
        ended.append(int(delivery.value))

    await spread(log4, 0, 70)
    async with log4.consume(ACCOUNTS, handle, cursor="sums", concurrency=concurrency) as consumer:
        await consumer.caught_up()
        await spread(log4, 70, 140)  # these come while it runs
        await log4.append("account-later", b"7000")
        await consumer.caught_up()
        counts = consumer.statistics()
    assert (counts.pattern, counts.vchannels, counts.handled, counts.pending) == ("account-*", (), 141, 0)
    assert sorted(ended) == [*range(140), 7000]
    lanes = in_order(ended[: ended.index(7000)] + ended[ended.index(7000) + 1 :])
    assert all(lane == sorted(lane) for lane in lanes.values())


async def test_slow_vchannel_holds_up_no_other(log4: WALAccesser) -> None:
    freed, others = asyncio.Event(), asyncio.Event()
    handled: list[int] = []

    async def handle(delivery: Delivery) -> None:
        if delivery.vchannel == "account-3":
            await freed.wait()
        handled.append(int(delivery.value))
        if len(handled) == 60:
            others.set()

    async with log4.consume(ACCOUNTS, handle, cursor="sums", concurrency=2) as consumer:
        await spread(log4, 0, 70)
        await others.wait()
        assert not [number for number in handled if number % FAMILY == 3]
        await eventually(lambda: "account-3" in consumer.statistics().held_by)  # the commit of earlier messages may be under way
        freed.set()
        await consumer.caught_up()
    assert in_order(handled)[3] == list(range(3, 70, FAMILY))


async def test_consumer_goes_on_over_openings_and_new_pchannels(data: str) -> None:
    handled: list[int] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(int(delivery.value))

    for opening in range(3):
        async with open_wal(data, pchannels=2 + opening) as log:
            await spread(log, 30 * opening, 30 * opening + 30)
            async with log.consume(ACCOUNTS, handle, cursor="sums") as consumer:
                await consumer.caught_up()
            assert sorted(handled) == list(range(30 * opening + 30))
            (info,) = await log.cursors()
            assert (info.name, info.pattern, info.lag_bytes) == ("sums", "account-*", 0)
            assert await log.peek("sums") == []


async def test_seek_moves_a_running_consumer(log4: WALAccesser) -> None:
    handled: list[int] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(int(delivery.value))

    await spread(log4, 0, 20)
    positions = []
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        async for _ in scanner:
            positions.append(scanner.position)
    async with log4.consume(ACCOUNTS, handle, cursor="sums") as consumer:
        await consumer.caught_up()
        assert positions[9] is not None
        await log4.seek("sums", to=positions[9])
        await consumer.caught_up()
    assert sorted(handled[:20]) == list(range(20))
    assert sorted(handled[20:]) == list(range(10, 20))


async def test_members_share_a_family(log4: WALAccesser) -> None:
    handled: list[int] = []
    message_ids: set[MessageID] = set()

    async def handle(delivery: Delivery) -> None:
        handled.append(int(delivery.value))
        message_ids.add(delivery.message.message_id)
        delivery.append("sum", delivery.value)

    await spread(log4, 0, 40)
    members = [log4.consume(ACCOUNTS, handle, cursor="sums", concurrency=2, shared=True) for _ in range(2)]
    async with members[0], members[1]:
        await spread(log4, 40, 80)
        await members[0].caught_up()
    assert sorted(handled) == list(range(80))
    assert message_ids == {message.message_id for message in await read_all(log4, ACCOUNTS)}
    lanes = in_order(handled)
    assert all(lane == sorted(lane) for lane in lanes.values())
    assert sorted(map(int, await payloads(log4, "sum"))) == list(range(80))


# -- attempts, dead letters, outputs


async def test_failing_messages_become_dead_letters(log4: WALAccesser) -> None:
    attempts: dict[int, int] = defaultdict(int)

    async def handle(delivery: Delivery) -> None:
        number = int(delivery.value)
        attempts[number] += 1
        delivery.append("sum", delivery.value)
        if number == 10 or (number == 17 and delivery.attempt < 3):
            raise ValueError("no")

    await spread(log4, 0, 30)
    options: dict[str, Any] = {"cursor": "sums", "attempts": 3, "backoff_s": (0.001, 0.01), "dead_letter": "dead", "concurrency": 3}
    async with log4.consume(ACCOUNTS, handle, **options) as consumer:
        await consumer.caught_up()
    assert {number for number, count in attempts.items() if count > 1} == {10, 17}
    assert sorted(map(int, await payloads(log4, "sum"))) == [number for number in range(30) if number != 10]
    (letter,) = [body for message in await read_all(log4, "dead") for body in message.bodies()]
    assert (letter.payload, letter.properties["dead_letter_vchannel"]) == (b"10", "account-3")

    async def mended(delivery: Delivery) -> None:
        attempts[int(delivery.value)] = 0

    assert await log4.redrive("dead") == 1
    async with log4.consume(ACCOUNTS, mended, cursor="sums") as consumer:
        await consumer.caught_up()
    assert [number for number, count in attempts.items() if not count] == [10]


async def test_failure_without_dead_letter_skips_nothing(log4: WALAccesser) -> None:
    handled: list[int] = []
    is_broken = True

    async def handle(delivery: Delivery) -> None:
        if is_broken and delivery.value == b"4":
            raise ValueError("no")
        handled.append(int(delivery.value))

    await spread(log4, 0, 20)
    with pytest.raises(HandlerFailedError, match="account-4"):
        await log4.consume(ACCOUNTS, handle, cursor="sums", attempts=1).run()
    is_broken = False
    async with log4.consume(ACCOUNTS, handle, cursor="sums") as consumer:
        await consumer.caught_up()
    assert sorted(handled) == list(range(20))


# -- vchannels that come and go


async def test_consumer_passes_what_was_dropped(log4: WALAccesser) -> None:
    """The last message that the first consumer had read is gone with its vchannel: the second one continues without it."""
    waiting, handled = asyncio.Event(), []

    async def stuck(delivery: Delivery) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async def handle(delivery: Delivery) -> None:
        handled.append(int(delivery.value))

    await spread(log4, 0, FAMILY)
    consumer = log4.consume(ACCOUNTS, stuck, cursor="sums", concurrency=2)
    async with consumer:
        await waiting.wait()
        await consumer.close(drain_s=0.0)
    await log4.drop_vchannel("account-6")
    await log4.drop_vchannel("account-2")
    async with log4.consume(ACCOUNTS, handle, cursor="sums") as consumer:
        await consumer.caught_up()
        assert sorted(handled) == [0, 1, 3, 4, 5]
        await log4.append("account-2", b"9")
        await consumer.caught_up()
    assert sorted(handled) == [0, 1, 3, 4, 5, 9]


async def test_consumer_catches_up_on_handled_messages(log4: WALAccesser) -> None:
    """The first consumer has handled the second message, and the first message is gone with its vchannel."""

    async def handle(delivery: Delivery) -> None:
        if delivery.vchannel == "account-0":
            await asyncio.Event().wait()

    for name in ("account-0", "account-1"):
        await log4.create_vchannel(name, pchannel="p0")
        await log4.append(name, b"")
    async with log4.consume(ACCOUNTS, handle, cursor="sums", concurrency=2) as consumer:
        await eventually(lambda: consumer.statistics().handled == 1)
        await consumer.close(drain_s=0.0)
    await log4.drop_vchannel("account-0")
    async with log4.consume(ACCOUNTS, handle, cursor="sums") as consumer:
        await consumer.caught_up()
        assert (consumer.statistics().handled, consumer.statistics().pending) == (0, 0)


async def test_copies_of_broadcasts_are_acknowledged(log4: WALAccesser) -> None:
    names = [f"account-{number}" for number in range(4)]
    for name in (*names, "other"):
        await log4.create_vchannel(name)
    copies: list[str] = []

    async def handle(delivery: Delivery) -> None:
        copies.append(delivery.vchannel)

    await log4.broadcast().append(BroadcastMessage(vchannels=[*names, "other"], payload=b"all"))
    async with log4.consume(ACCOUNTS, handle, cursor="sums", concurrency=2) as consumer:
        await consumer.caught_up()
    assert sorted(copies) == names
    (task,) = await log4.broadcast().tasks()
    assert list(task.missing_acks) == ["other"]


# -- wrong uses


async def test_pattern_and_names_exclude_each_other(log4: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None: ...

    await spread(log4, 0, FAMILY)
    async with log4.consume(ACCOUNTS, handle, cursor="sums") as consumer:
        await consumer.caught_up()
        with pytest.raises(InvalidArgumentError, match=r"Matching\('account-\*'\).*'account-1'.*name the cursors differently"):
            await log4.consume("account-1", handle, cursor="sums").run()
    for other in ("account-1", Matching("account-1*")):
        with pytest.raises(InvalidArgumentError, match=r"Matching\('account-\*'\).*account-1.*delete_cursor\('sums'\)"):
            await log4.consume(other, handle, cursor="sums").run()
    with pytest.raises(InvalidArgumentError, match="does not match"):
        log4.consume(ACCOUNTS, handle, cursor="sums", dead_letter="account-dead")


def test_state_of_merged_positions_round_trips() -> None:
    def at(tick: int, pchannel: str, index: int) -> Any:
        return (tick, pchannel), index

    runs = (
        UnfinishedRun(at(5, "p0", 1), at(5, "p1", 0), handed=True, suspicion=1),
        UnfinishedRun(at(1 << 63, "p0", 2), at(1 << 63, "p0", 3)),
    )
    tried = (Tried(at(5, "p1", 0), 2, 77), Tried(at(1 << 63, "p0", 3), 1, 0))
    for state in (SavedState(0, at(1 << 63, "p3", 9), runs, tried, 2, 1234), SavedState(0, at(1, "p", 0)), SavedState()):
        assert decode_state(encode_state(state)) == state


# -- kills


async def work(line: Line, directory: str, first: int) -> None:
    """Appends to the family and consumes it, with an output for each message, until it is killed."""

    async def handle(delivery: Delivery) -> None:
        line.tell("handled")
        await asyncio.sleep(0)
        delivery.append(f"out-{delivery.vchannel}", delivery.value)

    async with open_wal(directory, pchannels=2 + first % 3) as log:
        async with log.consume(ACCOUNTS, handle, cursor="sums", concurrency=3) as consumer:
            for number in range(first, first + ROUND):
                await log.append(f"account-{number % FAMILY}", b"%d" % number, idempotency_key=f"input {number}")
            await consumer.caught_up()
        line.tell("over")


ROUND = 30


@pytest.mark.not_on("memory", "it ends with its process")
@pytest.mark.parametrize("run", range(20 if SOAK else 1))
async def test_outputs_come_once_over_kills(tmp_path: Path, run: int) -> None:
    place, rounds = str(tmp_path / "data"), 12 if SOAK else 3
    for number in range(rounds + 1):
        other = Other(work, place, number * ROUND)
        words = random.randrange(1, 2 * ROUND) if number < rounds else 1 << 30
        for _ in range(words):
            if await other.hear() == "over":
                break
        await other.kill_and_hear()
    async with open_wal(place) as log:
        inputs = [int(payload) for payload in await payloads(log, ACCOUNTS)]
        assert len(inputs) == len(set(inputs))
        for number in range(FAMILY):
            outputs = [int(payload) for payload in await payloads(log, f"out-account-{number}")]
            assert outputs == in_order(inputs)[number]
