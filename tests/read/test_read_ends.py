"""The end of a read, the time ticks that it delivers, and reading one's own writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import bodies, payloads, read_all, start, turns
from wal import Latest, Message, MessageType, MessageTypes, TimeTickMessage, WALAccesser, timestamp
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError


async def test_follow_false_ends_at_the_durable_entry_point(log: WALAccesser) -> None:
    await log.append_bulk([Message("orders", b"%d" % number) for number in range(10)])
    scanner = log.read("orders", follow=False)
    await log.raw_append(Message("orders", b"10"))
    async with scanner:
        await log.append_bulk([Message("orders", b"later")] * 10)
        assert bodies([message async for message in scanner]) == [b"%d" % number for number in range(11)]
    assert scanner.error is None
    with pytest.raises(StopAsyncIteration):
        await anext(scanner)


async def test_follow_false_on_an_empty_log(log: WALAccesser) -> None:
    assert await read_all(log, "orders") == []
    await log.raw_append(Message("other", b"1"))
    assert await read_all(log, "orders") == []


async def test_until_a_tick_in_the_past(log: WALAccesser) -> None:
    results = await log.append_bulk([Message("orders", b"%d" % number) for number in range(10)])
    for number, result in enumerate(results):
        for until, count in ((result.time_tick, number + 1), (result.time_tick - 1, number)):
            async with log.read("orders", until_time_tick=until) as scanner:
                assert len([message async for message in scanner]) == count
                position = scanner.position
            assert scanner.error is None
            if position is not None:
                rest = await payloads(log, "orders", resume=position)
                assert rest == [b"%d" % number for number in range(count, 10)]
    async with log.read("orders", until_time_tick=0) as scanner:
        assert [message async for message in scanner] == []


async def test_until_an_allocated_tick_needs_no_timer(location: str) -> None:
    async with open_wal(location, time_tick_interval_s=3600.0) as log:
        await log.raw_append(Message("orders", b"1"))
        until = await log.allocate_time_tick()
        await log.raw_append(Message("orders", b"2"))
        async with log.read("orders", until_time_tick=until) as scanner:
            assert bodies([message async for message in scanner]) == [b"1"]
        until = await log.allocate_time_tick()
        async with log.read("empty", until_time_tick=until) as scanner:
            assert [message async for message in scanner] == []


async def test_until_a_future_tick_waits(log: WALAccesser) -> None:
    first = await log.raw_append(Message("orders", b"1"))
    until = timestamp.compose(timestamp.parse(first.time_tick)[0] + 400)

    async def write() -> int:
        """Appends until the clock has passed the tick; messages at or below it belong to the read."""
        count = 1
        while True:
            result = await log.raw_append(Message("orders", b"%d" % (count + 1)))
            if result.time_tick > until:
                return count
            count += 1
            await asyncio.sleep(0.02)

    writing = start(write())
    async with log.read("orders", until_time_tick=until) as scanner:
        messages = [message async for message in scanner]
    assert all(message.time_tick <= until for message in messages)
    assert len(messages) == await writing


async def test_waiting_for_a_far_tick_frees_the_loop(log: WALAccesser) -> None:
    until = timestamp.compose(timestamp.parse(await log.allocate_time_tick())[0] + 3_600_000)
    async with log.read("orders", until_time_tick=until) as scanner, log.read("orders") as other:
        reading = start(anext(scanner))
        following = start(anext(other))
        waiting = start(other.wait_for(until))
        await turns()
        await log.raw_append(Message("orders", b"1"))
        assert (await reading).payload == (await following).payload == b"1"
        following = start(anext(other))
        await turns()
        assert not waiting.done()
    await waiting
    with pytest.raises(StopAsyncIteration):
        await following


async def test_until_together_with_follow_false(log: WALAccesser) -> None:
    result = await log.raw_append(Message("orders", b"1"))
    await log.raw_append(Message("orders", b"2"))
    assert await payloads(log, "orders", until_time_tick=result.time_tick) == [b"1"]
    assert await payloads(log, "orders", until_time_tick=(1 << 64) - 1) == [b"1", b"2"]


async def test_until_inside_a_frame_of_transactions(log: WALAccesser) -> None:
    txns = [await log.txn("orders") for _ in range(4)]
    for number, txn in enumerate(txns):
        await txn.append(b"%d" % number)
        await txn.append(b"+")
    results = await asyncio.gather(*(txn.commit() for txn in txns))
    for number, result in enumerate(results):
        assert len(await payloads(log, "orders", until_time_tick=result.time_tick)) == 2 * number + 2
        assert len(await payloads(log, "orders", until_time_tick=result.time_tick - 1)) == 2 * number


async def test_nothing_at_or_below_a_time_tick_follows(log: WALAccesser) -> None:
    """No message at or below a delivered tick follows it; the tick's id is that of the newest event before it, of any vchannel."""
    newest, told = {}, {}
    over = asyncio.Event()

    async def write(name: str) -> None:
        while not over.is_set():
            result = await log.raw_append(Message(name, b"1"))
            newest[result.time_tick] = result.message_id
            await asyncio.sleep(0)

    writers = [start(write(name)) for name in ("orders", "other")]
    promised = ticks = data = 0
    async with log.read("orders", include_time_ticks=True) as scanner:
        async for message in scanner:
            if isinstance(message, TimeTickMessage):
                assert message.message_type is MessageType.TIME_TICK
                assert (message.vchannel, message.payload) == ("", b"")
                assert message.time_tick > promised, "a tick that says nothing new"
                promised = message.time_tick
                told[promised] = message.message_id
                ticks += 1
            else:
                assert message.time_tick > promised, "the promise was broken"
                data += 1
            if ticks > 30 and data > 30:
                break
        over.set()
    await asyncio.gather(*writers)
    # Only now: a scanner may get a message before its append returns.
    for tick, message_id in told.items():
        below = [event for event in newest if event <= tick]
        assert message_id == (newest[max(below)] if below else None)


async def test_time_ticks_come_only_on_request(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"1"))
    filters = [MessageTypes(MessageType.DELETE)]
    async with log.read("orders", include_time_ticks=True, filters=filters) as scanner:
        assert isinstance(await anext(scanner), TimeTickMessage)
        assert isinstance(await anext(scanner), TimeTickMessage)
    async with log.read("orders") as scanner:
        assert (await anext(scanner)).payload == b"1"
        more = start(anext(scanner))
        await scanner.wait_for(await log.allocate_time_tick())
        assert not more.done()
    with pytest.raises(StopAsyncIteration):
        await more


async def test_time_tick_before_any_event_has_no_id(log: WALAccesser) -> None:
    async def scanner_reaches(scanner: object, tick: int) -> None:
        async for message in scanner:  # type: ignore[attr-defined]
            assert isinstance(message, TimeTickMessage)
            if message.time_tick >= tick:
                assert message.message_id is not None
                return

    async with log.read("orders", include_time_ticks=True) as scanner:
        message = await anext(scanner)
        assert isinstance(message, TimeTickMessage)
        assert message.message_id is None
        assert message.last_confirmed is None
    async with log.read("orders", include_time_ticks=True, deliver_policy=Latest()) as scanner:
        result = await log.raw_append(Message("other", b"1"))
        await scanner_reaches(scanner, result.time_tick)


async def test_read_your_writes(log4: WALAccesser) -> None:
    seen: list[bytes] = []
    async with log4.read("orders", handler=lambda message: seen.append(message.payload)) as scanner:
        for number in range(50):
            await log4.raw_append(Message("orders", b"%d" % number))
            if number % 10 == 0:
                await log4.raw_append(Message(f"other{number}", b"x"))
            await scanner.wait_for(await log4.get_latest_mvcc_timestamp_if_local("orders"))
            assert len(seen) == number + 1


async def test_mvcc_timestamp_covers_every_write_that_returned(log4: WALAccesser) -> None:
    unknown = await log4.get_latest_mvcc_timestamp_if_local("unknown")
    async with log4.read("unknown", handler=lambda _: None) as scanner:
        await scanner.wait_for(unknown)
    noise = start(log4.append_bulk([Message(f"v{number % 8}", bytes(50)) for number in range(5000)]))
    for number in range(30):
        result = await log4.raw_append(Message(f"v{number % 8}", b"1"))
        assert await log4.get_latest_mvcc_timestamp_if_local(f"v{number % 8}") >= result.time_tick
    await noise


async def test_wait_for_returns_at_its_tick(log: WALAccesser) -> None:
    results = await log.append_bulk([Message("orders", b"%d" % number) for number in range(5)])
    async with log.read("orders") as scanner:
        await anext(scanner)
        await scanner.wait_for(results[0].time_tick)
        waiting = start(scanner.wait_for(results[2].time_tick))
        await turns()
        assert not waiting.done()
        await anext(scanner)
        await turns()
        assert not waiting.done()
        await anext(scanner)
        await waiting
        odd: Any
        for odd in ("7", 7.0, None, True):
            with pytest.raises(TypeError):
                await scanner.wait_for(odd)


async def test_wait_for_on_a_scanner_that_ends(log: WALAccesser) -> None:
    tick = await log.allocate_time_tick() + (3_600_000 << 18)
    async with log.read("orders") as scanner:
        clean = start(scanner.wait_for(tick))
        await turns()
    await clean
    await scanner.wait_for(tick)
    await log.create_vchannel("dropped")
    async with log.read("dropped") as scanner:
        failing = start(scanner.wait_for(tick))
        await turns()
        await log.drop_vchannel("dropped")
        with pytest.raises(ChannelNotExistError):
            await failing
        with pytest.raises(ChannelNotExistError):
            await scanner.wait_for(tick)


async def test_cancelled_wait_leaves_no_waiter(log: WALAccesser) -> None:
    async with log.read("orders") as scanner:
        reading = start(anext(scanner))
        for _ in range(5):
            waiting = start(scanner.wait_for(await log.allocate_time_tick() + (1 << 40)))
            await turns()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await log.raw_append(Message("orders", b"1"))
        assert (await reading).payload == b"1"


async def test_followers_end_with_closed_error(location: str) -> None:
    log = await open_wal(location)
    scanners = [log.read("orders") for _ in range(3)]
    waiting = [start(anext(scanner)) for scanner in scanners]
    handled = log.read("orders", handler=lambda _: None)
    await handled.__aenter__()
    unread = log.read("orders")
    await unread.__aenter__()
    pending = start(handled.wait_for((1 << 64) - 1))
    await turns()
    await log.close()
    for task in [*waiting, pending]:
        with pytest.raises(ClosedError):
            await task
    with pytest.raises(ClosedError):
        await anext(unread)
    for scanner in [*scanners, handled]:
        await scanner.done()
        assert isinstance(scanner.error, ClosedError)
        await scanner.close()
    with pytest.raises(ClosedError):
        async with log.read("orders"):
            pass


async def test_followers_get_appends_before_close(location: str) -> None:
    log = await open_wal(location)
    async with log.read("orders") as scanner:
        await log.append_bulk([Message("orders", b"%d" % number) for number in range(5)])
        assert (await anext(scanner)).payload == b"0"
        await log.close()
        rest = []
        with pytest.raises(ClosedError):
            async for message in scanner:
                rest.append(message.payload)
    assert rest == [b"1", b"2", b"3", b"4"]


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_page_sizes(log: WALAccesser) -> None:
    scanner = log.read("orders", follow=False)
    odd: Any
    for odd in ("7", 7.0, None, True):
        with pytest.raises(TypeError):
            async for _ in scanner.batches(odd):
                pass
    with pytest.raises(InvalidArgumentError, match="size_max=0"):
        async for _ in scanner.batches(0):
            pass
