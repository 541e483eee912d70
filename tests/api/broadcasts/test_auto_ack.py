"""read(auto_ack=True): a copy is acknowledged when its consumer has finished with it, not earlier."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tests.locations import blocking, open_wal
from tests.probes import broadcasts, read_all, start, turns
from wal import BroadcastMessage, ImmutableMessage, Message, Scanner, WALAccesser
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError

pytestmark = pytest.mark.one_location("a scanner calls for its acks alike on every log")

NAMES = ["a", "b"]


async def broadcast(log: WALAccesser, payload: bytes = b"copy", **changes: Any) -> int:
    message = BroadcastMessage(vchannels=NAMES, payload=payload, **changes)
    return (await log.broadcast().append(message)).broadcast_id


async def missing(log: WALAccesser) -> dict[int, tuple[str, ...]]:
    return {task.broadcast_id: task.missing_acks for task in await log.broadcast().tasks()}


async def test_loop_acks_when_it_asks_for_the_next(log: WALAccesser) -> None:
    first = await broadcast(log)
    await log.raw_append(Message("a", b"plain"))
    second = await broadcast(log)
    seen = []
    async with log.read("a", follow=False, auto_ack=True) as scanner:
        async for message in scanner:
            seen.append(message.payload)
            if len(seen) == 1:
                assert await missing(log) == {first: ("a", "b"), second: ("a", "b")}
            else:
                assert await missing(log) == {first: ("b",), second: ("a", "b")}
    assert seen == [b"copy", b"plain", b"copy"]
    assert await missing(log) == {first: ("b",), second: ("b",)}, "the end was asked for after the last"
    async with log.read("b", follow=False, auto_ack=True) as scanner:
        async for _ in scanner:
            pass
    assert await missing(log) == {}


async def test_leaving_the_loop_acks_nothing(log: WALAccesser) -> None:
    first, second = await broadcast(log), await broadcast(log)
    async with log.read("a", auto_ack=True) as scanner:
        async for message in scanner:
            if message.broadcast is not None and message.broadcast.broadcast_id == second:
                break
        position = scanner.position
    assert await missing(log) == {first: ("b",), second: ("a", "b")}
    assert await read_all(log, "a", resume=position, auto_ack=True) == [], "it said itself that it had seen it"


async def test_consumer_failing_before_the_ack_repeats(data: str) -> None:
    handled = []
    async with open_wal(data) as log:
        first, second = await broadcast(log, b"first"), await broadcast(log, b"second")
        async with log.read("a", cursor="service", auto_ack=True) as scanner:
            handled.append((await anext(scanner)).payload)
            await scanner.save()
            assert await missing(log) == {first: ("b",), second: ("a", "b")}, "nobody would see it again"
            handled.append((await anext(scanner)).payload)  # and the consumer fails before it saves
    async with open_wal(data) as log:
        async with log.read("a", cursor="service", auto_ack=True, follow=False) as scanner:
            handled += [message.payload async for message in scanner]
        assert await missing(log) == {first: ("b",), second: ("b",)}
    assert handled == [b"first", b"second", b"second"]


async def test_save_that_is_refused_has_not_acked(log: WALAccesser) -> None:
    first = await broadcast(log)
    async with log.read("a", auto_ack=True) as scanner:
        await anext(scanner)
        with pytest.raises(InvalidArgumentError, match="no cursor to save"):
            await scanner.save()
        assert await missing(log) == {first: ("a", "b")}
    async with log.read("b", cursor="service", auto_ack=True) as scanner:
        await anext(scanner)
        await log.drop_vchannel("b")
        with pytest.raises(ChannelNotExistError):
            await scanner.save()
        assert await missing(log) == {first: ("a",)}, "its drop was the ack"


async def test_bulk_page_is_acked_with_the_next(log: WALAccesser) -> None:
    ids = [await broadcast(log, b"%d" % number) for number in range(4)]
    async with log.read("a", follow=False, auto_ack=True) as scanner:
        pages = scanner.batches(2)
        while True:
            try:
                page = await anext(pages)
            except StopAsyncIteration:
                break
            left = [broadcast_id for broadcast_id, vchannels in (await missing(log)).items() if "a" in vchannels]
            assert left[: len(page)] == [message.broadcast.broadcast_id for message in page if message.broadcast]
    assert await missing(log) == dict.fromkeys(ids, ("b",))


@pytest.mark.inside
async def test_only_what_needs_an_ack_is_acked(log: WALAccesser) -> None:
    await broadcast(log, needs_ack=False)
    aborted = await broadcast(log)
    await log.broadcast().abort(aborted, "no")
    async with log.read("a", follow=False, auto_ack=True) as scanner:
        saves = broadcasts(log).saves
        assert len([message async for message in scanner]) == 3
    assert broadcasts(log).saves == saves
    assert await missing(log) == {}


@pytest.mark.parametrize("sync", [True, False])
async def test_handler_acks_when_it_has_returned(log: WALAccesser, *, sync: bool) -> None:
    first = await broadcast(log)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(message: ImmutableMessage) -> None:
        entered.set()
        await leave.wait()

    async with log.read("a", handler=(lambda message: entered.set()) if sync else slow, auto_ack=True):
        await entered.wait()
        if not sync:
            await turns()
            assert await missing(log) == {first: ("a", "b")}
            leave.set()
        async with asyncio.timeout(60):
            while (await missing(log))[first] != ("b",):
                await asyncio.sleep(0)


async def test_handler_that_raises_has_not_acked(log: WALAccesser) -> None:
    first = await broadcast(log)

    def fails(message: ImmutableMessage) -> None:
        raise ValueError("the service crashed")

    scanner = log.read("a", handler=fails, auto_ack=True)
    await scanner.__aenter__()
    await scanner.done()
    assert isinstance(scanner.error, ValueError)
    assert await missing(log) == {first: ("a", "b")}


async def test_several_vchannels_in_one_reader(log: WALAccesser) -> None:
    first = await broadcast(log)
    async with log.read(NAMES, follow=False, auto_ack=True) as scanner:
        await anext(scanner)
        await anext(scanner)
        assert await missing(log) == {first: ("b",)}
        assert await anext(scanner, None) is None
    assert await missing(log) == {}


async def test_ack_that_is_cancelled_is_made_again(log: WALAccesser) -> None:
    first = await broadcast(log)
    scanner: Scanner = log.read("a", auto_ack=True)
    async with scanner:
        await anext(scanner)
        asking = start(anext(scanner))
        await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await log.raw_append(Message("a", b"next"))
        assert (await anext(scanner)).payload == b"next"
        assert await missing(log) == {first: ("b",)}


async def test_ack_after_the_close_is_a_closed_error(location: str) -> None:
    log = await open_wal(location)
    await broadcast(log)
    async with log.read("a", auto_ack=True) as scanner:
        await anext(scanner)
        await log.close()
        with pytest.raises(ClosedError):
            await anext(scanner)


async def test_auto_ack_is_a_bool(log: WALAccesser) -> None:
    with pytest.raises(TypeError, match="auto_ack must be a bool"):
        log.read("a", auto_ack=1)  # type: ignore[arg-type]


def test_without_a_loop(location: str) -> None:
    with blocking(location) as log:
        message = BroadcastMessage(vchannels=NAMES, payload=b"copy")
        first, second = (log.broadcast().append(message).broadcast_id for _ in range(2))

        def left() -> dict[int, tuple[str, ...]]:
            return {task.broadcast_id: task.missing_acks for task in log.broadcast().tasks()}

        with log.read("a", auto_ack=True, follow=False) as scanner:
            next(scanner)
            assert left() == {first: ("a", "b"), second: ("a", "b")}
            with pytest.raises(InvalidArgumentError, match="no cursor to save"):
                scanner.save()
            assert left() == {first: ("a", "b"), second: ("a", "b")}
            next(scanner)
            assert left() == {first: ("b",), second: ("a", "b")}
            assert next(scanner, None) is None
            assert left() == {first: ("b",), second: ("b",)}
        with log.read("b", auto_ack=True, follow=False) as scanner:
            pages = scanner.batches()
            assert len(next(pages)) == 1  # a page holds one frame
            assert left() == {first: ("b",), second: ("b",)}
            assert len(next(pages)) == 1
            assert left() == {second: ("b",)}
            assert next(pages, None) is None
        assert left() == {}
        third = log.broadcast().append(message).broadcast_id
        log.broadcast().ack(third, "a")
        log.broadcast().abort(third, "enough")
        with pytest.raises(InvalidArgumentError):
            log.broadcast().abort(1, "unknown")
