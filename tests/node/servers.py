"""Real servers for the tests of the node and its clients: one in this process, and one as a child process that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from tests.servers.process import free_ports
from wal.api.factory import with_absolute_paths
from wal.local.log import LocalLog
from wal.local.server import LogServer
from wal.location import parse_location
from wal.node.access import Access
from wal.node.server import DRAIN_S, LATE_S
from wal.rpc.connection import Connection
from wal.settings import Settings

START_S = 60.0


class Serving:
    """A node in this process: `log` is what it serves, `address` is where."""

    def __init__(self, log: LocalLog, node: LogServer) -> None:
        self.log = log
        self.node = node
        self.address = node.address


@contextlib.asynccontextmanager
async def serving(location: str | Path = "memory:", *, access: Access | None = None, **settings: Any) -> AsyncIterator[Serving]:
    """Opens a log, serves it in this process, and closes both."""
    log = LocalLog(parse_location(location), with_absolute_paths(Settings(**settings)))
    await log.open()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(log.close)
        node = await LogServer.start(log, access or Access(listen=f"127.0.0.1:{free_ports(1)[0]}"))
        stack.push_async_callback(close_after_clients, node, drain_s=1.0)
        yield Serving(log, node)


async def close_after_clients(node: LogServer, *, drain_s: float = DRAIN_S) -> None:
    """Closes a node whose clients are gone. It hears of that within milliseconds; one with calls under way would refuse late ones first."""
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

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    @classmethod
    async def start(cls, location: str | Path, *flags: str, listen: str | None = None, **variables: str) -> Child:
        """Starts it at `listen`, or at a port where it can be started again."""
        listen = listen or f"127.0.0.1:{free_ports(1)[0]}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "wal", "standalone", str(location), "--listen", listen, *flags,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **variables},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = (await process.stdout.readline()).decode()
        except BaseException:
            process.kill()
            raise
        assert line.startswith("listening on "), f"exit code {await process.wait()}"
        return cls(process, line.removeprefix("listening on ").strip())

    async def kill(self) -> None:
        """Kills it, as a crash does."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        """Asks it to stop; returns its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()


@contextlib.asynccontextmanager
async def child(location: str | Path, *flags: str, **options: Any) -> AsyncIterator[Child]:
    """Starts a server as a process, and kills it at the end if it still runs."""
    started = await Child.start(location, *flags, **options)
    try:
        yield started
    finally:
        if started.process.returncode is None:
            await started.kill()


class ServerProcess:
    """`wal standalone` as a process on one port, which can be killed and started again; a context manager."""

    def __init__(self, data: Path, *flags: str) -> None:
        self._data = data
        self._flags = flags
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def location(self) -> str:
        return f"wal://{self.address}"

    def start(self) -> None:
        """Starts it; returns when it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wal", "standalone", str(self._data), "--listen", self.address, *self._flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), f"exit code {self._process.wait()}"
        self.address = line.split()[-1]

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
