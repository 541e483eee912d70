"""MsgStreamNode and ProduceNode in graphs over memory streams: packs that have not passed a sink are redelivered, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any

import pytest

from tests.probes import first_of
from wal import open_wal
from wal.errors import InvalidArgumentError
from wal.streams.flowgraph import Node, NodeFailedError, TimeTickedFlowGraph
from wal.streams.flowgraph.nodes import FunctionNode, MsgStreamNode, ProduceNode, WalSinkNode
from wal.streams.msgstream import MsgPack, MsgStream, MsgType, OpaqueMsg, TimeTickMsg, TsMsg, TtMsgStream, UnmarshalDispatcher
from wal.streams.msgstream.media.memory import MemoryMedium


@pytest.fixture
async def medium() -> AsyncIterator[MemoryMedium]:
    medium = MemoryMedium()
    yield medium
    await medium.close()


def message(ts: int) -> OpaqueMsg:
    return OpaqueMsg(MsgType.FLUSH, b"%d" % ts, timestamp=ts, id=ts + 1, hash_keys=(ts,))


def numbers(messages: Sequence[TsMsg]) -> list[int]:
    return [one.end_ts for one in messages]


async def produce(medium: MemoryMedium, channels: Sequence[str], *packs: tuple[Sequence[int], int]) -> None:
    """Produces packs, each with the timestamps of its messages and its tick."""
    async with MsgStream(medium) as stream:
        await stream.as_producer(channels)
        for timestamps, tick in packs:
            await stream.produce(MsgPack([message(ts) for ts in timestamps]))
            await stream.broadcast(MsgPack([TimeTickMsg(timestamp=tick)]))


async def consumer(medium: MemoryMedium, channels: Sequence[str], sub_name: str = "graph") -> TtMsgStream:
    stream = TtMsgStream(medium, auto_ack=False)
    await stream.as_consumer(channels, sub_name)
    return stream


def chain(*nodes: Node) -> TimeTickedFlowGraph:
    """Returns a graph of nodes in a line."""
    graph = TimeTickedFlowGraph()
    for node in nodes:
        graph.add_node(node)
    names = [node.name for node in nodes]
    for at, name in enumerate(names):
        graph.set_edges(name, in_=names[max(at - 1, 0) : at], out=names[at + 1 : at + 2])
    return graph


class Collect:
    """The function of a sink: stores its inputs, and signals each tick."""

    def __init__(self, last: int) -> None:
        self.ticks: dict[int, list[int]] = {}
        self.last = last
        self.reached = asyncio.Event()

    def __call__(self, tick: int, *inputs: Sequence[TsMsg]) -> None:
        self.ticks[tick] = [number for messages in inputs for number in numbers(messages)]
        if tick >= self.last:
            self.reached.set()


async def test_packs_are_ticks_and_acked_once_they_passed(medium: MemoryMedium) -> None:
    await produce(medium, ["a", "b"], ([1, 2, 3], 10), ([12, 15], 20), ([], 30), ([31], 40))
    collect = Collect(40)
    async with await consumer(medium, ["a", "b"]) as stream:
        async with chain(MsgStreamNode("source", stream), FunctionNode("sink", collect)):
            await collect.reached.wait()
        assert {tick: sorted(found) for tick, found in collect.ticks.items()} == {
            10: [1, 2, 3], 20: [12, 15], 30: [], 40: [31],
        }  # fmt: skip
    await produce(medium, ["a", "b"], ([42], 50))
    collect = Collect(50)
    async with await consumer(medium, ["a", "b"]) as stream, chain(MsgStreamNode("source", stream), FunctionNode("sink", collect)):
        await collect.reached.wait()
    assert [found for found in collect.ticks.values() if found] == [[42]], "what was acknowledged does not come again"


async def test_packs_before_the_sink_come_again(medium: MemoryMedium) -> None:
    await produce(medium, ["a"], ([1], 10), ([11], 20), ([21], 30))

    def fails(tick: int, messages: Sequence[TsMsg]) -> None:
        if tick == 20:
            raise OSError("no room")

    async with await consumer(medium, ["a"]) as stream:
        graph = chain(MsgStreamNode("source", stream), FunctionNode("sink", fails))
        async with graph:
            await graph.done()
        assert isinstance(graph.error, NodeFailedError)
        assert str(graph.error) == "node 'sink' failed at tick 20: OSError: no room"
    collect = Collect(30)
    async with await consumer(medium, ["a"]) as stream, chain(MsgStreamNode("source", stream), FunctionNode("sink", collect)):
        await collect.reached.wait()
    assert [found for found in collect.ticks.values() if found] == [[11], [21]]


async def test_stream_that_ends_ends_the_graph(medium: MemoryMedium) -> None:
    await produce(medium, ["a"], ([1], 10))
    collect = Collect(10)
    stream = await consumer(medium, ["a"])
    graph = chain(MsgStreamNode("source", stream), FunctionNode("sink", collect))
    async with graph:
        await collect.reached.wait()
        await stream.close()
        await graph.done()
    assert graph.error is None


async def test_statistics_name_the_silent_channel(medium: MemoryMedium) -> None:
    await produce(medium, ["a", "b"], ([1], 10))
    await produce(medium, ["a"], ([11], 20))
    collect = Collect(10)
    async with await consumer(medium, ["a", "b"]) as stream:
        graph = chain(MsgStreamNode("source", stream), FunctionNode("sink", collect))
        async with graph:
            await collect.reached.wait()
            while graph.statistics().nodes[0].waits_for != ("b",):
                await asyncio.sleep(0)
            assert "waits for b" in graph.to_mermaid()


async def test_produced_ticks_are_consumed_by_another_stream(medium: MemoryMedium) -> None:
    await produce(medium, ["a"], ([1, 2], 10), ([], 20), ([21, 22, 23], 30))
    async with await consumer(medium, ["a"]) as stream, MsgStream(medium) as out, await consumer(medium, ["x", "y"], "reader") as reader:
        await out.as_producer(["x", "y"])
        odd = FunctionNode("odd", lambda tick, messages: [one for one in messages if one.end_ts % 2])
        async with chain(MsgStreamNode("source", stream), odd, ProduceNode("sink", out, time_ticks=True)):
            packs = [await reader.consume() for _ in range(3)]
    assert [(pack.end_ts, sorted(numbers(pack.msgs))) for pack in packs if pack is not None] == [
        (10, [1]), (20, []), (30, [21, 23]),
    ]  # fmt: skip


async def test_tick_that_is_produced_again_is_consumed_once(medium: MemoryMedium) -> None:
    await produce(medium, ["a"], ([1, 2], 10), ([11], 20))

    async def copy() -> None:
        async with await consumer(medium, ["a"]) as stream, MsgStream(medium) as out:
            await out.as_producer(["x"])
            graph = TimeTickedFlowGraph()
            graph.add_node(MsgStreamNode("source", stream))
            graph.add_node(ProduceNode("sink", out, time_ticks=True))
            graph.add_node(FunctionNode("other sink", fails))
            graph.set_edges("source", out=["sink", "other sink"])
            graph.set_edges("sink", in_=["source"])
            graph.set_edges("other sink", in_=["source"])
            async with graph:
                await graph.done()
            assert graph.error is not None

    def fails(tick: int, messages: Sequence[TsMsg]) -> None:
        if tick == 20:
            raise OSError("no room")

    await copy()
    await copy()
    async with await consumer(medium, ["x"], "reader") as reader:
        packs = [await reader.consume() for _ in range(2)]
        assert [(pack.end_ts, numbers(pack.msgs)) for pack in packs if pack is not None] == [(10, [1, 2]), (20, [11])]


async def test_wrong_input_is_refused(medium: MemoryMedium) -> None:
    with pytest.raises(TypeError, match="consumes a TtMsgStream, whose packs are ticks, not MsgStream"):
        MsgStreamNode("source", MsgStream(medium))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="auto_ack=False"):
        MsgStreamNode("source", TtMsgStream(medium))
    with pytest.raises(TypeError, match="produces into a MsgStream, not into str"):
        ProduceNode("sink", "x")  # type: ignore[arg-type]
    await produce(medium, ["a"], ([1], 10))
    async with await consumer(medium, ["a"]) as stream, MsgStream(medium) as out:
        await out.as_producer(["x"])
        text = FunctionNode("text", lambda tick, messages: ["text"])
        graph = chain(MsgStreamNode("source", stream), text, ProduceNode("sink", out))
        async with graph:
            await graph.done()
        assert graph.error is not None
        with pytest.raises(TypeError, match="node 'sink' produces TsMsg, not str: make one of it in a FunctionNode"):
            raise graph.error.__cause__ or graph.error


# -- failures at any tick


@pytest.mark.parametrize("seed", range(15))
async def test_failures_at_any_tick_lose_and_repeat_nothing(seed: int) -> None:
    class Feed:
        """Two streams with random messages and ticks: of several channels, out of order within a tick and beyond it."""

        def __init__(self, random: Random) -> None:
            self.channels = [[f"{name}{n}" for n in range(random.randrange(1, 4))] for name in "ab"]
            self.packs: list[list[tuple[str, list[OpaqueMsg]]]] = []
            number = 0
            for channels in self.channels:
                sent: list[tuple[str, list[OpaqueMsg]]] = []
                for channel in channels:
                    tick = 0
                    while tick < 60:
                        messages = []
                        for _ in range(random.randrange(4)):
                            number += 1
                            ts = tick + 1 + random.randrange(random.choice([3, 30]))
                            messages.append(OpaqueMsg(MsgType.FLUSH, b"%d" % number, timestamp=ts, id=number))
                        tick = min(tick + random.randrange(1, 20), 60)
                        sent.append((channel, [*messages, TimeTickMsg(timestamp=tick)]))  # type: ignore[list-item]
                    sent.append((channel, [TimeTickMsg(timestamp=100)]))  # type: ignore[list-item]
                self.packs.append(sent)

        async def send(self, medium: MemoryMedium) -> None:
            for sent in self.packs:
                for channel, messages in sent:
                    async with MsgStream(medium) as stream:
                        await stream.as_producer([channel])
                        await stream.broadcast(MsgPack(messages))

    async def run(medium: MemoryMedium, feed: Feed, log: Any, name: str, function: Callable[..., Any], *, fail: bool) -> bool:
        """Copies both streams to a vchannel until tick 100 or a failure; returns whether it reached tick 100."""
        streams = [await consumer(medium, channels, name) for channels in feed.channels]
        finished = asyncio.Event()

        def merge(tick: int, left: Sequence[TsMsg], right: Sequence[TsMsg]) -> list[TsMsg]:
            if tick == 100:
                finished.set()
            function(tick)
            return [one for one in (*left, *right) if one.id % 3]

        graph = TimeTickedFlowGraph()
        for stream, source in zip(streams, "ab", strict=True):
            graph.add_node(MsgStreamNode(source, stream))
            graph.set_edges(source, out=["merge"])
        graph.add_node(FunctionNode("merge", merge))
        graph.add_node(WalSinkNode("sink", log, name))
        graph.set_edges("merge", in_=["a", "b"], out=["sink"])
        graph.set_edges("sink", in_=["merge"])
        async with graph:
            await first_of(finished.wait(), graph.done())
        for stream in streams:
            await stream.close()
        assert (graph.error is None) or fail
        return graph.error is None

    random = Random(seed)
    feed = Feed(random)
    medium = MemoryMedium()
    await feed.send(medium)
    async with open_wal("memory:") as log:
        assert await run(medium, feed, log, "once", lambda tick: None, fail=False)

        left = random.randrange(1, 6)

        def fails(tick: int) -> None:
            nonlocal left
            if left and random.random() < 0.2:
                left -= 1
                raise OSError("no room")

        while not await run(medium, feed, log, "failing", fails, fail=True):
            pass
        found = []
        for vchannel in ("once", "failing"):
            async with log.read(vchannel, follow=False) as scanner:
                found.append([[body.payload for body in message.bodies()] async for message in scanner])
    await medium.close()
    assert found[0] == found[1]
    sent = [one.id for packs in feed.packs for _, messages in packs for one in messages if one.id % 3]
    decode = UnmarshalDispatcher().unmarshal
    assert sorted(decode(payload).id for payloads in found[0] for payload in payloads) == sorted(sent)
