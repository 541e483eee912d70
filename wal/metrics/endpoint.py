"""The endpoint of `--metrics HOST:PORT`: a small HTTP server in a thread of its own, so that a scrape never waits for other calls of the
process.

It answers every GET with the metrics of this process, to everybody who reaches the address: they name pchannels and cursors, and hold
nothing of what is in the log.
"""

from __future__ import annotations

import asyncio
import socketserver
from types import TracebackType
from typing import Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry, start_http_server

from wal.errors import StorageError
from wal.metrics.collector import Collector
from wal.metrics.snapshot import SnapshotSource


class MetricsEndpoint:
    """Serves the metrics of a process within `async with`. `address` is where it listens, with the port that was found."""

    def __init__(self, address: str, source: SnapshotSource) -> None:
        self.address = address
        self._source = source
        self._collector: Collector
        self._server: WSGIServer

    async def __aenter__(self) -> Self:
        """Listens. Raises StorageError if nothing can listen at the address."""
        host, _, port = self.address.rpartition(":")
        registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        self._collector = Collector.of(self._source)
        registry.register(self._collector)
        try:
            self._server, self._thread = await asyncio.to_thread(start_http_server, int(port), host.strip("[]"), registry)
        except OSError as error:
            self._collector.close()
            raise StorageError(f"metrics cannot be served at {self.address}: {error.strerror or error}") from error
        self.address = f"{host}:{self._server.server_port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        def end() -> None:
            self._server.shutdown()
            socketserver.TCPServer.server_close(self._server)  # a scrape under way, which may wait for this loop, is not waited for
            self._thread.join()

        self._collector.close()
        await asyncio.to_thread(end)
