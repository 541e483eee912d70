"""Neighbour: a well-behaved client on the same connection. It appends, reads and discovers; none of its calls may ever fail."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

import grpc.aio
from google.protobuf.empty_pb2 import Empty

from tests.serve.columns import request_of
from tests.serve.foreign import creating_header
from wal.message import Message, MessageID
from wal.message.wire_pb2 import MessageID as WireID
from wal.rpc.api import append_pb2, pchannel_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.appends import outcomes_from_proto
from wal.rpc.headers import Header
from wal.rpc.methods import ASSIGNMENT_DISCOVER, CONSUME, PRODUCE

NAME: Final = "well"
STEP_S: Final = 30.0


class Neighbour:
    """It has three streams open from the beginning to the end."""

    def __init__(self, channel: grpc.aio.Channel, *headers: Header) -> None:
        """`headers` are sent with every call, for example a token."""
        self._channel = channel
        self._headers = headers
        self._number = 0
        self.ids: list[MessageID] = []
        """The ids of the acknowledged messages, in their order."""
        self.tick = 0
        self.log: pchannel_pb2.LogIdentity
        self._producing: Any
        self._consuming: Any
        self._discovering: Any

    async def open(self) -> Self:
        self._discovering = self._stream(ASSIGNMENT_DISCOVER)
        (assignment,) = (await self._discovering.read()).full_assignment.assignments
        info = assignment.channels[0]
        self._producing = self._stream(PRODUCE)
        await self._producing.write(append_pb2.ProducerRequest(open=append_pb2.OpenProducer(pchannel=info)))
        self.log = (await self._producing.read()).opened.log
        await self._append()
        created = proto.CreateConsumerRequest(pchannel=info)
        created.deliver_policy.start_after.CopyFrom(WireID(id=bytes(self.ids[0])))
        created.deliver_filters.add().vchannel.vchannel = NAME
        self._consuming = self._stream(CONSUME, creating_header(created))
        assert (await self._consuming.read()).HasField("create")
        return self

    async def step(self) -> None:
        """Appends a message, and reads it."""
        async with asyncio.timeout(STEP_S):
            await self._append()
            while True:
                response = await self._consuming.read()
                assert response is not grpc.aio.EOF, await self._consuming.details()
                if response.consume.message.properties["_t"] != "1":
                    break
            assert response.consume.id.id == bytes(self.ids[-1])

    async def close(self) -> None:
        """Closes the three streams; each of them is still there to answer."""
        async with asyncio.timeout(STEP_S):
            for call, request in (
                (self._discovering, proto.AssignmentDiscoverRequest(close=proto.CloseAssignmentDiscoverRequest())),
                (self._producing, append_pb2.ProducerRequest(close=Empty())),
                (self._consuming, proto.ConsumeRequest(close=proto.CloseConsumerRequest())),
            ):
                await call.write(request)
                while (response := await call.read()) is not grpc.aio.EOF:
                    last = response
                assert last.HasField("close")
                assert await call.code() is grpc.StatusCode.OK

    async def _append(self) -> None:
        self._number += 1
        message = Message(NAME, b"well-%d" % self._number)
        await self._producing.write(request_of(self._number, [(message, 0, None)]))
        response = await self._producing.read()
        assert response is not grpc.aio.EOF, await self._producing.details()
        ((number, outcome),) = outcomes_from_proto(response.outcomes)
        assert number == self._number
        assert not isinstance(outcome, BaseException), outcome
        assert outcome.message_id is not None
        assert outcome.time_tick is not None
        self.ids.append(outcome.message_id)
        self.tick = outcome.time_tick

    def _stream(self, method: Any, *headers: Header) -> Any:
        return self._channel.stream_stream(method.path, **method.serializers())(metadata=(*self._headers, *headers))
