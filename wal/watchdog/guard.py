"""Guard: the actor that watches one component. Every component has its own guard, so a slow clean-up or restart delays no other."""

from __future__ import annotations

import logging
from typing import Final

import anyio

from actors import Actor, Clock, Timer
from wal.watchdog.component import ActiveComponent
from wal.watchdog.status import Status
from wal.watchdog.target_state import TargetState

__all__ = ["LOOK", "Guard"]

LOOK: Final = "look"
"""The message that makes a guard look at its component's state."""
_log: Final = logging.getLogger("wal.watchdog")


class Guard(Actor):
    """Cleans up and restarts `target` when `state` says that this is needed."""

    def __init__(self, target: ActiveComponent, state: TargetState, *, clock: Clock, action_timeout_s: float) -> None:
        self._target = target
        self._state = state
        self._clock = clock
        self._action_timeout_s = action_timeout_s
        self._timer: Timer | None = None

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

    async def _restart(self) -> None:
        """Cleans up the component and, if that succeeded, restarts it. There is one attempt in an episode, even if it fails."""
        state, clock = self._state, self._clock
        silent_s = state.statistics(clock.monotonic()).silent_s
        status = self._status()
        if not state.begin_restart(status):
            return
        _log.warning(
            "component %r is %s, last heard %.3f s ago: cleaning and restarting it", state.id, status.name, silent_s
        )
        timer = None
        try:
            with anyio.CancelScope() as scope:
                timer = clock.call_later(self._action_timeout_s, scope.cancel)
                status = await self._target.clean()
                status = await self._target.restart()
            if scope.cancelled_caught:
                _log.error("component %r was not cleaned and restarted within %s s", state.id, self._action_timeout_s)
            else:
                _log.warning("component %r was restarted and is %s", state.id, status.name)
        except Exception:
            _log.exception("component %r could not be cleaned and restarted", state.id)
        finally:
            if timer is not None:
                timer.cancel()
            state.end_restart(status, clock.monotonic())

    def _status(self) -> Status:
        try:
            return self._target.status
        except Exception:
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
