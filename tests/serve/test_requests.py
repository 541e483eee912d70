"""Requests that a client sends on a stream that has ended take no memory from the server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from tests.serve.bad_input.test_bad_input import resident
from tests.serve.servers import Child
from wal.rpc.api import append_pb2
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.methods import PRODUCE


async def test_requests_after_the_close_take_no_memory(server: Child) -> None:
    # Less than the 65,535 bytes that HTTP/2 lets a client send on a stream before the server takes anything, so that all of it arrives.
    request_bytes = 60_000
    streams = 500

    async def send_after_the_close(channel: grpc.aio.Channel, late: append_pb2.ProducerRequest) -> None:
        opening = append_pb2.OpenProducer(pchannel=PChannelInfo(name="p0"))
        call: Any = channel.stream_stream(PRODUCE.path, **PRODUCE.serializers())()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the server may be faster
            await call.write(append_pb2.ProducerRequest(open=opening))
            await call.write(append_pb2.ProducerRequest(close=Empty()))
            await call.write(late)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass

    late = append_pb2.ProducerRequest()
    late.append.messages.payloads = bytes(request_bytes)
    async with grpc.aio.insecure_channel(server.address) as channel:
        for _ in range(streams // 5):
            await send_after_the_close(channel, late)
        before = resident(server.process.pid)
        for _ in range(streams):
            await send_after_the_close(channel, late)
        assert resident(server.process.pid) - before < request_bytes * streams // 3
