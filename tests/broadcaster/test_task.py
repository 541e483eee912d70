"""Task against a model of sets: the copies in the log, the acks, and the known state of each vchannel."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from broadcaster.message import EDGES, BroadcastState
from broadcaster.task import BACKOFF_MAX_S, BACKOFF_MIN_S, Step, StepKind, Task, bits
from wal.errors import ChannelNotExistError, InvalidArgumentError, NoSpaceError, StorageError, UnknownOutcomeError
from wal.message import BroadcastHeader


def test_task_matches_a_model() -> None:
    NAMES = tuple("abcdefg")
    PLACES = st.lists(st.integers(0, 2), min_size=1, max_size=len(NAMES))
    PICK = st.integers(0, 1 << 30)

    class TaskMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.under_way: list[Step] = []
            self.in_log: set[str] = set()
            self.known_in: set[str] = set()
            self.unknown: set[str] = set()
            self.refused: set[str] = set()
            self.full: set[str] = set()
            self.acked: set[str] = set()
            self.told: set[str] = set()
            self.backing_off: dict[str, float] = {}
            self.attempts: dict[str, int] = {}
            self.unsaved = 0
            self.aborted = False
            self.over = False
            self.states = [BroadcastState.PENDING]

        @initialize(places=PLACES, needs_ack=st.booleans())
        def begin(self, places: list[int], needs_ack: bool) -> None:
            self.names = NAMES[: len(places)]
            self.places: dict[str, list[str]] = {}
            for name, place in zip(self.names, places, strict=True):
                self.places.setdefault(f"p{place}", []).append(name)
            self.needs_ack = needs_ack
            self.task = Task(BroadcastHeader(5, self.names, (), needs_ack), self.places)
            if len(self.places) > 1:
                self.task.saving()
                self.unsaved += 1

        @precondition(lambda self: self.unsaved)
        @rule()
        def saved(self) -> None:
            self.unsaved -= 1
            self.task.saved()

        @precondition(lambda self: not self.over)
        @rule()
        def steps(self) -> None:
            steps = self.task.steps()
            if self.unsaved:
                assert steps == []
            busy = {step.pchannel for step in self.under_way}
            for step in steps:
                assert step.pchannel not in busy
                assert step.pchannel not in self.backing_off
                assert set(step.vchannels) <= set(self.places[step.pchannel])
                if step.kind is StepKind.COPIES:
                    assert not set(step.vchannels) & self.known_in
                    if self.aborted:
                        assert set(step.vchannels) <= self.unknown
                    else:
                        assert set(step.vchannels) == set(self.places[step.pchannel]) - self.known_in
                else:
                    assert self.aborted
                    assert set(step.vchannels) == (self.known_in & set(self.places[step.pchannel])) - self.told
            self.under_way += steps

        @precondition(lambda self: self.under_way)
        @rule(pick=PICK, refused=st.sets(st.sampled_from(NAMES)))
        def took(self, pick: int, refused: set[str]) -> None:
            step = self.under_way.pop(pick % len(self.under_way))
            # A log answers with a copy that it already has, whatever happened to the vchannel.
            refusals = {name: ChannelNotExistError(name) for name in step.vchannels if name in refused and name not in self.in_log}
            if step.kind is StepKind.ABORTS:
                refusals = {name: ChannelNotExistError(name) for name in step.vchannels if name in refused}
                delay_s = self.task.took(step, refusals)
                self.told |= set(step.vchannels)
                assert delay_s is None
            else:
                delay_s = self.task.took(step, refusals)
                taken = set(step.vchannels) - refusals.keys()
                self.full.discard(step.pchannel)
                self.in_log |= taken
                self.known_in |= taken
                self.unknown -= set(step.vchannels)
                self.refused = (self.refused | refusals.keys()) - taken
                assert (delay_s is not None) == (bool(refusals) and not self.given_up(step))
            if delay_s is None:
                self.attempts[step.pchannel] = 0
            else:
                assert delay_s == BACKOFF_MAX_S
                self.back_off(step, delay_s)

        @precondition(lambda self: self.under_way)
        @rule(pick=PICK, landed=st.booleans(), error=st.sampled_from(["full", "lost", "gone", "disk"]))
        def failed(self, pick: int, landed: bool, error: str) -> None:
            step = self.under_way.pop(pick % len(self.under_way))
            failure = {
                "full": NoSpaceError("full"),
                "lost": UnknownOutcomeError("lost"),
                "gone": ChannelNotExistError("gone"),
                "disk": StorageError("disk", outcome_unknown=True),
            }[error]
            delay_s = self.task.failed(step, failure)
            if step.kind is StepKind.COPIES:
                self.full.discard(step.pchannel)
                if isinstance(failure, NoSpaceError):
                    self.full.add(step.pchannel)
                if failure.outcome_unknown:
                    self.unknown |= set(step.vchannels)
                    if landed:
                        self.in_log |= set(step.vchannels)
                if not failure.retryable:
                    self.refused |= set(step.vchannels)
            if step.kind is StepKind.COPIES and self.given_up(step):
                assert delay_s is None
                self.attempts[step.pchannel] = 0
                return
            assert delay_s is not None
            attempts = self.attempts.get(step.pchannel, 0)
            if failure.retryable:
                assert delay_s == min(BACKOFF_MIN_S * 2**attempts, BACKOFF_MAX_S)
            else:
                assert delay_s == BACKOFF_MAX_S
            self.back_off(step, delay_s)

        def given_up(self, step: Step) -> bool:
            """Returns whether no copy is retried in this lane, so that its ABORT_BROADCAST messages come next."""
            return self.task.finished or (self.aborted and not self.unknown & set(self.places[step.pchannel]))

        def back_off(self, step: Step, delay_s: float) -> None:
            self.backing_off[step.pchannel] = delay_s
            self.attempts[step.pchannel] = self.attempts.get(step.pchannel, 0) + 1

        @precondition(lambda self: self.backing_off)
        @rule(pick=PICK)
        def due(self, pick: int) -> None:
            pchannel = list(self.backing_off)[pick % len(self.backing_off)]
            del self.backing_off[pchannel]
            self.task.retry(pchannel)

        @rule(name=st.sampled_from(NAMES))
        def ack(self, name: str) -> None:
            if name not in self.names:
                with pytest.raises(InvalidArgumentError, match="not in broadcast 5"):
                    self.task.ack(name)
                return
            counts = self.needs_ack and not self.aborted and not self.over and name not in self.acked
            assert self.task.ack(name) == (self.names.index(name) if counts else None)
            if counts:
                self.acked.add(name)

        @precondition(lambda self: not self.over)
        @rule()
        def abort(self) -> None:
            assert self.task.abort("why") is not self.aborted
            if not self.aborted:
                self.aborted = True
                self.unsaved += 1
                self.attempts, self.backing_off = {}, {}

        @precondition(lambda self: not self.over)
        @rule()
        def crash(self) -> None:
            """Recovers only what is durable; to keep it simple, every ack counts as durable here."""
            if len(self.places) == 1 and not self.in_log:
                return  # no part of it remains
            task = Task(self.task.header, self.places, recovered=True)
            acked = sum(1 << self.names.index(name) for name in self.acked)
            reason = "why" if self.aborted else None
            task.restore(appended=self.in_log, acked=acked, reason=reason, aborted=self.told)
            self.task = task
            self.known_in = set(self.in_log)
            self.unknown, self.refused, self.full = set(), set(), set()
            self.under_way, self.backing_off, self.attempts = [], {}, {}
            self.unsaved = 0
            self.states = [task.state]

        @invariant()
        def the_state_is_what_follows(self) -> None:
            if not hasattr(self, "task"):
                return
            names = set(self.names)
            missing = names - self.known_in
            busy = bool(self.under_way)
            acked = self.acked == names or not self.needs_ack
            if self.over:
                expected = self.task.state
                assert self.task.finished
            elif self.aborted:
                quiet = not busy and not self.unknown and self.known_in <= self.told and not self.unsaved
                expected = BroadcastState.ABORTED if quiet else BroadcastState.ABORTING
            elif not missing:
                expected = BroadcastState.DONE if acked else BroadcastState.WAIT_ACK
            elif self.withdrawn(names, missing, busy):
                expected = BroadcastState.WITHDRAWN
            elif missing <= self.refused:
                expected = BroadcastState.STUCK
            else:
                expected = BroadcastState.PENDING
            assert self.task.state is expected
            if self.states[-1] is not expected:
                assert expected in EDGES[self.states[-1]]
                self.states.append(expected)
            self.over = self.task.finished
            assert set(self.task.missing_appends) == missing
            assert set(self.task.missing_acks) == (names - self.acked if self.needs_ack else set())
            assert self.task.complete is not bool(missing)
            assert set(self.task.touched()) == {pchannel for pchannel, members in self.places.items() if self.known_in & set(members)}

        def withdrawn(self, names: set[str], missing: set[str], busy: bool) -> bool:
            """Returns whether no log has any frame of it, so that only its caller has seen it."""
            nowhere = self.refused.union(*(self.places[pchannel] for pchannel in self.full))
            known = busy or self.acked or self.unknown or self.task._recovered or BroadcastState.STUCK in self.states
            return missing == names == nowhere and not known

        @invariant()
        def nothing_is_left_behind(self) -> None:
            """A DONE task has all its copies, an aborted task an abort for each copy, and a withdrawn task no copy."""
            if not hasattr(self, "task"):
                return
            if self.task.state is BroadcastState.DONE:
                assert self.in_log == set(self.names)
            elif self.task.state is BroadcastState.ABORTED:
                assert self.in_log <= self.told
            elif self.task.state is BroadcastState.WITHDRAWN:
                assert not self.in_log

    run_state_machine_as_test(TaskMachine)


def test_every_state_has_its_edges() -> None:
    assert set(EDGES) == set(BroadcastState)
    assert {state for state, to in EDGES.items() if not to} == {BroadcastState.DONE, BroadcastState.ABORTED, BroadcastState.WITHDRAWN}


def test_backoff_doubles_and_restarts_after_success() -> None:
    task = Task(BroadcastHeader(5, ("a", "b")), {"p": ["a", "b"]}, recovered=True)
    delays = []
    for _ in range(14):
        (step,) = task.steps()
        delays.append(task.failed(step, NoSpaceError("full")))
        assert task.steps() == []
        task.retry("p")
    assert delays[:3] == [0.01, 0.02, 0.04]
    assert delays[-1] == BACKOFF_MAX_S
    assert isinstance(task.last_error, NoSpaceError)
    (step,) = task.steps()
    assert task.took(step, {}) is None
    assert task.last_error is None
    assert task.state is BroadcastState.WAIT_ACK


def test_task_recovers_with_a_recreated_vchannel() -> None:
    task = Task(BroadcastHeader(5, ("a", "b")), {"p": ["a", "b"]})
    (step,) = task.steps()
    assert task.took(step, {"b": ChannelNotExistError("b")}) == BACKOFF_MAX_S
    assert task.state is BroadcastState.STUCK
    task.retry("p")
    (step,) = task.steps()
    assert step.vchannels == ("b",)
    task.took(step, {})
    assert task.state is BroadcastState.WAIT_ACK  # type: ignore[comparison-overlap]


def test_stuck_task_is_not_withdrawn() -> None:
    """The caller has the answer that the broadcast stays, and another refused frame does not change that."""
    task = Task(BroadcastHeader(5, ("a", "b")), {"p": ["a"], "q": ["b"]})
    first, second = task.steps()
    task.failed(first, ChannelNotExistError("a"))
    task.retry("p")
    (again,) = task.steps()
    task.failed(second, ChannelNotExistError("b"))
    stuck = task.state
    task.failed(again, ChannelNotExistError("a"))
    assert (stuck, task.state) == (BroadcastState.STUCK, BroadcastState.STUCK)


def test_bits_of_a_wide_bitmap() -> None:
    assert bits(0) == []
    assert bits((1 << 16_383) | 5) == [0, 2, 16_383]


def test_task_writes_nothing_before_it_has_places() -> None:
    task = Task(BroadcastHeader(5, ("a", "b")))
    assert task.steps() == []
    assert (task.state, task.pchannels, task.missing_appends) == (BroadcastState.PENDING, (), ("a", "b"))
    assert task.traceless
    task.place({"p": ["a"], "q": ["b"]})
    assert [(step.pchannel, step.vchannels) for step in task.steps()] == [("p", ("a",)), ("q", ("b",))]


def test_task_without_places_is_withdrawn() -> None:
    task = Task(BroadcastHeader(5, ("a", "b")))
    task.withdraw()
    assert task.finished
    assert task.state is BroadcastState.WITHDRAWN


def test_task_aborted_early_ends_after_its_save() -> None:
    task = Task(BroadcastHeader(5, ("a", "b")))
    assert task.abort("no")
    assert task.steps() == []
    task.saved()
    assert task.finished
    assert task.state is BroadcastState.ABORTED
    assert task.touched() == ()
