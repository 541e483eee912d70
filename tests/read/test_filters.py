"""Deliver filters: their arguments, and a message must pass all filters of a read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message import MessageType, type_properties
from wal.read.options import DeliverFilter, EventFilter, MessageTypes, TimeTickGT, TimeTickGTE

USER_TYPES = [kind for kind in MessageType if not type_properties(kind).system]
SYSTEM_TYPES = [kind for kind in MessageType if type_properties(kind).system]

TICKS = st.integers(0, 20)
FILTERS = st.one_of(
    st.builds(TimeTickGT, TICKS),
    st.builds(TimeTickGTE, TICKS),
    st.builds(lambda types: MessageTypes(*types), st.lists(st.sampled_from(USER_TYPES[:4]), min_size=1)),
)


@given(st.lists(FILTERS, max_size=4), st.integers(0, 22), st.sampled_from(USER_TYPES[:4]))
def test_all_filters_must_hold(filters: list[DeliverFilter], tick: int, kind: MessageType) -> None:
    def holds(one: DeliverFilter, tick: int, kind: MessageType) -> bool:
        if isinstance(one, TimeTickGT):
            return tick > one.time_tick
        if isinstance(one, TimeTickGTE):
            return tick >= one.time_tick
        return kind in one.types

    folded = EventFilter.of(filters)
    passes = tick >= folded.tick_min and (folded.types is None or int(kind) in folded.types)
    assert passes == all(holds(one, tick, kind) for one in filters)


def test_single_filter_needs_no_sequence() -> None:
    assert EventFilter.of(TimeTickGT(4)) == EventFilter.of([TimeTickGT(4)]) == EventFilter.of((TimeTickGTE(5),))
    assert EventFilter.of(()) == EventFilter()


@pytest.mark.parametrize("kind", SYSTEM_TYPES, ids=lambda kind: kind.name)
def test_system_type_cannot_be_named(kind: MessageType) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{kind.name} is a system type"):
        MessageTypes(MessageType.INSERT, kind)


def test_wrong_filters_are_refused_when_they_are_created() -> None:
    with pytest.raises(InvalidArgumentError, match="name at least one"):
        MessageTypes()
    with pytest.raises(TypeError):
        MessageTypes("INSERT")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        MessageTypes(2)  # type: ignore[arg-type]
    for kind in (TimeTickGT, TimeTickGTE):
        with pytest.raises(TypeError):
            kind("1")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            kind(True)
        with pytest.raises(InvalidArgumentError, match="-1 is out of range"):
            kind(-1)
        with pytest.raises(InvalidArgumentError, match="out of range"):
            kind(1 << 64)
        assert kind((1 << 64) - 1).time_tick == (1 << 64) - 1
    with pytest.raises(TypeError, match="is not a deliver filter"):
        EventFilter.of(["GT"])  # type: ignore[list-item]


def test_repr_of_a_filter_names_its_types() -> None:
    assert repr(MessageTypes(MessageType.INSERT, MessageType.DELETE)) == "MessageTypes(DELETE, INSERT)"
    assert "7" in repr(TimeTickGT(7))
