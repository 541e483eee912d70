"""Offsets: equal offsets have equal texts, every text can be parsed back, and no other text is accepted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operate.cli.golden import inexact
from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, FORM_PULSAR, MessageID
from wal.spark.offsets import PChannelOffset, StreamOffset

names = st.text(min_size=1, max_size=8)
ticks = st.integers(0, (1 << 64) - 1)


@st.composite
def places(draw: st.DrawFn, pchannel: str) -> PChannelOffset:
    form = draw(st.sampled_from([FORM_JOURNAL, FORM_PULSAR]))
    position = draw(st.integers(0, (1 << (64 if form == FORM_JOURNAL else 128)) - 1))
    place = position, draw(st.integers(0, (1 << 32) - 1))
    return PChannelOffset(pchannel, draw(st.integers(0, (1 << 64) - 1)), place, draw(ticks), form)


@st.composite
def offsets(draw: st.DrawFn) -> StreamOffset:
    pchannels = draw(st.lists(names, unique=True, max_size=4))
    lives = draw(st.dictionaries(names, st.integers(0, 1 << 32), max_size=3))
    return StreamOffset({name: draw(places(name)) for name in pchannels}, lives, draw(st.booleans()))


@given(offsets())
def test_offset_comes_back_from_its_text(offset: StreamOffset) -> None:
    assert StreamOffset.parse(str(offset)) == offset
    data = json.loads(str(offset))
    assert StreamOffset.parse(data) == offset
    assert inexact(data) == [], "other parsers of JSON round these numbers"
    for place in data["pchannels"].values():
        place["tick"] = int(place["tick"])  # as earlier versions wrote it
    assert StreamOffset.parse(data) == offset


@given(offsets(), st.randoms())
def test_text_is_independent_of_construction_order(offset: StreamOffset, random: object) -> None:
    def shuffled(mapping: dict[str, object]) -> dict[str, object]:
        items = list(mapping.items())
        random.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    other = StreamOffset(shuffled(dict(offset.pchannels)), shuffled(dict(offset.incarnations)), offset.pinned)  # type: ignore[arg-type]
    assert str(other) == str(offset)

    def is_sorted(value: object) -> bool:
        return not isinstance(value, dict) or (list(value) == sorted(value) and all(map(is_sorted, value.values())))

    assert is_sorted(offset.to_json())


def test_places_have_the_order_of_their_ids() -> None:
    at = [PChannelOffset("p0", 1, place, 0) for place in ((5, 1), (5, 2), (6, 0))]
    assert sorted(at, key=lambda offset: offset.log_position) == at
    assert [offset.message_id for offset in at] == sorted(offset.message_id for offset in at)


def test_anything_else_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "null",
        "[]",
        "{}",
        '{"version": 2, "pchannels": {}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {"p0": "earliest"}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {"p0": {"tick": 3}}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {"p0": {"id": "p1:1:0:0", "tick": 3}}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {"p0": {"id": "p0:1:0:0", "tick": -3}}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {"p0": {"id": "p0:1:0:0", "tick": "-3"}}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {"p0": {"id": "p0:1:0:0", "tick": "%s"}}, "lives": {}, "pinned": 1}' % ("9" * 5_000),
        '{"version": 1, "pchannels": {"p0": {"id": "p0:1:0", "tick": 3}}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {"p0": {"id": 3, "tick": 3}}, "lives": {}, "pinned": 1}',
        '{"version": 1, "pchannels": {}, "lives": {"orders": "x"}, "pinned": 1}',
    ]
    for text in cases:
        with subtests.test(repr(text)), pytest.raises(InvalidArgumentError):
            StreamOffset.parse(text)


def test_offset_id_is_where_reading_continues() -> None:
    offset = PChannelOffset.of(MessageID("p0", 7, 4096, 3), 11)
    assert offset.message_id == MessageID("p0", 7, 4096, 3)
    assert offset.moved((4096, 4), 12).message_id == MessageID("p0", 7, 4096, 4)
    assert not offset.same_log(PChannelOffset("p0", 8, (4096, 3), 11))
