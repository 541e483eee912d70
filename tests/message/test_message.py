"""Message: the arguments that it refuses, that it does not change, and its estimated size."""

import copy
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message import Message, MessageType

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
properties = st.dictionaries(text.filter(lambda key: not key.startswith("_")), text, max_size=5)


def test_defaults() -> None:
    message = Message("orders", b"created")
    assert (message.vchannel, message.payload, message.message_type, message.properties) == ("orders", b"created", MessageType.INSERT, {})


@pytest.mark.parametrize("payload", ["text", bytearray(b"x"), memoryview(b"x"), None, 7, type("B", (bytes,), {})(b"x")])
def test_payload_is_bytes(payload: object) -> None:
    with pytest.raises(TypeError, match=f"not {type(payload).__name__}: convert it with bytes"):
        Message("v", payload)  # type: ignore[arg-type]


@pytest.mark.parametrize("vchannel", [b"v", None, 7])
def test_vchannel_is_text(vchannel: object) -> None:
    with pytest.raises(TypeError, match=f"vchannel must be a str, not {type(vchannel).__name__}"):
        Message(vchannel, b"")  # type: ignore[arg-type]


def test_empty_vchannel_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="vchannel is empty: name the vchannel"):
        Message("", b"")


@pytest.mark.parametrize("message_type", [2, "INSERT", None, True])
def test_message_type_is_a_message_type(message_type: object) -> None:
    with pytest.raises(TypeError, match=f"must be a MessageType, not {message_type!r}"):
        Message("v", b"", message_type=message_type)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [[("a", "b")], "ab", 7, None, []])
def test_properties_are_a_mapping(wrong: object) -> None:
    with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
        Message("v", b"", properties=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"a": 1}, {1: "a"}, {"a": b"b"}, {b"a": "b"}, {"a": None}])
def test_properties_are_text_to_text(wrong: dict[object, object]) -> None:
    ((key, value),) = wrong.items()
    with pytest.raises(TypeError, match=re.escape(f"property {key!r}: {value!r} must be str to str")):
        Message("v", b"", properties=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["_", "_v", "_tt", "_mine"])
def test_reserved_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'{key}' is reserved: .* rename it"):
        Message("v", b"", properties={"a": "b", key: "c"})


def test_text_that_has_no_utf_8_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, dict[str, str], str]] = [
        ("a\ud800", {}, "vchannel"),
        ("v", {"k\udfff": "x"}, "property key"),
        ("v", {"k": "x\ud800"}, "value of property 'k'"),
    ]
    for vchannel, given_properties, named in cases:
        with subtests.test(repr(vchannel)), pytest.raises(InvalidArgumentError, match=f"{named}.*remove the lone surrogate"):
            Message(vchannel, b"", properties=given_properties)


def test_arguments_past_the_payload_are_keywords() -> None:
    with pytest.raises(TypeError):
        Message("v", b"", MessageType.DELETE)  # type: ignore[call-arg]


def test_message_is_immutable() -> None:
    message = Message("v", b"")
    for name in ("vchannel", "payload", "message_type", "properties"):
        with pytest.raises(AttributeError):
            setattr(message, name, getattr(message, name))


@pytest.mark.parametrize("before", [{}, {"a": "b"}])
def test_callers_mapping_is_copied(before: dict[str, str]) -> None:
    mine = dict(before)
    message = Message("v", b"", properties=mine)
    mine["_tt"] = "1"
    assert message.properties == before
    assert Message("v", b"").properties is not Message("v", b"").properties


def test_same_object_can_be_used_again() -> None:
    message = Message("v", b"x", properties={"a": "b"})
    before = copy.deepcopy(message)
    assert [message, message] == [before, before]
    assert message.estimate_size() == message.estimate_size() == 3
    assert message == before


@given(st.binary(max_size=50), properties)
def test_estimate_size_counts_payload_keys_and_values(payload: bytes, given_properties: dict[str, str]) -> None:
    message = Message("v", payload, properties=given_properties)
    assert message.estimate_size() == len(payload) + sum(len(key.encode()) + len(value.encode()) for key, value in given_properties.items())


def test_estimate_size_of_text_outside_ascii() -> None:
    assert Message("v", b"12", properties={"ключ": "€", "k": "v"}).estimate_size() == 2 + 8 + 3 + 2
