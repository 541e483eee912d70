"""ScannerNode gives a log in ticks that are the same at every reading, and continues after what was committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from wal import Message, MessageType, MessageTypes, StartAfter, WALAccesser, open_wal
from wal.errors import InvalidArgumentError
from wal.flowgraph.nodes import BatchMsg, ScannerNode


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
    """Returns the ticks that have messages, up to so many messages."""
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
async def test_it_continues_after_what_was_committed_with_the_same_ticks(
    log: WALAccesser, tick_interval_s: float
) -> None:
    payloads = await numbered(log, 60)
    async with source(log, tick_interval_s=tick_interval_s) as node:
        ticks = await full_ticks(node, 60)
    assert [payload for _, tick in ticks for payload in tick] == payloads
    for at, (tick, _) in enumerate(ticks[:-1]):
        async with source(log, tick_interval_s=tick_interval_s) as node:
            left = sum(len(one) for _, one in ticks[at:])
            assert await full_ticks(node, left) == ticks[at:]
            await node.commit(tick)  # although later ticks were given


async def test_a_frame_is_a_tick(log: WALAccesser) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(log.raw_append(Message("orders", b"%d" % number)))
    async with log.read("orders", follow=False) as scanner:
        pages = [[message.payload for message in page] async for page in scanner.batches()]
    async with source(log, follow=False) as node:
        assert [payloads for _, payloads in await full_ticks(node, 20)] == pages
        while (msg := await next_tick(node)) is not None:
            assert not msg.messages


async def test_a_quiet_log_gives_ticks_without_messages(log: WALAccesser) -> None:
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


async def test_a_vchannel_that_is_created_later(log: WALAccesser) -> None:
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
