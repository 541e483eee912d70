"""ProduceStream: a Produce stream of one pchannel, on which a server has begun to take requests, and what is sent on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from wal.engine.remote.outbox import Sending
from wal.errors import UnavailableError, UnknownError
from wal.rpc.api import pchannel_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.columns import request_of
from wal.rpc.connection import Connection
from wal.rpc.headers import producer_header
from wal.rpc.methods import PRODUCE
from wal.rpc.stream import Stream

__all__ = ["ProduceStream", "open_stream", "request_for"]

ProduceStream = Stream[proto.ProduceRequest, proto.ProduceResponse]


async def open_stream(
    connection: Connection,
    pchannel: str,
    session: bytes,
    check: Callable[[proto.CreateProducerResponse], Awaitable[None]],
) -> tuple[ProduceStream, int]:
    """Returns a stream that the server has answered, and the term in which it has the pchannel.

    Raises the error of the server, and that of `check`, which gets what the server says of its log.

    Once it returns, the server executes nothing of an older stream of the same session.
    """
    request = proto.CreateProducerRequest(pchannel=pchannel_pb2.PChannelInfo(name=pchannel), session=session)
    stream = await connection.stream(PRODUCE, f"producing to pchannel {pchannel}", headers=[producer_header(request)])
    try:
        async with asyncio.timeout(connection.timeout_s):
            response = await stream.read()
    except TimeoutError:
        stream.cancel()
        raise UnavailableError(
            f"the server did not begin to take messages for pchannel {pchannel} within {connection.timeout_s} s"
        ) from None
    except BaseException:
        stream.cancel()
        raise
    if response is None or not response.HasField("create"):
        stream.cancel()
        raise UnknownError(f"the server began a Produce stream of pchannel {pchannel} with {response!r}")
    try:
        await check(response.create)
    except BaseException:
        stream.cancel()
        raise
    return stream, response.create.log.pchannel.term


def request_for(first: int, taken: list[Sending], *, seen_time_tick: int) -> proto.ProduceRequest:
    """Returns the request for what an `Outbox` has taken: one request, or messages, of which the first has this number."""
    make = taken[0].make
    if make is not None:
        return make(first, seen_time_tick)
    appends = [(sending.message, sending.barrier, sending.key) for sending in taken]
    return proto.ProduceRequest(append=request_of(first, appends, seen_time_tick=seen_time_tick))  # type: ignore[arg-type]
