"""CheckpointLedger: when a checkpoint is due and where recovery begins, against a naive model and rule by rule."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from wal.write.checkpoint_ledger import RETRY_MAX_S, RETRY_S, Checkpoint, CheckpointLedger, CheckpointRule

RULE = CheckpointRule(log_bytes=1_000, keyed_events=10)


def ledger(last: Checkpoint | None = None, *, state_bytes: int = 0) -> CheckpointLedger:
    return CheckpointLedger(last or Checkpoint(0), rule=RULE, state_bytes=state_bytes)


def test_defaults_are_those_of_the_design() -> None:
    assert CheckpointRule() == CheckpointRule(log_bytes=256 * 1024 * 1024, keyed_events=32_768 * 3 // 4, keyed_bytes=32 * 1024 * 1024)


def test_checkpoint_follows_bytes_or_keyed_events() -> None:
    found = ledger(Checkpoint(500))
    for end, keyed, due in (
        (1_499, 9, False),
        (1_500, 0, True),
        (501, 10, True),
        (501, 9, False),
        (500, 10, False),  # nothing was written after the last one
        (499, 10, False),
    ):
        assert found.is_due(end=end, keyed=keyed, keyed_bytes=0, held_bytes=0, now_s=0.0) is due, (end, keyed)


def test_bytes_of_keyed_frames_start_a_checkpoint() -> None:
    found = CheckpointLedger(Checkpoint(0), rule=CheckpointRule(1_000, 10, keyed_bytes=100))
    for state_bytes, keyed, keyed_bytes, due in (
        (0, 1, 99, False),
        (0, 1, 100, True),
        (0, 0, 100, False),
        (12, 1, 100, True),
        (13, 1, 103, False),
        (13, 1, 104, True),
    ):
        found.state_bytes = state_bytes
        case = (state_bytes, keyed, keyed_bytes)
        assert found.is_due(end=1, keyed=keyed, keyed_bytes=keyed_bytes, held_bytes=0, now_s=0.0) is due, case


def test_held_space_beyond_the_state_starts_a_checkpoint() -> None:
    found = ledger(state_bytes=300)
    for keyed, held, due in ((1, 299, False), (1, 300, True), (0, 1, True), (0, 0, False)):
        assert found.is_due(end=1, keyed=keyed, keyed_bytes=0, held_bytes=held, now_s=0.0) is due, (keyed, held)


def test_close_makes_a_checkpoint_only_for_keyed_events() -> None:
    assert ledger().is_due_at_close(end=1, keyed=1)
    assert not ledger().is_due_at_close(end=999_999, keyed=0)


def test_previous_state_is_reused_when_nothing_keyed_happened() -> None:
    found = ledger()
    assert found.begin(end=100, keyed=0) == Checkpoint(100, None)
    found.done(None)
    assert found.begin(end=200, keyed=3) == Checkpoint(200, 200)
    found.done(77)
    assert found.begin(end=300, keyed=0) == Checkpoint(300, 200)
    found.done(None)
    assert (found.last, found.state_bytes) == (Checkpoint(300, 200), 77)


def test_each_failure_delays_the_next_attempt_longer() -> None:
    found = ledger()
    now_s, waits = 0.0, []
    for _ in range(10):
        found.begin(end=2_000, keyed=0)
        waits.append(found.failed(now_s))
        assert not found.is_due(end=2_000, keyed=0, keyed_bytes=0, held_bytes=0, now_s=now_s + waits[-1] - 0.01)
        assert found.is_due_at_close(end=2_000, keyed=1), "a close ignores the delay"
        now_s += waits[-1]
        assert found.is_due(end=2_000, keyed=0, keyed_bytes=0, held_bytes=0, now_s=now_s)
    assert waits[0] == RETRY_S
    assert waits == sorted(waits)
    assert waits[-1] == RETRY_MAX_S
    found.begin(end=2_000, keyed=0)
    found.done(None)
    found.begin(end=4_000, keyed=0)
    assert found.failed(now_s) == RETRY_S


def test_recovery_finds_every_keyed_event() -> None:
    """A log of events, keyed or not, and its ledger: recovery from `last` always finds every keyed event."""

    class Ledger(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.ledger = ledger()
            self.end = 0
            self.keyed: set[int] = set()
            self.since = 0
            self.states: dict[int, set[int]] = {}
            self.running: tuple[Checkpoint, int] | None = None

        @rule(size=st.integers(1, 400), keyed=st.booleans())
        def append(self, size: int, keyed: bool) -> None:
            if keyed:
                self.keyed.add(self.end)
                self.since += 1
            self.end += size

        @precondition(lambda self: self.running is None)
        @rule(held=st.integers(0, 500), now_s=st.floats(0, 1_000))
        def look(self, held: int, now_s: float) -> None:
            if self.ledger.is_due(end=self.end, keyed=self.since, keyed_bytes=0, held_bytes=held, now_s=now_s):
                checkpoint = self.ledger.begin(end=self.end, keyed=self.since)
                assert not self.ledger.is_due(end=self.end + 10_000, keyed=99, keyed_bytes=0, held_bytes=held, now_s=1e9), "one at a time"
                if checkpoint.state == checkpoint.position:
                    self.states[checkpoint.position] = set(self.keyed)
                self.running = checkpoint, self.since
                self.since = 0

        @precondition(lambda self: self.running is not None)
        @rule(fails=st.booleans(), now_s=st.floats(0, 1_000))
        def settle(self, fails: bool, now_s: float) -> None:
            assert self.running is not None
            checkpoint, since = self.running
            self.running = None
            if fails:
                self.since += since
                self.ledger.failed(now_s)
            else:
                self.ledger.done(10 if checkpoint.state == checkpoint.position else None)
                assert self.ledger.last == checkpoint

        @invariant()
        def recovery_finds_all(self) -> None:
            last = self.ledger.last
            known = self.states[last.state] if last.state is not None else set()
            assert known | {position for position in self.keyed if position >= last.position} == self.keyed

    run_state_machine_as_test(Ledger)
