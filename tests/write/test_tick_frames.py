"""TickFrames: when a TimeTick frame is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.write.ticks import AFTER_DATA_S, IDLE_S, TickFrames


@given(st.lists(st.tuples(st.floats(0.01, 20.0), st.booleans()), min_size=1, max_size=20), st.floats(0.0, 20.0))
def test_tick_frame_follows_data_soon(frames: list[tuple[float, bool]], later: float) -> None:
    now, data = 100.0, False
    table = TickFrames(now)
    for pause, data in frames:
        now += pause
        table.written(now, data=data)
    assert table.is_due(now + later) == (now + later - now >= (AFTER_DATA_S if data else IDLE_S))


def test_tick_frame_is_not_due_right_after_another() -> None:
    table = TickFrames(0.0)
    table.written(1.0, data=True)
    assert table.is_due(1.0 + AFTER_DATA_S)
    table.written(2.0, data=False)
    assert not table.is_due(2.0 + 5 * AFTER_DATA_S)
    assert table.is_due(2.0 + IDLE_S)
