"""WalSinkNode writes each tick once, across any replay and reopening of the log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from wal import ImmutableTxnMessage, Message, MessageType, WALAccesser, open_wal
from wal.errors import InvalidArgumentError
from wal.streams.flowgraph import Msg, SkipTickMsg
from wal.streams.flowgraph.nodes import BatchMsg, WalSinkNode
from wal.streams.msgstream import InsertMsg, MsgType, OpaqueMsg, TimeTickMsg, TsMsg
from wal.streams.msgstream.media.wal import WalMsgStream


@pytest.fixture
async def log(data_dir: Path) -> AsyncIterator[WALAccesser]:
    async with open_wal(data_dir) as opened:
        yield opened


async def write(node: WalSinkNode, tick: int, *inputs: Sequence[Any] | None) -> None:
    """Has the node write a tick, as a graph does; None is an in-edge without this tick."""
    msgs: list[Msg] = [SkipTickMsg(tick) if given is None else BatchMsg(tick, given) for given in inputs]
    assert await node.operate(msgs) is None  # type: ignore[func-returns-value]


async def written(log: WALAccesser, vchannel: str = "copy") -> list[list[bytes]]:
    """Returns the payloads of each transaction in the log."""
    async with log.read(vchannel, follow=False) as scanner:
        messages = [message async for message in scanner]
    assert all(isinstance(message, ImmutableTxnMessage) for message in messages)
    return [[body.payload for body in message.bodies()] for message in messages]


async def test_tick_is_a_transaction(log: WALAccesser) -> None:
    node = WalSinkNode("sink", log, "copy")
    await write(node, 5, [b"a"], [b"b", b"c"])
    await write(node, 6, [], None)
    await write(node, 9, None, [b"d"])
    assert await written(log) == [[b"a", b"b", b"c"], [b"d"]]
    (producer,) = await log.producers()
    assert (producer.name, producer.vchannels, producer.last_sequence) == ("sink", ("copy",), 9)
    counts = node.statistics()
    assert (counts.ticks, counts.messages, counts.duplicate_ticks, counts.recorded_tick) == (2, 4, 0, 9)


async def test_replayed_ticks_are_not_written_again(data_dir: Path) -> None:
    ticks = range(3, 90, 3)  # more than the results that a log keeps of a producer
    for last in (10, 40, 70, 90):
        async with open_wal(data_dir) as log:
            node = WalSinkNode("sink", log, "copy")
            before = len(await written(log))
            for tick in ticks:
                if tick < last:
                    await write(node, tick, [b"%d" % tick])
            assert node.statistics().duplicate_ticks == before
            assert await written(log) == [[b"%d" % tick] for tick in ticks if tick < last]


async def test_tick_is_recorded_by_a_later_one_too(log: WALAccesser) -> None:
    node = WalSinkNode("sink", log, "copy")
    recorded = []
    for tick, messages in enumerate([[], [b"a"], *[[]] * 256, [], [b"b"]]):
        await write(node, tick, messages)
        recorded.append(node.recorded_tick)
    assert recorded == [None, *[1] * 256, 257, 257, 259]
    assert await written(log) == [[b"a"], [], [b"b"]]
    again = WalSinkNode("sink", log, "copy")
    await write(again, 257, [b"replayed, but known"])
    assert (again.recorded_tick, await written(log)) == (257, [[b"a"], [], [b"b"]])


async def test_other_producers_and_vchannels_have_their_own_ticks(log: WALAccesser) -> None:
    await write(WalSinkNode("one", log, "copy"), 7, [b"1"])
    await write(WalSinkNode("two", log, "copy"), 3, [b"2"])
    await write(WalSinkNode("other", log, "copy", producer="one"), 4, [b"lower than 7"])
    await write(WalSinkNode("one", log, "else"), 2, [b"3"])
    assert (await written(log), await written(log, "else")) == ([[b"1"], [b"2"]], [[b"3"]])


async def test_failed_tick_is_written_by_the_next_graph(log: WALAccesser) -> None:
    def to_messages(number: int) -> list[bytes]:
        if number == 2 and not repaired:
            raise ValueError("no form")
        return [b"%d" % number]

    repaired = False
    for _ in range(2):
        node = WalSinkNode("sink", log, "copy", to_messages=to_messages)
        with contextlib.suppress(ValueError):
            for tick in range(1, 5):
                await write(node, tick, [tick])
        repaired = True
    assert await written(log) == [[b"1"], [b"2"], [b"3"], [b"4"]]
    with pytest.raises(InvalidArgumentError, match=r"max_parallelism=2 of node 'sink'.*leave it at 1"):
        node.set_max_parallelism(2)


async def test_messages_are_copied_with_type_and_properties(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"a", message_type=MessageType.DELETE, properties={"k": "v"}))
    await log.append_txn("orders", [b"b", b"c"])
    async with log.read("orders", follow=False) as scanner:
        await write(WalSinkNode("sink", log, "copy"), 1, [message async for message in scanner])
    async with log.read("copy", follow=False) as scanner:
        bodies = [body async for message in scanner for body in message.bodies()]
    assert [(body.payload, body.message_type, body.properties) for body in bodies] == [
        (b"a", MessageType.DELETE, {"k": "v"}),
        (b"b", MessageType.INSERT, {}),
        (b"c", MessageType.INSERT, {}),
    ]


async def test_stream_messages_are_written_in_their_wire_form(log: WALAccesser) -> None:
    messages = [
        InsertMsg(timestamps=(3,), row_ids=(8,), row_data=(b"row",), hash_keys=(1,)),
        OpaqueMsg(MsgType.DELETE, b"body", timestamp=4),
        TimeTickMsg(timestamp=5),
    ]
    await write(WalSinkNode("sink", log, "copy"), 5, messages)
    async with log.read("copy", follow=False) as scanner:
        bodies = [body async for message in scanner for body in message.bodies()]
    assert [body.payload for body in bodies] == [message.marshal() for message in messages]
    assert [body.properties for body in bodies] == [{"msg_type": "400"}, {"msg_type": "401"}, {"msg_type": "1200"}]
    kinds = [MessageType.INSERT, MessageType.DELETE, MessageType.INSERT]
    assert [body.message_type for body in bodies] == kinds


async def test_stream_over_the_log_reads_what_was_written(log: WALAccesser) -> None:
    sent = [OpaqueMsg(MsgType.FLUSH, b"%d" % n, timestamp=n, id=n) for n in range(1, 6)]
    node = WalSinkNode("sink", log, "copy")
    await write(node, 3, sent[:3])
    await write(node, 9, sent[3:])
    async with WalMsgStream(log) as stream:
        await stream.as_consumer(["copy"], "reader")
        found: list[TsMsg] = []
        while len(found) < 5:
            pack = await stream.consume()
            assert pack is not None
            found += pack.msgs
    assert [(msg.id, msg.msg_type, msg.body) for msg in found if isinstance(msg, OpaqueMsg)] == [
        (msg.id, msg.msg_type, msg.body) for msg in sent
    ]


async def test_function_makes_the_messages(log: WALAccesser) -> None:
    await log.create_vchannel("odd", pchannel="p0")
    await log.create_vchannel("even", pchannel="p0")

    def to_messages(number: int) -> list[Message]:
        return [Message("odd" if number % 2 else "even", b"%d" % number)] * (number > 0)

    node = WalSinkNode("sink", log, ["odd", "even"], to_messages=to_messages)
    await write(node, 1, [0, 1, 2, 3])
    await write(node, 2, [0])
    assert (await written(log, "odd"), await written(log, "even")) == ([[b"1", b"3"]], [[b"2"]])
    assert [producer.last_sequence for producer in await log.producers()] == [1]


async def test_wrong_input_is_refused_before_anything_is_written(log: WALAccesser) -> None:
    with pytest.raises(TypeError, match="writes to an open log"):
        WalSinkNode("sink", "data/", "copy")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="names no vchannel"):
        WalSinkNode("sink", log, [])
    with pytest.raises(InvalidArgumentError, match="producer ''"):
        WalSinkNode("sink", log, "copy", producer="")
    node = WalSinkNode("sink", log, "copy")
    with pytest.raises(TypeError, match=r"no form of int.*to_messages"):
        await write(node, 1, [b"fine", 7])
    with pytest.raises(TypeError, match=r"takes BatchMsg, not str"):
        await node.operate([BatchMsg(1, [b"fine"]), "text"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgumentError, match="sequence 9223372036854775808"):
        await write(node, 1 << 63, [b"fine"])
    with pytest.raises(InvalidArgumentError, match="txn_bodies_max"):
        await write(node, 2, [b""] * 4097)
    with pytest.raises(TypeError, match="no form of InsertMsg"):
        await write(WalSinkNode("two", log, ["a", "b"]), 3, [InsertMsg(timestamps=(3,), row_ids=(8,), row_data=(b"",), hash_keys=(1,))])
    with pytest.raises(TypeError, match="to_messages of node 'sink' must be a function"):
        WalSinkNode("sink", log, "copy", to_messages=7)  # type: ignore[arg-type]
    for wrong in (None, b"bytes", "text", 7):
        with pytest.raises(TypeError, match=rf"to_messages of node 'sink' returned {wrong!r}: return messages"):
            await write(WalSinkNode("sink", log, "copy", to_messages=lambda _, wrong=wrong: wrong), 3, [b"any"])  # type: ignore[misc]
    assert await log.producers() == []
    await write(node, 1, [b"fine"])
    assert await written(log) == [[b"fine"]]
