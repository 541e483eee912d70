"""Collector: the metrics of one log for a registry of prometheus-client; and LoopLag, the delay of the event loop.

How it works. A registry calls `collect` in any thread. There the collector requests a snapshot from the loop of the log, and builds the
families in the caller's thread, so that a scrape holds the loop only while counts are read. On the loop itself nothing can be awaited:
there `collect` returns the cursors and the retention of the last `refresh`, or of the last scrape from another thread.

What can go wrong: the log is closed, or its loop is blocked for longer than `TIMEOUT_S`. Then a scrape contains `wal_up` 0 and nothing
else, and raises nothing, so that one log of several in a process leaves the others' metrics intact. While metadata is slow or unreadable, a
scrape has all counts, with the cursors and the retention of the last successful read.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socketserver
from bisect import bisect_left
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector as RegistryCollector

from wal.errors import InvalidArgumentError, StorageError, WALError
from wal.operate.metrics.families import FAMILIES, described, families
from wal.operate.metrics.snapshot import MeasuredLog, MetricsSnapshot, Snapshots, SnapshotSource
from wal.read.figures import Histogram
from wal.runtime.threads import in_thread
from wal.runtime.user_code import shielded

if TYPE_CHECKING:
    from asyncio import TimerHandle


TIMEOUT_S: Final = 5.0
"""The time that a scrape waits for the loop of the log."""
LAG_INTERVAL_S: Final = 0.05
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopLag:
    """Measures the delay of a timer on the loop, from its creation until `stop`. A delay over several intervals counts once, in full."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts = [0] * (len(LAG_BOUNDS_S) + 1)
        self._total = 0.0
        self._timer: TimerHandle | None = None
        self._wait()

    def stop(self) -> None:
        """Stops measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def histogram(self) -> Histogram:
        """Returns the measurements so far."""
        return Histogram(LAG_BOUNDS_S, tuple(self._counts), self._total)

    def _wait(self) -> None:
        self._due_s = self._loop.time() + LAG_INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._called)

    def _called(self) -> None:
        late_s = max(self._loop.time() - self._due_s, 0.0)
        self._counts[bisect_left(LAG_BOUNDS_S, late_s)] += 1
        self._total += late_s
        self._wait()


class Collector(RegistryCollector):
    """The metrics of one open log, for a registry of prometheus-client. Create it on the loop of the log, and `close` it there.

    `prometheus_client.REGISTRY.register(Collector(log))`, or `register(log)`.
    """

    def __init__(self, log: MeasuredLog) -> None:
        self._start(Snapshots(log.statistics, log.cursors, log.retention, log.consumers))

    @classmethod
    def of(cls, source: SnapshotSource) -> Collector:
        """Returns a collector for another source, such as a process of a cluster."""
        collector = cls.__new__(cls)
        collector._start(source)
        return collector

    def _start(self, source: SnapshotSource) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._lag = LoopLag(self._loop)
        self._registries: list[CollectorRegistry] = []

    def close(self) -> None:
        """Stops measuring the loop, and unregisters from the registries of `register`. Idempotent."""
        self._lag.stop()
        registries, self._registries = self._registries, []
        for registry in registries:
            with contextlib.suppress(KeyError):  # it was unregistered already
                registry.unregister(self)

    def describe(self) -> Iterator[Metric]:
        """Yields all families without samples: a registry rejects another collector with the same names."""
        return described()

    def collect(self) -> Iterator[Metric]:
        """Yields the families of this moment. Any thread may call it; see the top of this file for the loop's own."""
        try:
            snapshot = self._snapshot()
        except (WALError, RuntimeError, TimeoutError, concurrent.futures.CancelledError):
            yield GaugeMetricFamily("wal_up", FAMILIES["wal_up"].help, value=0.0)
            return
        yield from families(snapshot, self._lag.histogram)

    async def refresh(self) -> None:
        """Reads cursors and retention again, for a `collect` on the loop of the log."""
        await self._source.take()

    async def text(self) -> tuple[bytes, str]:
        """Returns a scrape of this log alone, and its content type. The text is built in a thread."""

        def made() -> bytes:
            registry = CollectorRegistry()
            registry.register(self)
            return generate_latest(registry)

        return await in_thread(made), CONTENT_TYPE_LATEST

    def _snapshot(self) -> MetricsSnapshot:
        if asyncio._get_running_loop() is self._loop:
            return self._source.take_nowait()
        if not self._loop.is_running():
            raise RuntimeError("the event loop of the log has ended")
        request = asyncio.run_coroutine_threadsafe(self._source.take(), self._loop)
        try:
            return request.result(TIMEOUT_S)
        except TimeoutError:
            request.cancel()
            raise


def register(log: MeasuredLog, registry: CollectorRegistry = REGISTRY) -> Collector:
    """Registers the metrics of an open log, and returns their collector; its `close` unregisters them.

    One registry takes one log, since the names are the same: use a registry of its own for each further log. Otherwise it raises
    InvalidArgumentError, a ValueError, as it also does if the collector of a closed log was not closed.
    """
    collector = Collector(log)
    try:
        registry.register(collector)
    except ValueError as error:  # its text is the list of all names
        collector.close()
        raise InvalidArgumentError(
            "the registry has metrics by these names already (Duplicated timeseries): close() the collector that register() returned for "
            "the earlier log, or give this log a registry of its own, as in register(log, CollectorRegistry())"
        ) from error
    collector._registries.append(registry)
    return collector


class MetricsEndpoint:
    """The server of `--metrics HOST:PORT`, within `async with`. `address` is its address, with the actual port.

    It has a thread of its own, so that a scrape never waits for other calls of the process. It answers every GET with the metrics of this
    process, to every client that reaches the address. The metrics name pchannels and cursors, and contain no messages.
    """

    def __init__(self, address: str, source: SnapshotSource) -> None:
        self.address: str = address
        self._source = source
        self._collector: Collector
        self._server: WSGIServer

    async def __aenter__(self) -> Self:
        """Listens. Raises StorageError if it cannot listen at the address."""
        host, _, port = self.address.rpartition(":")
        registry = CollectorRegistry()
        for collector in (PROCESS_COLLECTOR, PLATFORM_COLLECTOR, GC_COLLECTOR):
            registry.register(collector)
        self._collector = Collector.of(self._source)
        registry.register(self._collector)
        try:
            self._server, self._thread = await in_thread(start_http_server, int(port), host.strip("[]"), registry)
        except OSError as error:
            self._collector.close()
            raise StorageError(f"metrics cannot be served at {self.address}: {error.strerror or error}") from error
        self.address = f"{host}:{self._server.server_port}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        def end() -> None:
            self._server.shutdown()
            socketserver.TCPServer.server_close(self._server)  # not awaited, since a running scrape may wait for this loop
            self._thread.join()

        self._collector.close()
        with shielded():
            await in_thread(end)
