"""Readers in other processes: while a writer works, after it was killed, overtaken by truncation, and many at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.probes import bodies, payloads, read_all
from tests.processes import Line, Other
from tests.read.test_many_scanners import SCANNERS, follow, write
from tests.read.test_read_only import content
from wal import Latest, Message, MessageType, TimeTickMessage, open_wal
from wal.errors import LockedError, StreamingCode, TruncatedError


async def write_content(line: Line, data: str, pchannels: int = 1) -> None:
    """Acts as the writer: creates the content, then appends on request, until it gets the request to close."""
    async with open_wal(data, pchannels=pchannels, time_tick_interval_s=0.02) as log:
        await content(log)
        line.tell("open")
        while (word := await line.hear()) != "close":
            result = await log.raw_append(Message("orders", word))
            line.tell((str(result.message_id), result.time_tick))
    line.tell("closed")


async def test_reader_follows_a_writer_of_another_process(data: str) -> None:
    writer = Other(write_content, data)
    assert await writer.hear() == "open"
    async with open_wal(data, read_only=True) as log:
        assert len(bodies(await read_all(log, "orders"))) == 400
        async with log.read("orders", deliver_policy=Latest()) as scanner:
            for number in range(20):
                writer.tell(b"new %d" % number)
                message_id, tick = await writer.hear()
                async with asyncio.timeout(60):
                    message = await anext(scanner)
                assert (message.payload, str(message.message_id), message.time_tick) == (b"new %d" % number, message_id, tick)
                assert (await payloads(log, "orders"))[-1] == b"new %d" % number, "what was acknowledged is seen"
            await scanner.wait_for(tick)
            writer.tell("close")
            assert await writer.hear() == "closed"
        assert len(await payloads(log, "orders")) == 420
    await writer.end()


async def test_locked_out_writer_gets_the_holder(data: str) -> None:
    writer = Other(write_content, data)
    await writer.hear()
    with pytest.raises(LockedError, match=r"read_only.*`wal standalone`") as caught:
        async with open_wal(data):
            pass
    assert caught.value.pid == writer.pid
    assert str(writer.pid) in str(caught.value)
    assert caught.value.code == StreamingCode.LOCKED
    await writer.kill()
    async with open_wal(data) as log:
        assert len(await payloads(log, "orders")) == 400


async def test_reader_goes_on_after_its_writer_was_killed(data: str) -> None:
    """The reader stops at the durable end, gets all acknowledged messages, and continues with the next writer."""

    async def write_numbers(line: Line, data: str) -> None:
        async with open_wal(data) as log:
            number = max([int(payload) for payload in await payloads(log, "orders")], default=0)
            while True:
                calls = [log.append_nowait(Message("orders", b"%d" % (number + step))) for step in range(1, 30)]
                await asyncio.gather(*calls)
                number += 29
                line.tell(number)

    async with open_wal(data) as log:
        await log.create_vchannel("orders")
    seen: list[int] = []
    acknowledged = 0
    async with open_wal(data, read_only=True) as reader, reader.read("orders") as scanner:
        for _ in range(2):
            writer = Other(write_numbers, data)
            for _ in range(10):
                acknowledged = await writer.hear()
            await writer.kill()
            while not seen or seen[-1] < acknowledged:
                async with asyncio.timeout(60):
                    seen.append(int((await anext(scanner)).payload))
        async with open_wal(data) as log:
            await log.raw_append(Message("orders", b"-1"))
            while seen[-1] != -1:
                seen.append(int((await anext(scanner)).payload))
            assert [int(payload) for payload in await payloads(log, "orders")] == seen, "what it was given is in the log"


async def test_time_ticks_arrive_in_another_process(data: str) -> None:
    writer = Other(write_content, data)
    await writer.hear()
    async with open_wal(data, read_only=True) as log, log.read("orders", deliver_policy=Latest(), include_time_ticks=True) as scanner:
        ticks = [await anext(scanner) for _ in range(5)]
        assert all(isinstance(tick, TimeTickMessage) for tick in ticks)
        assert [tick.time_tick for tick in ticks] == sorted({tick.time_tick for tick in ticks})
        writer.tell(b"x")
        _, tick = await writer.hear()
        async with asyncio.timeout(60):
            while (message := await anext(scanner)).message_type == MessageType.TIME_TICK:
                assert message.time_tick < tick
            assert message.time_tick == tick
    await writer.kill()


async def test_truncation_overtakes_a_reader_of_another_process(data: str) -> None:
    """A reader pauses in the middle while everything before it is truncated: it gets the right messages, or TruncatedError."""

    async def read_slowly(line: Line, data: str) -> None:
        async with open_wal(data, read_only=True) as log, log.read("orders") as scanner:
            message = await anext(scanner)
            line.tell((message.payload[:5], ""))
            await line.hear()
            try:
                async for message in scanner:
                    line.tell((message.payload, str(message.message_id)))
            except TruncatedError as error:
                line.tell((str(error.earliest), None))

    async with open_wal(data, segment_bytes=1 << 20) as writer:
        written = [b"%05d" % n + bytes([n % 251]) * 30_000 for n in range(1000)]
        results = await writer.append_bulk([Message("orders", payload) for payload in written[:300]])
        reader = Other(read_slowly, data)
        assert (await reader.hear())[0] == b"00000"
        await reader.stop()
        for first in range(300, 1000, 100):
            results += await writer.append_bulk([Message("orders", payload) for payload in written[first : first + 100]])
            await writer.truncate(up_to=results[-50].message_id)
        reader.cont()
        reader.tell("go")
        said = [await reader.hear()]
        while isinstance(said[-1][1], str):
            said.append(await reader.hear())
        *messages, (end, _) = said
        for number, (payload, _) in enumerate(messages, 1):
            assert payload == written[number]
        assert end == str(results[-49].message_id)
        await reader.end()


@pytest.mark.one_loop
@pytest.mark.parametrize("pchannels", [pytest.param(1, marks=pytest.mark.soak("four pchannels show the same")), 4])
async def test_readers_of_many_processes_get_the_same(data: str, pchannels: int, soak: int) -> None:
    async def count_messages(line: Line, data: str) -> None:
        async with open_wal(data, read_only=True) as log, log.read("orders") as scanner:
            seen: list[bytes] = []
            while not seen or seen[-1] != b"last":
                seen += [body.payload for body in (await anext(scanner)).bodies()]
            line.tell(seen)

    writer = Other(write_content, data, pchannels)
    await writer.hear()
    others = [Other(count_messages, data) for _ in range(4 * soak)]
    for number in range(20):
        writer.tell(b"%d" % (400 + number))
        await writer.hear()
    writer.tell(b"last")
    await writer.hear()
    for other in others:
        assert await other.hear() == [*(b"%d" % number for number in range(420)), b"last"]
        await other.end()
    writer.tell("close")
    assert await writer.hear() == "closed"


@pytest.mark.one_loop
async def test_many_scanners_in_other_processes(data: str) -> None:
    async def follow_many(line: Line, data: str) -> None:
        async with open_wal(data, read_only=True) as log:
            followers = [asyncio.ensure_future(follow(log, "orders")) for _ in range(SCANNERS)]
            line.tell("following")
            line.tell(await asyncio.gather(*followers))

    async with open_wal(data) as log:
        others = [Other(follow_many, data) for _ in range(2)]
        for other in others:
            assert await other.hear() == "following"
        await write(log, ["orders"])
        expected = await follow(log, "orders")
        for other in others:
            assert await other.hear() == [expected] * SCANNERS
            await other.end()
