"""Submit: rights, late changes and unknown requests are judged by the attributes of the requests."""

from __future__ import annotations

import logging

import grpc
import grpc.aio
import pytest

from tests.serve.foreign import keep_poller
from tests.serve.servers import Serving, connected, serving
from tests.servers.process import free_ports
from wal.errors import AuthenticationError, InvalidArgumentError, SessionLostError
from wal.message import Message, MessageID
from wal.requests.pchannels import ForgetProducer, LatestTick, Truncate
from wal.requests.rights import Right
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.api.requests_pb2 import SubmitRequest
from wal.rpc.auth import Token
from wal.rpc.codes import error_in
from wal.rpc.connection import Connection
from wal.rpc.converter import request_to_proto
from wal.rpc.headers import session_header, token_header
from wal.rpc.methods import SUBMIT
from wal.runtime.secret import Secret
from wal.serve.access import Access

READER = Token(Secret("r"), "report", frozenset({Right.READ}))


async def submitted(served: Serving, envelope: SubmitRequest, *headers: tuple[str, str]) -> None:
    """Sends a request with this metadata; raises the error of gRPC."""
    keep_poller()
    async with grpc.aio.insecure_channel(served.address) as channel:
        await channel.unary_unary(SUBMIT.path, **SUBMIT.serializers())(envelope, metadata=headers)


async def test_request_needs_its_right(caplog: pytest.LogCaptureFixture) -> None:
    access = Access(listen=f"127.0.0.1:{free_ports(1)[0]}", tokens=[READER])
    async with serving(access=access) as served, connected(served.address, token=READER.secret) as connection:
        (channel,) = served.log.node.pchannels
        assert await connection.submit(LatestTick("a"), channel)
        with pytest.raises(AuthenticationError, match="no right to Truncate, which needs 'admin'"):
            await connection.submit(Truncate(MessageID(channel, 1, 1, 1)), channel)
        envelope = request_to_proto(ForgetProducer("loader"), PChannelInfo(name=channel))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await submitted(served, envelope, token_header(READER.secret))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await submitted(served, envelope, token_header(Secret("other")))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "the right 'admin' of the token 'report'" in warnings[0]


async def test_late_change_is_refused_but_no_late_read(served: Serving) -> None:
    (channel,) = served.log.node.pchannels
    at = await served.log.appends.append_waiting(Message("a", b"x"))
    info = PChannelInfo(name=channel)
    truncate, tick = (request_to_proto(request, info) for request in (Truncate(at.message_id), LatestTick("a")))
    await submitted(served, tick, session_header("s", 1))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await submitted(served, truncate, session_header("s", 0))
    assert isinstance(error_in(refused.value), SessionLostError)
    assert served.log.node.pchannels[channel].log.earliest == (0, 0)
    await submitted(served, tick, session_header("s", 0))
    await submitted(served, truncate, session_header("s", 1))
    assert served.log.node.pchannels[channel].log.earliest > (0, 0)


async def test_bad_session_is_refused(served: Serving) -> None:
    (channel,) = served.log.node.pchannels
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await submitted(served, request_to_proto(LatestTick("a"), PChannelInfo(name=channel)), ("calls-session", "a -1"))
    assert isinstance(error_in(refused.value), InvalidArgumentError)


async def test_request_whose_checks_fail_is_refused(served: Serving, connection: Connection) -> None:
    (channel,) = served.log.node.pchannels
    envelope = request_to_proto(LatestTick("a"), PChannelInfo(name=channel))
    envelope.latest_tick.vchannel = ""
    with pytest.raises(InvalidArgumentError, match="vchannel is empty"):
        await connection.call(SUBMIT, envelope, "asking")
    with pytest.raises(InvalidArgumentError, match="the call has no request"):
        await connection.call(SUBMIT, SubmitRequest(), "asking")
