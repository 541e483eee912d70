"""Watchdog: watches components by their heartbeats.

Owns a guard for each component, and the log lines of heartbeats. A component fails when it sends no heartbeat for its timeout, or when its
status is ABNORMAL. The watchdog cleans it up and restarts it, once in each episode of failure. A slow component delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from enum import IntEnum
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from actors import Actor, ActorRef, ActorSystem, Clock, SystemClock, Timer
from wal.errors import InvalidArgumentError
from wal.runtime.user_code import shielded
from wal.timestamp.checks import check_seconds

__all__ = ["ActiveComponent", "ComponentHeartbeat", "Status", "TargetStatistics", "Watchdog"]


class Status(IntEnum):
    """The status that a component reports. The values are those of component states in Milvus."""

    INITIALIZING = 0
    HEALTHY = 1
    ABNORMAL = 2
    STAND_BY = 3
    STOPPING = 4
    """The component is shutting down, so it may stop sending heartbeats."""


def checked_status(status: object, what: str) -> Status:
    """Returns the status; raises TypeError, whose text begins with `what`, for any value that is not a Status."""
    if not isinstance(status, Status):
        raise TypeError(f"{what} is {status!r}: it must be a wal.streams.watchdog.Status")
    return status


class ActiveComponent(Protocol):
    """A component that can be watched. `id` never changes."""

    @property
    def id(self) -> str:
        """The name under which the component is watched."""

    @property
    def status(self) -> Status:
        """The current status."""

    async def clean(self) -> Status:
        """Releases the resources of the failed run, and returns the status after that."""

    async def restart(self) -> Status:
        """Starts the component again, and returns the status after that."""


class ComponentHeartbeat(Protocol):
    """A sign of life of the component with this `id`."""

    @property
    def id(self) -> str:
        """The id of the component that sent the heartbeat."""

    @property
    def status(self) -> Status:
        """The component's status when it sent the heartbeat."""

    def serialize(self) -> str:
        """Returns the component's own text for the log line."""


class TargetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a watched component. `failing` is True from its failure until the first good heartbeat after its restart."""

    id: str
    status: Status
    failing: bool
    silent_s: float
    """The time since the last heartbeat, registration or restart."""
    heartbeats: int
    episodes: int
    """The failures so far. Each began one restart, which may still run."""


class TargetState:
    """The state of a watched component, and whether it has to be restarted. Pure.

    A component fails when its status is ABNORMAL, or when it sends no heartbeat for its timeout, unless it is STOPPING. The failure begins
    an episode, in which the component is restarted once. The episode lasts until a heartbeat after the restart that is not ABNORMAL.

    `now` is a monotonic time in seconds.
    """

    def __init__(self, id_: str, status: Status, *, timeout_s: float, now: float) -> None:
        self.id: str = id_
        self.status: Status = status
        self.timeout_s: float = timeout_s
        self.failing: bool = False
        self._restarting = False
        self._heard_at = now
        self._heartbeats = 0
        self._episodes = 0

    def heartbeat(self, status: Status, now: float) -> bool:
        """Records a heartbeat; returns whether the guard has to act, because the component must be restarted or its episode has ended."""
        self.status, self._heard_at = status, now
        self._heartbeats += 1
        if self.failing and not self._restarting and status is not Status.ABNORMAL:
            self.failing = False
            return True
        return self.needs_restart(now)

    def needs_restart(self, now: float) -> bool:
        """Returns whether the component failed and was not restarted yet."""
        silent_in = self.silent_in(now)
        return silent_in is not None and (self.status is Status.ABNORMAL or silent_in == 0)

    def silent_in(self, now: float) -> float | None:
        """Returns the seconds until a missing heartbeat counts as a failure; None if it does not count."""
        if self.failing or self.status is Status.STOPPING:
            return None
        return max(0.0, self._heard_at + self.timeout_s - now)

    def begin_restart(self, status: Status) -> bool:
        """Begins an episode with the component's current status; returns False, and begins no episode, if the status is STOPPING."""
        self.status = status
        if status is Status.STOPPING:
            return False
        self.failing = self._restarting = True
        self._episodes += 1
        return True

    def end_restart(self, status: Status, now: float) -> None:
        """Stores the status after the attempt, whether or not it succeeded. The episode lasts until a good heartbeat."""
        self.status, self._heard_at, self._restarting = status, now, False

    def statistics(self, now: float) -> TargetStatistics:
        """Returns the state and the counts."""
        return TargetStatistics(
            id=self.id,
            status=self.status,
            failing=self.failing,
            silent_s=now - self._heard_at,
            heartbeats=self._heartbeats,
            episodes=self._episodes,
        )


LOOK: Final = "look"
"""The message that makes a guard check its component's state."""
_log: Final = logging.getLogger("wal.watchdog")


class Guard(Actor):
    """The actor that watches one component, and cleans up and restarts `target` when `state` requires it.

    Every component has its own guard, so a slow clean-up or restart delays no other. The component's own code runs in a separate task, the
    attempt. A cancellation that the component raises ends the attempt and not the guard. If the component ignores a cancellation, only this
    guard waits for it, until the guard is stopped. Two attempts never overlap.
    """

    def __init__(self, target: ActiveComponent, state: TargetState, *, clock: Clock, action_timeout_s: float) -> None:
        self._target = target
        self._state = state
        self._clock = clock
        self._action_timeout_s = action_timeout_s
        self._timer: Timer | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._status = Status.INITIALIZING
        """The status in the last episode: first the component's own, then the status after each step of the attempt."""

    async def started(self) -> None:
        self._arm()

    async def receive_control(self, message: object) -> None:
        if self._state.needs_restart(self._clock.monotonic()):
            await self._restart()
        self._arm()

    async def stopped(self) -> None:
        self._disarm()

    def poisoned(self, cause: BaseException, unhandled: list[object]) -> None:
        self._disarm()
        if self._attempt is not None and not self._attempt.done():
            _log.error("component %r is left while it is cleaned and restarted: it is cancelled", self._state.id)
            self._attempt.add_done_callback(_retrieve)
            self._attempt.cancel()

    async def _restart(self) -> None:
        """Cleans up the component and, if that succeeded, restarts it. An episode has one attempt, even if the attempt fails."""
        state, clock = self._state, self._clock
        silent_s = state.statistics(clock.monotonic()).silent_s
        self._status = self._current_status()
        if not state.begin_restart(self._status):
            return
        _log.warning("component %r is %s, last heard %.3f s ago: cleaning and restarting it", state.id, self._status.name, silent_s)
        attempt = self._attempt = asyncio.create_task(self._clean_and_restart(), name=f"restart of {state.id}")
        timer = clock.call_later(self._action_timeout_s, self._give_up, attempt)
        try:
            await asyncio.wait({attempt})
        finally:
            timer.cancel()
            state.end_restart(self._status, clock.monotonic())
        if not attempt.cancelled() and (failure := attempt.exception()) is None:
            _log.warning("component %r was restarted and is %s", state.id, self._status.name)
        elif not attempt.cancelled():
            _log.error("component %r could not be cleaned and restarted", state.id, exc_info=failure)
        elif not attempt.cancelling():
            _log.error("component %r could not be cleaned and restarted: it raised CancelledError", state.id)

    async def _clean_and_restart(self) -> None:
        id_ = self._state.id
        self._status = checked_status(await self._target.clean(), f"the status after clean() of component {id_!r}")
        self._status = checked_status(await self._target.restart(), f"the status after restart() of component {id_!r}")

    def _give_up(self, attempt: asyncio.Task[None]) -> None:
        if attempt.cancel():
            _log.error(
                "component %r was not cleaned and restarted within %s s: it is cancelled, and watched again when it has ended",
                self._state.id,
                self._action_timeout_s,
            )

    def _current_status(self) -> Status:
        try:
            return checked_status(self._target.status, f"the status of component {self._state.id!r}")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            _log.exception("component %r does not tell its status: it counts as ABNORMAL", self._state.id)
            return Status.ABNORMAL

    def _arm(self) -> None:
        self._disarm()
        silent_in = self._state.silent_in(self._clock.monotonic())
        if silent_in is not None:
            self._timer = self._clock.call_later(silent_in, self.ref.tell_control, LOOK)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _retrieve(attempt: asyncio.Task[None]) -> None:
    if not attempt.cancelled() and (failure := attempt.exception()) is not None:
        _log.error("a component that was left while it was restarted failed", exc_info=failure)


class Watchdog:
    """Watches registered components until the end of its `async with` block. All calls must come from the loop that entered the block.

    A component fails after `timeout_s` without a heartbeat. It must be cleaned up and restarted within `action_timeout_s`. An attempt that
    takes longer is cancelled once, and the component is watched again when the attempt has ended. Both times are more than 0 and at most
    1e9 seconds; InvalidArgumentError otherwise. The end of the block waits at most 10 s for running attempts, and abandons attempts that
    ignore their cancellation.
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

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for _, guard in self._targets.values():
            guard.stop_nowait()  # all at once, so that all components that do not end take 10 s in total
        with shielded():
            await self._system.stop()

    def register(self, target: ActiveComponent, *, timeout_s: float | None = None) -> None:
        """Watches a component from now on. `timeout_s` overrides that of the watchdog.

        Raises InvalidArgumentError if a component with this id is registered already.
        """
        id_, status = target.id, checked_status(target.status, f"the status of component {target.id!r}")
        if id_ in self._targets:
            raise InvalidArgumentError(f"component {id_!r} is registered already: unregister it first, or give this one another id")
        own_timeout_s = self._timeout_s if timeout_s is None else check_seconds("timeout_s", timeout_s)
        state = TargetState(id_, status, timeout_s=own_timeout_s, now=self._clock.monotonic())
        guard = Guard(target, state, clock=self._clock, action_timeout_s=self._action_timeout_s)
        self._targets[id_] = state, self._system.spawn(guard, name=f"guard of {id_}")

    async def unregister(self, id_: str) -> None:
        """Stops watching a component. Waits up to 10 s for a restart that has begun.

        Raises InvalidArgumentError if the component is not registered.
        """
        _, guard = self._target(id_)
        del self._targets[id_]
        await guard.stop()

    def put_heartbeat(self, heartbeat: ComponentHeartbeat) -> None:
        """Records a heartbeat, and writes it to the logger `wal.watchdog` as a line of JSON, in the order of the calls.

        A heartbeat whose `serialize` raises counts too, and its error is logged in place of the line. Raises InvalidArgumentError if its
        component is not registered.
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
            line = {"time": _time_text(self._clock.wall()), "id": heartbeat.id, "status": status.name, "heartbeat": heartbeat.serialize()}
            _log.info("%s", msgspec.json.encode(line).decode())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            _log.exception("a heartbeat of component %r counts, but cannot be written to the log", heartbeat.id)


def _time_text(wall_s: float) -> str:
    """Returns the time in ISO 8601, or the seconds since 1970 for a clock outside of the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{wall_s:.3f}"
