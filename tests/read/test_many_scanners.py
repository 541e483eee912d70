"""Twenty scanners at the tail, a hundred in a soak: each gets every message, in order, whatever the others do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.locations import SOAK
from tests.probes import made_on
from wal import Latest, Message, MessagePage, MessageType, MessageTypes, TimeTickGT, WALAccesser

SCANNERS = 100 if SOAK else 20
MESSAGES = 1000 if SOAK else 300


async def write(log: WALAccesser, names: list[str], count: int = MESSAGES) -> None:
    """Appends plain messages and transactions, in frames of any size."""
    number = 0
    while number < count:
        name = names[number % len(names)]
        if number % 50 == 49:
            async with log.txn(name) as txn:
                for step in range(5):
                    await txn.append(b"%d" % (number + step))
            number += 5
        else:
            calls = [log.append_nowait(Message(name, b"%d" % (number + step))) for step in range(number % 7 + 1)]
            number += len(calls)
            await asyncio.gather(*calls)
    await log.raw_append(Message(names[0], b"-1"))


async def follow(log: WALAccesser, vchannel: str, *, paged: bool = False, **options: Any) -> list[int]:
    seen: list[int] = []
    async with log.read(vchannel, **options) as scanner:
        if paged:
            async for page in scanner.batches(size_max=64):
                seen += [int(body.payload) for message in page for body in message.bodies()]
                if seen[-1] == -1:
                    return seen
        async for message in scanner:
            seen += [int(body.payload) for body in message.bodies()]
            if seen[-1] == -1:
                break
    return seen


async def test_each_gets_every_message(log: WALAccesser) -> None:
    followers = [asyncio.ensure_future(follow(log, "orders", paged=number % 2 == 0)) for number in range(SCANNERS)]
    await write(log, ["orders"])
    expected = await follow(log, "orders")
    assert len(expected) >= MESSAGES
    assert expected[:-1] == list(range(len(expected) - 1))
    for seen in await asyncio.gather(*followers):
        assert seen == expected


async def test_with_filters_of_their_own(log: WALAccesser) -> None:
    ticks = [(await log.raw_append(Message("orders", b"%d" % number))).time_tick for number in range(10)]
    followers = [
        asyncio.ensure_future(follow(log, "orders", filters=[TimeTickGT(ticks[number % 10]), MessageTypes(MessageType.INSERT)]))
        for number in range(SCANNERS)
    ]
    await log.raw_append(Message("orders", b"10", message_type=MessageType.DELETE))
    await log.raw_append(Message("orders", b"-1"))
    for number, seen in enumerate(await asyncio.gather(*followers)):
        assert seen == [*range(number % 10 + 1, 10), -1]


async def test_slow_one_holds_nobody_up(log: WALAccesser) -> None:
    """One scanner pauses after one message; the others get all messages, and it gets the rest afterwards."""
    async with log.read("orders") as slow:
        followers = [asyncio.ensure_future(follow(log, "orders")) for _ in range(SCANNERS)]
        await log.raw_append(Message("orders", b"0"))
        assert int((await anext(slow)).payload) == 0
        await log.append_bulk([Message("orders", b"%d" % number + b" " * 20_000) for number in range(1, 200)])
        await log.raw_append(Message("orders", b"-1"))
        for seen in await asyncio.gather(*followers):
            assert seen == [*range(200), -1]
        late = [0]
        async for message in slow:
            late.append(int(message.payload))
            if late[-1] == -1:
                break
        assert late == [*range(200), -1]


async def test_scanners_start_and_stop_under_load(log: WALAccesser, soak: int) -> None:
    """Each scanner begins at the latest position when it enters, and leaves at any moment: its messages have no gap."""
    ended = asyncio.Event()

    async def visit(number: int) -> list[int]:
        seen: list[int] = []
        while not ended.is_set():
            async with log.read("orders", deliver_policy=Latest()) as scanner:
                try:
                    async with asyncio.timeout(0.2):
                        async for message in scanner:
                            seen.append(int(message.payload))
                            if len(seen) % (number + 2) == 0:
                                break
                except TimeoutError:
                    pass  # the next visit begins at a later position
            if seen:
                visits.append(seen)
            seen = []
        return seen

    visits: list[list[int]] = []
    visitors = [asyncio.ensure_future(visit(number)) for number in range(12)]
    number = 0
    while number < 250 * soak or len(visits) <= 100:
        await log.raw_append(Message("orders", b"%d" % number))
        number += 1
    ended.set()
    await asyncio.gather(*visitors)
    for seen in visits:
        assert seen == list(range(seen[0], seen[0] + len(seen)))


async def test_over_several_vchannels(log4: WALAccesser) -> None:
    names = [f"v{number}" for number in range(10)]
    for number, name in enumerate(names):
        await made_on(log4, f"p{number % 4}", name)

    async def all_of(name: str) -> list[int]:
        async with log4.read(name) as scanner:
            return [int((await anext(scanner)).payload) for _ in range(50)]

    followers = {(name, copy): asyncio.ensure_future(all_of(name)) for name in names for copy in range(10)}
    calls = [log4.append_nowait(Message(names[number % 10], b"%d" % number)) for number in range(500)]
    await asyncio.gather(*calls)
    for (name, _), follower in followers.items():
        assert await follower == list(range(names.index(name), 500, 10))


@pytest.mark.not_on("wal", "compares the message objects of two readers: they share what is transferred, and each builds its messages")
async def test_scanners_with_one_selection_share_their_messages(log: WALAccesser) -> None:
    """They get the same objects; another selection has its own objects."""

    async def first_page(**options: Any) -> MessagePage:
        async with log.read("orders", deliver_policy=Latest(), **options) as scanner:
            entered.append(1)
            async for page in scanner.batches():
                return page
        raise AssertionError("the read ended")

    entered: list[int] = []
    await log.create_vchannel("orders")
    same = [asyncio.ensure_future(first_page()) for _ in range(3)]
    other = asyncio.ensure_future(first_page(filters=MessageTypes(MessageType.INSERT)))
    while len(entered) < 4:
        await asyncio.sleep(0)
    await log.raw_append(Message("orders", b"1"))
    (first, *rest), (filtered,) = await asyncio.gather(*same), await other
    assert [message.payload for message in first] == [b"1"]
    assert all(page[0] is first[0] for page in rest)
    assert filtered is not first[0]
    assert (filtered.message_id, filtered.payload) == (first[0].message_id, b"1")
