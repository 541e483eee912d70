"""A wall clock is trusted while it moves with elapsed time, again after an hour of that, and when it is synchronised."""

from __future__ import annotations

import pytest

from wal.node.retention.clock_watch import AGREED_S, DRIFT_MAX_S, ClockWatch


def test_small_corrections_are_accepted() -> None:
    watch = ClockWatch(wall=1e9, monotonic=50.0)
    wall = 1e9
    for turn in range(1, 1000):
        wall += 11.0  # one second more than passes each time: over all turns far more than the limit
        assert watch.look(wall=wall, monotonic=50.0 + 10 * turn)


@pytest.mark.parametrize("jump_s", [DRIFT_MAX_S + 1, -DRIFT_MAX_S - 1, 86_400.0, -86_400.0])
def test_jump_is_not_believed_until_it_is_gone(jump_s: float) -> None:
    watch = ClockWatch(wall=1e9, monotonic=0.0)
    assert watch.look(wall=1e9 + 5, monotonic=5.0)
    for turn in range(10, 100):
        assert not watch.look(wall=1e9 + turn + jump_s, monotonic=float(turn)), "a minute does not make it right"
        assert watch.drift_s == pytest.approx(jump_s)
        assert watch.trusted(float(turn)) == pytest.approx(1e9 + turn)
    assert watch.look(wall=1e9 + 100, monotonic=100.0)
    assert watch.drift_s == pytest.approx(0)


def test_jump_within_the_limit_is_believed() -> None:
    watch = ClockWatch(wall=1e9, monotonic=0.0)
    assert watch.look(wall=1e9 + DRIFT_MAX_S, monotonic=0.0)
    assert watch.look(wall=1e9, monotonic=0.0)


@pytest.mark.parametrize("steps", [[86_400.0], [-86_400.0], [50.0] * 10, [86_400.0, -3_600.0]])
def test_clock_that_agrees_for_an_hour_is_trusted(steps: list[float]) -> None:
    watch = ClockWatch(wall=1e9, monotonic=0.0)
    ahead_s, now = 0.0, 0.0
    for step in steps:
        ahead_s, now = ahead_s + step, now + 1.0
        watch.look(wall=1e9 + now + ahead_s, monotonic=now)
    for seconds in range(0, int(AGREED_S) - 10, 10):
        assert not watch.look(wall=1e9 + now + seconds + ahead_s, monotonic=now + seconds)
    now += AGREED_S
    assert watch.look(wall=1e9 + now + ahead_s, monotonic=now)
    assert watch.trusted(now) == pytest.approx(1e9 + now + ahead_s)
    assert watch.look(wall=1e9 + now + 1 + ahead_s, monotonic=now + 1)


def test_synchronised_clock_is_trusted_at_once() -> None:
    watch = ClockWatch(wall=1e9, monotonic=0.0)
    assert not watch.look(wall=1e9 + 3_600, monotonic=1.0)
    assert watch.look(wall=1e9 + 3_600, monotonic=1.0, synchronised=True)
    assert watch.look(wall=1e9 + 3_601, monotonic=2.0)
