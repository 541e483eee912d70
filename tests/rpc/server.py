"""A server with a handler of each kind, and connections to it, for the tests of both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from wal.errors import ChannelNotExistError, TruncatedError
from wal.message import MessageID
from wal.network import ServerCertificate, TlsFiles
from wal.requests.vchannels import ListVChannels
from wal.rpc.api import component_pb2, frames_pb2, pchannel_pb2, requests_pb2, streaming_pb2
from wal.rpc.connection import Connection
from wal.rpc.methods import MILVUS_PRODUCE, NODE_STATES, READ_FRAMES, SUBMIT
from wal.rpc.serving import add_handlers, listen, server_options

WAIT_S = 30.0
EARLIEST = MessageID("p-1", 7, 4096, 3)
LISTING = requests_pb2.SubmitRequest(list_vchannels=requests_pb2.ListVChannels())


class Server:
    """A server with a handler of each kind. `calls` counts the calls that reached a handler."""

    def __init__(self) -> None:
        self.calls = 0
        self.hang = asyncio.Event()
        """Set while calls are answered."""
        self.hang.set()
        self.streams: set[Any] = set()

    def handlers(self) -> dict[Any, Any]:
        return {NODE_STATES: self.states, SUBMIT: self.submit, READ_FRAMES: self.read, MILVUS_PRODUCE: self.produce}

    async def states(self, _request: object, _context: object) -> component_pb2.ComponentStates:
        return component_pb2.ComponentStates(state=component_pb2.ComponentInfo(state_code=component_pb2.Healthy))

    async def submit(self, envelope: requests_pb2.SubmitRequest, context: Any) -> requests_pb2.SubmitResponse:
        match envelope.WhichOneof("request"):
            case "list_vchannels":
                return await self.list(context)
            case "create_vchannel":
                return await self.create(envelope.create_vchannel, context)
            case _:
                return await self.drop(envelope.drop_vchannel)

    async def list(self, _context: Any) -> requests_pb2.SubmitResponse:
        self.calls += 1
        await self.hang.wait()
        info = pchannel_pb2.VChannelInfo(name="orders")
        return requests_pb2.SubmitResponse(list_vchannels=requests_pb2.ListVChannelsAnswer(value=[info]))

    async def create(self, request: requests_pb2.CreateVChannel, _context: Any) -> requests_pb2.SubmitResponse:
        self.calls += 1
        await self.hang.wait()
        info = pchannel_pb2.VChannelInfo(name=request.name, pchannel="p" * len(request.pchannel))
        return requests_pb2.SubmitResponse(create_vchannel=requests_pb2.CreateVChannelAnswer(value=info))

    async def drop(self, request: requests_pb2.DropVChannel) -> requests_pb2.SubmitResponse:
        if request.name == "defect":
            raise ZeroDivisionError("division by zero")
        raise ChannelNotExistError(f"vchannel {request.name!r} does not exist")

    async def read(self, request: frames_pb2.ReadFramesRequest, _context: object) -> AsyncIterator[frames_pb2.FramePage]:
        for number in range(request.pages_max):
            yield frames_pb2.FramePage(promised_tick=number)
        raise TruncatedError("the position is gone", earliest=EARLIEST)

    async def produce(self, context: Any) -> None:
        """Answers each request; a text of a payload asks for something special."""
        self.streams.add(context)
        try:
            await context.write(streaming_pb2.ProduceResponse(create=streaming_pb2.CreateProducerResponse(producer_id=1)))
            while (request := await context.read()) is not grpc.aio.EOF:
                if request.HasField("close"):
                    await context.write(streaming_pb2.ProduceResponse(close=streaming_pb2.CloseProducerResponse()))
                    return
                if request.produce.message.payload == b"freeze":
                    await self.hang.wait()
                if request.produce.message.payload == b"fail":
                    raise ChannelNotExistError("no such channel")
                answer = streaming_pb2.ProduceMessageResponse(request_id=request.produce.request_id)
                await context.write(streaming_pb2.ProduceResponse(produce=answer))
        finally:
            self.streams.discard(context)  # its handler has ended


@contextlib.asynccontextmanager
async def serving(
    fake: Server, *, tls: TlsFiles | None = None, interceptors: Sequence[Any] = (), address: str = "127.0.0.1:0", **options: Any
) -> AsyncIterator[int]:
    server = grpc.aio.server(interceptors=interceptors, options=server_options(**options))
    add_handlers(server, fake.handlers())
    port = await listen(server, address, tls=None if tls is None else await ServerCertificate.of(tls))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def connected(*ports: int, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Connection]:
    connection = await Connection.open([f"{host}:{port}" for port in ports], **{"timeout_s": WAIT_S, **options})
    try:
        yield connection
    finally:
        await connection.close()


async def listed(connection: Connection, **options: Any) -> list[str]:
    return [info.name for info in await connection.submit(ListVChannels(), **options)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def produce(number: int, payload: bytes = b"x") -> streaming_pb2.ProduceRequest:
    request = streaming_pb2.ProduceRequest()
    request.produce.request_id = number
    request.produce.message.payload = payload
    return request
