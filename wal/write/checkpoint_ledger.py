"""CheckpointLedger: where recovery begins, and when a new checkpoint is worth its cost. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from wal.runtime.backoff import Backoff

SHARE: Final = 8
"""The bytes of frames with keyed events make a checkpoint due only when they are this many times its state."""
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0


STATE_BYTES_AN_EVENT: Final = 200
"""The most bytes of state that a checkpoint writes for each keyed event since the last one: a large window of keys is written less often,
and an opening then replays more events."""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """Recovery begins at `position`, with the state that was stored for position `state` (None if nothing keyed is below)."""

    position: int
    state: int | None = None


class CheckpointRule(msgspec.Struct, frozen=True, gc=False):
    """The amounts after which a checkpoint is due: bytes of log, keyed events, bytes of the frames that hold keyed events.

    The default is three quarters of the 32,768 keyed events that an opening replays at most: more happen while it is written.
    """

    log_bytes: int = 256 << 20
    keyed_events: int = 24_576
    keyed_bytes: int = 32 << 20


class CheckpointLedger:
    """The rules for the checkpoints of one pchannel. The next recovery begins with `last`, whose state takes `state_bytes`.

    Keyed events, copies of broadcasts and broadcasts that end are all called keyed here. A checkpoint is due when

    * the keyed events since the last one, or the bytes of their frames, have grown so much that replaying them would make the next opening
      slow;
    * enough bytes of log were written since the last one;
    * enough truncated space waits for it to be worth its cost;
    * the log is closed cleanly and any keyed event happened.

    Except for the first rule, its state is at most an eighth of the frames that it replaces. If no keyed event happened since the last
    checkpoint, the state stored for that one is still valid and only the position moves, which costs a record in the KV. After a failure
    the next attempt waits, each time longer. Only one checkpoint is under way. The ledger reads no clock.

        (idle) --begin--> under way --done--> (idle)        under way --failed--> (idle, not before a later time)
    """

    def __init__(self, last: Checkpoint, *, rule: CheckpointRule, state_bytes: int = 0) -> None:
        self.last: Checkpoint = last
        self.state_bytes: int = state_bytes
        self.failures: int = 0
        """The number of attempts that have failed since the last successful checkpoint."""
        self._rule = rule
        self._next: Checkpoint | None = None
        self._retry_at_s = 0.0
        self._backoff = Backoff(RETRY_S, RETRY_MAX_S)

    def is_due(
        self, *, end: int, keyed: int, keyed_bytes: int, held_bytes: int, now_s: float, log_bytes: int | None = None, moved: bool = False
    ) -> bool:
        """Returns whether a checkpoint should begin now.

        The log ends at `end`; since the last one `keyed` events happened, in frames of `keyed_bytes`; `held_bytes` of truncated space wait
        for it. `log_bytes` is the log since the last one, where positions do not count bytes. `moved`: events were added, so that the state
        has to be stored again.
        """
        if self._next is not None or end <= self.last.position or now_s < self._retry_at_s:
            return False
        rule = self._rule
        return (
            keyed >= max(rule.keyed_events, self.state_bytes // STATE_BYTES_AN_EVENT)
            or (keyed > 0 and keyed_bytes >= max(rule.keyed_bytes, SHARE * self.state_bytes))
            or (end - self.last.position if log_bytes is None else log_bytes) >= rule.log_bytes
            or self.pays(keyed=keyed or moved, held_bytes=held_bytes)
        )

    def pays(self, *, keyed: int | bool, held_bytes: int) -> bool:
        """Returns whether a checkpoint frees at least the space that it takes."""
        return held_bytes > 0 and (not keyed or held_bytes >= self.state_bytes)

    def is_due_at_close(self, *, end: int, keyed: int) -> bool:
        """Returns whether a checkpoint should be taken before the log is closed."""
        return self._next is None and keyed > 0 and end >= self.last.position

    def is_possible(self, *, now_s: float) -> bool:
        """Returns whether a requested checkpoint may begin, even at the position of the last one, which may list broadcasts that ended."""
        return self._next is None and now_s >= self._retry_at_s

    def begin(self, *, end: int, keyed: int) -> Checkpoint:
        """Begins a checkpoint and returns it. Its state has to be stored if its `state` is its `position`."""
        assert self._next is None, "one at a time"
        self._next = Checkpoint(end, end if keyed else self.last.state)
        return self._next

    def done(self, state_bytes: int | None) -> None:
        """The checkpoint is durable. One that reuses the previous state has no `state_bytes` (None)."""
        assert self._next is not None
        self.last, self._next = self._next, None
        if state_bytes is not None:
            self.state_bytes = state_bytes
        self.failures = 0
        self._backoff.reset()
        self._retry_at_s = 0.0

    def failed(self, now_s: float) -> float:
        """Ends a checkpoint that may not be stored. Returns the seconds after which the next attempt may begin."""
        self._next = None
        wait_s = self._backoff.next()
        self.failures += 1
        self._retry_at_s = now_s + wait_s
        return wait_s
