"""ScannerNode reads a log in ticks that are the same in every run, and continues after the committed ticks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.probes import first_of
from wal import ImmutableMessage, Message, MessageType, MessageTypes, StartAfter, WALAccesser, open_wal
from wal.errors import InvalidArgumentError
from wal.streams.flowgraph import TimeTickedFlowGraph
from wal.streams.flowgraph.nodes import BatchMsg, FunctionNode, ScannerNode, WalSinkNode


@pytest.fixture
async def log(data_dir: Path) -> AsyncIterator[WALAccesser]:
    async with open_wal(data_dir, time_tick_interval_s=0.01) as opened:
        yield opened


@asynccontextmanager
async def source(log: WALAccesser, vchannel: str = "orders", **options: Any) -> AsyncIterator[ScannerNode]:
    node = ScannerNode("source", log, vchannel, cursor="graph", **options)
    async with aclosing(_Closing(node)):
        yield node


class _Closing:
    def __init__(self, node: ScannerNode) -> None:
        self.aclose = node.close


async def next_tick(node: ScannerNode) -> BatchMsg | None:
    """Returns the node's next tick, None at its end."""
    given = await node.operate([])
    if not given:
        return None
    (msg,) = given
    assert isinstance(msg, BatchMsg)
    return msg


async def full_ticks(node: ScannerNode, messages: int) -> list[tuple[int, list[bytes]]]:
    """Returns the ticks with messages, up to this many messages."""
    ticks: list[tuple[int, list[bytes]]] = []
    last = -1
    while sum(len(payloads) for _, payloads in ticks) < messages:
        msg = await next_tick(node)
        assert msg is not None
        assert msg.time_tick > last
        last = msg.time_tick
        if msg.messages:
            ticks.append((msg.time_tick, [body.payload for one in msg.messages for body in one.bodies()]))
    return ticks


async def numbered(log: WALAccesser, count: int) -> list[bytes]:
    payloads = [b"%d" % number for number in range(count)]
    for payload in payloads:
        if payload.endswith(b"3"):
            await log.append_txn("orders", [payload])
        else:
            await log.raw_append(Message("orders", payload))
    return payloads


@pytest.mark.parametrize("tick_interval_s", [0.0, 0.001, 0.02])
async def test_scanner_node_replays_uncommitted_ticks(log: WALAccesser, tick_interval_s: float) -> None:
    payloads = await numbered(log, 60)
    async with source(log, tick_interval_s=tick_interval_s) as node:
        ticks = await full_ticks(node, 60)
    assert [payload for _, tick in ticks for payload in tick] == payloads
    for at, (tick, _) in enumerate(ticks[:-1]):
        async with source(log, tick_interval_s=tick_interval_s) as node:
            left = sum(len(one) for _, one in ticks[at:])
            assert await full_ticks(node, left) == ticks[at:]
            await node.commit(tick)  # although later ticks were given


async def test_frame_is_a_tick(log: WALAccesser) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(log.raw_append(Message("orders", b"%d" % number)))
    async with log.read("orders", follow=False) as scanner:
        pages = [[message.payload for message in page] async for page in scanner.batches()]
    async with source(log, follow=False) as node:
        assert [payloads for _, payloads in await full_ticks(node, 20)] == pages
        while (msg := await next_tick(node)) is not None:
            assert not msg.messages


async def test_quiet_log_gives_ticks_without_messages(log: WALAccesser) -> None:
    result = await log.raw_append(Message("orders", b"only"))
    async with source(log, tick_interval_s=0.02) as node:
        assert [payloads for _, payloads in await full_ticks(node, 1)] == [[b"only"]]
        for _ in range(3):
            msg = await next_tick(node)
            assert msg is not None
            assert not msg.messages
            await node.commit(msg.time_tick)
        (cursor,) = await log.cursors()
        assert cursor.position is not None
        assert cursor.position.message_id == result.message_id


async def test_vchannel_that_is_created_later(log: WALAccesser) -> None:
    await log.raw_append(Message("other", b"before"))
    async with source(log) as node:
        msg = await next_tick(node)
        assert msg is not None
        assert not msg.messages
        await node.commit(msg.time_tick)
        await log.create_vchannel("orders", pchannel="p0")
        await log.raw_append(Message("orders", b"first"))
        ((tick, payloads),) = await full_ticks(node, 1)
        assert payloads == [b"first"]
        await node.commit(tick)
    async with source(log, follow=False) as node:
        while (msg := await next_tick(node)) is not None:
            assert not msg.messages


async def test_policy_and_filters_are_those_of_a_read(log: WALAccesser) -> None:
    first = await log.raw_append(Message("orders", b"0"))
    await log.raw_append(Message("orders", b"1", message_type=MessageType.DELETE))
    await log.raw_append(Message("orders", b"2"))
    policy, filters = StartAfter(first.message_id), MessageTypes(MessageType.INSERT)
    async with source(log, deliver_policy=policy, filters=filters) as node:
        assert [payloads for _, payloads in await full_ticks(node, 1)] == [[b"2"]]


@pytest.mark.parametrize("interval_s", [0.0, 0.001])
async def test_failures_at_any_tick_lose_and_repeat_nothing(log: WALAccesser, interval_s: float) -> None:
    async def joined(log: WALAccesser, name: str, last: int, function: Callable[[int], None], *, interval_s: float) -> bool:
        """Copies the vchannels a and b to the vchannel `name`, up to the tick `last`; returns False if the function failed."""
        finished = asyncio.Event()

        def merge(tick: int, *inputs: Sequence[ImmutableMessage]) -> list[bytes]:
            function(tick)
            if tick >= last:
                finished.set()
            return [b"%d: " % tick + body.payload for one in inputs for message in one for body in message.bodies()]

        graph = TimeTickedFlowGraph()
        for vchannel in "ab":
            graph.add_node(ScannerNode(vchannel, log, vchannel, cursor=name, tick_interval_s=interval_s))
            graph.set_edges(vchannel, out=["merge"])
        graph.add_node(FunctionNode("merge", merge))
        graph.add_node(WalSinkNode("sink", log, name))
        graph.set_edges("merge", in_=["a", "b"], out=["sink"])
        graph.set_edges("sink", in_=["merge"])
        async with graph:
            await first_of(finished.wait(), graph.done())
        return graph.error is None

    random = Random(3)
    sent = [b"%d" % number for number in range(150)]
    left = sent.copy()
    while left:
        vchannel, count = random.choice("ab"), random.choice([1, 1, 3])
        await log.append_txn(vchannel, left[:count])
        del left[:count]
    last = await log.allocate_time_tick()
    assert await joined(log, "once", last, lambda tick: None, interval_s=interval_s)

    calls = 0

    def fails(tick: int) -> None:
        nonlocal calls
        calls += 1
        if calls in (2, 7, 8, 14):
            raise OSError("no room")

    runs = 1
    while not await joined(log, "failing", last, fails, interval_s=interval_s):
        runs += 1
    found = []
    for vchannel in ("once", "failing"):
        async with log.read(vchannel, follow=False) as scanner:
            found.append([[body.payload for body in message.bodies()] async for message in scanner])
    assert [txn for txn in found[1] if txn] == [txn for txn in found[0] if txn]
    payloads = [payload.partition(b": ")[2] for txn in found[0] for payload in txn]
    assert sorted(payloads, key=int) == sent
    assert runs > 4


async def test_wrong_arguments_are_refused(log: WALAccesser) -> None:
    with pytest.raises(TypeError, match="reads an open log"):
        ScannerNode("source", "data/", "orders", cursor="graph")  # type: ignore[arg-type]
    for interval in (-1.0, 0.0005, 3601.0, float("nan")):
        with pytest.raises(InvalidArgumentError, match=r"tick_interval_s=.* is out of range: 0, or 0.001 to 3600"):
            ScannerNode("source", log, "orders", cursor="graph", tick_interval_s=interval)
    with pytest.raises(InvalidArgumentError, match="the last interval might grow"):
        ScannerNode("source", log, "orders", cursor="graph", tick_interval_s=0.1, follow=False)
    with pytest.raises(InvalidArgumentError, match="names no vchannel"):
        ScannerNode("source", log, [], cursor="graph")
    with pytest.raises(InvalidArgumentError, match="cursor is empty"):
        ScannerNode("source", log, "orders", cursor="")
    for name in (None, 7):
        with pytest.raises(TypeError, match="a cursor is named by a str"):
            ScannerNode("source", log, "orders", cursor=name)  # type: ignore[arg-type]
    for seconds in (None, "1", True):
        with pytest.raises(TypeError, match="tick_interval_s of node 'source' must be a number of seconds"):
            ScannerNode("source", log, "orders", cursor="graph", tick_interval_s=seconds)  # type: ignore[arg-type]


async def test_two_nodes_on_one_cursor_are_refused(log: WALAccesser) -> None:
    await numbered(log, 4)
    async with source(log) as node:
        assert await full_ticks(node, 4)
        second, elsewhere = (ScannerNode("second", log, "orders", cursor=cursor) for cursor in ("graph", "another"))
        with pytest.raises(InvalidArgumentError, match="node 'source' reads with cursor 'graph' already, and node 'second'"):
            await next_tick(second)
        assert await full_ticks(elsewhere, 4)
        await second.close()  # does not end the claim of the first
        with pytest.raises(InvalidArgumentError, match="node 'source'"):
            await next_tick(ScannerNode("third", log, "orders", cursor="graph"))
        await elsewhere.close()
    async with source(log) as later:
        assert await full_ticks(later, 4)
