"""migrate and translate: copying from RocksMQ into a log, restarts at any turn, and moving consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.processes import WAIT_TIMEOUT_S
from tests.streams.msgstream.packs import consume, consume_messages, number, numbers, produce, row, tick
from wal import Message, MessageType, ProducerKey, WALAccesser
from wal.errors import InvalidArgumentError, LockedError
from wal.streams.msgstream import DeleteMsg, MsgPack, MsgPosition, MsgStream, MsgType, OpaqueMsg
from wal.streams.msgstream.media.rocksmq import RmqMsgStream, RmqTtMsgStream
from wal.streams.msgstream.media.wal import MSG_TYPE, WalMsgStream, WalTtMsgStream
from wal.streams.msgstream.migrate import MIGRATION, OLD_POSITION, OldPosition, migrate, translate
from wal.streams.rocksmq import RocksMQ, RocksMQSettings

IDLE_S = 0.2


@pytest.fixture
async def mq(tmp_path: Path) -> AsyncIterator[RocksMQ]:
    async with await RocksMQ.open(tmp_path / "mq") as opened:
        yield opened


@pytest.fixture
async def opened(mq: RocksMQ) -> AsyncIterator[Callable[..., Any]]:
    """Opens streams, which are closed before the RocksMQ."""
    async with AsyncExitStack() as stack:
        yield stack.enter_async_context


async def copy(
    mq: RocksMQ, log: WALAccesser, channels: Mapping[str, str] | Sequence[str] = ("a",), *, name: str = "move", least: int = 0
) -> int:
    """Migrates until a call ends by its idle time and `least` messages are copied: a busy host may need longer than that for the first."""
    copied = 0
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            async with RmqMsgStream(mq) as stream:
                copied += await migrate(stream, log, channels=channels, name=name, idle_s=IDLE_S)
            if copied >= least:
                return copied


async def in_log(log: WALAccesser, vchannel: str) -> list[int]:
    """Returns the numbers of the rows in a vchannel."""
    async with log.read(vchannel, follow=False) as scanner:
        count = len([body async for message in scanner for body in message.bodies()])
    async with WalMsgStream(log) as stream:
        await stream.as_consumer([vchannel], "look")
        found = numbers(await consume_messages(stream, count)) if count else []
    await log.delete_cursor("look")
    return found


async def test_messages_are_copied_with_their_old_positions(mq: RocksMQ, log: WALAccesser) -> None:
    async def consume_packs(stream: MsgStream, count: int) -> list[MsgPack]:
        packs: list[MsgPack] = []
        while sum(len(pack.msgs) for pack in packs) < count:
            packs.append(await consume(stream))
        return packs

    async with RmqMsgStream(mq) as producer:
        await producer.as_producer(["a"])
        other = OpaqueMsg(msg_type=MsgType.FLUSH, timestamp=9, hash_keys=[0])
        sent = [row(1), tick(5), DeleteMsg([7], [2], hash_keys=[0]), other, row(3, 10, 20)]
        positions = (await producer.produce(MsgPack(sent)))["a"]
    assert await copy(mq, log, least=4) == 4
    async with log.read("a", follow=False) as scanner:
        bodies = [body async for message in scanner for body in message.bodies()]
    kept = [positions[index] for index in (0, 2, 3, 4)]
    assert [body.properties[MIGRATION] for body in bodies] == ["move"] * 4
    assert [OldPosition.of_copy(body, "move", "a") for body in bodies] == [
        OldPosition(1, begin, end, at.msg_id, "a") for at, begin, end in zip(kept, [2, 7, 9, 10], [2, 7, 9, 20], strict=True)
    ]
    assert [body.properties[OLD_POSITION] for body in bodies][3] == f"1:10:20:{kept[3].msg_id.hex()}:a"
    assert [body.properties[MSG_TYPE] for body in bodies] == ["400", "401", "402", "400"]
    assert [body.message_type for body in bodies] == [MessageType.INSERT, MessageType.DELETE, MessageType.INSERT, MessageType.INSERT]
    async with WalMsgStream(log) as stream:
        await stream.as_consumer(["a"], "s")
        msgs = [msg for pack in await consume_packs(stream, 4) for msg in pack.msgs]
    assert [type(msg) for msg in msgs] == [type(sent[index]) for index in (0, 2, 3, 4)]


async def test_later_call_copies_what_came_since(mq: RocksMQ, log: WALAccesser) -> None:
    async with RmqMsgStream(mq) as producer:
        await producer.as_producer(["a", "b"])
        sent = 0
        for count in (10, 0, 1, 3_000):
            await produce(producer, *(row(n, key=n) for n in range(sent, sent + count)))
            sent += count
            assert await copy(mq, log, ["a", "b"], least=count) == count
            await log.append_messages(Message("a", row(-1).marshal()))  # a new producer
    for index, name in enumerate("ab"):
        assert [n for n in await in_log(log, name) if n >= 0] == list(range(index, sent, 2))


async def test_channels_can_be_copied_into_one(mq: RocksMQ, log: WALAccesser) -> None:
    async with RmqMsgStream(mq) as producer:
        await producer.as_producer(["a", "b"])
        for first in (0, 10):
            await produce(producer, *(row(n, key=n) for n in range(first, first + 10)))
            assert await copy(mq, log, {"a": "both", "b": "both"}, least=10) == 10
    found = await in_log(log, "both")
    assert sorted(found) == list(range(20))
    for index in range(2):
        assert [n for n in found if n % 2 == index] == list(range(index, 20, 2))


async def test_cancelled_call_loses_and_repeats_nothing(mq: RocksMQ, log: WALAccesser) -> None:
    async with RmqMsgStream(mq) as producer:
        await producer.as_producer(["a"])
        sent = 0
        for turns in range(0, 60, 3):
            await produce(producer, *(row(n) for n in range(sent, sent + 40)))
            sent += 40
            async with RmqMsgStream(mq) as stream:
                copying = asyncio.ensure_future(migrate(stream, log, channels=["a"], name="move"))
                for _ in range(turns * 4):
                    await asyncio.sleep(0)
                copying.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await copying
        await copy(mq, log, least=sent - len(await in_log(log, "a")))
    assert await in_log(log, "a") == list(range(sent))


async def test_cancelled_call_waits_for_its_last_write(mq: RocksMQ, log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next call would miss it in the log, and copy the same messages."""
    append_txn = log.append_txn
    begun, go = asyncio.Event(), asyncio.Event()

    async def append_late(*args: Any, **named: Any) -> Any:
        begun.set()
        await go.wait()
        return await append_txn(*args, **named)

    async with RmqMsgStream(mq) as producer, RmqMsgStream(mq) as stream:
        await producer.as_producer(["a"])
        await produce(producer, *(row(n) for n in range(10)))
        monkeypatch.setattr(log, "append_txn", append_late)
        copying = asyncio.ensure_future(migrate(stream, log, channels=["a"], name="move"))
        await begun.wait()
        copying.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not copying.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await copying
    monkeypatch.undo()
    assert await copy(mq, log) == 0
    assert await in_log(log, "a") == list(range(10))


async def test_restart_reads_from_its_cursor(mq: RocksMQ, log: WALAccesser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.streams.msgstream.migrate.SAVE_EVERY", 3)
    monkeypatch.setattr("wal.streams.msgstream.migrate.TXN_BYTES", 300)
    async with RmqMsgStream(mq) as producer:
        await producer.as_producer(["a"])
        for first in range(0, 600, 200):
            await produce(producer, *(row(n, size=50) for n in range(first, first + 200)))
            assert await copy(mq, log, least=200) == 200
            (info,) = await log.cursors()
            assert info.name == "move/a"
            async with log.read("a", cursor="move/a", follow=False) as scanner:
                assert 0 < len([message async for message in scanner]) < 6
    assert await in_log(log, "a") == list(range(600))


async def test_messages_that_retention_dropped_are_no_gap(tmp_path: Path, log: WALAccesser) -> None:
    settings = RocksMQSettings(page_bytes=1, retention_bytes=0)
    async with await RocksMQ.open(tmp_path / "small", settings=settings) as mq, RmqMsgStream(mq) as producer:
        await producer.as_producer(["a"])
        for first in range(0, 30, 10):
            await produce(producer, *(row(n) for n in range(first, first + 10)))
            assert await copy(mq, log, least=10) == 10
            assert await mq.retain() == 10
    assert await in_log(log, "a") == list(range(30))


async def test_migrations_of_one_name_exclude_each_other(mq: RocksMQ, log: WALAccesser) -> None:
    async with RmqMsgStream(mq) as producer, RmqMsgStream(mq) as stream:
        await producer.as_producer(["a"])
        await produce(producer, row(1))
        running = asyncio.ensure_future(migrate(stream, log, channels=["a"], name="move"))
        await asyncio.sleep(0)
        with pytest.raises(LockedError, match="'move/a' runs in this process"):
            await copy(mq, log)
        assert await copy(mq, log, name="other", least=1) == 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await copy(mq, log, least=2 - len(await in_log(log, "a")))
    assert await in_log(log, "a") == [1, 1], "one of each name"


async def test_transaction_of_another_process_ends_the_call(mq: RocksMQ, log: WALAccesser) -> None:
    async with RmqMsgStream(mq) as producer, RmqMsgStream(mq) as stream:
        await producer.as_producer(["a"])
        await produce(producer, row(1))
        assert await copy(mq, log, least=1) == 1
        running = asyncio.ensure_future(migrate(stream, log, channels=["a"], name="move"))
        while not stream.statistics().channels:
            await asyncio.sleep(0)
        (position,) = (await producer.produce(MsgPack([row(2)])))["a"]
        kept = {MIGRATION: "move", OLD_POSITION: str(OldPosition(2, 3, 3, position.msg_id, "a")), MSG_TYPE: "400"}
        late = Message("a", row(2).marshal(), properties=kept)
        key = ProducerKey("move/a", 2)
        result = await log.append_txn("a", [late], idempotency_key=key)
        if result.duplicate:  # the call was faster, and would wait for more messages
            running.cancel()
        with pytest.raises((LockedError, asyncio.CancelledError), match=None if result.duplicate else "in the log already"):
            await running
    await copy(mq, log, least=2 - len(await in_log(log, "a")))
    assert await in_log(log, "a") == [1, 2]


async def test_consumers_continue_at_the_translated_position(mq: RocksMQ, log: WALAccesser) -> None:
    async with RmqMsgStream(mq) as producer, RmqMsgStream(mq) as old:
        await producer.as_producer(["a"])
        for first in range(0, 30, 10):
            await produce(producer, *(row(n) for n in range(first, first + 10)))
        await old.as_consumer(["a"], "s")
        positions = {number(msg): msg.position for pack in await consume_messages(old, 30) for msg in pack.msgs}
        await copy(mq, log, {"a": "new a"}, least=30)
    for n in (0, 5, 9, 10, 28):
        position = positions[n]
        assert position is not None
        async with WalMsgStream(log) as stream:
            await stream.as_consumer(["new a"], f"after {n}")
            found = await translate(log, position, name="move", vchannel="new a")
            assert found.channel_name == "new a"
            await stream.seek(found)
            assert numbers(await consume_messages(stream, 29 - n)) == list(range(n + 1, 30))
    for wrong in (MsgPosition("a", bytes(8)), MsgPosition("b", bytes(8))):
        with pytest.raises(InvalidArgumentError, match="not among those that migration 'move' copied to 'new a'"):
            await translate(log, wrong, name="move", vchannel="new a")
    last = positions[29]
    assert last is not None
    for options in ({"name": "other", "vchannel": "new a"}, {"name": "move"}):
        with pytest.raises(InvalidArgumentError):
            await translate(log, last, **options)  # type: ignore[arg-type]
    async with WalMsgStream(log) as stream:
        await stream.as_producer(["new a"])
        await stream.as_consumer(["new a"], "last")
        await stream.seek(await translate(log, last, name="move", vchannel="new a"))
        await produce(stream, row(30))
        assert numbers([await consume(stream)]) == [30]


@pytest.mark.parametrize("packs_before", [1, 2, 3])
async def test_consumers_with_time_ticks_lose_nothing(mq: RocksMQ, log: WALAccesser, packs_before: int) -> None:
    """Messages arrive out of order: some below the tick are redelivered, none above it is missing."""

    async def old_end(mq: RocksMQ) -> list[MsgPosition]:
        """Returns the position of a time-ticked stream after all messages."""
        async with RmqTtMsgStream(mq) as old:
            await old.as_consumer(["a"], "end")
            while (pack := await consume(old)).end_ts < 40:
                pass
            return pack.end_positions

    async with RmqMsgStream(mq) as producer, RmqTtMsgStream(mq) as old:
        await producer.as_producer(["a"])
        stamps = [3, 12, 5, 9, 25, 14, 11, 19, 31, 22, 35, 28]
        msgs: list[Any] = [row(n, stamp) for n, stamp in enumerate(stamps)]
        msgs[4:4], msgs[9:9] = [tick(10)], [tick(20)]
        await produce(producer, *msgs, tick(30), tick(40))
        await old.as_consumer(["a"], "s")
        packs = [await consume(old) for _ in range(packs_before)]
        handled = set(numbers(packs))
        await copy(mq, log, least=len(stamps))
    position = await translate(log, packs[-1].end_positions[0], name="move", time_ticked=True)
    everything = set(range(len(stamps)))
    for kind, name in ((WalMsgStream, "plain"), (WalTtMsgStream, "ticked")):
        async with kind(log) as new:
            await new.as_consumer(["a"], name)
            await new.seek(position)
            found: list[int] = []
            while not everything - handled <= set(found):
                found += numbers([await consume(new)])
        assert found == sorted(set(found))
        again = set(found) & handled
        assert all(n > min(set(found) - handled) for n in again), "only what arrived after the first one that was left"
    end = (await old_end(mq))[0]
    assert (await translate(log, end, name="move", time_ticked=True)).timestamp > position.timestamp - 1


async def test_wrong_arguments_are_told_before_anything_is_done(mq: RocksMQ, log: WALAccesser, opened: Callable[..., Any]) -> None:
    stream = await opened(RmqMsgStream(mq))
    ticked = await opened(RmqTtMsgStream(mq))
    with pytest.raises(TypeError, match="copies a MsgStream"):
        await migrate(ticked, log, channels=["a"], name="move")
    with pytest.raises(InvalidArgumentError, match="name is empty"):
        await migrate(stream, log, channels=["a"], name="")
    with pytest.raises(InvalidArgumentError, match="channels is empty"):
        await migrate(stream, log, channels=[], name="move")
    with pytest.raises(TypeError, match="channels must be"):
        await migrate(stream, log, channels="a", name="move")
    with pytest.raises(InvalidArgumentError, match="begins with '_'"):
        await migrate(stream, log, channels=["a"], name="_move")
    with pytest.raises(InvalidArgumentError, match="idle_s=0: give a number of seconds above 0"):
        await migrate(stream, log, channels=["a"], name="move", idle_s=0)
    with pytest.raises(TypeError, match="idle_s must be a number of seconds"):
        await migrate(stream, log, channels=["a"], name="move", idle_s="1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="into an open log"):
        await migrate(stream, "data/", channels=["a"], name="move")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="into an open log"):
        await translate("data/", MsgPosition("a", b"id"), name="move")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the MsgPosition of a message"):
        await translate(log, b"id", name="move")  # type: ignore[arg-type]
    assert mq.channels() == []
    await stream.as_consumer(["a"], "s")
    await stream.start()
    with pytest.raises(InvalidArgumentError, match="before start"):
        await migrate(stream, log, channels=["a"], name="move")
