"""TargetState: what is known of a watched component, and whether it needs help. Pure.

A component needs help when it says that it is ABNORMAL, or when it was silent for its timeout, unless it is STOPPING. It is helped once:
the episode of failure lasts until a heartbeat comes that was sent after the help and is not ABNORMAL.
"""

from __future__ import annotations

import msgspec

from wal.watchdog.status import Status

__all__ = ["TargetState", "TargetStatistics"]


class TargetStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a watchdog knows of a component. `failing`: it failed, and no good heartbeat has come since it was helped."""

    id: str
    status: Status
    failing: bool
    silent_s: float
    """The time since the last heartbeat, or since it was registered or restarted."""
    heartbeats: int
    episodes: int
    """How often it failed; it was helped as often, or is being helped."""


class TargetState:
    """The state of one component. `now` is a monotonic time in seconds."""

    def __init__(self, id_: str, status: Status, *, timeout_s: float, now: float) -> None:
        self.id: str = id_
        self.status: Status = status
        self.timeout_s: float = timeout_s
        self.failing: bool = False
        self._helping = False
        self._heard_at = now
        self._heartbeats = 0
        self._episodes = 0

    def heartbeat(self, status: Status, now: float) -> bool:
        """Takes a heartbeat; returns whether the guard has to look: the component needs help, or its episode is over."""
        self.status, self._heard_at = status, now
        self._heartbeats += 1
        if self.failing and not self._helping and status is not Status.ABNORMAL:
            self.failing = False
            return True
        return self.needs_help(now)

    def needs_help(self, now: float) -> bool:
        """Returns whether the component failed and was not helped yet."""
        silent_in = self.silent_in(now)
        return silent_in is not None and (self.status is Status.ABNORMAL or silent_in == 0)

    def silent_in(self, now: float) -> float | None:
        """Returns the seconds until its silence counts as a failure; None if it does not count."""
        if self.failing or self.status is Status.STOPPING:
            return None
        return max(0.0, self._heard_at + self.timeout_s - now)

    def begin_help(self, status: Status) -> bool:
        """Begins an episode, with the status that the component has now; returns False, and begins none, if it is STOPPING."""
        self.status = status
        if status is Status.STOPPING:
            return False
        self.failing = self._helping = True
        self._episodes += 1
        return True

    def end_help(self, status: Status, now: float) -> None:
        """Notes the status after the help, whether or not it succeeded. The episode goes on until a good heartbeat."""
        self.status, self._heard_at, self._helping = status, now, False

    def statistics(self, now: float) -> TargetStatistics:
        """Returns what is known."""
        return TargetStatistics(
            id=self.id,
            status=self.status,
            failing=self.failing,
            silent_s=now - self._heard_at,
            heartbeats=self._heartbeats,
            episodes=self._episodes,
        )
