"""Reads with a pattern: which messages come, in which order, and what of transactions and broadcasts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import wal
from tests.locations import open_wal
from tests.probes import bodies, facts, grouped, payloads, read_all, start, turns
from wal import Matching, Message, ReadPosition
from wal.client.log import RemoteLog
from wal.errors import ClosedError, InvalidArgumentError, TruncatedError
from wal.read.pchannel import ReadablePChannel
from wal.storage.base import FramePage

pytestmark = [pytest.mark.everywhere, pytest.mark.on_archive]

ACCOUNTS = Matching("account-*")


async def spread(log: wal.WALAccesser, count: int, name: str = "account") -> list[wal.AppendResult]:
    """Appends numbers to seven vchannels, which lie on all pchannels."""
    return [await log.append(f"{name}-{number % 7}", b"%d" % number) for number in range(count)]


def in_order(messages: list[wal.ImmutableMessage]) -> bool:
    keys = [(message.time_tick, message.message_id.pchannel) for message in messages]
    return keys == sorted(keys)


# -- which messages


async def test_every_matching_vchannel_comes_in_tick_order(log4: wal.WALAccesser) -> None:
    await spread(log4, 40)
    await spread(log4, 5, "other")
    messages = await read_all(log4, ACCOUNTS)
    assert bodies(messages) == [b"%d" % number for number in range(40)]
    assert in_order(messages)
    assert {message.message_id.pchannel for message in messages} == {"p0", "p1", "p2", "p3"}


async def test_each_message_is_that_of_its_vchannel(log4: wal.WALAccesser) -> None:
    await spread(log4, 30)
    alone = [message for number in range(7) for message in await read_all(log4, f"account-{number}")]
    assert list(map(facts, await read_all(log4, ACCOUNTS))) == sorted(map(facts, alone), key=lambda each: each[1])


async def test_question_mark_stands_for_one_character(log: wal.WALAccesser) -> None:
    for name in ("a-1", "a-12", "b-1", "a-é"):
        await log.append(name, name.encode())
    assert await payloads(log, Matching("a-?")) == [b"a-1", "a-é".encode()]


async def test_pattern_without_a_match_is_an_empty_log(log4: wal.WALAccesser) -> None:
    await spread(log4, 5)
    assert await read_all(log4, Matching("nobody-*")) == []


async def test_star_is_the_whole_log_in_one_order(log4: wal.WALAccesser) -> None:
    results = [*await spread(log4, 20), await log4.append("other", b"last")]
    assert [message.message_id for message in await read_all(log4, Matching("*"))] == [result.message_id for result in results]


async def test_readers_and_runs_see_one_order(data: str) -> None:
    async with open_wal(data, pchannels=4) as log:
        await asyncio.gather(*[spread(log, 30) for _ in range(3)])
        first = list(map(facts, await read_all(log, Matching("*"))))
        assert list(map(facts, await read_all(log, Matching("*")))) == first
    async with open_wal(data) as log:
        assert list(map(facts, await read_all(log, Matching("*"))))[: len(first)] == first


async def test_new_vchannel_joins_with_its_first_event(log4: wal.WALAccesser) -> None:
    async with log4.read(ACCOUNTS) as scanner:
        for number in range(20):
            await log4.append(f"account-{number}", b"%d" % number)
            assert (await anext(scanner)).payload == b"%d" % number
        await log4.create_vchannel("account-created", pchannel="p3")
        await log4.append("account-created", b"first")
        assert (await anext(scanner)).payload == b"first"


async def test_transaction_comes_as_one_message_with_matching_bodies(log: wal.WALAccesser) -> None:
    async with log.txn(vchannels=["account-1", "account-2", "audit"]) as txn:
        await txn.append(Message("account-1", b"minus"))
        await txn.append(Message("audit", b"noted"))
        await txn.append(Message("account-2", b"plus"))
    async with log.txn("audit") as txn:
        await txn.append(b"alone")
    (message,) = await read_all(log, ACCOUNTS)
    assert [(body.vchannel, body.payload) for body in message.bodies()] == [("account-1", b"minus"), ("account-2", b"plus")]
    assert grouped(await read_all(log, Matching("audit"))) == [[b"noted"], [b"alone"]]


async def test_broadcast_comes_for_each_matching_vchannel(log4: wal.WALAccesser) -> None:
    names = [f"account-{number}" for number in range(6)]
    for name in (*names, "other"):
        await log4.create_vchannel(name)
    broadcast = wal.BroadcastMessage(vchannels=[*names, "other"], payload=b"closed", message_type=wal.MessageType.INSERT, needs_ack=False)
    await log4.broadcast().append(broadcast, wait=True)
    messages = await read_all(log4, ACCOUNTS)
    assert sorted(message.vchannel for message in messages) == names
    assert {message.payload for message in messages} == {b"closed"}
    assert in_order(messages)


async def test_auto_ack_acknowledges_the_matching_copies(log4: wal.WALAccesser) -> None:
    key = wal.ResourceKey("accounts", "all")
    names = [f"account-{number}" for number in range(6)]
    for name in names:
        await log4.create_vchannel(name)
    await log4.broadcast().append(
        wal.BroadcastMessage(vchannels=names, payload=b"x", message_type=wal.MessageType.INSERT, resource_keys=[key]), wait=True
    )
    async with log4.read(ACCOUNTS, auto_ack=True, follow=False) as scanner:
        assert len([message async for message in scanner]) == 6
    await log4.broadcast().block_until_resource_key_ack_all(key)


async def test_filters_hold_for_all_pchannels(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 30)
    await log4.raw_append(Message("account-3", b"gone", message_type=wal.MessageType.DELETE))
    tick = results[17].time_tick
    assert await payloads(log4, ACCOUNTS, filters=wal.TimeTickGT(tick)) == [*(b"%d" % number for number in range(18, 30)), b"gone"]
    assert (await payloads(log4, ACCOUNTS, filters=wal.TimeTickGTE(tick)))[0] == b"17"
    assert await payloads(log4, ACCOUNTS, filters=wal.MessageTypes(wal.MessageType.DELETE)) == [b"gone"]


# -- where it begins and ends


async def test_read_begins_at_and_after_every_message(log4: wal.WALAccesser) -> None:
    await spread(log4, 20)
    async with log4.txn("account-1") as txn:
        await txn.append(b"one")
        await txn.append(b"two")
    messages = await read_all(log4, ACCOUNTS)
    for at, message in enumerate(messages):
        for message_id in (message.message_id, *(body.message_id for body in message.bodies())):
            from_here = await read_all(log4, ACCOUNTS, deliver_policy=wal.StartFrom(message_id))
            assert list(map(facts, from_here)) == list(map(facts, messages[at:]))
            after = await read_all(log4, ACCOUNTS, deliver_policy=wal.StartAfter(message_id))
            assert list(map(facts, after)) == list(map(facts, messages[at + 1 :]))


async def test_latest_is_what_becomes_durable_after_entry(log4: wal.WALAccesser) -> None:
    await spread(log4, 20)
    scanner = log4.read(ACCOUNTS, deliver_policy=wal.Latest())
    async with scanner:
        for number in range(10):
            await log4.append(f"account-{number}", b"new %d" % number)
            assert (await anext(scanner)).payload == b"new %d" % number


async def test_moment_begins_all_pchannels(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 20)
    moment = wal.timestamp.to_datetime(results[11].time_tick)
    expected = [b"%d" % at for at, result in enumerate(results) if wal.timestamp.to_datetime(result.time_tick) >= moment]
    assert await payloads(log4, ACCOUNTS, deliver_policy=wal.StartAt(moment)) == expected
    later = datetime.now(UTC) + timedelta(days=1)
    assert await payloads(log4, ACCOUNTS, deliver_policy=wal.StartAt(later)) == []


async def test_read_ends_with_a_tick(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 20)
    for at in (0, 7, 19):
        async with log4.read(ACCOUNTS, until_time_tick=results[at].time_tick) as scanner:
            assert bodies([message async for message in scanner]) == [b"%d" % number for number in range(at + 1)]


async def test_read_ends_after_what_was_durable_at_entry(log4: wal.WALAccesser) -> None:
    await spread(log4, 20)
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        await spread(log4, 20)
        assert bodies([message async for message in scanner])[:20] == [b"%d" % number for number in range(20)]
        assert scanner.error is None


async def test_handler_gets_every_message(log4: wal.WALAccesser) -> None:
    handled: list[bytes] = []
    await spread(log4, 20)
    async with log4.read(ACCOUNTS, handler=lambda message: handled.append(message.payload), follow=False) as scanner:
        await scanner.done()
    assert handled == [b"%d" % number for number in range(20)]


async def test_pages_and_bodies_are_the_messages(log4: wal.WALAccesser) -> None:
    await spread(log4, 100)
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        pages = [page async for page in scanner.batches(size_max=7)]
    assert [payload for page in pages for payload in page.payloads] == [b"%d" % number for number in range(100)]
    assert max(map(len, pages)) <= 7
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        assert [body.payload async for _, body in scanner.bodies()] == [b"%d" % number for number in range(100)]


async def test_time_ticks_come_for_all_pchannels(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 10)
    async with log4.read(ACCOUNTS, include_time_ticks=True, until_time_tick=await log4.allocate_time_tick()) as scanner:
        messages = [message async for message in scanner]
    ticks = [message.time_tick for message in messages]
    assert ticks == sorted(ticks)
    assert messages[-1].message_type is wal.MessageType.TIME_TICK
    assert messages[-1].time_tick > results[-1].time_tick


# -- the position


async def test_every_position_goes_on_exactly(log4: wal.WALAccesser) -> None:
    await spread(log4, 30)
    whole = list(map(facts, await read_all(log4, ACCOUNTS)))
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        at = 0
        assert scanner.position is None
        async for _ in scanner:
            at += 1
            position = ReadPosition.parse(str(scanner.position))
            assert list(map(facts, await read_all(log4, ACCOUNTS, resume=position))) == whole[at:]


async def test_position_at_the_end_goes_on(log4: wal.WALAccesser) -> None:
    await spread(log4, 10)
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        assert len([message async for message in scanner]) == 10
    await log4.append("account-new", b"next")
    assert await payloads(log4, ACCOUNTS, resume=scanner.position) == [b"next"]


async def test_position_survives_added_pchannels(data: str) -> None:
    async with open_wal(data) as log:
        await spread(log, 10)
        async with log.read(ACCOUNTS, follow=False) as scanner:
            for _ in range(4):
                await anext(scanner)
            position = scanner.position
    async with open_wal(data, pchannels=12) as log:
        for number in range(10, 40):
            await log.append(f"account-{number}", b"%d" % number)
        assert await payloads(log, ACCOUNTS, resume=position) == [b"%d" % number for number in range(4, 40)]


async def test_closed_scanner_keeps_its_position(log4: wal.WALAccesser) -> None:
    await log4.append_bulk([Message("account-0", b"%d" % number) for number in range(10)])
    async with log4.read(ACCOUNTS) as scanner:
        for _ in range(3):
            await anext(scanner)
    assert await payloads(log4, ACCOUNTS, resume=scanner.position) == [b"%d" % number for number in range(3, 10)]


async def test_truncated_position_is_an_error(log4: wal.WALAccesser) -> None:
    results = await spread(log4, 30)
    async with log4.read(ACCOUNTS, follow=False) as scanner:
        await anext(scanner)
        position = scanner.position
    gone = results[20].message_id
    await log4.truncate(up_to=gone)
    with pytest.raises(TruncatedError, match=f"had after position {position} has been truncated") as caught:
        await read_all(log4, ACCOUNTS, resume=position)
    assert str(caught.value.earliest).startswith(f"{gone.pchannel}:")
    with pytest.raises(TruncatedError):
        await read_all(log4, ACCOUNTS, deliver_policy=wal.StartFrom(gone))


async def test_position_after_what_was_truncated_goes_on(log: wal.WALAccesser) -> None:
    results = await log.append_bulk([Message("account-0", b"%d" % number) for number in range(10)])
    async with log.read(ACCOUNTS, follow=False) as scanner:
        for _ in range(5):
            await anext(scanner)
        position = scanner.position
    await log.truncate(up_to=results[4].message_id)
    assert await payloads(log, ACCOUNTS, resume=position) == [b"5", b"6", b"7", b"8", b"9"]


# -- waiting


@pytest.mark.not_on("archive", "it promises the ticks that its writer wrote, here once an hour")
async def test_idle_pchannels_hold_up_nothing(location: str) -> None:
    async with open_wal(location, pchannels=8, time_tick_interval_s=3600.0) as log, log.read(ACCOUNTS) as scanner:
        for number in range(5):
            await log.append("account-0", b"%d" % number)
            async with asyncio.timeout(60):
                assert (await anext(scanner)).payload == b"%d" % number


async def test_cancelled_reader_loses_nothing(log4: wal.WALAccesser) -> None:
    async with log4.read(ACCOUNTS) as scanner:
        seen: list[bytes] = []
        for number in range(10):
            waiting = start(anext(scanner))
            await turns(3)
            waiting.cancel()
            await asyncio.wait((waiting,))
            await log4.append(f"account-{number}", b"%d" % number)
            seen.append((await anext(scanner)).payload)
    assert seen == [b"%d" % number for number in range(10)]


async def test_tick_is_waited_for_on_all_pchannels(log4: wal.WALAccesser) -> None:
    handled: list[bytes] = []
    async with log4.read(ACCOUNTS, handler=lambda message: handled.append(message.payload)) as scanner:
        for number in range(10):
            await log4.append(f"account-{number}", b"%d" % number)
            await scanner.wait_for(await log4.latest_tick(f"account-{number}"))
            assert handled[-1] == b"%d" % number


async def test_closing_the_log_ends_the_read(location: str) -> None:
    log = await open_wal(location, pchannels=4)
    async with log.read(ACCOUNTS) as scanner:
        waiting = start(anext(scanner))
        await turns()
        await log.close()
        with pytest.raises(ClosedError):
            await waiting
        assert isinstance(scanner.error, ClosedError)


async def test_closed_scanner_leaves_nothing_behind(log4: wal.WALAccesser) -> None:
    async with log4.read(ACCOUNTS) as scanner:
        waiting = start(anext(scanner))
        await turns()
        await scanner.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
    engine: Any = log4._lifecycle.engine
    pchannels = engine.pchannels if isinstance(engine, RemoteLog) else engine.node.pchannels
    assert not any(pchannel.readers for pchannel in pchannels.values())
    assert "Matching('account-*')" in repr(scanner)


@pytest.mark.inside
async def test_vchannel_that_joins_during_a_fetch_comes(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is fetched for the names that match when the fetch begins, and reaches as far as the log does when it is read."""
    async with open_wal(data) as log:
        await spread(log, 10)
    async with open_wal(data) as log:
        page = ReadablePChannel.page
        created: list[str] = []

        async def late(self: ReadablePChannel, start: int, names: frozenset[str] | None) -> FramePage:
            if names is not None and not created:
                created.append("account-late")
                await log.append("account-late", b"late")
            return await page(self, start, names)

        monkeypatch.setattr(ReadablePChannel, "page", late)
        async with log.read(ACCOUNTS) as scanner:
            seen = [(await anext(scanner)).payload for _ in range(11)]
    assert created
    assert seen == [*(b"%d" % number for number in range(10)), b"late"]


@pytest.mark.inside
async def test_other_vchannels_are_not_fetched(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(data) as log:
        await spread(log, 10)
        await spread(log, 10, "other")
    async with open_wal(data) as log:
        page, fetched = ReadablePChannel.page, set[object]()

        async def noted(self: ReadablePChannel, start: int, names: frozenset[str] | None) -> FramePage:
            fetched.add(names)
            return await page(self, start, names)

        monkeypatch.setattr(ReadablePChannel, "page", noted)
        assert len(await read_all(log, ACCOUNTS)) == 10
    assert fetched == {frozenset(f"account-{number}" for number in range(7))}


# -- refused calls


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        (
            {"deliver_policy": wal.Last(3)},
            InvalidArgumentError,
            "Last\\(3\\) cannot be read with Matching\\('a-\\*'\\).*: begin with StartAt",
        ),
        ({"resume": wal.ReadPosition(wal.MessageID("p0", 1, 2, 3), 4)}, InvalidArgumentError, "a position of a read of names"),
        ({"resume": "12@p0"}, TypeError, "use ReadPosition.parse"),
    ],
)
async def test_wrong_option_of_a_pattern_names_the_remedy(
    log: wal.WALAccesser, options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        log.read(Matching("a-*"), **options)


async def test_position_of_a_pattern_is_refused_for_names(log: wal.WALAccesser) -> None:
    with pytest.raises(InvalidArgumentError, match="a position of a read with a pattern, and this read names vchannels"):
        log.read("a-1", resume=ReadPosition.parse("12@p0"))


async def test_id_of_no_pchannel_is_refused(log: wal.WALAccesser) -> None:
    with pytest.raises(InvalidArgumentError, match="is of no pchannel of this log"):
        await read_all(log, ACCOUNTS, deliver_policy=wal.StartFrom(wal.MessageID("p77", 1, 2, 3)))


async def test_transaction_refuses_a_pattern(log: wal.WALAccesser) -> None:
    with pytest.raises(InvalidArgumentError, match="no pattern yet, as Matching\\('account-\\*'\\) is: name them"):
        log.txn(vchannels=ACCOUNTS)  # type: ignore[call-overload]
