"""CheckpointLedger: where recovery begins, and when it is worth moving that on. Pure.

Owns the rules. What happens is keyed events, copies of broadcasts, and broadcasts that end, all called keyed here. A checkpoint is due
when so many keyed events lie behind the last one, or so many bytes of frames that hold some, that
replaying them would make the next opening slow; when so much log does; when truncated space waits for it that is worth its cost; and
at a clean close, if anything keyed happened. Its state is an eighth of the frames that it replaces, at most, but for the first rule.
Where nothing keyed happened since the last, the state stored for that one still holds and only the position moves, which costs a
record in the KV. After a failure the next try waits, each time longer. One is under way at a time. It keeps no clock.

    (idle) --begin--> under way --done--> (idle)        under way --failed--> (idle, not before a later time)
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["Checkpoint", "CheckpointLedger", "CheckpointRule"]

SHARE: Final = 8
"""Frames with keyed events are as large as so many states, before these bytes alone make a checkpoint due."""
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """Recovery begins at `position`, with the state that was stored for position `state` (None: nothing keyed lies below)."""

    position: int
    state: int | None = None


class CheckpointRule(msgspec.Struct, frozen=True, gc=False):
    """A checkpoint is due after so many bytes of log, so many keyed events, or so many bytes of the frames that hold these.

    By default three quarters of the 32,768 keyed events that an opening is to replay at most: more come while it is written.
    """

    log_bytes: int = 256 << 20
    keyed_events: int = 24_576
    keyed_bytes: int = 32 << 20


class CheckpointLedger:
    """`last` is the checkpoint that the next recovery begins with; `state_bytes` what its state takes."""

    def __init__(self, last: Checkpoint, *, rule: CheckpointRule, state_bytes: int = 0) -> None:
        self.last: Checkpoint = last
        self.state_bytes: int = state_bytes
        self.failures: int = 0
        """Since the last that was done."""
        self._rule = rule
        self._next: Checkpoint | None = None
        self._retry_at_s = 0.0

    def is_due(
        self, *, end: int, keyed: int, keyed_bytes: int, held_bytes: int, now_s: float, log_bytes: int | None = None
    ) -> bool:
        """Whether one should begin now: the log ends at `end`, `keyed` events happened since the last, truncated space waits.

        `log_bytes`: the log since the last, where positions do not count bytes.
        """
        if self._next is not None or end <= self.last.position or now_s < self._retry_at_s:
            return False
        rule = self._rule
        return (
            keyed >= rule.keyed_events
            or (keyed > 0 and keyed_bytes >= max(rule.keyed_bytes, SHARE * self.state_bytes))
            or (end - self.last.position if log_bytes is None else log_bytes) >= rule.log_bytes
            or self.pays(keyed=keyed, held_bytes=held_bytes)
        )

    def pays(self, *, keyed: int, held_bytes: int) -> bool:
        """Whether a checkpoint gives back at least the space that it takes."""
        return held_bytes > 0 and (not keyed or held_bytes >= self.state_bytes)

    def is_due_at_close(self, *, end: int, keyed: int) -> bool:
        """Whether one should be made before the log is closed."""
        return self._next is None and keyed > 0 and end >= self.last.position

    def is_possible(self, *, now_s: float) -> bool:
        """Whether one may begin that somebody asked for: at the same position too, where broadcasts ended that the last one lists."""
        return self._next is None and now_s >= self._retry_at_s

    def begin(self, *, end: int, keyed: int) -> Checkpoint:
        """The checkpoint of this moment. Its state has to be stored if its `state` is its `position`."""
        assert self._next is None, "one at a time"
        self._next = Checkpoint(end, end if keyed else self.last.state)
        return self._next

    def done(self, state_bytes: int | None) -> None:
        """It is stored for good, with a state of so many bytes (None: with the one before)."""
        assert self._next is not None
        self.last, self._next = self._next, None
        if state_bytes is not None:
            self.state_bytes = state_bytes
        self.failures = 0
        self._retry_at_s = 0.0

    def failed(self, now_s: float) -> float:
        """It is not known to be stored. The next is due after the seconds answered, at the earliest."""
        self._next = None
        wait_s: float = min(RETRY_S * 2**self.failures, RETRY_MAX_S)
        self.failures += 1
        self._retry_at_s = now_s + wait_s
        return wait_s
