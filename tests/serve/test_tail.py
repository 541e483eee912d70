"""FollowTail: what feeds a remote pchannel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.serve.servers import Serving
from tests.serve.test_produce import assigned
from wal.errors import ClosedError, InvalidArgumentError, WALError
from wal.message import Message
from wal.requests.vchannels import AllocateTimeTicks
from wal.rpc.api.frames_pb2 import FollowTailRequest
from wal.rpc.api.pchannel_pb2 import PChannelInfo, TailState
from wal.rpc.connection import Connection
from wal.rpc.converters import position_from_proto
from wal.rpc.methods import FOLLOW_TAIL


class Feed:
    """One stream of the tail, and the last tail that it has sent."""

    def __init__(self, stream: Any, tail: TailState) -> None:
        self.stream = stream
        self.tail = tail

    @classmethod
    async def open(cls, connection: Connection, *, info: PChannelInfo | None = None, incarnation: int = 0) -> Feed:
        stream = await connection.stream(FOLLOW_TAIL, "feeding")
        await stream.write_if_open(FollowTailRequest(pchannel=info or await assigned(connection), incarnation=incarnation))
        first = await stream.read()
        assert first is not None
        assert first.HasField("log")
        return cls(stream, first.tail)

    async def update(self) -> None:
        response = await self.stream.read()
        assert response is not None
        self.tail = response.tail


async def put(served: Serving, *messages: Message) -> None:
    for message in messages:
        await served.log.appends.append_waiting(message)


async def test_tail_follows_the_log(served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection)
    (pchannel,) = served.log.node.pchannels.values()
    for _ in range(3):
        await put(served, Message("orders", b"x"))
        while position_from_proto(feed.tail.durable_end) < pchannel.tail.durable_end:
            await feed.update()
        assert feed.tail.HasField("newest")
        assert feed.tail.promised_tick <= pchannel.tail.promised_tick


async def test_awaited_tick_is_promised_at_once(served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection)
    for _ in range(3):
        await put(served, Message("orders", b"x"))
        tick = (await served.log.submit(AllocateTimeTicks())).first
        await feed.stream.write(FollowTailRequest(await_tick=tick))
        while feed.tail.promised_tick < tick:
            await feed.update()


async def test_client_that_sends_nothing_more_ends_the_feed(connection: Connection) -> None:
    feed = await Feed.open(connection)
    await feed.stream._call.done_writing()
    while await feed.stream.read() is not None:
        pass


async def test_positions_of_another_log_are_an_error(connection: Connection) -> None:
    with pytest.raises(InvalidArgumentError, match="are of another log"):
        await Feed.open(connection, incarnation=5)


async def test_later_request_without_a_tick_is_an_error(connection: Connection) -> None:
    feed = await Feed.open(connection)
    await feed.stream.write(FollowTailRequest())
    with pytest.raises(InvalidArgumentError, match="set await_tick"):
        while True:
            await feed.update()


async def test_silent_stream_of_a_stopping_node_ends(served: Serving, connection: Connection) -> None:
    stream = await connection.stream(FOLLOW_TAIL, "feeding")
    while not served.node.draining.calls:
        await asyncio.sleep(0.01)
    await served.node.close()
    with pytest.raises(WALError, match="is being stopped"):
        await stream.read()


async def test_end_of_the_log_and_of_the_node_end_the_feed(served: Serving, connection: Connection) -> None:
    failed = await Feed.open(connection)
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.fail(ClosedError("this log was closed in the middle"))
    with pytest.raises(ClosedError, match="in the middle"):
        while True:
            await failed.update()


async def test_stopping_node_ends_the_feed(served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection)
    await served.node.close()
    with pytest.raises(WALError, match="is being stopped"):
        while True:
            await feed.update()
    (pchannel,) = served.log.node.pchannels.values()
    assert not pchannel.readers
