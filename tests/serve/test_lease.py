"""A process that has lost its lease acknowledges nothing, answers nothing and delivers nothing (D2)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio
import pytest
from google.protobuf.empty_pb2 import Empty

from tests.serve.foreign import creating_header
from tests.serve.servers import connected
from tests.serve.test_tail import Feed
from wal import ImmutableMessage, Message
from wal.errors import SessionLostError
from wal.location import parse_location
from wal.node.local.log import LocalLog
from wal.operate.processes.standalone import LogServer
from wal.read.options import All, EventFilter, ReadOptions
from wal.read.scanner import Scanner
from wal.requests.pchannels import LastEvent, LatestTick
from wal.requests.reads import GetMoment, NewestTick
from wal.rpc.api import frames_pb2, streaming_pb2
from wal.rpc.api.pchannel_pb2 import PChannelInfo, TailState
from wal.rpc.codes import error_in
from wal.rpc.connection import Connection
from wal.rpc.methods import CONSUME, READ_FRAMES
from wal.serve import tail
from wal.serve.access import Access
from wal.serve.hosted import Hosted
from wal.serve.milvus import MessageFeed
from wal.settings import Settings

P0: Final = PChannelInfo(name="p0")


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
    future = log.appends.append(Message("orders", payload))
    assert future is not None
    return await future


async def test_append_in_flight_has_an_unknown_outcome() -> None:
    async with leased() as (log, lease):
        await appended(log, b"kept")
        future = log.appends.append(Message("orders", b"in flight"))
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
            await log.submit(LatestTick("orders"))
        with pytest.raises(SessionLostError):
            await log.submit(LastEvent("orders"))


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


@contextlib.asynccontextmanager
async def served(log: LocalLog) -> AsyncIterator[str]:
    """Serves the log, with two frames in it, at this address."""
    for payload in (b"one", b"two"):
        await appended(log, payload)
    server = await LogServer.start(log, Access(listen="127.0.0.1:0"))
    try:
        yield server.address
    finally:
        await server.close(drain_s=0)


@contextlib.asynccontextmanager
async def connected_to(log: LocalLog) -> AsyncIterator[Connection]:
    """Serves the log, with two frames in it, and connects to the server."""
    async with served(log) as address, connected(address) as connection:
        yield connection


def lose_after(monkeypatch: pytest.MonkeyPatch, owner: object, step: str, lease: Switch) -> None:
    """Takes the lease away at the end of a step: the answer is there, and has not left."""
    work = getattr(owner, step)

    async def last(*given: Any, **named: Any) -> Any:
        answer = await work(*given, **named)
        lease.alive = False
        return answer

    monkeypatch.setattr(owner, step, last)


async def test_server_answers_no_call() -> None:
    async with leased() as (log, lease), connected_to(log) as connection:
        assert (await connection.submit(GetMoment("p0"), "p0")).durable_end
        lease.alive = False
        with pytest.raises(SessionLostError):
            await connection.submit(GetMoment("p0"), "p0")


async def test_tick_that_was_looked_up_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leased() as (log, lease), connected_to(log) as connection:
        lose_after(monkeypatch, log.node.pchannels["p0"].log, "read", lease)
        with pytest.raises(SessionLostError):
            await connection.submit(NewestTick("p0"), "p0")


async def test_page_that_was_read_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    async with leased() as (log, lease), connected_to(log) as connection:
        lose_after(monkeypatch, log.node.pchannels["p0"].log, "read", lease)
        pages = connection.responses(READ_FRAMES, frames_pb2.ReadFramesRequest(pchannel=P0), "reading")
        with pytest.raises(SessionLostError):
            await anext(pages)


async def test_tail_of_a_feed_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(_pchannel: object) -> TailState:
        lease.alive = False
        return TailState(promised_tick=1)

    async with leased() as (log, lease), connected_to(log) as connection:
        feed = await Feed.open(connection, info=P0)
        monkeypatch.setattr(tail, "tail_of", moved)
        with pytest.raises(SessionLostError):
            while True:
                await feed.update()
                assert feed.tail.promised_tick != 1


async def test_message_of_a_feed_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    send = MessageFeed._send_message

    async def last(feed: MessageFeed, message: ImmutableMessage) -> None:
        lease.alive = False
        await send(feed, message)

    async with leased() as (log, lease), served(log) as address, grpc.aio.insecure_channel(address) as channel:
        monkeypatch.setattr(MessageFeed, "_send_message", last)
        policy = streaming_pb2.DeliverPolicy(all=Empty())
        created = streaming_pb2.CreateConsumerRequest(pchannel=P0, deliver_policy=policy)
        stream = channel.stream_stream(CONSUME.path, **CONSUME.serializers())(metadata=[creating_header(created)])
        assert (await stream.read()).HasField("create")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stream.read()
        assert isinstance(error_in(raised.value), SessionLostError)
