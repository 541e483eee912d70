"""Connections that stay silent and never end: both sides find them by pings, and requests that arrive late are not executed."""

from __future__ import annotations

import asyncio

import pytest

from tests.outages.conftest import PING_TEST_S, stored
from tests.outages.proxy import Proxy
from tests.processes import eventually
from tests.serve.servers import Serving
from wal import Message, WALAccesser
from wal.errors import UnknownOutcomeError
from wal.network import PING_S


@pytest.fixture(params=[PING_TEST_S, PING_S], ids=["server-notices", "server-does-not"])
def server_ping_s(request: pytest.FixtureRequest) -> float:
    """The server either finds a silent client as soon as the client the server, or much later."""
    return float(request.param)


@pytest.mark.parametrize("answers_only", [False, True])
async def test_stalled_connection_is_given_up(log: WALAccesser, proxy: Proxy, served: Serving, answers_only: bool) -> None:
    """Keyed appends continue, the outcome of a plain one is unknown, and a reader continues: without pings all wait for ever."""
    read: list[bytes] = []

    async def follow() -> None:
        async with log.read("orders") as scanner:
            async for message in scanner:
                read.append(message.payload)
                if message.payload == b"last":
                    return

    following = asyncio.ensure_future(follow())
    await log.raw_append(Message("orders", b"first"), idempotency_key="first")
    if answers_only:
        proxy.stall_one_way(up=False)
    else:
        proxy.stall()
    plain = log.append_nowait(Message("orders", b"plain"))
    keyed = log.append_nowait(Message("orders", b"keyed"), idempotency_key="keyed")
    with pytest.raises(UnknownOutcomeError):
        await plain
    assert (await keyed).duplicate is answers_only
    await log.raw_append(Message("orders", b"last"), idempotency_key="last")
    await following
    expected = [b"first", b"plain", b"keyed", b"last"] if answers_only else [b"first", b"keyed", b"last"]
    assert await stored(served) == expected == read


async def test_late_requests_are_not_executed(log: WALAccesser, proxy: Proxy, served: Serving) -> None:
    """After an UnknownOutcomeError the log shows whether it has the message: the message does not come later."""
    await log.raw_append(Message("orders", b"first"))
    calls = served.node.draining.calls
    proxy.stall()
    late = log.append_nowait(Message("orders", b"late"))
    with pytest.raises(UnknownOutcomeError):
        await late
    assert await stored(served) == [b"first"]
    await eventually(lambda: proxy.connections == 2)
    await log.raw_append(Message("orders", b"repeated"))
    proxy.ends.clear()
    proxy.flow(up=True)  # what the client sent, but not that it has closed the connection since
    for number in range(50):  # the server has time to execute it, on a stream that it takes for alive
        await log.raw_append(Message("others", b"%d" % number))
    proxy.ends.set()
    async with asyncio.timeout(60):
        while served.node.draining.calls > calls:
            await asyncio.sleep(0.01)
    await log.raw_append(Message("orders", b"last"))
    assert await stored(served) == [b"first", b"repeated", b"last"]
