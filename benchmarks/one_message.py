"""A client of one stream that sends a gRPC message for each append: Milvus' form of Produce, or the same bytes to an echo.

Both have the same machinery: one task writes waiting requests, one after the other, and one task reads answers, which come in order.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from benchmarks.grpc_echo import ECHO_PATH
from wal import Message
from wal.message.codec import to_wire
from wal.rpc.api import pchannel_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.headers import CREATE_PRODUCER
from wal.rpc.methods import ASSIGNMENT_DISCOVER, MILVUS_PRODUCE

Send = Callable[[], "asyncio.Future[None]"]
"""Sends the message once; the future is done when its answer has come."""


@contextlib.asynccontextmanager
async def open_stream(address: str, vchannel: str, payload: bytes, *, echo: bool) -> AsyncIterator[Send]:
    """Opens a stream to an echo, or to the pchannel of a log. Each answer is checked: an echo's length, a log's result."""
    async with grpc.aio.insecure_channel(address) as channel:
        wire = to_wire(Message(vchannel, payload))

        def request(number: int) -> bytes:
            message = proto.ProduceMessageRequest(request_id=number, message=wire)
            return proto.ProduceRequest(produce=message).SerializeToString()

        if echo:
            call = channel.stream_stream(ECHO_PATH)()

            def check(answer: bytes, sent: bytes) -> None:
                if len(answer) != len(sent):
                    raise RuntimeError(f"the echo of {len(sent)} bytes has {len(answer)}")
        else:
            pchannel = await _pchannel(channel)
            creation = base64.b64encode(proto.CreateProducerRequest(pchannel=pchannel).SerializeToString()).decode()
            call = channel.stream_stream(MILVUS_PRODUCE.path)(metadata=[(CREATE_PRODUCER, creation)])
            if not proto.ProduceResponse.FromString(await call.read()).HasField("create"):
                raise RuntimeError("the server does not take messages")

            def check(answer: bytes, sent: bytes) -> None:
                produced = proto.ProduceResponse.FromString(answer).produce
                if not produced.HasField("result"):
                    raise RuntimeError(f"the server answered {produced}")

        stream = _Stream(call, request, check)
        try:
            yield stream.send
        finally:
            await stream.close()


class _Stream:
    def __init__(self, call: Any, request: Callable[[int], bytes], check: Callable[[bytes, bytes], None]) -> None:
        self._call = call
        self._request = request
        self._check = check
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._sent: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._create_future = loop.create_future
        self._tasks = [loop.create_task(self._write()), loop.create_task(self._read())]

    def send(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._create_future()
        self._waiting.append(future)
        self._wake.set()
        return future

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._call.cancel()

    async def _write(self) -> None:
        number = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                number += 1
                data = self._request(number)
                self._sent.append((data, self._waiting.popleft()))
                await self._call.write(data)

    async def _read(self) -> None:
        try:
            while (answer := await self._call.read()) is not grpc.aio.EOF:
                data, future = self._sent.popleft()
                self._check(answer, data)
                if not future.done():
                    future.set_result(None)
            raise RuntimeError("the server ended the stream")
        except Exception as error:
            for future in (*(future for _, future in self._sent), *self._waiting):
                if not future.done():
                    future.set_exception(error)


async def _pchannel(channel: grpc.aio.Channel) -> pchannel_pb2.PChannelInfo:
    """Returns the only pchannel of the log, from discovery."""
    call = channel.stream_stream(ASSIGNMENT_DISCOVER.path, **ASSIGNMENT_DISCOVER.serializers())()
    assignments = (await call.read()).full_assignment.assignments
    call.cancel()
    pchannel: pchannel_pb2.PChannelInfo
    (pchannel,) = [channel for assignment in assignments for channel in assignment.channels]
    return pchannel
