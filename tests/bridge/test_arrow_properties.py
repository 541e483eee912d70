"""Properties as Arrow maps: walking many of them by kernels, and decoding each, give the same maps or the same error."""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.bridge import arrow_properties
from wal.bridge.arrow_properties import properties_column
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


def column(some: list[bytes]) -> list[Any]:
    return properties_column(pa, pa.array(some, pa.binary()), len(some)).to_pylist()


@given(st.lists(MAPS, max_size=8), st.sampled_from([1, 1000]))
def test_the_maps_that_were_stored(maps: list[dict[str, str]], walked_min: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_properties, "_WALKED_MIN", walked_min)
        assert column(list(map(stored, maps))) == [list(one.items()) for one in maps]


@given(st.lists(st.one_of(MAPS.map(stored), st.binary(max_size=12)), min_size=1, max_size=4), st.data())
def test_damage_is_an_error_whichever_way_it_is_read(some: list[bytes], data: st.DataObject) -> None:
    """Never maps that were not stored, never more than an error; `decode_properties` says what is right."""
    at = data.draw(st.integers(0, len(some) - 1))
    if some[at]:
        where = data.draw(st.integers(0, len(some[at]) - 1))
        some[at] = some[at][:where] + data.draw(st.binary(max_size=3)) + some[at][where + 1 :]
    expected: Any
    try:
        expected = [list(decode_properties(one).items()) for one in some]
    except CorruptionError:
        expected = CorruptionError
    for walked_min in (1, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow_properties, "_WALKED_MIN", walked_min)
            found: Any
            try:
                found = column(some)
            except CorruptionError:
                found = CorruptionError
        assert found == expected


@pytest.mark.parametrize("walked_min", [1, 1000])
def test_a_key_that_is_stored_twice_has_its_last_value(walked_min: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only damage makes such a map; all ways of reading it agree."""
    monkeypatch.setattr(arrow_properties, "_WALKED_MIN", walked_min)
    twice = b"\x83\xa1a\xa11\xa1b\xa12\xa1a\xa13"
    assert list(decode_properties(twice).items()) == [("a", "3"), ("b", "2")]
    assert column([twice, stored({"a": "1", "b": "2", "c": "3"})]) == [
        [("a", "3"), ("b", "2")],
        [("a", "1"), ("b", "2"), ("c", "3")],
    ]


def test_many_that_all_differ() -> None:
    """As a trace id in each message makes them; some have fewer, some none."""
    maps = [
        {"tenant": f"t{number % 5}", "trace": f"{number:032x}"} if kind else {}
        for number, kind in enumerate(islice(cycle((1, 1, 0)), 4000))
    ]
    maps += [{"only": str(number)} for number in range(1000)]
    some = pa.array(list(map(stored, maps)), pa.binary())
    assert arrow_properties._walked(pa, some.unique()) is not None
    found = properties_column(pa, some, len(maps))
    found.validate(full=True)
    assert found.to_pylist() == [list(one.items()) for one in maps]
