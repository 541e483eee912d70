"""Guard: the actor that watches one component. Every component has its own guard, so a slow clean-up or restart delays no other.

The component's own code runs in a task of its own, the attempt. A cancellation that the component raises therefore ends the attempt and not
the guard, and one that it ignores keeps nobody waiting but this guard, which is cut off when it is stopped. Two attempts never overlap.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from actors import Actor, Clock, Timer
from wal.watchdog.component import ActiveComponent
from wal.watchdog.status import Status, checked_status
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
        self._attempt: asyncio.Task[None] | None = None
        self._status = Status.INITIALIZING
        """The status in the last episode: the component's own, then that after each step of the attempt."""

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
        """Cleans up the component and, if that succeeded, restarts it. There is one attempt in an episode, even if it fails."""
        state, clock = self._state, self._clock
        silent_s = state.statistics(clock.monotonic()).silent_s
        self._status = self._current_status()
        if not state.begin_restart(self._status):
            return
        _log.warning(
            "component %r is %s, last heard %.3f s ago: cleaning and restarting it",
            state.id,
            self._status.name,
            silent_s,
        )
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
        except (Exception, asyncio.CancelledError):
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
