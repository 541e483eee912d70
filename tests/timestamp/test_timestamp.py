"""The form of a tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wal.timestamp
from wal.errors import InvalidArgumentError
from wal.timestamp import LOGICAL_BITS, LOGICAL_MAX, MILLISECONDS_MAX, TICK_MAX, compose, from_datetime, parse, to_datetime

milliseconds = st.integers(0, MILLISECONDS_MAX)
logicals = st.integers(0, LOGICAL_MAX)


def test_form_is_the_seeds() -> None:
    assert LOGICAL_BITS == 18
    assert compose(1, 0) == 262_144
    assert compose(MILLISECONDS_MAX, LOGICAL_MAX) == TICK_MAX == 2**64 - 1
    assert compose(1_700_000_000_000, 5) == 1_700_000_000_000 * 2**18 + 5
    assert from_datetime(datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)) == compose(1_700_000_000_000)


@given(milliseconds, logicals)
def test_parse_undoes_compose(physical: int, logical: int) -> None:
    assert parse(compose(physical, logical)) == (physical, logical)


@given(st.tuples(milliseconds, logicals), st.tuples(milliseconds, logicals))
def test_order_is_that_of_time_then_logic(one: tuple[int, int], two: tuple[int, int]) -> None:
    assert (compose(*one) < compose(*two)) == (one < two)


@given(milliseconds, logicals)
def test_datetimes_are_exact_to_the_millisecond(physical: int, logical: int) -> None:
    moment = to_datetime(compose(physical, logical))
    assert moment.utcoffset() == timedelta(0)
    assert from_datetime(moment) == compose(physical)
    assert from_datetime(moment + timedelta(microseconds=999)) == compose(physical)
    if moment > datetime(1970, 1, 2, tzinfo=UTC):
        assert from_datetime(moment.astimezone(timezone(timedelta(hours=-7)))) == compose(physical)


@pytest.mark.parametrize(("physical", "logical"), [(-1, 0), (MILLISECONDS_MAX + 1, 0), (0, -1), (0, LOGICAL_MAX + 1)])
def test_bounds(physical: int, logical: int) -> None:
    with pytest.raises(InvalidArgumentError, match="out of bounds"):
        compose(physical, logical)


@pytest.mark.parametrize("tick", [-1, TICK_MAX + 1])
def test_tick_bounds(tick: int) -> None:
    for function in (parse, to_datetime):
        with pytest.raises(InvalidArgumentError, match="out of bounds"):
            function(tick)


@pytest.mark.parametrize("wrong", [None, 1.0, "1", True])
def test_wrong_types(wrong: Any) -> None:
    for call in (parse, to_datetime, compose, from_datetime, lambda value: compose(1, value)):
        with pytest.raises(TypeError):
            call(wrong)


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)])
def test_moments_without_zone_or_before_1970(moment: datetime) -> None:
    with pytest.raises(InvalidArgumentError, match=r"zone|1970"):
        from_datetime(moment)


def test_exported_names() -> None:
    assert wal.timestamp.__all__ == sorted(wal.timestamp.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(wal.timestamp, name) for name in wal.timestamp.__all__)
