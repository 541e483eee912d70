"""ReadPosition: its text can be stored and parsed, and any other text is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, FORM_PULSAR, MessageID
from wal.read.options import ReadPosition

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, (1 << 64) - 1)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
IDS = st.one_of(
    st.builds(MessageID, NAMES, U64, U64, U32, st.just(FORM_JOURNAL)),
    st.builds(MessageID, NAMES, U64, st.integers(0, (1 << 128) - 1), U32, st.just(FORM_PULSAR)),
)
POSITIONS = st.builds(ReadPosition, IDS, U64)


@given(POSITIONS)
def test_text_is_read_back(position: ReadPosition) -> None:
    assert ReadPosition.parse(str(position)) == position


@given(st.text(st.sampled_from("p0:1af@.- ٣+_"), max_size=24))
def test_any_other_text_is_refused_or_is_canonical(text: str) -> None:
    try:
        position = ReadPosition.parse(text)
    except InvalidArgumentError:
        return
    assert str(position) == text


def test_error_for_a_wrong_text_names_the_form(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "@",
        "p0:1:0:0",
        "p0:1:0:0@",
        "p0:1:0:0@-1",
        "p0:1:0:0@01",
        "p0:1:0:0@1 ",
        "p0:1:0:0@٣",
        f"p0:1:0:0@{1 << 64}",
        "p0:1:0:0@" + "9" * 5000,
        "p0:1:0@7",
        "@7",
    ]
    for text in cases:
        with subtests.test(repr(text)), pytest.raises(InvalidArgumentError):
            ReadPosition.parse(text)


def test_only_text_is_parsed() -> None:
    with pytest.raises(TypeError):
        ReadPosition.parse(b"p0:1:0:0@7")  # type: ignore[arg-type]


def test_positions_are_values() -> None:
    position = ReadPosition(MessageID("p0", 1, 2, 3), 4)
    assert position == ReadPosition(MessageID("p0", 1, 2, 3), 4)
    assert len({position, ReadPosition(MessageID("p0", 1, 2, 3), 4)}) == 1
