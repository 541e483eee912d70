"""A wall clock is trusted while it moves with monotonic time."""

from __future__ import annotations

import pytest

from wal.retention.policy import DRIFT_MAX_S, ClockWatch


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
        assert not watch.look(wall=1e9 + turn + jump_s, monotonic=float(turn)), "waiting does not make it right"
        assert watch.drift_s == pytest.approx(jump_s)
    assert watch.look(wall=1e9 + 100, monotonic=100.0)
    assert watch.drift_s == pytest.approx(0)


def test_jump_within_the_limit_is_believed() -> None:
    watch = ClockWatch(wall=1e9, monotonic=0.0)
    assert watch.look(wall=1e9 + DRIFT_MAX_S, monotonic=0.0)
    assert watch.look(wall=1e9, monotonic=0.0)
