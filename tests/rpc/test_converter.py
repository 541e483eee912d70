"""The converter: every request and every answer arrives as it was sent, and what this side does not know is refused by name."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from broadcaster.message import BroadcastMessage
from tests.rpc.test_contract import SCALARS
from tests.rpc.test_converters import events, frames, ids, names, resource_keys, snapshots, texts, times, u64
from wal.coordinator import submit
from wal.errors import InvalidArgumentError, UnknownError
from wal.message import FORM_PULSAR, AppendResult, Message, MessageType, TxnContext, type_properties
from wal.node.submit import _HANDLERS
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.requests.appends import WriteOptions
from wal.requests.cluster import DrainNode, GetClusterStatus, PauseBalancer
from wal.requests.cursors import HOLDER_BYTES_MAX, LEASE_MS, DeleteCursors
from wal.requests.pchannels import LatestTick, ListProducers, PChannelRetention, Truncate
from wal.requests.request import Request, Where
from wal.requests.txns import AppendTxn
from wal.requests.work import CONCURRENCY_MAX, UNIT_MAX, WAIT_MS_MAX, SettleWork
from wal.rpc.api import requests_pb2 as proto
from wal.rpc.api.append_pb2 import AppendTxn as ProtoAppendTxn
from wal.rpc.api.append_pb2 import ProducerRequest
from wal.rpc.api.append_pb2 import WriteOptions as ProtoWriteOptions
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.converter import (
    REQUESTS,
    STREAMED,
    answer_from_proto,
    answer_to_proto,
    request_from_proto,
    request_to_proto,
    streamed_to_proto,
    struct_from_proto,
    struct_to_proto,
)
from wal.serve import copies_service
from wal.serve.submit import _encoded
from wal.timestamp.timestamp import MILLISECONDS_MAX
from wal.write.idempotency.keys import ProducerKey

valid_names = st.text("abcäöü-", min_size=1, max_size=8)
name_sets = st.lists(valid_names, min_size=1, max_size=3).map(lambda several: tuple(sorted(set(several))))
cursor_keys = st.builds(CursorKey, valid_names, name_sets)


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    key, event = draw(cursor_keys), draw(st.none() | events)
    incarnations = tuple(draw(st.none() | st.integers(0, 2**32 - 1)) for _ in key.vchannels)
    log, ticks, seconds = (draw(names), draw(u64), draw(events), event), draw(u64), (draw(times), draw(times))
    return Cursor(key, incarnations, *log, ticks, seconds[0], FORM_PULSAR, draw(texts), seconds[1], draw(st.booleans()))


outputs = st.builds(Message, valid_names, st.binary(max_size=4), properties=st.dictionaries(valid_names, valid_names, max_size=1))
keys = st.none() | valid_names | st.builds(ProducerKey, valid_names, st.integers(0, 2**63 - 1))
last_events = st.dictionaries(valid_names, st.none() | ids, max_size=2)
options = st.builds(WriteOptions, u64, keys, last_events)
TYPES: dict[Any, st.SearchStrategy[Any]] = {CursorKey: cursor_keys, Cursor: cursors(), Message: outputs, WriteOptions: options}
"""The types that have checks of their own."""
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "vchannel": valid_names,
    "name": valid_names,
    "due_ms": st.integers(0, MILLISECONDS_MAX),
    "lease_ms": st.integers(*LEASE_MS),
    "holder": st.binary(min_size=1, max_size=HOLDER_BYTES_MAX),
    "member": st.binary(min_size=1, max_size=HOLDER_BYTES_MAX),
    "concurrency": st.integers(1, CONCURRENCY_MAX),
    "batch": st.integers(1, UNIT_MAX),
    "room": st.integers(1, UNIT_MAX),
    "size": st.integers(1, UNIT_MAX),
    "wait_ms": st.integers(0, WAIT_MS_MAX),
}
"""The fields of requests that are checked."""
KINDS = st.sampled_from(REQUESTS)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
POSITIONS: dict[str, st.SearchStrategy[Any]] = {
    "wal.message.TxnContext": st.builds(TxnContext, st.integers(0, 2**63 - 1), st.integers(0, 2**40).map(float) | st.just(math.inf)),
    "wal.rpc.MessageColumns": st.lists(st.binary(max_size=8), max_size=3),
    "wal.rpc.Position": frames,
    "wal.rpc.EventPosition": events,
    "wal.rpc.AppendedRange": st.builds(AppendResult, ids, u64, ids, duplicate=st.booleans()),
    "wal.rpc.LogState": snapshots(),
    "wal.rpc.StreamingError": st.nothing(),  # errors have no equality
}


def values(hint: Any, field: Any) -> st.SearchStrategy[Any]:
    """Returns any values of a type that this field of a message can carry."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.none() | values(next(one for one in arguments if one is not NoneType), field)
    if origin in (Mapping, dict):
        entry = field.message_type.fields_by_name
        return st.dictionaries(values(arguments[0], entry["key"]), values(arguments[1], entry["value"]), max_size=2)
    if field.message_type is not None and not field.is_repeated and field.message_type.full_name in POSITIONS:
        return POSITIONS[field.message_type.full_name]
    if (origin is tuple and arguments[1:] == (...,)) or origin in (frozenset, Sequence):
        item = field if field.is_repeated else field.message_type.fields[0]
        return st.lists(single(arguments[0], item), max_size=3).map(tuple if origin is Sequence else origin)
    return single(hint, field)


def single(hint: Any, field: Any) -> st.SearchStrategy[Any]:
    message = field.message_type
    if get_origin(hint) in (Union, UnionType):  # an item of a list
        return st.none() | values(next(one for one in get_args(hint) if one is not NoneType), message.fields[0])
    if hint in TYPES:
        return TYPES[hint]
    if message is not None and get_origin(hint) is tuple:  # of different types, in the order of the fields
        return st.tuples(*[values(one, field) for one, field in zip(get_args(hint), message.fields, strict=True)])
    if message is not None:
        return POSITIONS[message.full_name] if message.full_name in POSITIONS else structs(hint, message)
    if hint is datetime:
        return TIMES
    if hint.__name__ == "MessageID":
        return ids
    if issubclass(hint, enum.Enum):
        return st.sampled_from(list(hint))
    return names if hint is str else SCALARS[field.type]


broadcasts = st.builds(
    BroadcastMessage,
    vchannels=st.lists(names, min_size=1, max_size=3),
    payload=st.binary(max_size=8),
    message_type=st.sampled_from([kind for kind in MessageType if type_properties(kind).appendable]),
    properties=st.dictionaries(names.filter(lambda key: not key.startswith("_")), names, max_size=2),
    resource_keys=st.lists(resource_keys, max_size=2, unique_by=lambda key: (key.domain, key.key)),
    needs_ack=st.booleans(),
)


def structs(kind: Any, message: Any) -> st.SearchStrategy[Any]:
    if kind is BroadcastMessage:  # it has more checks than others
        return broadcasts
    hints = get_type_hints(kind)
    return st.fixed_dictionaries({name: values(hints[name], message.fields_by_name[name]) for name in kind.__struct_fields__}).map(
        lambda fields: kind(**fields)
    )


def message_of(envelope: Any, kind: type[Request[Any]]) -> Any:
    """Returns the type of the message of a request, or of its answer, in an envelope."""
    fields = envelope.DESCRIPTOR.fields
    return next(
        field.message_type for field in fields if field.message_type and field.message_type.name.removesuffix("Answer") == kind.__name__
    )


def drawn(data: st.DataObject, kind: type[Request[Any]]) -> Any:
    """Returns a request of this type whose checks hold."""
    hints, message = get_type_hints(kind), message_of(ProducerRequest if kind in STREAMED.values() else proto.SubmitRequest, kind)
    strategies = {name: values(hints[name], message.fields_by_name[name]) for name in kind.__struct_fields__}
    strategies |= {name: strategy for name, strategy in FIELDS.items() if name in strategies}
    if kind is DeleteCursors:
        strategies["vchannels"] = st.none() | name_sets
    fields = {name: data.draw(strategy) for name, strategy in strategies.items()}
    if kind is SettleWork:
        fields["handled"] = tuple(range(len(fields["outputs"])))
        fields["output_counts"] = (1,) * len(fields["outputs"])
    try:
        return kind(**fields)
    except InvalidArgumentError:
        reject()


@given(st.data(), KINDS)
def test_every_request_arrives_as_it_was_sent(data: st.DataObject, kind: type[Request[Any]]) -> None:
    request = drawn(data, kind)
    sent = request_to_proto(request, PChannelInfo(name="p0", term=3)).SerializeToString()
    envelope = proto.SubmitRequest.FromString(sent)
    assert request_from_proto(envelope) == request
    assert (envelope.pchannel.name, envelope.pchannel.term) == ("p0", 3)
    assert not request_to_proto(request, None).HasField("pchannel")


@given(st.data(), st.sampled_from([*STREAMED]), st.integers(1, 2**63 - 1), u64)
def test_streamed_request_arrives_as_it_was_sent(data: st.DataObject, name: str, number: int, tick: int) -> None:
    request = drawn(data, STREAMED[name])
    message = ProducerRequest.FromString(streamed_to_proto(request, number, tick).SerializeToString())
    assert (message.request_id, message.seen_time_tick, message.WhichOneof("request")) == (number, tick, name)
    assert struct_from_proto(STREAMED[name], getattr(message, name), strict=True) == request


@given(options)
def test_options_arrive_as_they_were_sent(sent: WriteOptions) -> None:
    message = ProtoWriteOptions.FromString(struct_to_proto(sent, ProtoWriteOptions).SerializeToString())
    assert struct_from_proto(WriteOptions, message, strict=True) == sent


@given(messages=st.lists(st.builds(Message, valid_names, st.binary(max_size=8)), min_size=1, max_size=3))
def test_bodies_arrive_as_they_were_sent(messages: list[Message]) -> None:
    request = AppendTxn(tuple({message.vchannel for message in messages}), bodies=messages)
    message = ProducerRequest.FromString(streamed_to_proto(request, 1, 0).SerializeToString())
    received = struct_from_proto(AppendTxn, message.append_txn, strict=True).bodies
    assert [(one.vchannel, one.payload) for one in received if isinstance(one, Message)] == [
        (one.vchannel, one.payload) for one in messages
    ]


def test_unknown_field_of_a_streamed_request_is_refused(subtests: pytest.Subtests) -> None:
    """Also one in the options, in an expectation, and in the columns of bodies."""
    unknown = b"\xf8\x7f\x01"
    places = (b"", b"\x12%c", b"\x1a%c", b"\x1a%c\x1a%c\x0a\x00\x12%c")
    for place in places:
        later = unknown
        for tag in reversed(place.split(b"%c")[:-1]):
            later = tag + bytes([len(later)]) + later
        with subtests.test(repr(place)), pytest.raises(InvalidArgumentError, match="is unknown here, and nothing was done"):
            struct_from_proto(AppendTxn, ProtoAppendTxn.FromString(b"\x0a\x00" + later), strict=True)


@given(st.data(), KINDS)
def test_every_answer_arrives_as_it_was_sent(data: st.DataObject, kind: type[Request[Any]]) -> None:
    hint, fields = kind.sent or kind.answer(), message_of(proto.SubmitResponse, kind).fields_by_name
    answer = data.draw(values(hint, fields["value"])) if "value" in fields else None
    envelope = proto.SubmitResponse.FromString(answer_to_proto(kind, answer).SerializeToString())
    assert answer_from_proto(kind, envelope) == answer


async def test_long_list_is_encoded_in_slices() -> None:
    listed = tuple(PChannelRetention(f"p{number}", None, None, number, None, None, (), None) for number in range(1000))
    kind = next(kind for kind in REQUESTS if kind.__name__ == "Retention")
    assert answer_from_proto(kind, proto.SubmitResponse.FromString(await _encoded(kind, listed))) == listed


def test_every_request_has_its_message_and_its_handler() -> None:
    envelope: Any = proto.SubmitRequest.DESCRIPTOR
    assert {kind.__name__ for kind in REQUESTS} == {field.message_type.name for field in envelope.oneofs_by_name["request"].fields}
    of_a_cluster = {GetClusterStatus, DrainNode, PauseBalancer}
    elsewhere = (Where.COORDINATOR, Where.NODE)
    assert {kind for kind in REQUESTS if kind.where not in elsewhere} == set(_HANDLERS)
    assert {kind for kind in REQUESTS if kind.where is Where.NODE} == set(copies_service._HANDLERS)
    assert {kind for kind in REQUESTS if kind.where is Where.COORDINATOR} == set(submit._HANDLERS) | of_a_cluster


def test_every_request_says_what_it_does_in_errors() -> None:
    assert [kind.__name__ for kind in (*REQUESTS, *STREAMED.values()) if kind.doing is Request.doing and not kind.saying] == []


def test_unknown_request_is_refused() -> None:
    other = bytes((0xFA, 0x7F, 0))  # field 2047, empty
    with pytest.raises(InvalidArgumentError, match="field 2047 of SubmitRequest is unknown here"):
        request_from_proto(proto.SubmitRequest.FromString(other))
    with pytest.raises(InvalidArgumentError, match="the call has no request"):
        request_from_proto(proto.SubmitRequest())


def test_unknown_field_of_a_request_is_refused() -> None:
    message_id = bytes.fromhex("00")
    later = proto.SubmitRequest(latest_tick=proto.LatestTick.FromString(b"\x0a\x01a" + b"\xf8\x7f\x01"))
    with pytest.raises(InvalidArgumentError, match="field 2047 of LatestTick is unknown here, and nothing was done"):
        request_from_proto(proto.SubmitRequest.FromString(later.SerializeToString()))
    with pytest.raises(InvalidArgumentError, match="up_to: "):
        request_from_proto(proto.SubmitRequest(truncate=proto.Truncate(up_to=message_id)))


def test_unknown_field_of_an_answer_is_ignored() -> None:
    later = proto.SubmitResponse(latest_tick=proto.LatestTickAnswer.FromString(b"\x08\x05" + b"\xf8\x7f\x01"))
    assert answer_from_proto(LatestTick, proto.SubmitResponse.FromString(later.SerializeToString())) == 5


def test_answer_to_another_request_is_an_error() -> None:
    with pytest.raises(UnknownError, match="the server answered latest_tick to list_producers"):
        answer_from_proto(ListProducers, answer_to_proto(LatestTick, 5))
    with pytest.raises(UnknownError, match="nothing to truncate"):
        answer_from_proto(Truncate, proto.SubmitResponse())


def test_value_that_no_message_can_carry_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be sent"):
        answer_to_proto(LatestTick, -1)
