"""Stored properties and broadcast headers round-trip, and damage is a CorruptionError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import CorruptionError, InvalidArgumentError
from wal.message import BroadcastHeader, ResourceKey, check_properties, decode_properties, encode_properties, properties_size

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
headers = st.builds(
    BroadcastHeader,
    st.integers(0, 2**64 - 1),
    st.lists(text, max_size=4).map(tuple),
    st.lists(st.builds(ResourceKey, text.filter(bool), text.filter(bool), shared=st.booleans()), max_size=3).map(tuple),
    st.booleans(),
)


@given(st.dictionaries(text, text, max_size=6))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties
    assert properties_size(properties) == sum(len((key + value).encode()) for key, value in properties.items())


def test_no_bytes_are_no_properties() -> None:
    assert decode_properties(b"") == {}


def test_stored_form_is_a_messagepack_map() -> None:
    assert encode_properties({"a": "é"}) == b"\x81\xa1a\xa2\xc3\xa9"


@pytest.mark.parametrize(
    "stored", [b"\x81", b"\x81\xa1a", b"\x81\xa1a\x01", b"\x81\x01\xa1a", b"\x91\xa1a", b"\x81\xa1\xff\xa1a", b"\x80\x00", b"\xc1"]
)
def test_damaged_properties(stored: bytes) -> None:
    with pytest.raises(CorruptionError, match="stored properties cannot be decoded"):
        decode_properties(stored)


@given(st.binary(max_size=40))
def test_any_bytes_are_properties_or_damage(stored: bytes) -> None:
    try:
        properties = decode_properties(stored)
    except CorruptionError:
        return
    assert all(isinstance(part, str) for item in properties.items() for part in item)


def test_check_properties_copies() -> None:
    mine = {"a": "b"}
    checked = check_properties(mine)
    assert checked == mine
    assert checked is not mine


@given(headers)
def test_headers_round_trip(header: BroadcastHeader) -> None:
    assert BroadcastHeader.from_bytes(header.to_bytes()) == header


@given(st.lists(st.text(max_size=3), unique=True, max_size=20), st.data())
def test_headers_round_trip_without_copy_names(names: list[str], data: st.DataObject) -> None:
    header = BroadcastHeader(7, tuple(names), (ResourceKey("d", "k"),), False)
    there = data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))
    copies = [name for name in names if name in there]
    stored = header.to_bytes(copies)
    assert BroadcastHeader.from_bytes(stored, copies) == header
    if len(copies) == len(names):
        assert len(stored) <= len(BroadcastHeader(7, (), (ResourceKey("d", "k"),), False).to_bytes()) + 3


@pytest.mark.parametrize("copies", [[], ["b"]])
def test_header_with_other_copies_is_damage(copies: list[str]) -> None:
    stored = BroadcastHeader(7, ("a", "b", "c", "d")).to_bytes(["b", "d"])
    with pytest.raises(CorruptionError, match="a broadcast header names 2 vchannels beside"):
        BroadcastHeader.from_bytes(stored, copies)


def test_damaged_headers(subtests: pytest.Subtests) -> None:
    cases = [
        b"",
        b"\x91",
        b"\x92\x01\x91\xa1\xff",
        b"\x93\x01\x91\xa1a\x91\x92\xa0\xa1b",
        b"\x92\xa1a\x90",
        BroadcastHeader(1, ("v",)).to_bytes() + b"\x00",
    ]
    for stored in cases:
        with subtests.test(repr(stored)), pytest.raises(CorruptionError, match="a broadcast header cannot be decoded"):
            BroadcastHeader.from_bytes(stored)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_damage(stored: bytes) -> None:
    try:
        header = BroadcastHeader.from_bytes(stored)
    except CorruptionError:
        return
    assert isinstance(header, BroadcastHeader)


@pytest.mark.parametrize(("domain", "key"), [("", "k"), ("d", ""), ("", "")])
def test_resource_key_names_domain_and_key(domain: str, key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="must not be empty"):
        ResourceKey(domain, key)


def test_shared_is_a_keyword_and_a_bool() -> None:
    with pytest.raises(TypeError):
        ResourceKey("d", "k", True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes a bool"):
        ResourceKey("d", "k", shared=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("domain", "key"), [(1, "k"), ("d", b"k")])
def test_resource_key_is_text(domain: object, key: object) -> None:
    with pytest.raises(TypeError, match="takes two str"):
        ResourceKey(domain, key)  # type: ignore[arg-type]
