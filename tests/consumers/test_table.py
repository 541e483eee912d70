"""Suspects of the table of a consumer, step by step; `test_table_machine.py` has everything in any order."""

from __future__ import annotations

import msgspec
import pytest

from tests.consumers.test_table_machine import NoHandling, event
from wal.consumers.delivery import Delivery, position_of
from wal.consumers.plan import ConsumerPlan, Failed
from wal.consumers.state import SavedState, Tried, UnfinishedRun, decode_state, encode_state
from wal.consumers.table import Deliveries
from wal.errors import CorruptionError, FormatError

KEYS = "abcdef"


def deliveries(keys: str = KEYS) -> list[Delivery]:
    return [Delivery(event(10, index, [key]), NoHandling(), key) for index, key in enumerate(keys)]


def restarted(table: Deliveries, keys: str = KEYS) -> Deliveries:
    """Returns the table of the next consumer after the death of a consumer that had finished nothing."""
    table = Deliveries(table.plan, decode_state(encode_state(table.save(now=0.0, wall=0.0))), incarnation=7)
    table.take(deliveries(keys))
    return table


def begun(plan: ConsumerPlan, keys: str = KEYS) -> Deliveries:
    table = Deliveries(plan, incarnation=7)
    table.take(deliveries(keys))
    return table


def next_work(table: Deliveries) -> list[int]:
    """Hands out, records and starts all bodies that may run; returns their indices."""
    return [position_of(delivery)[1] for delivery in started(table)]


def started(table: Deliveries) -> list[Delivery]:
    if table.hand_out():
        table.recorded()
    return table.start(100)


def test_page_is_suspect_after_death() -> None:
    table = begun(ConsumerPlan(2, "key"))
    assert next_work(table) == [0, 1, 2, 3, 4, 5]
    table = restarted(table)
    assert next_work(table) == [0, 1]  # a group of `concurrency`
    assert next_work(table) == []
    table = restarted(table)
    assert next_work(table) == [2, 3]  # bodies that were in no small group come first
    table = restarted(table)
    table = restarted(table) if next_work(table) == [4, 5] else table
    assert next_work(table) == [0]  # alone
    assert not table.condemned


def test_killer_is_condemned_alone() -> None:
    table = begun(ConsumerPlan(2, "key", attempts=3), "ab")
    handled: set[int] = set()
    deaths = []
    for _ in range(10):
        work = [delivery for delivery in started(table) if position_of(delivery)[1] not in handled]
        if table.condemned:
            break
        if any(position_of(delivery)[1] == 0 for delivery in work):
            deaths.append(len(work))
            table = restarted(table, "ab")
            table.wake(0.0)
            continue
        ended, dead = table.settle(work, [None] * len(work), 0.0)
        assert not dead
        table.finish_ended(len(ended))
        handled |= {position_of(delivery)[1] for delivery in ended}
    assert deaths == [2, 2, 1, 1, 1]  # in the page, in a group, and three times alone
    assert [(position_of(dead.delivery)[1], dead.attempts) for dead in table.condemned] == [(0, 3)]
    assert handled == {1}


def test_returned_message_needs_another_start() -> None:
    """All bodies have one lane, so the table keeps them as numbers (`wal/consumers/stretch.py`)."""
    table = Deliveries(ConsumerPlan(1, "vchannel"), incarnation=7, lane="a")
    table.take(deliveries("aaaaaa"))
    assert table.hand_out()
    table.recorded()
    work = table.start(2)
    assert table.is_regular
    table.recall()
    assert table.settle(work, [None, None], 0.0) == (work, [])
    assert table.start(100) == []
    table.finish_ended(2)
    assert table.save(now=0.0, wall=0.0).handed == 0
    assert next_work(table) == [2, 3, 4, 5]


def test_first_bodies_of_a_chunk_end_before_the_others() -> None:
    table = Deliveries(ConsumerPlan(1, "vchannel"), incarnation=7, lane="a")
    table.take(deliveries("aaaa"))
    assert all(table.has_ended(delivery) for delivery in deliveries("aaaa")), "none has begun"
    table.hand_out()
    table.recorded()
    work = table.start(3)
    table.end(work[:2])
    assert [table.has_ended(delivery) for delivery in work] == [True, True, False]
    table.end(work[2:])
    assert all(map(table.has_ended, work))


def test_body_is_taken_back_once() -> None:
    """The body was handed out alone, and its key has had a second one since."""
    table = begun(ConsumerPlan(2, "key"), "a")
    assert table.hand_out()
    table.recorded()
    table.take([Delivery(event(20, 0, ["a"]), NoHandling(), "a")])
    table.recall()
    assert table.handed == 0


def test_suspect_that_was_taken_back_is_tried_again() -> None:
    """The suspect's key got another body while the suspect was handed out."""
    table = begun(ConsumerPlan(1, "key"), "a")
    assert next_work(table) == [0]
    table = restarted(table, "a")
    assert table.hand_out()
    table.recorded()
    table.take([Delivery(event(20, 0, ["a"]), NoHandling(), "a")])
    table.recall()
    assert [position_of(delivery) for delivery in started(table)] == [(10, 0)]


def test_suspect_waits_for_other_handlers() -> None:
    saved = SavedState(7, (10, 0), (UnfinishedRun((10, 0), (10, 0), True, 2),), (), 1)
    table = Deliveries(ConsumerPlan(2, "key"), saved, incarnation=7)
    table.take(deliveries("ab"))
    assert next_work(table) == [1]  # the death has counted for the suspect, which rests for a moment
    table.wake(1.0)
    assert next_work(table) == []
    table.settle([delivery for delivery in table.sequence.items if isinstance(delivery, Delivery)][1:], [None], 1.0)
    assert next_work(table) == []  # ended bodies are not committed yet
    table.finish_ended(1)
    assert next_work(table) == [0]
    assert table.first is not None
    assert table.first.attempt == 2


def test_hand_out_stops_before_suspect() -> None:
    saved = SavedState(
        7, (10, 1), (UnfinishedRun((10, 0), (10, 0), False, 0), UnfinishedRun((10, 1), (10, 1), False, 1)), (Tried((10, 0), 1, 0),)
    )
    table = Deliveries(ConsumerPlan(2, "key"), saved, incarnation=7)
    table.take(deliveries("aa"))
    table.wake(1.0)
    assert next_work(table) == [0]
    assert table.save(now=1.0, wall=1.0).handed == 1  # the suspect after it in its lane is not handed out with it


def test_resting_suspect_waits_for_its_pause() -> None:
    saved = SavedState(7, (10, 1), (UnfinishedRun((10, 0), (10, 1), False, 1),), (Tried((10, 1), 1, 5000),))
    table = Deliveries(ConsumerPlan(2, "key", attempts=3), saved, incarnation=7)
    table.take(deliveries("aaa"))
    first = started(table)
    assert [position_of(delivery)[1] for delivery in first] == [0]
    table.take([Delivery(event(11, 0, ["a"]), NoHandling(), "a")])  # its lane gets longer while the first one runs
    table.settle(first, [None], 0.0)
    table.finish_ended(1)
    assert next_work(table) == []  # the second one rests until 5 s
    table.wake(5.0)
    second = started(table)
    assert [(position_of(delivery)[1], delivery.attempt) for delivery in second] == [(1, 2)]
    table.settle(second, [None], 5.0)
    table.finish_ended(1)
    table.wake(60.0)
    assert next_work(table) == [2, 0]
    assert table.unfinished == 2


@pytest.mark.parametrize(
    ("wall", "due"),
    [(1000.0, 105.0), (1002.0, 103.0), (9000.0, -7895.0), (400.0, 105.0)],
    ids=["no time passed", "2 s passed", "clock is ahead", "clock went back"],
)
def test_clock_that_went_back_lengthens_no_pause(wall: float, due: float) -> None:
    """A pause has 5 s left at the save, by a clock that shows 1000 s; the next consumer begins at 100 s of monotonic time."""
    table = begun(ConsumerPlan(1, "key", backoff_s=(5.0, 5.0)), "a")
    table.settle(started(table), [Failed("no")], 50.0)
    saved = decode_state(encode_state(table.save(now=50.0, wall=1000.0)))
    later = Deliveries(table.plan, saved.released(), incarnation=saved.incarnation, now=100.0, wall=wall)
    later.take(deliveries("a"))
    assert later.next_due == due
    again = decode_state(encode_state(later.save(now=101.0, wall=wall + 1.0)))
    last = Deliveries(table.plan, again, incarnation=again.incarnation, now=101.0, wall=wall + 1.0)
    last.take(deliveries("a"))
    assert last.next_due == due


def test_state_without_retries_is_that_of_version_1() -> None:
    runs = (UnfinishedRun((10, 0), (10, 0), True, 1),)
    assert encode_state(SavedState(7, (10, 5), runs))[0] == 1
    tried = SavedState(7, (10, 5), runs, (Tried((10, 0), 2, 5000),))
    assert decode_state(encode_state(tried)) == tried
    assert encode_state(tried)[0] == 1
    newer = msgspec.structs.replace(tried, saved_ms=4000)
    assert decode_state(encode_state(newer)) == newer
    assert encode_state(newer)[0] == 2


def test_state_keeps_what_is_not_reread() -> None:
    runs = (UnfinishedRun((10, 0), (10, 0), False, 1), UnfinishedRun((10, 2), (10, 3), False, 2))
    saved = SavedState(7, (10, 5), runs, (Tried((10, 3), 2, 5000),))
    table = Deliveries(ConsumerPlan(2, "key"), saved, incarnation=7)
    table.take(deliveries()[:1])
    assert table.save(now=0.0, wall=0.0) == saved
    table.skip(deliveries()[1:2])
    table.take(deliveries()[2:3])
    assert table.save(now=0.0, wall=0.0).runs == (
        *runs[:1],
        UnfinishedRun((10, 2), (10, 2), False, 2),
        UnfinishedRun((10, 3), (10, 3), False, 2),
    )
    table.take(deliveries()[3:])
    assert table.hand_out()
    assert table.save(now=0.0, wall=0.0).covered == (10, 5)


def test_hand_out_goes_on_after_unseen_message() -> None:
    saved = SavedState(7, (10, 1), (UnfinishedRun((10, 0), (10, 0)),))
    table = Deliveries(ConsumerPlan(2, "key"), saved, incarnation=7)
    table.take(deliveries("a"))
    table.skip(deliveries("ab")[1:])  # the last body of the saved state
    assert next_work(table) == [0]


def test_failure_blocks_its_lane_alone() -> None:
    table = begun(ConsumerPlan(1, "key"), "aab")
    work = [table.start(1), table.start(1)]
    assert work == [[], []]  # no hand-out is recorded yet
    table.hand_out()
    table.recorded()
    first, other = table.start(1), table.start(1)
    assert [position_of(delivery)[1] for delivery in first + other] == [0, 2]
    table.settle(first, [Failed("x")], 5.0)
    ended, _ = table.settle(other, [None], 5.0)
    table.finish_ended(len(ended))
    assert next_work(table) == []
    assert table.next_due == 5.1
    table.wake(5.1)
    assert next_work(table) == [0, 1]


def test_finished_bodies_are_merged() -> None:
    table = begun(ConsumerPlan(5000, "none"), "")
    many = [Delivery(event(10, index, ["a"]), NoHandling()) for index in range(5000)]
    table.take(many)
    table.hand_out()
    table.recorded()
    work = table.start(5000)
    ended, _ = table.settle(work[1:], [None] * 4999, 0.0)
    table.finish_ended(len(ended))
    state = table.save(now=0.0, wall=0.0)
    assert state.runs == (UnfinishedRun((10, 0), (10, 0), True),)
    assert state.covered == (10, 4999)
    assert table.pending == 5000
    assert len(table.sequence.items) == 2


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"\4", FormatError), (b"\3", CorruptionError), (b"\1", CorruptionError), (b"\1\x90", CorruptionError), (b"\2", CorruptionError)],
)
def test_damaged_state_is_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_state(data)
