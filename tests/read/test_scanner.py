"""Scanners: entering, ending, handlers, statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from actors import VirtualClock
from tests.locations import open_virtual, open_wal
from tests.probes import start, turns
from wal import ImmutableMessage, Message, MessageHandler, Scanner, WALAccesser
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError

pytestmark = [pytest.mark.one_location("a scanner treats its consumer alike on every log"), pytest.mark.on_pulsar]


async def fill(log: WALAccesser, count: int = 10) -> int:
    results = await log.append_bulk([Message("orders", b"%d" % number) for number in range(count)])
    return results[-1].time_tick


class Recorder:
    """A handler object, sync or async, that raises or waits on the test's command."""

    def __init__(self, *, asynchronous: bool, fail_at: int = -1) -> None:
        self.asynchronous = asynchronous
        self.fail_at = fail_at
        self.seen: list[int] = []
        self.closed = 0

    def handle(self, message: ImmutableMessage) -> Awaitable[None] | None:
        assert not self.closed, "handled after close"
        if self.asynchronous:
            return self._handle(message)
        self._note(message)
        return None

    def close(self) -> Awaitable[None] | None:
        if self.asynchronous:
            return self._close()
        self.closed += 1
        return None

    async def _handle(self, message: ImmutableMessage) -> None:
        await asyncio.sleep(0)
        self._note(message)

    async def _close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1

    def _note(self, message: ImmutableMessage) -> None:
        if len(self.seen) == self.fail_at:
            raise ZeroDivisionError("on purpose")
        self.seen.append(int(message.payload))


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_handler_object(log: WALAccesser, asynchronous: bool) -> None:
    recorder = Recorder(asynchronous=asynchronous)
    assert isinstance(recorder, MessageHandler)
    tick = await fill(log)
    async with log.read("orders", handler=recorder) as scanner:
        await scanner.wait_for(tick)
        last = await log.raw_append(Message("orders", b"10"))
        await scanner.wait_for(last.time_tick)
    assert recorder.closed == 1
    assert recorder.seen == list(range(11))
    await scanner.close()
    assert recorder.closed == 1
    assert scanner.error is None


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_callable(log: WALAccesser, asynchronous: bool) -> None:
    seen: list[int] = []

    async def handle(message: ImmutableMessage) -> None:
        await asyncio.sleep(0)
        seen.append(int(message.payload))

    await fill(log)
    handler = handle if asynchronous else lambda message: seen.append(int(message.payload))
    async with log.read("orders", handler=handler, follow=False) as scanner:
        await scanner.done()
    assert seen == list(range(10))
    assert scanner.error is None
    assert scanner.position is not None


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_raising_handler_ends_the_scanner(log: WALAccesser, asynchronous: bool) -> None:
    await fill(log)
    recorder = Recorder(asynchronous=asynchronous, fail_at=4)
    scanner = log.read("orders", handler=recorder)
    await scanner.__aenter__()
    waiting = start(scanner.wait_for((1 << 64) - 1))
    await scanner.done()
    assert isinstance(scanner.error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        await waiting
    await scanner.close()
    assert (recorder.seen, recorder.closed) == ([0, 1, 2, 3], 1)
    await log.raw_append(Message("orders", b"10"))
    assert scanner.statistics().ended


async def test_done_comes_after_the_handler_was_closed(log: WALAccesser) -> None:
    class Failing(Recorder):
        async def _close(self) -> None:
            await turns(5)
            await super()._close()
            raise ZeroDivisionError("in close")

    recorder = Failing(asynchronous=True)
    await fill(log)
    async with log.read("orders", handler=recorder, follow=False) as scanner:
        await scanner.done()
        assert recorder.closed == 1
        assert isinstance(scanner.error, ZeroDivisionError)


async def test_nothing_is_handled_after_close(log: WALAccesser) -> None:
    """A running handler finishes its message and gets no other."""
    at_work, go_on = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def handle(message: ImmutableMessage) -> None:
        at_work.set()
        await go_on.wait()
        seen.append(int(message.payload))

    await fill(log)
    scanner = log.read("orders", handler=handle)
    await scanner.__aenter__()
    await at_work.wait()
    closing = start(scanner.close())
    await turns()
    assert not closing.done(), "close waits for the handler that is at work"
    go_on.set()
    await closing
    assert seen == [0]
    await turns()
    assert seen == [0]


async def test_handler_may_close_its_own_scanner(log: WALAccesser) -> None:
    seen: list[int] = []
    scanners: list[Scanner] = []

    async def handle(message: ImmutableMessage) -> None:
        seen.append(int(message.payload))
        if len(seen) == 3:
            await scanners[0].close()

    await fill(log)
    scanners.append(log.read("orders", handler=handle))
    await scanners[0].__aenter__()
    await scanners[0].done()
    assert seen == [0, 1, 2]
    assert scanners[0].error is None


async def test_iterating_a_scanner_with_a_handler_is_refused(log: WALAccesser) -> None:
    async with log.read("orders", handler=lambda _: None) as scanner:
        with pytest.raises(InvalidArgumentError, match="handler"):
            await anext(scanner)
        with pytest.raises(InvalidArgumentError, match="handler"):
            async for _ in scanner.batches():
                pass


async def test_slow_handler_is_closed_when_the_log_closes(location: str) -> None:
    log = await open_wal(location)
    await fill(log)
    recorder = Recorder(asynchronous=True)
    scanner = log.read("orders", handler=recorder)
    await scanner.__aenter__()
    await log.close()
    await scanner.done()
    assert isinstance(scanner.error, ClosedError)
    await scanner.close()
    assert recorder.closed == 1


async def test_close_is_clean_and_idempotent(log: WALAccesser) -> None:
    await fill(log)
    async with log.read("orders") as scanner:
        assert int((await anext(scanner)).payload) == 0
        closing = [start(scanner.close()) for _ in range(3)]
        await asyncio.gather(*closing)
        await scanner.done()
        assert scanner.error is None
        with pytest.raises(StopAsyncIteration):
            await anext(scanner)
        assert [page async for page in scanner.batches()] == []
        position = scanner.position
    assert position is not None
    async with log.read("orders", resume=position) as again:
        assert int((await anext(again)).payload) == 1


async def test_waiting_consumer_sees_the_end_at_close(log: WALAccesser) -> None:
    async with log.read("orders") as scanner:
        reading = start(anext(scanner))
        done = start(scanner.done())
        await turns()
        assert not done.done()
    with pytest.raises(StopAsyncIteration):
        await reading
    await done


async def test_done_never_raises(log: WALAccesser) -> None:
    await log.create_vchannel("dropped")
    scanner = log.read("dropped")
    await scanner.__aenter__()
    done = start(scanner.done())
    await turns()
    done.cancel()
    with pytest.raises(asyncio.CancelledError):
        await done
    again = start(scanner.done())
    await log.drop_vchannel("dropped")
    await again
    await scanner.done()
    assert isinstance(scanner.error, ChannelNotExistError)
    with pytest.raises(ChannelNotExistError):
        await anext(scanner)


async def test_leaving_the_loop_does_not_end_the_scanner(log: WALAccesser) -> None:
    await fill(log)
    async with log.read("orders") as scanner:
        async for message in scanner:
            if int(message.payload) == 3:
                break
        assert [int((await anext(scanner)).payload) for _ in range(3)] == [4, 5, 6]


async def test_without_async_with_the_first_iteration_enters(log: WALAccesser) -> None:
    scanner = log.read("orders", follow=False)
    await fill(log)
    assert len([message async for message in scanner]) == 10
    await scanner.done()
    never = log.read("orders")
    await never.close()
    with pytest.raises(StopAsyncIteration):
        await anext(never)


@pytest.mark.not_on("pulsar", "names the backends")
async def test_statistics(log: WALAccesser) -> None:
    await fill(log)
    async with log.read("orders") as scanner:
        before = scanner.statistics()
        assert (before.messages, before.ended) == (0, False)
        assert before.lag_bytes > 0
        for _ in range(10):
            await anext(scanner)
        during = scanner.statistics()
        assert (during.messages, during.lag_bytes) == (10, 0)
        assert during.frames >= 1
        assert during.pages >= 1
        assert log.statistics().pchannels[0].readers == 1
    assert scanner.statistics().ended
    assert log.statistics().pchannels[0].readers == 0


@pytest.mark.not_on("pulsar", "asks for the bytes of a lag more exactly than Pulsar counts them")
async def test_memory_of_a_slow_reader_is_bounded(log: WALAccesser) -> None:
    """A scanner fetches nothing until its consumer asks for a message."""
    async with log.read("orders") as scanner:
        await log.append_bulk([Message("orders", bytes(10_000)) for _ in range(3000)])
        assert scanner.statistics().pages == 0
        await anext(scanner)
        await turns()
        assert 1 <= scanner.statistics().pages <= 2
        while scanner.statistics().lag_bytes < 15_000_000:  # a client may not know the end of the log yet
            await asyncio.sleep(0)


async def test_endless_handler_is_cancelled_at_the_close() -> None:
    clock = VirtualClock()
    log = await open_virtual("memory:", clock)
    await fill(log)
    at_work, cancelled, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Stuck:
        async def handle(self, message: ImmutableMessage) -> None:
            at_work.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        def close(self) -> None:
            closed.set()

    scanner = log.read("orders", handler=Stuck())
    await scanner.__aenter__()
    await at_work.wait()
    closing = start(log.close())
    await clock.run(5.0)
    assert not closing.done(), "a handler at work is given time"
    await clock.run(10.0)
    await closing
    await scanner.done()
    assert cancelled.is_set()
    assert closed.is_set()
    assert isinstance(scanner.error, ClosedError)
