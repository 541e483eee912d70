"""The wire form of messages: each of the 52 types round-trips, and bytes that are not a message raise InvalidArgumentError alone."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import SOAK
from tests.streams.msgstream.messages import CLASSES, TYPES, bases, inserts, messages, plain, u64
from wal.errors import InvalidArgumentError
from wal.streams.msgstream import InsertMsg, MsgPosition, MsgType, OpaqueMsg, TimeTickMsg, TsMsg, UnmarshalDispatcher
from wal.streams.msgstream import msg_pb2 as wire


@settings(max_examples=1000 if SOAK else 200)
@given(messages)
def test_message_comes_back_as_it_was(message: TsMsg) -> None:
    comes_back(message)


def comes_back(message: TsMsg) -> None:
    encoded = message.marshal()
    read = UnmarshalDispatcher().unmarshal(encoded)
    assert read == message
    assert type(read) is CLASSES.get(MsgType(read.msg_type), OpaqueMsg)
    assert read.msg_type is message.msg_type
    assert read.marshal() == encoded
    assert type(message).unmarshal(encoded) == message


def test_each_of_the_52_types_comes_back() -> None:
    assert len(TYPES) == 52
    for msg_type in TYPES:
        message = plain(msg_type)
        assert message.msg_type is msg_type
        comes_back(message)


@given(inserts())
def test_message_is_protobuf_as_msg_proto_says(message: InsertMsg) -> None:
    read = wire.InsertMsg.FromString(message.marshal())
    base = read.base
    assert (base.msg_type, base.msg_id, base.timestamp) == (MsgType.INSERT, message.id, message.timestamp)
    assert (base.source_id, base.target_id) == (message.source_id, message.target_id)
    assert (dict(base.properties), list(base.hash_keys)) == (message.trace_ctx, list(message.hash_keys))
    assert (list(read.timestamps), list(read.row_ids)) == (message.timestamps, message.row_ids)
    assert list(read.row_data) == message.row_data
    assert InsertMsg.unmarshal(read.SerializeToString()) == message


def test_numbers_of_the_base_are_fixed() -> None:
    """A stream outlives the code: these bytes were written by the first version."""
    message = OpaqueMsg(
        MsgType.FLUSH, b"\x12\x01x", id=3, timestamp=4, source_id=5, target_id=6, hash_keys=[7], trace_ctx={"traceparent": "00-ab"}
    )
    encoded = bytes.fromhex("0a27 089203 1003 1804 2005 2806 3214 0a0b7472616365706172656e74 120530302d6162 3a0407000000 120178")
    assert message.marshal() == encoded
    assert OpaqueMsg.unmarshal(encoded) == message


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    encoded = InsertMsg([1], [2], [b"x"]).marshal()
    assert InsertMsg.unmarshal(encoded + b"\xa2\x06\x05later") == InsertMsg([1], [2], [b"x"])


def test_type_may_stand_anywhere_in_the_base() -> None:
    last = b"\n\x05\x10\x07\x08\x92\x03"  # id 7, then type 402
    assert UnmarshalDispatcher().unmarshal(last) == OpaqueMsg(MsgType.FLUSH, id=7)


def test_base_with_two_types_is_refused() -> None:
    """Protobuf takes the last value of a field; the decoder is chosen by the first one."""
    row = InsertMsg([1], [2], [b"x"]).marshal_body()
    with pytest.raises(InvalidArgumentError, match="401"):
        UnmarshalDispatcher().unmarshal(b"\n\x06\x08\x90\x03\x08\x91\x03" + row)


@given(st.binary(max_size=80))
@example(b"")
@example(b"\n")
@example(b"\n\x00")
@example(b"\n\xff\xff\xff\xff\xff\xff")
@example(b"\n\xff\xff\xff\xff\x0f")
@example(b"\n\x02\x08\x00")
def test_arbitrary_bytes_raise_nothing_else(data: bytes) -> None:
    try:
        message = UnmarshalDispatcher().unmarshal(data)
    except InvalidArgumentError as error:
        assert str(error)
    else:
        assert UnmarshalDispatcher().unmarshal(message.marshal()) == message


@settings(max_examples=1000 if SOAK else 200)
@given(messages, st.data())
def test_damaged_message_raises_nothing_else(message: TsMsg, data: st.DataObject) -> None:
    encoded = bytearray(message.marshal())
    for _ in range(data.draw(st.integers(0, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    try:
        read = UnmarshalDispatcher().unmarshal(damaged)
    except InvalidArgumentError:
        return
    assert read.begin_ts <= read.end_ts
    assert UnmarshalDispatcher().unmarshal(read.marshal()) == read


@given(messages, st.data())
def test_message_cut_in_its_base_is_refused(message: TsMsg, data: st.DataObject) -> None:
    def _base(encoded: bytes) -> bytes:
        """Returns the base of a message, as protobuf's own reader finds it."""
        return wire.TimeTickMsg.FromString(encoded[: end(encoded)]).base.SerializeToString(deterministic=True)

    def end(encoded: bytes) -> int:
        size, shift, at = 0, 0, 1
        while True:
            size |= (encoded[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if encoded[at - 1] < 128:
                return at + size

    encoded = message.marshal()
    header = encoded.index(wire.MsgBase.FromString(_base(encoded)).SerializeToString(deterministic=True))
    cut = data.draw(st.integers(0, header + len(_base(encoded)) - 1))
    with pytest.raises(InvalidArgumentError):
        UnmarshalDispatcher().unmarshal(encoded[:cut])


@given(bases, st.lists(u64, min_size=1, max_size=5))
def test_timestamps_of_rows_are_those_of_the_message(base: dict[str, object], timestamps: list[int]) -> None:
    message = InsertMsg(timestamps, [0] * len(timestamps), [b""] * len(timestamps))
    assert (message.begin_ts, message.end_ts) == (min(timestamps), max(timestamps))


def test_set_ts_changes_the_whole_message() -> None:
    for message in map(plain, TYPES):
        assert (message.begin_ts, message.end_ts) == (7, 7)
        message.set_ts(9)
        read = UnmarshalDispatcher().unmarshal(message.marshal())
        assert (read.begin_ts, read.end_ts) == (9, 9)
        if isinstance(read, InsertMsg):
            assert read.timestamps == [7]


def test_position_is_not_on_the_wire() -> None:
    message = TimeTickMsg(5)
    message.set_position(MsgPosition("a", b"1"))
    assert TimeTickMsg.unmarshal(message.marshal()) == TimeTickMsg(5)
    assert message.position == MsgPosition("a", b"1")


def test_trace_travels_in_the_base() -> None:
    message = TimeTickMsg(5)
    message.set_trace_ctx({"traceparent": "00-1"})
    assert TimeTickMsg.unmarshal(message.marshal()).trace_ctx == {"traceparent": "00-1"}


@pytest.mark.parametrize("msg_type", sorted(CLASSES))
def test_class_refuses_the_bytes_of_another(msg_type: MsgType) -> None:
    encoded = OpaqueMsg(MsgType.FLUSH, plain(msg_type).marshal_body()).marshal()
    with pytest.raises(InvalidArgumentError, match="402"):
        CLASSES[msg_type].unmarshal(encoded)


@pytest.mark.parametrize("unequal", ["row_ids", "row_data", "hash_keys"])
def test_rows_of_unequal_lengths_are_refused_when_read(unequal: str) -> None:
    fields = wire.InsertMsg(timestamps=[1, 2], row_ids=[1, 2], row_data=[b"a", b"b"])
    fields.base.msg_type = MsgType.INSERT
    if unequal == "hash_keys":
        fields.base.hash_keys.append(1)
    else:
        getattr(fields, unequal).pop()
    with pytest.raises(InvalidArgumentError, match=f"{unequal} has 1"):
        UnmarshalDispatcher().unmarshal(fields.SerializeToString())


@pytest.mark.parametrize("wrong", ["text", bytearray(b"\n\x02\x08\x01"), None])
def test_message_is_bytes(wrong: object) -> None:
    with pytest.raises(TypeError, match="bytes"):
        UnmarshalDispatcher().unmarshal(wrong)  # type: ignore[arg-type]
