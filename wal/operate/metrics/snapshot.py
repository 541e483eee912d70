"""The measurements of a log at one moment, for metrics and for the status page.

Owns the interval at which cursors and retention are read: that reads files, so callers within `FRESH_S` share one read. Counts are read at
each call. Everything runs on the loop of the log; a snapshot itself never changes, and any thread may use it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Generic, Protocol, TypeVar

import msgspec

from broadcaster.message import BroadcasterStatistics
from wal.engine import LogStatistics
from wal.errors import ClosedError, WALError
from wal.read.cursors.cursor import CursorInfo
from wal.read.figures import gauge
from wal.requests.pchannels import PChannelRetention
from wal.timestamp.timestamp import parse

if TYPE_CHECKING:
    from wal.consumers.consumer import ConsumerInfo

FRESH_S: Final = 1.0
"""The maximum age of values from files."""
LOOK_S: Final = 2.0
"""The time that a snapshot waits for these values. A scrape of Prometheus ends after 10 s by default, and the collector's own limit is 5
s.
"""
_T = TypeVar("_T")
_log: Final = logging.getLogger("wal.metrics")


class MeasuredLog(Protocol):
    """An open log; `WALAccesser` is an implementation."""

    def statistics(self) -> LogStatistics: ...
    async def cursors(self) -> list[CursorInfo]: ...
    async def retention(self) -> Sequence[PChannelRetention]: ...
    def consumers(self) -> list[ConsumerInfo]: ...


class SnapshotSource(Protocol):
    """A source of measurements of a process: see `Snapshots`, and for a coordinator `wal/operate/processes/coordinator.py`."""

    async def take(self) -> MetricsSnapshot: ...
    def take_nowait(self) -> MetricsSnapshot: ...


class CursorLag(msgspec.Struct, frozen=True):
    """The lag of a cursor.

    `lag_s` is the distance of its position to the promised tick of its pchannel: at most the age of its oldest unread event. It is 0 if
    nothing remains to be read, and None if the cursor was saved before any message was delivered. `idle_s` is the time since its last save,
    None if that is not known.
    """

    name: str
    vchannels: tuple[str, ...]
    lag_bytes: Annotated[int, gauge("wal_cursor_lag_bytes", "Unread bytes of the cursor's own vchannels")]
    lag_s: Annotated[
        float | None, gauge("wal_cursor_lag_seconds", "At most the age of the oldest unread event; absent if it was never saved after one")
    ]
    held_bytes: Annotated[int, gauge("wal_cursor_held_bytes", "Bytes of log that retention keeps for the cursor")]
    idle_s: Annotated[float | None, gauge("wal_cursor_idle_seconds", "Since the last save of the cursor")]
    stale: bool


class CoordinatorStatistics(msgspec.Struct, frozen=True):
    """Counts of a coordinator of a cluster: nodes by "healthy", "unhealthy" and "draining", and pchannels by state in lower case.

    A standby has no counts.
    """

    leads: Annotated[bool, gauge("wal_coordinator_leads", "1 if this coordinator leads its cluster, else 0")]
    paused: Annotated[bool, gauge("wal_coordinator_paused", "1 while the leader moves nothing to balance")] = False
    nodes: Annotated[
        dict[str, int], gauge("wal_coordinator_nodes", "Nodes of the cluster by state: healthy, unhealthy or draining", ("state",))
    ] = {}
    pchannels: Annotated[
        dict[str, int], gauge("wal_coordinator_pchannels", "Pchannels of the cluster by the state of their assignment", ("state",))
    ] = {}
    broadcasts: BroadcasterStatistics | None = None


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """`at_s` is the snapshot's wall time. `log` is None for a process without a log, such as a coordinator."""

    at_s: float
    log: LogStatistics | None = None
    cursors: Sequence[CursorLag] = ()
    consumers: Sequence[ConsumerInfo] = ()
    """The consumers of this process."""
    retention: Sequence[PChannelRetention] = ()
    coordinator: CoordinatorStatistics | None = None


class _Look(Generic[_T]):
    """The result of `read`, which is slow: callers within `FRESH_S` share one read. `value` is the last result."""

    def __init__(self, name: str, read: Callable[[], Awaitable[Sequence[_T]]]) -> None:
        self.value: Sequence[_T] = []
        self._name = name
        self._read = read
        self._read_at_s = -FRESH_S
        self._reading: asyncio.Task[None] | None = None

    async def fresh(self) -> Sequence[_T]:
        """Returns a result that is not older than `FRESH_S`. Raises the errors of `read`."""
        if time.monotonic() - self._read_at_s >= FRESH_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.get_running_loop().create_task(self._look(), name=f"look at {self._name}")
            await asyncio.shield(self._reading)
        return self.value

    async def _look(self) -> None:
        self.value = await self._read()
        self._read_at_s = time.monotonic()


class Snapshots:
    """Takes snapshots of one log, by its calls."""

    def __init__(
        self,
        statistics: Callable[[], LogStatistics],
        cursors: Callable[[], Awaitable[Sequence[CursorInfo]]],
        retention: Callable[[], Awaitable[Sequence[PChannelRetention]]],
        consumers: Callable[[], list[ConsumerInfo]] = list,
    ) -> None:
        self._statistics = statistics
        self._consumers = consumers
        self._cursors = _Look("cursors", cursors)
        self._retention = _Look("retention", retention)

    async def take(self) -> MetricsSnapshot:
        """Returns a snapshot that is not older than the call, except that cursors and retention may be `FRESH_S` old.

        If they take longer than `LOOK_S`, or the metadata cannot be read, the snapshot has their last values or none: the counts of the log
        are always exported. Raises ClosedError once the log is closed.
        """
        looks = [asyncio.ensure_future(self._cursors.fresh()), asyncio.ensure_future(self._retention.fresh())]
        try:
            await asyncio.wait(looks, timeout=LOOK_S)
            for look in looks:
                if look.done() and not look.cancelled() and (error := look.exception()) is not None:
                    if isinstance(error, ClosedError) or not isinstance(error, WALError):
                        raise error
                    _log.debug("cursors and retention are shown as they were last: %s", error)
        finally:
            for look in looks:
                look.cancel()
        return self.take_nowait()

    def take_nowait(self) -> MetricsSnapshot:
        """Returns the counts of this moment, with the cursors and the retention of the last `take`."""
        now_s, counts = time.time(), self._statistics()
        promised_ms = {pchannel.name: parse(pchannel.promise)[0] for pchannel in counts.pchannels}
        cursors = [_lag(info, promised_ms, now_s) for info in self._cursors.value]
        return MetricsSnapshot(now_s, counts, cursors, self._consumers(), self._retention.value)

    async def retention(self) -> Sequence[PChannelRetention]:
        """Returns the pchannels' retention, at most `FRESH_S` old. Raises the errors of the log."""
        return await self._retention.fresh()


def _lag(info: CursorInfo, promised_ms: dict[str, int], now_s: float) -> CursorLag:
    lag_s: float | None = 0.0
    if info.lag_bytes:
        position = info.position
        lag_s = None
        if position is not None and (newest_ms := promised_ms.get(position.message_id.pchannel)) is not None:
            lag_s = max(newest_ms - parse(position.time_tick)[0], 0) / 1000
    idle_s = None if info.saved_at is None else max(now_s - info.saved_at, 0.0)
    return CursorLag(info.name, info.vchannels, info.lag_bytes, lag_s, info.held_bytes, idle_s, info.stale)
