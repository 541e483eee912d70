"""The policy against a model of a few lines, and the guarantees that hold in every case."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.errors import CorruptionError
from wal.node.retention.policy import LogPin, RetentionBounds, over_bound, pins_of, plan
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.status import LogRange, LogView
from wal.read.cursors.store import DamagedCursor
from wal.storage.base import Extent
from wal.timestamp import compose

NOW_S = 10_000.0


@st.composite
def logs(draw: st.DrawFn) -> list[Extent]:
    """Draws extents without gaps, their ticks ascending, the last one not sealed."""
    extents: list[Extent] = []
    at, second = draw(st.integers(0, 50)), draw(st.integers(9_000, 10_100))
    sizes = draw(st.lists(st.integers(1, 40), max_size=8))
    for size in sizes:
        second += draw(st.integers(0, 200))
        extents.append(Extent(at, at + size, compose(second * 1000, 7), sealed=True))
        at += size
    return [*extents, Extent(at, at + draw(st.integers(0, 40)), 0, sealed=False)]


BOUNDS = st.builds(RetentionBounds, st.none() | st.integers(0, 200), st.none() | st.floats(0, 1000), st.none(), st.none())
PINS = st.lists(st.builds(LogPin, st.just("cursor"), st.sampled_from("abc"), st.tuples(st.integers(0, 400), st.integers(0, 2))), max_size=3)
EARLIEST = st.tuples(st.integers(0, 400), st.integers(0, 2))


def model(extents: list[Extent], bounds: RetentionBounds, pins: list[LogPin], earliest: tuple[int, int], now_s: float | None) -> int | None:
    """Drops the first extent while a bound requires it, and no pin needs any part of it."""
    left = [extent for extent in extents if extent.end > earliest[0]]
    dropped = None
    while len(left) > 1:
        oldest = left[0]
        too_large = bounds.bytes_max is not None and left[-1].end - oldest.start > bounds.bytes_max
        age_s = None if now_s is None else now_s - (oldest.newest_tick >> 18) / 1000
        too_old = bounds.age_max_s is not None and age_s is not None and age_s > bounds.age_max_s
        if not (too_large or too_old) or any(pin.position < (oldest.end, 0) for pin in pins):
            break
        dropped = oldest.end
        del left[0]
    return dropped


@given(logs(), BOUNDS, PINS, EARLIEST, st.sampled_from([NOW_S, NOW_S, None]))
def test_plan_matches_the_model(
    extents: list[Extent], bounds: RetentionBounds, pins: list[LogPin], earliest: tuple[int, int], now_s: float | None
) -> None:
    found = plan(extents, bounds, pins, earliest=earliest, now_s=now_s)
    assert found.end == model(extents, bounds, pins, earliest, now_s)
    assert found.unpinned_end == model(extents, bounds, [], earliest, now_s)
    assert (found.end == found.unpinned_end) == (not found.holders), "who is in the way is named, and nobody else"
    assert all(pin in pins and found.unpinned_end is not None and pin.position < (found.unpinned_end, 0) for pin in found.holders)
    assert [pin.position for pin in found.holders] == sorted(pin.position for pin in found.holders)


@given(logs(), BOUNDS, PINS, EARLIEST, st.integers(1, 3))
def test_dropping_in_parts_gives_the_same_result(
    extents: list[Extent], bounds: RetentionBounds, pins: list[LogPin], earliest: tuple[int, int], some: int
) -> None:
    whole = plan(extents, bounds, pins, earliest=earliest, now_s=NOW_S)
    at, end = earliest, None
    while (part := plan(extents, bounds, pins, earliest=at, now_s=NOW_S, extents_max=some)).end is not None:
        assert (part.end, 0) > at
        assert sum(at[0] < extent.end <= part.end and extent.sealed for extent in extents) <= some
        at, end = (part.end, 0), part.end
    assert end == whole.end


def test_nothing_is_dropped_without_a_bound() -> None:
    extents = [Extent(0, 10, 0, sealed=True), Extent(10, 20, 0, sealed=False)]
    assert plan(extents, RetentionBounds(), [], earliest=(0, 0), now_s=1e12).unpinned_end is None


def cursor(name: str, start: tuple[int, int], *, pchannel: str = "p0", life: int = 1, stale: str = "") -> Cursor:
    return Cursor(CursorKey.of(name, ["orders"]), (life,), pchannel, 77, start, None, 0, 9_000.0, stale=stale)


VIEW = LogView({"p0": LogRange(77, (10, 0), 1000), "p1": LogRange(77, (0, 0), 0)}, {"orders": 2}.get, 3)


def test_live_cursors_pin_their_log() -> None:
    cursors: list[Cursor | DamagedCursor] = [
        cursor("live", (20, 1), life=2),
        cursor("dropped", (20, 1), life=1),
        cursor("stale", (20, 1), life=2, stale="too far behind"),
        cursor("truncated", (9, 0), life=2),
        cursor("elsewhere", (20, 1), life=2, pchannel="p1"),
        DamagedCursor("x.cursor", CorruptionError("damaged")),
    ]
    assert [(pin.kind, pin.name, pin.position) for pin in pins_of(cursors, VIEW, pchannel="p0")] == [
        ("cursor", "live", (20, 1)),
        ("damaged cursor", "x.cursor", (0, 0)),
    ]
    assert [pin.name for pin in pins_of(cursors, VIEW, pchannel="p1")] == ["elsewhere", "x.cursor"]


def test_bound_that_a_cursor_is_over() -> None:
    log = VIEW.logs["p0"]
    for start, now_s, bounds, over in (
        ((500, 0), NOW_S, RetentionBounds(), ""),
        ((500, 0), NOW_S, RetentionBounds(cursor_lag_bytes_max=500), ""),
        ((499, 0), NOW_S, RetentionBounds(cursor_lag_bytes_max=500), "cursor_lag_bytes_max=500"),
        ((500, 0), NOW_S, RetentionBounds(cursor_age_max_s=1000.0), ""),
        ((500, 0), NOW_S + 1, RetentionBounds(cursor_age_max_s=1000.0), "cursor_age_max_s=1000"),
        ((500, 0), None, RetentionBounds(cursor_age_max_s=1000.0), ""),
    ):
        exceeded = over_bound(cursor("a", start), log.held_bytes(start), bounds, now_s=now_s)
        assert exceeded.endswith(over)
        assert bool(exceeded) == bool(over)
