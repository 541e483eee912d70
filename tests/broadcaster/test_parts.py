"""The small parts: tombstones, changes, jobs, the registry, the message."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

import broadcaster
from broadcaster import BroadcastMessage, BroadcastState
from broadcaster.background import BackgroundJobs
from broadcaster.finished import Tombstone, Tombstones
from broadcaster.running import _IDS_MIN, Running, RunningTable
from broadcaster.saver import TaskChange, TaskChanges
from broadcaster.task import Task
from tests.broadcaster.world import until
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.message import BroadcastHeader, MessageType, ResourceKey

COUNT_MAX, AGE_MAX_MS = 5, 100


def test_running_broadcasts_are_counted() -> None:
    """The counts of a table of running broadcasts, against a walk over all of them."""

    class RunningMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.table = RunningTable()

        def pick(self, number: int) -> Running:
            return list(self.table)[number % len(self.table)]

        @rule(broadcast_id=st.integers(1, 1 << 20))
        def begin(self, broadcast_id: int) -> None:
            if self.table.get(broadcast_id) is None:
                task = Task(BroadcastHeader(broadcast_id, ("a", "b"), (), True), {"p0": ["a", "b"]})
                self.table.add(Running(task, broadcast_id, None))

        @precondition(lambda self: len(self.table) > 0)
        @rule(number=st.integers(0, 100), refuses=st.booleans())
        def write(self, number: int, refuses: bool) -> None:
            task = self.pick(number).task
            for step in task.steps():
                task.took(step, {"b": ChannelNotExistError("gone")} if refuses and "b" in step.vchannels else {})

        @precondition(lambda self: len(self.table) > 0)
        @rule(number=st.integers(0, 100), vchannel=st.sampled_from("ab"))
        def ack(self, number: int, vchannel: str) -> None:
            self.pick(number).task.ack(vchannel)

        @precondition(lambda self: len(self.table) > 0)
        @rule(number=st.integers(0, 100))
        def abort(self, number: int) -> None:
            task = self.pick(number).task
            if not task.finished and task.abort("for once"):
                task.saved()

        @precondition(lambda self: len(self.table) > 0)
        @rule(number=st.integers(0, 100))
        def remove(self, number: int) -> None:
            self.table.remove(self.pick(number))

        @invariant()
        def counts_are_those_of_a_walk(self) -> None:
            assert +self.table.states == Counter(running.task.state for running in self.table)
            assert self.table.oldest == min((running.task.broadcast_id for running in self.table), default=0)

    run_state_machine_as_test(RunningMachine)


def test_finished_ids_do_not_pile_up() -> None:
    table = RunningTable()
    for broadcast_id in range(1, 1_000):
        running = Running(Task(BroadcastHeader(broadcast_id, ("a",), (), False), {"p0": ["a"]}), broadcast_id, None)
        table.add(running)
        if broadcast_id > 1:  # the oldest one stays
            table.remove(running)
    assert table.oldest == 1
    assert len(table._ids) <= _IDS_MIN + 4


def test_tombstones_match_a_model() -> None:
    class TombstoneMachine(RuleBasedStateMachine):
        """The model: the broadcasts that a log may list, and the others in the order in which they became free."""

        def __init__(self) -> None:
            super().__init__()
            self.tombstones = Tombstones(count_max=COUNT_MAX, age_max_ms=AGE_MAX_MS)
            self.now_ms = 0
            self.number = 0
            self.listed: dict[int, set[str]] = {}
            self.free: list[int] = []
            self.at: dict[int, int] = {}
            self.saved: set[int] = set()

        @rule(pchannels=st.sets(st.sampled_from("xyz")), saved=st.booleans())
        def add(self, pchannels: set[str], saved: bool) -> None:
            self.number += 1
            self.at[self.number] = self.now_ms
            if saved:
                self.saved.add(self.number)
            self.tombstones.add(self.number, Tombstone(BroadcastState.DONE, self.now_ms, saved), pchannels)
            if pchannels:
                self.listed[self.number] = set(pchannels)
            else:
                self.free.append(self.number)

        @rule(pchannel=st.sampled_from("xyz"), numbers=st.lists(st.integers(0, 40), max_size=4))
        def forgotten(self, pchannel: str, numbers: list[int]) -> None:
            self.tombstones.forgotten(pchannel, numbers)
            for number in numbers:
                if number in self.listed:
                    self.listed[number].discard(pchannel)
                    if not self.listed[number]:
                        del self.listed[number]
                        self.free.append(number)

        @rule(passed_ms=st.integers(1, AGE_MAX_MS))
        def collect(self, passed_ms: int) -> None:
            self.now_ms += passed_ms
            gone = []
            while self.free and (len(self.free) > COUNT_MAX or self.now_ms - self.at[self.free[0]] > AGE_MAX_MS):
                gone.append(self.free.pop(0))
            assert self.tombstones.collect(self.now_ms) == [number for number in gone if number in self.saved]

        @invariant()
        def they_are_there(self) -> None:
            assert len(self.tombstones) == len(self.listed) + len(self.free)
            assert self.tombstones.listed == len(self.listed)
            assert all(self.tombstones.get(number) is not None for number in (*self.listed, *self.free))

    run_state_machine_as_test(TombstoneMachine)


CHANGE = st.tuples(st.dictionaries(st.sampled_from("abcd"), st.text(max_size=2), max_size=3), st.sets(st.sampled_from("abcd"))).map(
    lambda change: (change[0], sorted(change[1] - change[0].keys()))
)


@given(st.lists(CHANGE, max_size=12), st.integers(4, 8), st.integers(1, 20))
def test_batches_equal_single_changes(changes: list[tuple[dict[str, str], list[str]]], operations_max: int, bytes_max: int) -> None:
    waiting = TaskChanges(operations_max=operations_max, bytes_max=bytes_max)
    told: list[int] = []
    states: list[dict[str, str]] = [{}]
    for number, (saves, removals) in enumerate(changes):
        waiting.add(TaskChange(saves, removals, then=lambda number=number: told.append(number)))  # type: ignore[misc]
        after = {key: value for key, value in (states[-1] | saves).items() if key not in removals}
        states.append(after)
    contents: dict[str, str] = {}
    while waiting:
        batch = waiting.take()
        assert batch.then
        assert len(batch.saves) + len(batch.removals) <= operations_max
        size = sum(len(key) + len(value) for key, value in batch.saves.items()) + len(batch.removals)
        assert size <= bytes_max or len(batch.then) == 1, "only a change that is larger by itself goes over the bound"
        assert not batch.saves.keys() & batch.removals.keys()
        contents = {key: value for key, value in (contents | batch.saves).items() if key not in batch.removals}
        for then in batch.then:
            then()
        assert contents == states[len(told)]
    assert told == list(range(len(changes)))


def test_change_can_be_refused_where_it_goes_alone() -> None:
    waiting = TaskChanges(operations_max=8, bytes_max=10)
    refused: list[str] = []
    waiting.add(TaskChange({"a": "1"}, refused=lambda error: refused.append("a")))
    waiting.add(TaskChange({"b": "1"}, refused=lambda error: refused.append("b")))
    waiting.add(TaskChange({"c": "1" * 20}, refused=lambda error: refused.append("c")))
    waiting.add(TaskChange({"d": "1"}))
    together, alone, last = waiting.take(), waiting.take(), waiting.take()
    assert (list(together.saves), list(alone.saves), list(last.saves)) == (["a", "b"], ["c"], ["d"])
    (change,) = alone.changes
    assert change.refused is not None
    change.refused(InvalidArgumentError("it is too large"))
    assert refused == ["c"]


async def test_background_jobs_return_each_outcome_once() -> None:
    woken: list[int] = []
    jobs = BackgroundJobs(lambda: woken.append(1))
    seen: list[Any] = []

    async def give(value: int) -> int:
        if value < 0:
            raise ValueError(value)
        return value

    for value in (1, -1):
        jobs.run(give(value), lambda result, error: seen.append((result, type(error))))
    await jobs.wait()
    while jobs:
        await jobs.wait()
        for then, result, error in jobs.take():
            then(result, error)
    assert seen == [(1, type(None)), (None, ValueError)]
    assert len(woken) == 2
    never = asyncio.Event()
    jobs.run(never.wait(), lambda result, error: seen.append("no"))
    await asyncio.sleep(0)
    jobs.cancel()
    await until(lambda: not len(jobs))
    assert len(seen) == 2


def test_message_is_checked_when_it_is_made() -> None:
    keys = [ResourceKey("d", "k", shared=True), ResourceKey("d", "k"), ResourceKey("a", "k")]
    message = BroadcastMessage(vchannels=["b", "a", "b"], payload=b"x", properties={"k": "v"}, resource_keys=keys)
    assert message.vchannels == ("b", "a")
    assert message.resource_keys == (ResourceKey("a", "k"), ResourceKey("d", "k"))
    assert message.estimate_size() > 3
    wrong_types: list[dict[str, Any]] = [
        {"vchannels": "ab"},
        {"vchannels": [1]},
        {"payload": "x"},
        {"message_type": 2},
        {"properties": {"k": 1}},
        {"resource_keys": ["d"]},
        {"resource_keys": ResourceKey("d", "k")},
        {"needs_ack": 1},
    ]
    for wrong in wrong_types:
        with pytest.raises(TypeError):
            BroadcastMessage(**({"vchannels": ["a"], "payload": b""} | wrong))
    wrong_values: list[dict[str, Any]] = [
        {"vchannels": []},
        {"properties": {"_v": "1"}},
        {"message_type": MessageType.TIME_TICK},
        {"message_type": MessageType.ABORT_BROADCAST},
    ]
    for wrong in wrong_values:
        with pytest.raises(InvalidArgumentError):
            BroadcastMessage(**({"vchannels": ["a"], "payload": b""} | wrong))


def test_exported_names_are_sorted_and_there() -> None:
    assert broadcaster.__all__ == sorted(broadcaster.__all__)
    assert all(hasattr(broadcaster, name) for name in broadcaster.__all__)
