"""Keys: a channel's records are never among another's, whatever the names; names round-trip through stored keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.streams.rocksmq.keys import (
    begin_id_key,
    check_name,
    current_id_key,
    data_prefix,
    page_key,
    page_prefix,
    parse_meta,
    prefix_end,
    record_key,
)

names = st.one_of(
    st.sampled_from(["a", "a/", "a/b", "a1", "a/b/1", "/", "%", "%2F", "a%2Fb", "ä", "begin_id", "\n"]),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)
ids = st.integers(1, (1 << 63) - 1)


@given(names, names, ids)
def test_prefix_holds_its_own_records_alone(one: str, other: str, message_id: int) -> None:
    key = record_key(data_prefix(other), message_id)
    prefix = data_prefix(one)
    inside = prefix <= key < prefix_end(prefix)
    assert key.startswith(prefix) is inside is (one == other)


@given(names, ids, ids)
def test_records_sort_as_their_ids(name: str, one: int, other: int) -> None:
    prefix = data_prefix(name)
    assert (record_key(prefix, one) < record_key(prefix, other)) is (one < other)


@given(names, names, ids)
def test_names_come_back_from_keys(name: str, group: str, message_id: int) -> None:
    assert parse_meta(begin_id_key(name)) == ("channel", name, "begin_id")
    assert parse_meta(current_id_key(group, name)) == ("group", name, group)
    assert parse_meta(page_key(name, message_id)) == ("page", name, str(message_id))
    assert page_key(name, message_id).startswith(page_prefix(name))


@pytest.mark.parametrize("name", ["", "x" * 256, "ä" * 128, "\ud800"])
def test_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"bytes|surrogates"):
        check_name("channel_name", name)
    with pytest.raises(TypeError):
        check_name("channel_name", 5)
