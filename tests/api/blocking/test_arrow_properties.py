"""Properties as Arrow maps: parsing many of them by kernels and decoding each one give the same maps, or the same error."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.api import arrow as arrow_properties
from wal.api.arrow import properties_column
from wal.errors import CorruptionError
from wal.message import decode_properties, encode_properties

assert pyarrow.compute  # imported for `pa.compute`

TEXTS = st.one_of(st.text(max_size=4), st.sampled_from(["x" * 31, "x" * 32, "ü" * 127, "ü" * 128, "x" * 70_000]))
MAPS = st.one_of(
    st.dictionaries(TEXTS, TEXTS, max_size=4),
    st.just({f"key-{number}": "" for number in range(15)}),
    st.just({f"key-{number}": "" for number in range(16)}),
)


def stored(properties: dict[str, str]) -> bytes:
    return encode_properties(properties) if properties else b""


def column(some: list[bytes], parsed_min: int) -> list[Any]:
    return properties_column(pa, pa.array(some, pa.binary()), len(some), parsed_min=parsed_min).to_pylist()  # type: ignore[no-any-return]


@given(st.lists(MAPS, max_size=8), st.sampled_from([1, 1000]))
def test_column_holds_the_maps_that_were_stored(maps: list[dict[str, str]], parsed_min: int) -> None:
    assert column(list(map(stored, maps)), parsed_min) == [list(one.items()) for one in maps]


@given(st.lists(st.one_of(MAPS.map(stored), st.binary(max_size=12)), min_size=1, max_size=4), st.data())
def test_damage_is_one_error_for_every_read(some: list[bytes], data: st.DataObject) -> None:
    """Damaged maps give what `decode_properties` gives: the same maps, or a CorruptionError and no other error."""
    at = data.draw(st.integers(0, len(some) - 1))
    if some[at]:
        where = data.draw(st.integers(0, len(some[at]) - 1))
        some[at] = some[at][:where] + data.draw(st.binary(max_size=3)) + some[at][where + 1 :]
    expected: Any
    try:
        expected = [list(decode_properties(one).items()) for one in some]
    except CorruptionError:
        expected = CorruptionError
    for parsed_min in (1, 1000):
        found: Any
        try:
            found = column(some, parsed_min)
        except CorruptionError:
            found = CorruptionError
        assert found == expected


@pytest.mark.parametrize("parsed_min", [1, 1000])
def test_repeated_key_has_its_last_value(parsed_min: int) -> None:
    """Only damage makes such a map; all ways of reading it agree."""
    twice = b"\x83\xa1a\xa11\xa1b\xa12\xa1a\xa13"
    assert list(decode_properties(twice).items()) == [("a", "3"), ("b", "2")]
    assert column([twice, stored({"a": "1", "b": "2", "c": "3"})], parsed_min) == [
        [("a", "3"), ("b", "2")],
        [("a", "1"), ("b", "2"), ("c", "3")],
    ]


def test_many_maps_that_all_differ_are_parsed_together() -> None:
    """The maps differ as if each message held a trace id; some have fewer pairs, some none."""
    maps = [
        {"tenant": f"t{number % 5}", "trace": f"{number:032x}"} if kind else {}
        for number, kind in enumerate(islice(cycle((1, 1, 0)), 4000))
    ]
    maps += [{"only": str(number)} for number in range(1000)]
    some = pa.array(list(map(stored, maps)), pa.binary())
    assert arrow_properties._parsed(pa, some.unique()) is not None
    found = properties_column(pa, some, len(maps))
    found.validate(full=True)
    assert found.to_pylist() == [list(one.items()) for one in maps]


@pytest.mark.parametrize("others", [[], [{}], [{"tenant": "t", "other": "2"}], [{"tenant": "t"}], [{"tenant": "t", "n": "1", "x": ""}]])
@pytest.mark.parametrize("key", ["n", "n" * 300])
def test_repeated_maps_keep_the_order_of_rows(others: list[dict[str, str]], key: str) -> None:
    """Maps with the same keys share the memory of their keys, unless these are long; others are copied whole."""
    maps = [{"tenant": f"t{number % 3}", key: str(number % 7)} for number in range(100)] + others
    picked = [number for number in reversed(range(len(maps))) if number % 5]
    some = pa.array(list(map(stored, maps)), pa.binary())
    for order, expected in ((None, maps), (picked, [maps[number] for number in picked])):
        found = properties_column(pa, some, len(expected), picked=None if order is None else pa.array(order, pa.int32()))
        found.validate(full=True)
        assert found.to_pylist() == [list(one.items()) for one in expected]


def test_maps_that_all_differ_are_put_in_order() -> None:
    maps = [{"n": str(number)} for number in range(9)]
    some = pa.array(list(map(stored, maps)), pa.binary())
    found = properties_column(pa, some, 2, picked=pa.array([7, 3], pa.int32()))
    assert found.to_pylist() == [[("n", "7")], [("n", "3")]]
