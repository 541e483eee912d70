"""The cursor of a stream over a log: it exists at every moment of a seek, and it does not hold messages of other channels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.locations import open_wal
from tests.streams.msgstream.packs import consume, consume_messages, numbers, row
from wal import CursorInfo, Message, WALAccesser
from wal.errors import InvalidArgumentError, WouldBlockError
from wal.read.scanner import Scanner
from wal.streams.msgstream import MsgPack, MsgType, Outgoing
from wal.streams.msgstream.media import wal_consumer
from wal.streams.msgstream.media.wal import WalMedium, WalMsgStream

SUBSCRIPTION = "subscription"


@pytest.fixture
async def one_pchannel(location: str) -> AsyncIterator[WALAccesser]:
    async with open_wal(location, pchannels=1) as log:
        yield log


async def cursor_of(log: WALAccesser) -> CursorInfo:
    (found,) = [cursor for cursor in await log.cursors() if cursor.name == SUBSCRIPTION]
    return found


async def test_seek_to_the_start_keeps_the_cursor(log: WALAccesser) -> None:
    async with WalMsgStream(log) as stream:
        await stream.as_producer(["a"])
        sent = await stream.produce(MsgPack([row(1)]))
        await stream.produce(MsgPack([row(2)]))
        await stream.as_consumer(["a"], SUBSCRIPTION)
        assert numbers(await consume_messages(stream, 2)) == [1, 2]
    async with WalMsgStream(log) as stream:
        await stream.as_consumer(["a"], SUBSCRIPTION)
        seeking = asyncio.ensure_future(stream.seek(sent["a"][0], inclusive=True))
        looks = 0
        while not seeking.done():
            await cursor_of(log)
            looks += 1
        await seeking
        assert looks
    async with WalMsgStream(log) as stream:  # the next one begins where it was moved
        await stream.as_consumer(["a"], SUBSCRIPTION)
        assert numbers(await consume_messages(stream, 2)) == [1, 2]


async def test_seek_whose_save_fails_moves_nothing(log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    def row_out(number: int) -> Outgoing:
        return Outgoing(row(number).marshal(), MsgType.INSERT)

    medium = WalMedium(log)
    first, _ = await (await medium.producer("a")).send([row_out(1), row_out(2)])
    consumer = await medium.consumer("a", SUBSCRIPTION)
    received = await consumer.receive(10)
    await consumer.ack([one.msg_id for one in received])
    await consumer.close()
    consumer = await medium.consumer("a", SUBSCRIPTION)
    before = await cursor_of(log)

    async def refused(*_: object) -> None:
        raise WouldBlockError("the lock is taken")

    with monkeypatch.context() as patch:
        patch.setattr(Scanner, "save", refused)
        with pytest.raises(WouldBlockError):
            await consumer.seek(first, inclusive=True)
    assert await cursor_of(log) == before
    await consumer.seek(first, inclusive=True)
    assert len(await consumer.receive(10)) == 2
    await consumer.close()
    assert (await cursor_of(log)).position is None


async def test_quiet_channel_does_not_hold_what_others_write(one_pchannel: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    log = one_pchannel
    passes: list[object] = []
    pass_over = wal_consumer.WalConsumer._pass_over

    async def counted(consumer: wal_consumer.WalConsumer) -> None:
        await pass_over(consumer)
        passes.append(consumer)

    monkeypatch.setattr(wal_consumer.WalConsumer, "_pass_over", counted)
    monkeypatch.setattr(wal_consumer, "QUIET_S", 0.01)
    async with WalMsgStream(log, auto_ack=False) as stream:
        await stream.as_producer(["quiet"])
        await stream.produce(MsgPack([row(1)]))
        await stream.as_consumer(["quiet"], SUBSCRIPTION)
        pack = await consume(stream)
        waiting = asyncio.ensure_future(stream.consume())
        busy = (await log.append_bulk([Message("busy", b"x") for _ in range(50)]))[-1]
        before = len(passes)
        async with asyncio.timeout(60):
            while len(passes) < before + 2:
                await asyncio.sleep(0.01)
        with pytest.raises(InvalidArgumentError, match=SUBSCRIPTION):
            await log.truncate(up_to=busy.message_id)  # unacknowledged messages are held
        await stream.ack(pack)
        async with asyncio.timeout(60):
            while (position := (await cursor_of(log)).position) is None or position.message_id < busy.message_id:
                await asyncio.sleep(0.01)
        await log.truncate(up_to=busy.message_id)
        await stream.produce(MsgPack([row(2), row(3)]))
        assert numbers([await waiting or pytest.fail("the stream has ended")]) == [2, 3]
    async with WalMsgStream(log) as stream:  # nothing is lost, and nothing is redelivered
        await stream.as_consumer(["quiet"], SUBSCRIPTION)
        assert numbers([await consume(stream)]) == [2, 3]


async def test_failed_cursor_save_does_not_end_a_stream(one_pchannel: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    log = one_pchannel
    monkeypatch.setattr(wal_consumer, "QUIET_S", 0.01)
    refusals = asyncio.Event()
    save = Scanner.save

    async def refused(*_: object) -> None:
        refusals.set()
        raise WouldBlockError("the lock is taken")

    async with WalMsgStream(log) as stream:
        await stream.as_producer(["quiet"])
        await stream.as_consumer(["quiet"], SUBSCRIPTION)
        waiting = asyncio.ensure_future(stream.consume())
        monkeypatch.setattr(Scanner, "save", refused)
        busy = (await log.append_bulk([Message("busy", b"x")]))[-1]
        await asyncio.wait_for(refusals.wait(), 20)
        monkeypatch.setattr(Scanner, "save", save)
        async with asyncio.timeout(60):
            while (position := (await cursor_of(log)).position) is None or position.message_id < busy.message_id:
                await asyncio.sleep(0.01)
        await stream.produce(MsgPack([row(1)]))
        assert numbers([await waiting or pytest.fail("the stream has ended")]) == [1]
