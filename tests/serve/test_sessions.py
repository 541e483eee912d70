"""The streams of one session: the newest one ends the one before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.serve.servers import Serving, connected, serving
from tests.serve.test_produce import append, assigned, outcomes, stored
from wal import Message
from wal.errors import ClosedError, InvalidArgumentError
from wal.message import AppendResult
from wal.requests.vchannels import CreateVChannel
from wal.rpc.api import append_pb2
from wal.rpc.connection import Connection
from wal.rpc.methods import PRODUCE


async def begun(connection: Connection, session: bytes, number: int = 0) -> Any:
    request = append_pb2.OpenProducer(pchannel=await assigned(connection, number), session=session)
    stream = await connection.stream(PRODUCE, "producing")
    await stream.write(append_pb2.ProducerRequest(open=request))
    created = await stream.read()
    assert created is not None
    assert created.HasField("opened")
    return stream


async def appends(stream: Any, number: int, vchannel: str = "orders") -> None:
    await stream.write(append(number, Message(vchannel, b"%d" % number)))
    assert isinstance((await outcomes(stream, 1))[number], AppendResult)


async def test_newest_stream_of_a_session_ends_the_one_before_it(served: Serving, connection: Connection) -> None:
    async with connected(served.address) as again:
        older = await begun(connection, b"session")
        await appends(older, 1)
        newer = await begun(again, b"session")
        await appends(newer, 2)
        with pytest.raises(ClosedError, match="has opened another stream of the same session"):
            await older.read()
        with pytest.raises(ClosedError, match="has opened another stream of the same session"):
            await older.write(append(3, Message("orders", b"3")))
        await appends(newer, 4)
    assert await stored(served, "orders") == [b"1", b"2", b"4"]


async def test_nothing_of_the_older_stream_is_executed_once_the_newer_one_is_answered() -> None:
    """The older one has more requests than it could execute so far, and one of them waits for room in flight."""
    async with serving(in_flight_bytes_max=2000) as served, connected(served.address) as connection:
        async with connected(served.address) as again:
            older = await begun(connection, b"session")
            for number in range(0, 5000, 100):
                await older.write(append(number, *[Message("orders", b"old" + bytes(200)) for _ in range(100)]))
            newer = await begun(again, b"session")
            await newer.write(append(0, Message("orders", b"new")))
            assert isinstance((await outcomes(newer, 1))[0], AppendResult)
            await appends(newer, 1)
        found = await stored(served, "orders")
    assert len(found) < 5002
    assert found[-2:] == [b"new", b"1"]


async def test_other_sessions_and_pchannels_are_left_alone() -> None:
    async with serving(pchannels=2, create_vchannels=False) as served, connected(served.address) as connection:
        for number, pchannel in enumerate(served.log.node.pchannels):
            await served.log.submit(CreateVChannel(f"v{number}", pchannel))
        streams = [
            (await begun(connection, b"", 0), "v0"),
            (await begun(connection, b"", 0), "v0"),
            (await begun(connection, b"one", 0), "v0"),
            (await begun(connection, b"two", 0), "v0"),
            (await begun(connection, b"one", 1), "v1"),
        ]
        for number, (stream, vchannel) in enumerate(streams):
            await appends(stream, number, vchannel)


async def test_many_streams_of_a_session_at_once_leave_one(served: Serving) -> None:
    async with connected(served.address) as connection:
        info = await assigned(connection)
        opening = append_pb2.ProducerRequest(open=append_pb2.OpenProducer(pchannel=info, session=b"session"))
        streams = [await connection.stream(PRODUCE, "producing") for _ in range(8)]

        async def answered(stream: Any) -> bool:
            try:
                while (response := await stream.read()) is not None:
                    if response.HasField("outcomes"):
                        return True
            except ClosedError:
                pass
            return False

        async def write(stream: Any) -> None:
            try:
                await stream.write(opening)
                await stream.write(append(0, Message("orders", b"x")))
            except ClosedError:
                pass

        await asyncio.gather(*map(write, streams))
        found = await asyncio.gather(*map(answered, streams))
        assert any(found)
        newest = await begun(connection, b"session")
        await appends(newest, 1)


async def test_long_session_is_an_error(connection: Connection) -> None:
    with pytest.raises(InvalidArgumentError, match="the session has 65 bytes, at most 64"):
        await begun(connection, bytes(65))
