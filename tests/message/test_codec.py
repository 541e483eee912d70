"""The wire codec: what a reader of the wire form gets, the encodings of every system field, and the refused inputs."""

import base64
import math
from collections.abc import Mapping

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from tests.message.wire_form import message_read
from wal.errors import InvalidArgumentError
from wal.message import (
    FORM_PULSAR,
    BroadcastHeader,
    ImmutableMessage,
    Message,
    MessageID,
    MessageType,
    Origin,
    ResourceKey,
    TimeTickMessage,
    TxnContext,
    encode_properties,
    wire_pb2,
)
from wal.message.codec import id_to_wire, message_from_wire, to_wire
from wal.message.wire_fields import from_base64, txn_from_proto

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
properties = st.dictionaries(text.filter(lambda key: not key.startswith("_")), text, max_size=4)
u64 = st.integers(0, 2**64 - 1)
origins = st.builds(Origin, text.filter(bool), u64, u64) | st.builds(
    Origin, text.filter(bool), u64, st.integers(0, 2**128 - 1), st.just(FORM_PULSAR)
)
contexts = st.builds(TxnContext, st.integers(0, 2**63 - 1), st.integers(0, 10**9).map(lambda ms: ms / 1000) | st.just(math.inf))
headers = st.builds(
    BroadcastHeader,
    u64,
    st.lists(text, max_size=3).map(tuple),
    st.lists(st.builds(ResourceKey, text.filter(bool), text.filter(bool), shared=st.booleans()), max_size=3).map(tuple),
    st.booleans(),
)
plain_types = st.integers(0, 0xFFFF).filter(lambda number: number not in (MessageType.TIME_TICK, MessageType.COMMIT_TXN, MessageType.TXN))
immutables = st.builds(
    lambda origin, index, tick, vchannel, payload, number, given_properties, context, header: ImmutableMessage(
        origin, index, tick, vchannel, payload, number, encode_properties(given_properties) if given_properties else b"", context, header
    ),
    origins,
    st.integers(0, 2**32 - 1),
    u64,
    text,
    st.binary(max_size=40),
    plain_types,
    properties,
    st.none() | contexts,
    st.none() | headers,
)


def state(message: ImmutableMessage) -> tuple[object, ...]:
    """Returns everything that a reader can see of a message."""
    return (
        type(message),
        message.message_id,
        message.last_confirmed,
        message._type,
        message.time_tick,
        message.vchannel,
        getattr(message, "payload", None),
        getattr(message, "properties", None),
        message.txn_context,
        message.broadcast,
    )


def over_the_wire(wire: wire_pb2.Message) -> wire_pb2.Message:
    return wire_pb2.Message.FromString(wire.SerializeToString())


@given(text.filter(bool), st.binary(max_size=40), st.sampled_from(MessageType), properties)
def test_messages_round_trip(vchannel: str, payload: bytes, message_type: MessageType, given_properties: dict[str, str]) -> None:
    message = Message(vchannel, payload, message_type=message_type, properties=given_properties)
    assert message_from_wire(over_the_wire(to_wire(message))) == message


@given(immutables)
def test_delivered_messages_round_trip(message: ImmutableMessage) -> None:
    wire = over_the_wire(to_wire(message))
    message_id = MessageID.from_bytes(wire_pb2.MessageID.FromString(id_to_wire(message.message_id).SerializeToString()).id)
    assert state(message_read(message_id, wire)) == state(message)


@pytest.mark.parametrize("has_event", [True, False])
def test_time_ticks_round_trip(has_event: bool) -> None:
    origin = Origin("p", 1, 4096) if has_event else Origin("", 0, 0)
    tick = TimeTickMessage(origin, 0, 77, "", b"", int(MessageType.TIME_TICK), has_event=has_event)
    received = message_read(tick.message_id, over_the_wire(to_wire(tick)))
    assert state(received) == state(tick)


def test_encodings_of_a_message_to_append() -> None:
    wire = to_wire(Message("orders", b"paid", message_type=MessageType.FLUSH_ALL, properties={"a": "b"}))
    assert wire.payload == b"paid"
    assert dict(wire.properties) == {"a": "b", "_v": "2", "_t": "37", "_vc": "orders"}


def test_encodings_of_a_delivered_message() -> None:
    message = ImmutableMessage(
        Origin("p", 1, 4096),
        3,
        36**5 + 35,
        "orders",
        b"paid",
        2,
        b"",
        TxnContext(300, 1.5),
        BroadcastHeader(5, ("a", "b"), (ResourceKey("d", "k", shared=True),), needs_ack=True),
    )
    assert dict(to_wire(message).properties) == {
        "_v": "2",
        "_t": "2",
        "_vc": "orders",
        "_tt": "10000z",
        "_lcs": "",
        "_tx": base64.b64encode(b"\x08\xac\x02\x10\xdc\x0b").decode(),
        "_bh": base64.b64encode(b"\x08\x05\x12\x01a\x12\x01b\x1a\x08\x0a\x01d\x12\x01k\x18\x01\x20\x01").decode(),
    }


def test_message_of_the_whole_pchannel_has_no_vchannel() -> None:
    wire = to_wire(ImmutableMessage(Origin("p", 1, 4096), 3, 1, "", b"", int(MessageType.ALTER_WAL)))
    assert "_vc" not in wire.properties
    with pytest.raises(InvalidArgumentError, match=r"'_(tt|lcs)'"):
        message_from_wire(wire)
    for key in ("_tt", "_lcs"):
        del wire.properties[key]
    with pytest.raises(InvalidArgumentError, match=r"'_vc'.*the vchannel that the message is for"):
        message_from_wire(wire)


def test_keepalive_that_never_expires_is_minus_one() -> None:
    message = ImmutableMessage(Origin("p", 1, 0), 0, 1, "v", b"", txn_context=TxnContext(1, math.inf))
    proto = wire_pb2.TxnContext.FromString(base64.b64decode(to_wire(message).properties["_tx"]))
    assert proto.keepalive_milliseconds == -1


def test_field_numbers_are_the_contract() -> None:
    fields = {
        f"{message.name}.{field.name}": (field.number, field.type, field.is_repeated)
        for message in wire_pb2.DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
    text_field, bytes_field, flag = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_BOOL
    assert fields == {
        "MessageID.id": (1, bytes_field, False),
        "Message.payload": (1, bytes_field, False),
        "Message.properties": (2, FieldDescriptor.TYPE_MESSAGE, True),
        "TxnContext.txn_id": (1, FieldDescriptor.TYPE_INT64, False),
        "BeginTxnHeader.keepalive_milliseconds": (1, FieldDescriptor.TYPE_INT64, False),
        "TxnContext.keepalive_milliseconds": (2, FieldDescriptor.TYPE_INT64, False),
        "ResourceKey.domain": (1, text_field, False),
        "ResourceKey.key": (2, text_field, False),
        "ResourceKey.shared": (3, flag, False),
        "BroadcastHeader.broadcast_id": (1, FieldDescriptor.TYPE_UINT64, False),
        "BroadcastHeader.vchannels": (2, text_field, True),
        "BroadcastHeader.resource_keys": (3, FieldDescriptor.TYPE_MESSAGE, True),
        "BroadcastHeader.ack_sync_up": (4, flag, False),
        "CommitTxnHeader.vchannels": (1, text_field, True),
    }


@pytest.mark.parametrize(
    "stored",
    [
        None,
        "*",
        "AAA",
        "AA AA",
        "é",
        "/w==",
        "CP///////////wE=",  # txn_id -1
        "EP7//////////wE=",  # keepalive -2
    ],
)
def test_malformed_context_is_refused_by_its_key(stored: str | None) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^property '_tx' "):
        txn_from_proto(from_base64(stored, "_tx", wire_pb2.TxnContext))


def test_malformed_message_is_refused_by_its_key(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Mapping[str, str | None], str]] = [
        *(({"_v": version}, "_v") for version in (None, "", "0", "1", "3", "02", "²")),
        *(({"_t": number}, "_t") for number in (None, "", "-1", "02", "+2", "2 ", "z", "٢", "65536", "9" * 5000, "903")),
        ({"_vc": None}, "_vc"),
        ({"_vc": ""}, "_vc"),
        *(({key: ""}, key) for key in ("_tt", "_lc", "_lcs", "_tx", "_bh", "_h", "_mine", "_btt", "_wt", "_rh", "_ik", "_")),
    ]
    for changed, key in cases:
        with subtests.test(repr(changed)):
            fields = {name: value for name, value in {"_v": "2", "_t": "2", "_vc": "v", **changed}.items() if value is not None}
            with pytest.raises(InvalidArgumentError, match=f"^property '{key}' ") as caught:
                message_from_wire(wire_pb2.Message(properties=fields))
            assert len(str(caught.value)) < 500


@given(st.dictionaries(st.sampled_from(["_v", "_t", "_vc", "_tt", "_tx", "_h", "a"]), text, max_size=6), st.binary(max_size=5))
def test_any_wire_message_is_understood_or_refused(changed: dict[str, str], payload: bytes) -> None:
    for base in ({"_v": "2", "_t": "2", "_vc": "v"}, {}):
        wire = wire_pb2.Message(payload=payload, properties=base | changed)
        try:
            message = message_from_wire(wire)
        except InvalidArgumentError:
            continue
        assert to_wire(message) == wire


def test_stored_reserved_property_is_not_sent() -> None:
    message = ImmutableMessage(Origin("p", 1, 0), 0, 1, "v", b"", 2, encode_properties({"_tt": "zzz"}))
    with pytest.raises(InvalidArgumentError, match=r"^property '_tt' "):
        to_wire(message)


@pytest.mark.parametrize(
    "context", [TxnContext(-1, 1.0), TxnContext(1 << 63, 1.0), TxnContext(1, -0.001), TxnContext(1, math.nan), TxnContext(1, 1e300)]
)
def test_context_that_the_wire_cannot_hold(context: TxnContext) -> None:
    with pytest.raises(InvalidArgumentError, match="has no wire form"):
        to_wire(ImmutableMessage(Origin("p", 1, 0), 0, 1, "v", b"", txn_context=context))


@pytest.mark.parametrize("tick", [-1, 1 << 64])
def test_tick_that_the_wire_cannot_hold(tick: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{tick} has no wire form"):
        to_wire(ImmutableMessage(Origin("p", 1, 0), 0, tick, "v", b""))


@pytest.mark.parametrize("broadcast_id", [-1, 1 << 64])
def test_broadcast_id_that_the_wire_cannot_hold(broadcast_id: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"broadcast id {broadcast_id} has no wire form"):
        to_wire(ImmutableMessage(Origin("p", 1, 0), 0, 1, "v", b"", broadcast=BroadcastHeader(broadcast_id, ("v",))))


def test_only_messages_have_a_wire_form() -> None:
    with pytest.raises(TypeError, match="not bytes"):
        to_wire(b"payload")  # type: ignore[arg-type]
