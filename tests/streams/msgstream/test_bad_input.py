"""Each constructor rejects a wrong value with an error that names the field and the value, and marshal rejects an assigned one."""

from __future__ import annotations

from typing import Any

import pytest

from wal.errors import InvalidArgumentError
from wal.streams import msgstream

GOOD: list[tuple[type[msgstream.TsMsg], dict[str, Any]]] = [
    (msgstream.InsertMsg, {"timestamps": [1], "row_ids": [2], "row_data": [b""]}),
    (msgstream.DeleteMsg, {"timestamps": [1], "primary_keys": [2]}),
    (msgstream.TimeTickMsg, {"timestamp": 1}),
    (msgstream.CreateCollectionMsg, {"collection_id": 1, "collection_name": "a"}),
    (msgstream.DropCollectionMsg, {"collection_id": 1, "collection_name": "a"}),
    (msgstream.CreatePartitionMsg, {"collection_id": 1, "collection_name": "a", "partition_id": 2, "partition_name": "b"}),
    (msgstream.DropPartitionMsg, {"collection_id": 1, "collection_name": "a", "partition_id": 2, "partition_name": "b"}),
    (msgstream.OpaqueMsg, {"msg_type": msgstream.MsgType.FLUSH}),
]
SIGNED = [(1 << 63, InvalidArgumentError), (-(1 << 63) - 1, InvalidArgumentError), (1.5, TypeError), ("1", TypeError)]
UNSIGNED = [(1 << 64, InvalidArgumentError), (-1, InvalidArgumentError), (1.5, TypeError), (None, TypeError)]
BASE: dict[str, list[tuple[Any, type[Exception]]]] = {
    "id": SIGNED,
    "source_id": SIGNED,
    "target_id": SIGNED,
    "timestamp": UNSIGNED,
    "hash_keys": [
        ([1 << 32], InvalidArgumentError),
        ([-1], InvalidArgumentError),
        (["a"], TypeError),
        ([1.0], TypeError),
        ("12", TypeError),
        (b"12", TypeError),
        (7, TypeError),
        (None, TypeError),
    ],
    "trace_ctx": [
        (None, TypeError),
        ([("a", "b")], TypeError),
        ({1: "b"}, TypeError),
        ({"a": 1}, TypeError),
        ({"a": "\ud800"}, InvalidArgumentError),
    ],
}
ROWS: dict[str, list[tuple[Any, type[Exception]]]] = {
    "timestamps": [
        ([], InvalidArgumentError),
        ([1, 2], InvalidArgumentError),
        ([-1], InvalidArgumentError),
        ([1 << 64], InvalidArgumentError),
        (["1"], TypeError),
        (None, TypeError),
        ("1", TypeError),
        (1, TypeError),
    ],
    "collection_id": SIGNED,
    "partition_id": SIGNED,
    "hash_keys": [([1, 2], InvalidArgumentError)],
}
NAMES: list[tuple[Any, type[Exception]]] = [("", InvalidArgumentError), (None, TypeError), (b"a", TypeError)]
COLUMN = [([], InvalidArgumentError), ([1, 2], InvalidArgumentError), (None, TypeError), (["1"], TypeError)]
IDS = [*COLUMN, ([1 << 63], InvalidArgumentError)]
COLLECTION: dict[str, list[tuple[Any, type[Exception]]]] = {"collection_id": SIGNED, "collection_name": NAMES}
PARTITION = COLLECTION | {"partition_id": SIGNED, "partition_name": NAMES}
OWN: dict[type[msgstream.TsMsg], dict[str, list[tuple[Any, type[Exception]]]]] = {
    msgstream.InsertMsg: ROWS
    | {
        "row_ids": IDS,
        "row_data": [([], InvalidArgumentError), ([b"", b""], InvalidArgumentError), (["a"], TypeError), (b"a", TypeError), (3, TypeError)],
    },
    msgstream.DeleteMsg: ROWS | {"primary_keys": IDS},
    msgstream.TimeTickMsg: {},
    msgstream.CreateCollectionMsg: COLLECTION | {"schema": [(None, TypeError), ("a", TypeError)]},
    msgstream.DropCollectionMsg: COLLECTION,
    msgstream.CreatePartitionMsg: PARTITION,
    msgstream.DropPartitionMsg: PARTITION,
    msgstream.OpaqueMsg: {
        "msg_type": [
            (0, InvalidArgumentError),
            (msgstream.MsgType.UNDEFINED, InvalidArgumentError),
            (-1, InvalidArgumentError),
            (1 << 31, InvalidArgumentError),
            ("FLUSH", TypeError),
            (None, TypeError),
        ],
        "body": [("a", TypeError), (None, TypeError), (bytearray(b"a"), TypeError)],
    },
}
CASES = [
    (kind, good, field, value, error)
    for kind, good in GOOD
    for field, wrongs in (*BASE.items(), *OWN[kind].items())
    for value, error in wrongs
]


def test_good_values_are_accepted(subtests: pytest.Subtests) -> None:
    for kind, good in GOOD:
        with subtests.test(kind.__name__):
            message = kind(**good)
            assert kind.unmarshal(message.marshal()) == message


def test_constructor_refuses_wrong_values_by_name(subtests: pytest.Subtests) -> None:
    for kind, good, field, value, error in CASES:
        with subtests.test(f"{kind.__name__}-{field}-{str(value)[:24]!r}"):
            with pytest.raises(error) as raised:
                kind(**good | {field: value})
            assert type(raised.value) is error
            text = str(raised.value)
            assert field in text or "rows" in text, text


def test_marshal_refuses_wrong_values_assigned_later(subtests: pytest.Subtests) -> None:
    for kind, good, field, value, error in CASES:
        with subtests.test(f"{kind.__name__}-{field}-{str(value)[:24]!r}"):
            message = kind(**good)
            setattr(message, field, value)
            with pytest.raises(error):
                message.marshal()


def test_wrong_number_in_a_column_has_its_index() -> None:
    with pytest.raises(InvalidArgumentError, match=r"row_ids\[99\]"):
        msgstream.InsertMsg([1] * 100, [*range(99), 1 << 63], [b""] * 100)


@pytest.mark.parametrize("wrong", [-1, 1 << 64])
def test_set_ts_is_checked(wrong: int) -> None:
    message = msgstream.TimeTickMsg(1)
    with pytest.raises(InvalidArgumentError, match=str(wrong)):
        message.set_ts(wrong)
    with pytest.raises(TypeError):
        message.set_trace_ctx({"a": 1})  # type: ignore[dict-item]
    assert message == msgstream.TimeTickMsg(1)


def test_position_refuses_wrong_values(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"channel_name": ""}, InvalidArgumentError),
        ({"channel_name": None}, TypeError),
        ({"msg_id": "text"}, TypeError),
        ({"msg_id": None}, TypeError),
        ({"msg_group": None}, TypeError),
        ({"timestamp": -1}, InvalidArgumentError),
        ({"timestamp": 1 << 64}, InvalidArgumentError),
        ({"timestamp": "1"}, TypeError),
    ]
    for fields, error in cases:
        with subtests.test(repr(fields)):
            (name,) = fields
            with pytest.raises(error, match=name):
                msgstream.MsgPosition(**{"channel_name": "a", "msg_id": b"1"} | fields)


def test_positions_are_values() -> None:
    assert {msgstream.MsgPosition("a", b"1"), msgstream.MsgPosition("a", b"1")} == {msgstream.MsgPosition("a", b"1")}
    with pytest.raises(AttributeError):
        msgstream.MsgPosition("a", b"1").timestamp = 3  # type: ignore[misc]


def test_pack_refuses_wrong_values(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"msgs": None}, TypeError),
        ({"msgs": b"text"}, TypeError),
        ({"msgs": [b"bytes"]}, TypeError),
        ({"begin_ts": 5, "end_ts": 4}, InvalidArgumentError),
        ({"begin_ts": "5"}, TypeError),
        ({"end_ts": 1 << 64}, InvalidArgumentError),
    ]
    for fields, error in cases:
        with subtests.test(repr(fields)), pytest.raises(error, match="|".join(fields)):
            msgstream.MsgPack(**{"msgs": []} | fields)


def test_pack_has_the_interval_of_its_messages() -> None:
    pack = msgstream.MsgPack([msgstream.InsertMsg([3, 9], [1, 2], [b"", b""]), msgstream.TimeTickMsg(5)])
    assert (pack.begin_ts, pack.end_ts) == (3, 9)
    assert (msgstream.MsgPack([]).begin_ts, msgstream.MsgPack([]).end_ts) == (0, 0)
    assert (msgstream.MsgPack([], 3, 4).begin_ts, msgstream.MsgPack([], 3, 4).end_ts) == (3, 4)
