"""The table of a writer's repair: every event that can reach a state is in it, and the writer has only one action under way."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.storage.pulsar.repair import TRANSITIONS, Outage, Repair, WriterAction, WriterEvent, WriterState

WORKING = {WriterState.READING, WriterState.READING_LOST, WriterState.REPLACING}


def test_table_has_every_possible_pair() -> None:
    missing = set(itertools.product(WriterState, WriterEvent)) - TRANSITIONS.keys()
    assert missing == {(WriterState.WRITING, WriterEvent.FOUND)} | {(state, WriterEvent.GAP) for state in WORKING}
    for state, event in missing:
        repair = Repair()
        repair.state = state
        with pytest.raises(RuntimeError, match=event.value):
            repair.on(event)


@given(st.lists(st.sampled_from(WriterEvent), max_size=40))
def test_writer_does_one_thing_at_a_time(events: list[WriterEvent]) -> None:
    """A minimal shell: it is busy from READ or REPLACE until it reports the outcome."""
    repair = Repair()
    busy, failures = False, 0
    for event in events:
        if (repair.state, event) not in TRANSITIONS:
            continue
        before = repair.state
        ends_work = event in (WriterEvent.FOUND, WriterEvent.ERROR) or (event is WriterEvent.LOST and before is WriterState.REPLACING)
        if ends_work and before in WORKING:
            assert busy
            busy = False
        action = repair.on(event)
        if action in (WriterAction.READ, WriterAction.REPLACE):
            assert not busy, "a second work was begun before the first had ended"
            busy = True
        failures += action is WriterAction.FAIL
        if before is not WriterState.FAILED:
            assert (repair.state in WORKING) == busy
            assert (action is WriterAction.ANSWER) == (repair.state is WriterState.WRITING)
    assert failures == (repair.state is WriterState.FAILED), "a writer fails once, and for good"


def test_lost_producer_is_replaced_after_the_read() -> None:
    repair = Repair()
    actions = [repair.on(event) for event in (WriterEvent.GAP, WriterEvent.LOST, WriterEvent.LOST, WriterEvent.FOUND)]
    assert actions == [WriterAction.READ, WriterAction.NOTHING, WriterAction.NOTHING, WriterAction.REPLACE]
    assert repair.on(WriterEvent.FOUND) is WriterAction.ANSWER


def test_outage_counts_over_all_producers() -> None:
    outage = Outage()
    assert outage.begin(100.0) == 0.0
    assert [outage.next_pause_s() for _ in range(6)] == [0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert outage.begin(150.0) == Outage.pause_max_s
    assert outage.next_pause_s() == Outage.pause_min_s
    assert not outage.is_too_long(100.0 + Outage.limit_s)
    assert outage.is_too_long(100.1 + Outage.limit_s)
    outage.end()
    assert not outage.is_too_long(1e9)
    assert outage.begin(1e9) == 0.0
