"""A served log whose client pings once a second, and a proxy between them that can go silent."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from tests.outages.proxy import Proxy
from tests.serve.servers import Serving, serving
from wal import WALAccesser, open_wal
from wal.network import PING_S
from wal.requests.vchannels import CreateVChannel
from wal.rpc.connection import Connection
from wal.rpc.serving import server_options
from wal.serve import server

PING_TEST_S: Final = 1.0
"""After so many silent seconds a client pings. gRPC pings once a second at most."""


@pytest.fixture
def server_ping_s() -> float:
    """After this many silent seconds the server pings: here it takes a silent connection for alive much longer than its clients do."""
    return PING_S


@pytest.fixture
async def served(server_ping_s: float, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serving]:
    """A node whose clients may ping often."""

    def options(**given: Any) -> list[tuple[str, Any]]:
        options = dict(server_options(ping_s=server_ping_s, **given))
        options["grpc.http2.min_ping_interval_without_data_ms"] = round(PING_TEST_S * 500)
        return list(options.items())

    monkeypatch.setattr(server, "server_options", options)
    monkeypatch.setattr(Connection, "open", functools.partial(Connection.open, ping_s=PING_TEST_S))
    async with serving() as one:
        yield one


@pytest.fixture
async def proxy(served: Serving) -> AsyncIterator[Proxy]:
    async with Proxy(int(served.address.rpartition(":")[2])) as one:
        yield one


@pytest.fixture
async def log(served: Serving, proxy: Proxy) -> AsyncIterator[WALAccesser]:
    """A client whose connection goes through the proxy. The server has the vchannel: its creation over the connection could be cut off."""
    await served.log.submit(CreateVChannel("orders"))
    async with open_wal(f"wal://{proxy.address}") as one:
        yield one


async def stored(served: Serving) -> list[bytes]:
    """Returns what the log has, read directly from the server."""
    async with open_wal(f"wal://{served.address}") as direct, direct.read("orders", follow=False) as scanner:
        return [message.payload async for message in scanner]
