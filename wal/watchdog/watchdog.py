"""Watchdog: watches components by their heartbeats.

Owns a guard for each component, and the log lines of heartbeats. It guarantees that a component that sends no heartbeat for its timeout, or
one with the status ABNORMAL, is cleaned up and then restarted, once in each episode of failure; a slow component delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

import msgspec

from actors import ActorRef, ActorSystem, Clock, SystemClock
from wal.errors import InvalidArgumentError
from wal.ticks import check_seconds
from wal.watchdog.component import ActiveComponent, ComponentHeartbeat
from wal.watchdog.guard import LOOK, Guard
from wal.watchdog.status import Status, checked_status
from wal.watchdog.target_state import TargetState, TargetStatistics

__all__ = ["Watchdog"]

_log: Final = logging.getLogger("wal.watchdog")


class Watchdog:
    """Watches registered components until the end of its `async with` block. All calls must come from the loop that entered the block.

    `timeout_s` is the time without a heartbeat after which a component has failed. `action_timeout_s` is the time in which a component must
    be cleaned up and restarted; the attempt is cancelled then, once, and the component is watched again when the attempt has ended. Both
    are more than 0 and at most 1e9 seconds; InvalidArgumentError otherwise. The end of the block waits at most 10 s for attempts under way,
    and leaves those that ignore their cancellation.
    """

    def __init__(self, *, timeout_s: float, action_timeout_s: float = 30.0, clock: Clock | None = None) -> None:
        self._timeout_s = check_seconds("timeout_s", timeout_s)
        self._action_timeout_s = check_seconds("action_timeout_s", action_timeout_s)
        self._clock: Clock = clock or SystemClock()
        self._system = ActorSystem("watchdog", clock=self._clock)
        self._targets: dict[str, tuple[TargetState, ActorRef]] = {}

    async def __aenter__(self) -> Self:
        await self._system.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _, guard in self._targets.values():
            guard.stop_nowait()  # all at once, so that components that do not end take 10 s together
        await self._system.stop()

    def register(self, target: ActiveComponent, *, timeout_s: float | None = None) -> None:
        """Watches a component from now on. `timeout_s` overrides that of the watchdog.

        Raises InvalidArgumentError if a component with this id is registered already.
        """
        id_, status = target.id, checked_status(target.status, f"the status of component {target.id!r}")
        if id_ in self._targets:
            raise InvalidArgumentError(
                f"component {id_!r} is registered already: unregister it first, or give this one another id"
            )
        own_timeout_s = self._timeout_s if timeout_s is None else check_seconds("timeout_s", timeout_s)
        state = TargetState(id_, status, timeout_s=own_timeout_s, now=self._clock.monotonic())
        guard = Guard(target, state, clock=self._clock, action_timeout_s=self._action_timeout_s)
        self._targets[id_] = state, self._system.spawn(guard, name=f"guard of {id_}")

    async def unregister(self, id_: str) -> None:
        """Stops watching a component, after a restart that has begun, or after 10 s.

        Raises InvalidArgumentError if it is not registered.
        """
        _, guard = self._target(id_)
        del self._targets[id_]
        await guard.stop()

    def put_heartbeat(self, heartbeat: ComponentHeartbeat) -> None:
        """Takes a heartbeat, and writes it to the logger `wal.watchdog` as a line of JSON, in the order of the calls.

        One that `serialize` raises for counts all the same, and its error is logged in place of the line. Raises InvalidArgumentError if
        its component is not registered.
        """
        state, guard = self._target(heartbeat.id)
        status = checked_status(heartbeat.status, f"the status in a heartbeat of component {heartbeat.id!r}")
        self._dump_heartbeat(heartbeat, status)
        if state.heartbeat(status, self._clock.monotonic()):
            guard.tell_control(LOOK)

    def statistics(self) -> tuple[TargetStatistics, ...]:
        """Returns the state and the counts of each component, in the order of their registration."""
        now = self._clock.monotonic()
        return tuple(state.statistics(now) for state, _ in self._targets.values())

    def _target(self, id_: str) -> tuple[TargetState, ActorRef]:
        try:
            return self._targets[id_]
        except KeyError:
            raise InvalidArgumentError(
                f"component {id_!r} is not registered ({', '.join(map(repr, self._targets)) or 'none is'}): register it first"
            ) from None

    def _dump_heartbeat(self, heartbeat: ComponentHeartbeat, status: Status) -> None:
        try:
            line = {
                "time": _time_text(self._clock.wall()),
                "id": heartbeat.id,
                "status": status.name,
                "heartbeat": heartbeat.serialize(),
            }
            _log.info("%s", msgspec.json.encode(line).decode())
        except (Exception, asyncio.CancelledError):
            _log.exception("a heartbeat of component %r counts, but cannot be written to the log", heartbeat.id)


def _time_text(wall_s: float) -> str:
    """Returns the time in ISO 8601, or the seconds since 1970 for a clock outside of the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{wall_s:.3f}"
