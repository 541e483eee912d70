"""Real servers for the tests of the node and its clients: one in this process, and one as a child process that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from actors import Clock
from tests import processes
from tests.servers.process import free_ports
from wal.api.factory import with_absolute_paths
from wal.location import parse_location
from wal.node.local.log import LocalLog
from wal.operate.processes.standalone import LogServer
from wal.rpc.connection import Connection
from wal.serve.access import Access
from wal.serve.server import DRAIN_S, LATE_S
from wal.settings import Settings


class Serving:
    """A node in this process: `log` is what it serves, `address` is where."""

    def __init__(self, log: LocalLog, node: LogServer) -> None:
        self.log = log
        self.node = node
        self.address = node.address


@contextlib.asynccontextmanager
async def serving(
    location: str | Path = "memory:", *, access: Access | None = None, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Serving]:
    """Opens a log, serves it in this process, and closes both."""
    log = LocalLog(parse_location(location), with_absolute_paths(Settings(**settings)), clock=clock)
    await log.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(log.close)
        node = await LogServer.start(log, access or Access(listen=f"127.0.0.1:{free_ports(1)[0]}"))
        stack.push_async_callback(close_after_clients, node, drain_s=1.0)
        yield Serving(log, node)


async def close_after_clients(node: LogServer, *, drain_s: float = DRAIN_S) -> None:
    """Closes a node whose clients are gone. It gets that within milliseconds; a node with running calls would refuse late ones first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LATE_S):
            while node.draining.calls:
                await asyncio.sleep(0.001)
    await node.close(drain_s=drain_s)


@contextlib.asynccontextmanager
async def connected(address: str, **options: Any) -> AsyncIterator[Connection]:
    """Connects to a server."""
    connection = await Connection.open([address], **{"timeout_s": 30.0, **options})
    try:
        yield connection
    finally:
        await connection.close()


class Child:
    """`wal standalone` as a process of its own, by `start`; `address` is where it listens."""

    def __init__(self, process: processes.Child, address: str) -> None:
        self.process = process
        self.address = address

    @classmethod
    async def start(cls, location: str | Path, *flags: str, listen: str | None = None, **variables: str) -> Child:
        """Starts it at `listen`, or at a port where it can be started again."""
        listen = listen or f"127.0.0.1:{free_ports(1)[0]}"
        command = ("-m", "wal", "standalone", location, "--listen", listen, *flags)
        process = processes.Child(*command, environment={**os.environ, **variables})
        try:
            line = await process.line()
        except BaseException:
            await process.__aexit__()
            raise
        assert line.startswith("listening on "), line
        return cls(process, line.removeprefix("listening on ").strip())

    async def kill(self) -> None:
        """Kills it, as a crash does."""
        self.process.send_signal(signal.SIGKILL)
        await self.ended()

    async def stop(self) -> int:
        """Asks it to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self) -> int:
        """Waits until it has ended; returns its exit code."""
        code = await self.process.wait()
        await self.process.__aexit__()
        return code


@contextlib.asynccontextmanager
async def child(location: str | Path, *flags: str, **options: Any) -> AsyncIterator[Child]:
    """Starts a server as a process, and kills it at the end if it still runs."""
    started = await Child.start(location, *flags, **options)
    try:
        yield started
    finally:
        await started.process.__aexit__()


class ServerProcess:
    """`wal standalone` as a process on one port, which can be killed and started again; a context manager."""

    def __init__(self, data: Path, *flags: str) -> None:
        self._data = data
        self._flags = flags
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._process: processes.Child | None = None
        self.start()

    @property
    def location(self) -> str:
        return f"wal://{self.address}"

    def start(self) -> None:
        """Starts it; returns when it listens."""
        self._process = processes.Child("-m", "wal", "standalone", self._data, "--listen", self.address, *self._flags)
        line = self._process.line_now()
        assert line.startswith("listening on "), line
        self.address = line.split()[-1]

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
