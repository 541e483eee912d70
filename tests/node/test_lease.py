"""A process that has lost its lease acknowledges nothing, answers nothing and delivers nothing (D2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.node.servers import connected
from wal import Message, TimeTickMessage, open_wal
from wal.errors import SessionLostError
from wal.local.access import Access
from wal.local.log import LocalLog
from wal.local.server import LogServer
from wal.location import parse_location
from wal.node.hosted import Hosted
from wal.read.options import All, EventFilter, ReadOptions
from wal.read.scanner import Scanner
from wal.rpc.api import pchannel_calls_pb2
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.methods import GET_MOMENT
from wal.settings import Settings


class Switch:
    """A lease that a test takes away."""

    def __init__(self) -> None:
        self.alive = True


@contextlib.asynccontextmanager
async def leased() -> AsyncIterator[tuple[LocalLog, Switch]]:
    """Opens a log under a lease, and closes it; one whose lease is lost cannot be closed in order."""
    log = LocalLog(parse_location("memory:"), Settings(pchannels=1))
    lease = log.lease = Switch()
    await log.open()
    try:
        yield log, lease
    finally:
        with contextlib.suppress(SessionLostError):
            await log.close()


async def appended(log: LocalLog, payload: bytes) -> object:
    future = log.appends.append(Message("orders", payload), 0)
    assert future is not None
    return await future


async def test_append_in_flight_has_an_unknown_outcome() -> None:
    async with leased() as (log, lease):
        await appended(log, b"kept")
        future = log.appends.append(Message("orders", b"in flight"), 0)
        assert future is not None
        lease.alive = False
        with pytest.raises(SessionLostError) as raised:
            await future
        assert raised.value.outcome_unknown
        with pytest.raises(SessionLostError) as raised:
            await appended(log, b"later")
        assert not raised.value.outcome_unknown


async def test_promised_tick_stands_still() -> None:
    async with leased() as (log, lease):
        await appended(log, b"x")
        (pchannel,) = log.node.pchannels.values()
        promised = pchannel.promised.tick
        assert pchannel.advance_promised() > promised
        lease.alive = False
        promised = pchannel.promised.tick
        assert pchannel.advance_promised() == promised
        assert isinstance(pchannel.tail.failure, SessionLostError)
        with pytest.raises(SessionLostError):
            await log.latest_tick("orders")


async def test_message_that_was_read_is_not_delivered() -> None:
    async with leased() as (log, lease):
        await appended(log, b"one")
        scanner = Scanner(ReadOptions(("orders",), All(), EventFilter.of(())), attach=log.attach)
        async with scanner:
            assert (await anext(aiter(scanner))).payload == b"one"
            await appended(log, b"two")
            lease.alive = False
            with pytest.raises(SessionLostError):
                await anext(aiter(scanner))


async def test_lost_pchannel_is_not_found() -> None:
    async with leased() as (log, lease):
        hosted, wanted = Hosted(log.node.pchannels), PChannelInfo(name="p0")
        assert hosted.find(wanted).channel == "p0"
        lease.alive = False
        with pytest.raises(SessionLostError, match="p0"):
            hosted.find(wanted)


async def test_server_answers_no_call() -> None:
    async with leased() as (log, lease):
        server = await LogServer.start(log, Access(listen="127.0.0.1:0"))
        try:
            async with connected(server.address) as connection:
                request = pchannel_calls_pb2.PChannelRequest(pchannel=PChannelInfo(name="p0"))
                assert (await connection.read(GET_MOMENT, request, "asking")).tail.durable_end
                lease.alive = False
                with pytest.raises(SessionLostError):
                    await connection.read(GET_MOMENT, request, "asking")
        finally:
            await server.close(drain_s=0)


async def test_follower_over_the_network_gets_nothing_more() -> None:
    async with leased() as (log, lease):
        server = await LogServer.start(log, Access(listen="127.0.0.1:0"))
        try:
            async with open_wal(f"wal://{server.address}", read_only=True) as reader:
                await appended(log, b"one")
                async with reader.read("orders", include_time_ticks=True) as scanner:
                    messages = aiter(scanner)
                    while isinstance(message := await anext(messages), TimeTickMessage):
                        pass
                    assert message.payload == b"one"
                    lease.alive = False
                    future = log.appends.append(Message("orders", b"two"), 0)
                    assert future is not None
                    with pytest.raises(SessionLostError):
                        await future
                    delivered: list[bytes] = []
                    with contextlib.suppress(TimeoutError, SessionLostError):
                        async with asyncio.timeout(1):
                            async for message in messages:
                                delivered += [] if isinstance(message, TimeTickMessage) else [message.payload]
                    assert delivered == []
        finally:
            await server.close(drain_s=0)
