"""The plain messages of one request, which are appended together, have the same results as messages that are appended one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.serve.servers import Serving, connected, serving
from tests.serve.test_produce import append, opened, outcomes, stored
from wal import Message
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.frame import EncodedFrame
from wal.message import AppendResult, MessageID, Origin
from wal.node.appends import LocalAppends
from wal.requests.appends import PART_ROWS_MAX, Append
from wal.requests.vchannels import CreateVChannel
from wal.rpc.connection import Connection
from wal.rpc.converters import range_of, results_of
from wal.write.operations import Together


def test_message_of_results_is_that_of_each() -> None:
    together = Together(Origin("p3", 7, 5_000, 1), 12, 900, 3)
    ids = [MessageID("p3", 7, 5_000, index, 1) for index in (12, 13, 14)]
    expected = [AppendResult(message_id, 900 + at, message_id) for at, message_id in enumerate(ids)]
    assert list(together) == expected
    assert list(results_of(range_of(40, together))) == list(enumerate(expected, 40))


async def test_many_messages_in_order(served: Serving, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * PART_ROWS_MAX + 100
    taken: list[int] = []
    send_run = LocalAppends.send_run

    async def counted(self: LocalAppends, rows: Append, row: int, end: int, *rest: Any) -> asyncio.Future[Any]:
        taken.append(end - row)
        return await send_run(self, rows, row, end, *rest)

    monkeypatch.setattr(LocalAppends, "send_run", counted)
    await served.log.submit(CreateVChannel("orders"))
    await served.log.appends.append_waiting(Message("orders", b"first"))
    stream = await opened(connection)
    await stream.write(append(1, *[Message("orders", b"%d" % number) for number in range(count)]))
    await stream.write(append(count + 1, Message("orders", b"last", properties={"who": "me"})))
    found = await outcomes(stream, count + 1)
    assert taken == [PART_ROWS_MAX, PART_ROWS_MAX, 100, 1]
    results = [found[number] for number in range(1, count + 2)]
    assert all(isinstance(result, AppendResult) for result in results)
    ids: list[Any] = [result.message_id for result in results if isinstance(result, AppendResult)]
    assert ids == sorted(set(ids))
    assert await stored(served, "orders") == [b"first", *(b"%d" % number for number in range(count)), b"last"]


async def test_too_large_message_fails_alone() -> None:
    async with serving(message_bytes_max=1000) as served, connected(served.address) as connection:
        await served.log.submit(CreateVChannel("orders"))
        stream = await opened(connection)
        await stream.write(append(1, *[Message("orders", bytes(size)) for size in (10, 1001, 20)]))
        found = await outcomes(stream, 3)
        assert isinstance(found[2], InvalidArgumentError)
        assert list(map(len, await stored(served, "orders"))) == [10, 20]


async def test_large_request_is_no_larger_frame(served: Serving, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend bounds its frames, and Pulsar takes none above a broker's `maxMessageSize`."""
    await served.log.submit(CreateVChannel("orders"))
    lengths: list[int] = []
    for pchannel in served.log.node.pchannels.values():
        write = pchannel.log.append

        def counted(frame: EncodedFrame, settled: Any, write: Any = write) -> None:
            lengths.append(frame.length)
            write(frame, settled)

        monkeypatch.setattr(pchannel.log, "append", counted)
    group_bytes = served.log.node.pchannels["p0"].log.group_bytes
    stream = await opened(connection)
    await stream.write(append(1, *[Message("orders", bytes(1_000_000))] * 7))
    found = await outcomes(stream, 7)
    assert all(isinstance(outcome, AppendResult) for outcome in found.values())
    assert max(lengths) <= group_bytes


async def test_more_than_has_room_waits_for_it() -> None:
    async with serving(in_flight_bytes_max=10_000) as served, connected(served.address) as connection:
        await served.log.submit(CreateVChannel("orders"))
        stream = await opened(connection)
        for first in range(0, 300, 100):
            await stream.write(append(first + 1, *[Message("orders", bytes(90))] * 100))
        found = await outcomes(stream, 300)
        assert all(isinstance(outcome, AppendResult) for outcome in found.values())
        assert len(await stored(served, "orders")) == 300
        assert served.log.node.in_flight.size == 0


async def test_each_message_for_a_dropped_vchannel_is_an_error(served: Serving, connection: Connection) -> None:
    await served.log.submit(CreateVChannel("orders"))
    await served.log.appends.append_waiting(Message("orders", b"first"))
    vchannel = served.log.node.routes.actors["orders"]
    stream = await opened(connection)
    vchannel.closed = lambda: ChannelNotExistError("vchannel 'orders' was dropped")
    await stream.write(append(5, *[Message("orders", b"late")] * 3))
    found = await outcomes(stream, 3)
    assert sorted(found) == [5, 6, 7]
    assert all(isinstance(outcome, ChannelNotExistError) for outcome in found.values())
    assert served.log.node.in_flight.size == 0
