"""The checker finds each contradiction between a history and the log; a history without one passes."""

from __future__ import annotations

import msgspec
import pytest

from tests.simulation.checker import check
from tests.simulation.history import Follower, History, Kind, LoggedEvent, Operation, Outcome

LOG = [LoggedEvent("v", "p0", 10, b"a"), LoggedEvent("v", "p0", 20, b"b"), LoggedEvent("v", "p0", 30, b"c")]


def append(payload: bytes, began_s: float, tick: int, *, kind: Kind = Kind.APPEND, outcome: Outcome = Outcome.DONE) -> Operation:
    ticks = {"v": tick} if outcome is Outcome.DONE else {}
    return Operation(kind, "c0", ("v",), (payload,), began_s, began_s + 1, outcome, ticks)


def read(began_s: float, *payloads: bytes) -> Operation:
    return Operation(Kind.READ, "c1", ("v",), payloads, began_s, began_s + 1, Outcome.DONE)


def answer(began_s: float, tick: int) -> Operation:
    return Operation(Kind.MVCC, "c1", ("v",), (), began_s, began_s + 1, Outcome.DONE, {"v": tick})


WRITES = [append(b"a", 1, 10), append(b"b", 3, 20), append(b"c", 5, 30)]


def found(*operations: Operation, writes: list[Operation] = WRITES, log: list[LoggedEvent] = LOG, seen: str = "abc") -> list[str]:
    ticks = {event.payload: event.tick for event in LOG}
    follower = Follower("c1", "v", [(each.encode(), ticks[each.encode()]) for each in seen])
    return check(History([*writes, *operations], [follower]), log, {"v": "p0"})


def test_history_without_a_contradiction_passes() -> None:
    assert found(read(2.5, b"a"), answer(2.5, 15), read(6.5, b"a", b"b", b"c"), answer(7, 30)) == []


def test_answer_that_contradicts_the_log_is_found(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Operation], str]] = [
        ([read(7, b"a", b"b")], "was acknowledged before this read began, which misses it"),
        ([read(7, b"a", b"c", b"b")], "is not the beginning of the log"),
        ([answer(7, 25)], "does not cover 30"),
        ([answer(1, 25)], "was given after 25 was promised"),
    ]
    for operations, fault in cases:
        with subtests.test(repr(operations)):
            assert any(fault in each for each in found(*operations))


@pytest.mark.parametrize("earlier", [read(4.2, b"a", b"b", b"c"), answer(4.2, 30)])
def test_read_that_goes_back_is_found(earlier: Operation) -> None:
    """`c` has no answer yet: only earlier reads or promises require that a later read sees it."""
    writes = [*WRITES[:2], msgspec.structs.replace(WRITES[2], began_s=4.1, outcome=Outcome.UNKNOWN, ended_s=99, ticks={})]
    assert found(earlier, writes=writes) == []
    assert any("3 were there when it began" in each for each in found(earlier, read(6, b"a", b"b"), writes=writes))


def test_append_that_is_not_as_acknowledged_is_found() -> None:
    assert any("2 times" in each for each in found(log=[*LOG, LoggedEvent("v", "p0", 40, b"a")]))
    assert any("where it is at no tick" in each for each in found(log=LOG[1:], seen="bc"))
    refused = append(b"c", 5, 30, outcome=Outcome.REFUSED)
    assert any("was refused and is in v" in each for each in found(writes=[*WRITES[:2], refused]))
    assert any("nobody wrote it" in each for each in found(writes=WRITES[:2]))


def test_ticks_against_the_order_of_time_are_found() -> None:
    writes = [WRITES[0], append(b"b", 5, 20), append(b"c", 3, 30)]
    assert any("tick 20 is not above 30" in each for each in found(writes=writes))


def test_follower_that_misses_or_repeats_is_found() -> None:
    assert any("saw" in each for each in found(seen="ac"))
    assert any("it saw twice" in each for each in found(seen="aab"))
