"""Unread fields: a received message behaves as one whose fields were all there from the beginning."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.msgstream.messages import deletes, inserts
from wal.errors import InvalidArgumentError
from wal.streams.msgstream import DeleteMsg, InsertMsg, MsgPosition, TsMsg

rows = st.one_of(inserts(), deletes())


def received(message: TsMsg) -> TsMsg:
    return type(message).unmarshal(message.marshal())


@given(rows, st.data())
def test_fields_are_read_in_any_order(message: TsMsg, data: st.DataObject) -> None:
    unread = received(message)
    for name in data.draw(st.permutations(message.__struct_fields__)):
        value = getattr(unread, name)
        expected = getattr(message, name)
        assert value == (list(expected) if name == "hash_keys" else expected) or (name == "hash_keys" and value == ())
        assert getattr(unread, name) is value


@given(rows, st.data())
def test_changed_fields_are_written(message: TsMsg, data: st.DataObject) -> None:
    unread = received(message)
    for name in data.draw(st.lists(st.sampled_from(["id", "timestamp", "collection_id", "trace_ctx"]))):
        value: Any = {"a": str(data.draw(st.integers()))} if name == "trace_ctx" else data.draw(st.integers(0, 1 << 40))
        setattr(unread, name, value)
        setattr(message, name, value)
    unread.timestamps.append(5)  # type: ignore[attr-defined]  # a list that was read may be changed in place
    for name in message.columns:  # type: ignore[attr-defined]
        if values := getattr(unread, name):
            setattr(unread, name, [*values, values[0]])
    message.timestamps = [*message.timestamps, 5]  # type: ignore[attr-defined]
    for name in message.columns:  # type: ignore[attr-defined]
        if values := getattr(message, name):
            setattr(message, name, [*values, values[0]])
    assert unread.marshal() == message.marshal()
    assert received(unread) == message


def replaced(message: TsMsg) -> TsMsg:
    message.read()
    return msgspec.structs.replace(message, id=message.id)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)), received, replaced])
@given(message=rows)
def test_copies_of_an_unread_message_equal_it(copied: Callable[[TsMsg], TsMsg], message: TsMsg) -> None:
    unread = received(message)
    other = copied(unread)
    assert type(other) is type(message)
    assert other == message
    assert other.marshal() == message.marshal()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="copy.replace is new in Python 3.13")
def test_field_of_an_unread_message_can_be_replaced() -> None:
    unread = received(InsertMsg([1], [2], [b"x"], id=3))
    assert copy.replace(unread, id=4) == InsertMsg([1], [2], [b"x"], id=4)  # type: ignore[attr-defined,unused-ignore]


def test_unread_message_is_shown_and_compared_whole() -> None:
    message = DeleteMsg([1, 2], [3, 4], id=5, trace_ctx={"a": "b"})
    assert repr(received(message)) == repr(message)
    assert list(received(message).__rich_repr__()) == list(message.__rich_repr__())
    assert received(message) == received(message) == message == received(message)
    assert not (received(message) != message)  # noqa: SIM202
    assert received(message) != received(DeleteMsg([1, 2], [3, 4], id=6))
    assert received(message) != InsertMsg([1, 2], [3, 4], [b"", b""], id=5)
    assert received(message) != 3
    with pytest.raises(TypeError, match="hash"):
        hash(received(message))


def test_other_names_are_no_fields() -> None:
    for message in (received(InsertMsg([1], [2], [b"x"])), InsertMsg([1], [2], [b"x"])):
        with pytest.raises(AttributeError, match="primary_keys"):
            message.primary_keys  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(AttributeError):
            message.primary_keys = [1]  # type: ignore[attr-defined]


def test_missing_field_has_its_default() -> None:
    class Counted(InsertMsg):
        tries: int = 3
        tags: list[str] = msgspec.field(default_factory=list)

    message, other = (Counted.unmarshal(InsertMsg([1], [2], [b"x"]).marshal()) for _ in range(2))
    message.tags.append("a")
    message.tries += 1
    assert (message.tries, message.tags, message.position) == (4, ["a"], None)
    assert (other.tries, other.tags) == (3, [])
    message.set_position(MsgPosition("a", b"1"))
    assert message.position == MsgPosition("a", b"1")


def test_unreadable_bytes_are_refused_at_once() -> None:
    encoded = InsertMsg([1], [2], [b"x"]).marshal()
    for damaged in (encoded[:-1], encoded + b"\x22", encoded + b"\x22\x08" + bytes(8)):
        with pytest.raises(InvalidArgumentError):
            InsertMsg.unmarshal(damaged)
