"""The end of a node: begun requests are answered, the others are refused, and no outcome is unknown."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import Child, Serving, child, connected
from tests.serve.test_produce import append, assigned, opened
from wal import BroadcastMessage, Message, ResourceKey, open_wal
from wal.errors import ClosedError, UnavailableError, WALError
from wal.message import AppendResult
from wal.requests.broadcasts import AppendBroadcast, AwaitResourceKey
from wal.rpc.appends import outcomes_from_proto
from wal.rpc.connection import Connection
from wal.rpc.methods import PRODUCE

HOUR_S = 3600.0
KEY = ResourceKey("collection", "orders")


async def test_sigterm_answers_what_it_executed_and_says_so(server: Child, data_dir: Path) -> None:
    """The last response is `close`. What has an answer is in the log, and nothing else is."""
    async with connected(server.address) as connection:
        stream = await opened(connection)
        answered: dict[int, Any] = {}

        async def flood() -> None:
            number = 0
            while not closed:
                await stream.write(append(number, *[Message("orders", b"%d" % (number + step)) for step in range(20)]))
                number += 20

        closed = False
        flooding = asyncio.ensure_future(flood())
        stopping: asyncio.Future[int] | None = None
        while (response := await stream.read()) is not None and not response.HasField("close"):
            answered.update(outcomes_from_proto(response.outcomes))
            if stopping is None and len(answered) > 1000:
                stopping = asyncio.ensure_future(server.stop())
        assert response is not None, "the stream ended without a word"
        closed = True
        await flooding
        await stream._call.done_writing()
        assert await stream.read() is None
        assert stopping is not None
        assert await stopping == 0
    done = [number for number, outcome in answered.items() if isinstance(outcome, AppendResult)]
    assert all(isinstance(answered[number], ClosedError) for number in set(answered) - set(done))
    async with open_wal(data_dir) as log, log.read("orders", follow=False) as scanner:
        assert [int(message.payload) async for message in scanner] == done == list(range(len(done)))


async def test_calls_that_wait_for_others_are_refused(served: Serving, connection: Connection) -> None:
    """A broadcast that waits for its keys, and a call that waits for acknowledgements, hold up the end of the node no longer."""
    log = served.log
    first = await log.broadcasts.append(BroadcastMessage(vchannels=["a"], payload=b"1", resource_keys=[KEY]))
    second = BroadcastMessage(vchannels=["a"], payload=b"2", resource_keys=[KEY])
    waiting = [
        asyncio.ensure_future(connection.submit(AppendBroadcast(second, wait=True), timeout_s=HOUR_S)),
        asyncio.ensure_future(connection.submit(AwaitResourceKey(KEY, everywhere=True), timeout_s=HOUR_S)),
    ]
    while log.broadcasts.statistics().waiting == 0:
        await asyncio.sleep(0.01)
    connection.stop()  # it gets the error, and does not try again
    async with asyncio.timeout(60):
        await served.node.close(drain_s=HOUR_S)
    for one in waiting:
        with pytest.raises(ClosedError, match="is being stopped"):
            await one
    await log.broadcasts.ack(first.broadcast_id, "a")
    assert await log.broadcasts.tasks() == []


async def test_call_that_was_refused_is_made_at_the_next_server(server: Child, data_dir: Path) -> None:
    """A broadcast that waits for its keys continues there, and so does a call that waits for acknowledgements."""
    async with open_wal(f"wal://{server.address}") as log:
        broadcast = log.broadcast()
        first = await broadcast.append(BroadcastMessage(vchannels=["a"], payload=b"1", resource_keys=[KEY]))
        second = BroadcastMessage(vchannels=["a"], payload=b"2", resource_keys=[KEY])
        appending = asyncio.ensure_future(broadcast.append(second, wait=True))
        acknowledged = asyncio.ensure_future(broadcast.block_until_resource_key_ack_all(KEY))
        await broadcast.tasks()  # it was sent after the others
        assert await server.stop() == 0
        async with child(data_dir, listen=server.address):
            assert {task.broadcast_id for task in await broadcast.tasks()} == {first.broadcast_id}
            await broadcast.ack(first.broadcast_id, "a")
            result = await appending
            await broadcast.ack(result.broadcast_id, "a")
            await acknowledged
            async with log.read("a", follow=False) as scanner:
                assert [message.payload async for message in scanner] == [b"1", b"2"]


async def test_broadcast_that_would_wait_from_now_on_is_refused(served: Serving) -> None:
    broadcasts = served.log.broadcasts
    await broadcasts.append(BroadcastMessage(vchannels=["a"], payload=b"1", resource_keys=[KEY]))
    broadcasts.end_waiting(lambda: ClosedError("no more of it"))
    again = BroadcastMessage(vchannels=["a"], payload=b"2", resource_keys=[KEY])
    with pytest.raises(ClosedError, match="no more of it"):
        await broadcasts.append(again, wait=True)
    free = BroadcastMessage(vchannels=["a"], payload=b"3", resource_keys=[ResourceKey("collection", "other")])
    await broadcasts.append(free, wait=True)


async def test_stopping_node_refuses_new_streams(served: Serving, connection: Connection) -> None:
    """It refuses with an error while another stream has not ended, and no longer answers when it has stopped."""
    info = await assigned(connection)
    stream = await opened(connection, info)
    closing = asyncio.ensure_future(served.node.close(drain_s=HOUR_S))
    response = await stream.read()
    assert response is not None
    assert response.HasField("close")
    with pytest.raises(ClosedError, match="is being stopped"):
        await opened(connection, info)
    await stream._call.done_writing()
    assert await stream.read() is None
    await closing
    with pytest.raises(UnavailableError, match="no server is reachable"):
        while True:  # the client may see the end of its connection a moment later
            late = await connection.stream(PRODUCE, "producing", timeout_s=0.2)
            with contextlib.suppress(WALError):
                await late.read()
