"""Streams whose medium fails or waits."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tests.streams.msgstream.faulty import FaultyMedium
from tests.streams.msgstream.packs import consume, consume_messages, numbers, produce, row, tick
from wal.errors import ClosedError, InvalidArgumentError, StorageError, UnavailableError, UnknownError
from wal.streams import msgstream
from wal.streams.msgstream.subscription import PENDING_MAX


class Panic(BaseException):
    """An exception of an extension in Rust; its text is broken too."""

    def __str__(self) -> str:
        raise KeyError("text")


KINDS = pytest.mark.parametrize("kind", [msgstream.MsgStream, msgstream.TtMsgStream])
Kind = Callable[..., msgstream.MsgStream]


@pytest.fixture
async def medium() -> AsyncIterator[FaultyMedium]:
    opened = FaultyMedium()
    yield opened
    await opened.memory.close()


async def both_ways(medium: FaultyMedium, kind: Kind = msgstream.MsgStream, **settings: Any) -> msgstream.MsgStream:
    """Returns a stream that produces to a and b, and consumes from them."""
    stream = kind(medium, **settings)
    await stream.as_producer(["a", "b"])
    await stream.as_consumer(["a", "b"], "subscription")
    return stream


def calls(stream: msgstream.MsgStream) -> list[Coroutine[Any, Any, object]]:
    pack = msgstream.MsgPack([row(1)])
    return [
        stream.produce(pack),
        stream.broadcast(pack),
        stream.as_producer(["c"]),
        stream.as_consumer(["c"], "subscription"),
        stream.seek(msgstream.MsgPosition("a", b"id")),
        stream.start(),
        stream.consume(),
    ]


@KINDS
async def test_failed_receive_ends_the_stream_afterwards(medium: FaultyMedium, kind: Kind) -> None:
    async with await both_ways(medium, kind) as stream:
        await stream.broadcast(msgstream.MsgPack([row(1, 1), tick(2)]))
        await stream.start()
        while sum(counts.received for counts in stream.statistics().channels) < 4:
            await asyncio.sleep(0)
        error = StorageError("the disk is gone")
        medium.fail("receive", error)
        await stream.broadcast(msgstream.MsgPack([row(2, 3), tick(4)]))  # wakes the calls that wait; the next ones fail
        delivered = []
        with pytest.raises(StorageError, match="the disk is gone") as raised:
            while True:
                delivered.append(await consume(stream))
        assert raised.value is error
        assert sum(len(pack.msgs) for pack in delivered) >= 2
        for call in calls(stream):
            with pytest.raises(StorageError, match="the disk is gone"):
                await call
    assert await stream.consume() is None


async def test_failed_acknowledgement_ends_the_stream(medium: FaultyMedium) -> None:
    async with await both_ways(medium, auto_ack=False) as stream:
        await produce(stream, row(1))
        pack = await consume(stream)
        medium.fail("ack", StorageError("the disk is gone"))
        with pytest.raises(StorageError, match="the disk is gone"):
            await stream.ack(pack)
        for call in calls(stream):
            with pytest.raises(StorageError, match="the disk is gone"):
                await call


async def test_closed_medium_ends_the_stream(medium: FaultyMedium) -> None:
    async with await both_ways(medium) as stream:
        blocked = asyncio.ensure_future(stream.consume())
        await asyncio.sleep(0)
        await medium.memory.close()
        with pytest.raises(ClosedError, match="the consumer of channel"):
            await blocked


@pytest.mark.parametrize(("call", "keys"), [("produce", [0, 2, 1]), ("broadcast", [0, 1])])
async def test_failed_send_says_what_is_durable(medium: FaultyMedium, call: str, keys: list[int]) -> None:
    async with await both_ways(medium) as stream:
        medium.fail("send", UnavailableError("no server"), channel="b")
        with pytest.raises(UnavailableError, match=r"no server; 2 messages .* durable") as raised:
            await getattr(stream, call)(msgstream.MsgPack([row(n, key=key) for n, key in enumerate(keys)]))
        error = raised.value
        assert isinstance(error, msgstream.ProduceError)
        assert error.retryable
        assert isinstance(error.__cause__, UnavailableError)
        assert list(error.results) == ["a"]
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.results, str(copy)) == (type(error), error.results, str(error))
        del medium.before["send"]
        await produce(stream, row(3))  # the stream continues
        packs = await consume_messages(stream, 3)
        assert [msg.position and msg.position.msg_id for msg in packs[0].msgs][:2] == [
            position.msg_id for position in error.results["a"] if position is not None
        ]


async def test_send_that_failed_in_the_middle_has_holes(medium: FaultyMedium) -> None:
    async with await both_ways(medium) as stream:

        async def first_only(channel: str, messages: list[msgstream.Outgoing]) -> None:
            cause = StorageError("torn", outcome_unknown=True)
            raise msgstream.PartialSendError("torn", durable={channel: [b"id", None]}) from cause

        medium.before["send"] = first_only
        for call in (stream.produce, stream.broadcast):
            with pytest.raises(StorageError) as raised:
                await call(msgstream.MsgPack([row(0, 5, key=0), row(1, key=0)]))
            assert isinstance(raised.value, msgstream.ProduceError)
            assert raised.value.outcome_unknown
            assert raised.value.results["a"] == [msgstream.MsgPosition("a", b"id", timestamp=5), None]


async def test_foreign_error_is_the_cause(medium: FaultyMedium) -> None:
    async with await both_ways(medium) as stream:
        medium.fail("send", OSError("cable"))
        with pytest.raises(msgstream.ProduceError, match="cable") as raised:
            await produce(stream, row(1))
        assert isinstance(raised.value.__cause__, OSError)
        assert raised.value.results == {}


@KINDS
async def test_on_refused_that_raises_ends_the_stream(medium: FaultyMedium, kind: Kind) -> None:
    def refuse(refused: msgstream.Refused) -> None:
        raise LookupError(refused.reason)

    async with await both_ways(medium, kind, on_refused=refuse) as stream:
        await (await medium.producer("a")).send([msgstream.Outgoing(b"no message", 400)])
        for _ in range(2):
            with pytest.raises(LookupError, match="cannot be decoded"):
                await stream.consume()


@KINDS
@pytest.mark.parametrize(
    ("error", "text"), [(asyncio.CancelledError, "CancelledError()"), (Panic, "(its text cannot be shown: its __str__ raised KeyError)")]
)
async def test_decoder_that_raises_anything_refuses_the_message(
    medium: FaultyMedium, kind: Kind, error: type[BaseException], text: str
) -> None:
    class Failing(msgstream.UnmarshalDispatcher):
        def unmarshal(self, data: bytes, msg_type: int | None = None) -> msgstream.TsMsg:
            message = super().unmarshal(data, msg_type)
            if message.id == 7:
                raise error
            return message

    refused: list[msgstream.Refused] = []
    async with await both_ways(medium, kind, dispatcher=Failing(), on_refused=refused.append) as stream:
        await stream.broadcast(msgstream.MsgPack([row(1, 3, id=7), row(2, 4), tick(5)]))
        pack = await consume(stream)
        assert [msg.timestamps for msg in pack.msgs if isinstance(msg, msgstream.InsertMsg)][:1] == [[4]]
        assert [one.reason for one in refused[:1]] == [f"it cannot be decoded: {text}"]


@pytest.mark.parametrize("error", [asyncio.CancelledError, StopAsyncIteration, StopIteration, GeneratorExit, Panic])
@pytest.mark.parametrize("late", [False, True])
async def test_on_refused_that_raises_anything_ends_the_stream(medium: FaultyMedium, late: bool, error: type[BaseException]) -> None:
    def refuse(refused: msgstream.Refused) -> None:
        raise error

    async with await both_ways(medium, msgstream.TtMsgStream, on_refused=refuse) as stream:
        if late:
            await stream.broadcast(msgstream.MsgPack([tick(5), row(1, 4), tick(6)]))
            assert (await consume(stream)).end_ts == 5
        else:
            await (await medium.producer("a")).send([msgstream.Outgoing(b"no message", 400)])
        for call in (stream.consume, stream.consume, stream.start):
            with pytest.raises((UnknownError, RuntimeError, Panic)) as raised:
                await call()
            cause = raised.value
            if error is StopIteration and not late:
                assert isinstance(cause, RuntimeError)  # of the coroutine
            elif error is not Panic:
                assert isinstance(cause, UnknownError)
                assert f"raised {error.__name__}, which ends the message stream" in str(cause)
            assert isinstance(cause if error is Panic else cause.__cause__, error)


async def test_cancelled_medium_call_ends_the_stream(medium: FaultyMedium) -> None:
    async with await both_ways(medium, auto_ack=False) as stream:
        await produce(stream, row(1))
        pack = await consume(stream)

        async def cancelled(*_: object) -> None:
            raise asyncio.CancelledError

        medium.before["ack"] = cancelled
        with pytest.raises(UnknownError, match="raised CancelledError"):
            await stream.ack(pack)
        with pytest.raises(UnknownError, match="raised CancelledError"):
            await stream.consume()


async def test_raising_on_refused_ends_the_stream(medium: FaultyMedium) -> None:
    def refuse(refused: msgstream.Refused) -> None:
        raise LookupError(refused.reason)

    async with await both_ways(medium, msgstream.TtMsgStream, on_refused=refuse) as stream:
        await stream.broadcast(msgstream.MsgPack([tick(5), row(1, 4), tick(6)]))
        assert (await consume(stream)).end_ts == 5
        for _ in range(2):
            with pytest.raises(LookupError, match="late"):
                await stream.consume()


async def test_failed_seek_ends_the_stream(medium: FaultyMedium) -> None:
    async with await both_ways(medium) as stream:
        sent = await stream.broadcast(msgstream.MsgPack([row(1)]))
        medium.fail("check", UnavailableError("no server"), channel="b")
        positions = [sent["a"][0], sent["b"][0]]
        with pytest.raises(UnavailableError):
            await stream.seek(*positions)
        del medium.before["check"]
        medium.fail("seek", StorageError("the disk is gone"), channel="b")
        with pytest.raises(StorageError):
            await stream.seek(*positions)
        with pytest.raises(StorageError, match="the disk is gone"):
            await stream.consume()


async def test_cancelled_seek_ends_the_stream(medium: FaultyMedium) -> None:
    async with await both_ways(medium) as stream:
        sent = await stream.broadcast(msgstream.MsgPack([row(1)]))
        medium.block("seek")
        seeking = asyncio.ensure_future(stream.seek(sent["a"][0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        seeking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await seeking
        with pytest.raises(ClosedError, match="cancelled"):
            await stream.consume()


@pytest.mark.parametrize("call", ["producer", "consumer"])
async def test_channels_are_added_all_or_none(medium: FaultyMedium, call: str) -> None:
    async with msgstream.TtMsgStream(medium) as stream:

        async def add() -> None:
            await (stream.as_producer(["a", "b"]) if call == "producer" else stream.as_consumer(["a", "b"], "subscription"))

        medium.fail(call, UnavailableError("no server"), channel="b")
        with pytest.raises(UnavailableError):
            await add()
        async with msgstream.TtMsgStream(medium) as other:  # the consumer of a is closed again
            await other.as_consumer(["a"], "subscription")
        with pytest.raises(InvalidArgumentError, match=f"no {call}s"):
            await (stream.produce(msgstream.MsgPack([row(1)])) if call == "producer" else stream.consume())
        del medium.before[call]
        await add()


async def test_acknowledgements_that_wait_are_sent_together_and_bounded(medium: FaultyMedium) -> None:
    async with await both_ways(medium) as stream:
        go_on = medium.block("ack")
        packs = []
        for n in range(PENDING_MAX + 1):
            await produce(stream, row(n))
            packs.append(await consume(stream))
        await produce(stream, row(PENDING_MAX + 1))
        waiting = asyncio.ensure_future(consume(stream))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()
        packs.append(await consume(stream))
        assert numbers(packs) == list(range(PENDING_MAX + 2))
        await stream.ack(packs[-1])
        assert medium.acks[0] == 1
        assert max(medium.acks) >= PENDING_MAX - 1
        assert sum(medium.acks) == PENDING_MAX + 2
        assert stream.statistics().channels[0].acked == PENDING_MAX + 2


@pytest.mark.parametrize("call", ["close_producer", "close_consumer"])
async def test_close_continues_after_a_failure(medium: FaultyMedium, call: str) -> None:
    stream = await both_ways(medium, owns_medium=True)
    await stream.start()
    medium.fail(call, StorageError("the disk is gone"), channel="b")
    with pytest.raises(StorageError, match="the disk is gone"):
        await stream.close()
    assert medium.memory.closed
    del medium.before[call]
    with pytest.raises(StorageError, match="the disk is gone"):
        await stream.close()


async def test_close_that_is_cancelled_goes_on(medium: FaultyMedium) -> None:
    stream = await both_ways(medium, owns_medium=True)
    go_on = medium.block("close_producer")
    closing = asyncio.ensure_future(stream.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    go_on.set()
    await stream.close()
    assert medium.memory.closed
