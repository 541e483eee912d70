"""TargetState: what is known of a watched component, and whether it has to be restarted. Pure.

A component fails when its status is ABNORMAL, or when it sends no heartbeat for its timeout, unless it is STOPPING. That begins an episode,
in which it is restarted once. The episode lasts until a heartbeat comes after the restart that is not ABNORMAL.
"""

from __future__ import annotations

import msgspec

from wal.watchdog.status import Status

__all__ = ["TargetState", "TargetStatistics"]


class TargetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a watchdog knows of a component. `failing`: it failed, and no good heartbeat has come since it was restarted."""

    id: str
    status: Status
    failing: bool
    silent_s: float
    """The time since the last heartbeat, or since it was registered or restarted."""
    heartbeats: int
    episodes: int
    """How often it failed. Each time one restart was attempted, or is under way."""


class TargetState:
    """The state of one component. `now` is a monotonic time in seconds."""

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
        """Takes a heartbeat; returns whether the guard has to look: the component has to be restarted, or its episode is over."""
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
        """Begins an episode with the component's current status; returns False, and begins none, if that is STOPPING."""
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
