"""The one converter of requests and answers into messages of requests.proto, and back: by the fields of the struct and of the message.

Both have the same names. A plan for each pair of a struct and a message is made when it is first used, and fails with a TypeError if they
differ; so does the test that makes the plans of all requests.

    str, bytes, bool, int, float        the same                MessageID           its bytes
    datetime                            int64, in µs            an int that is a position, a LogPosition    Position, EventPosition
    X | None                            absent for None         tuple[X, …], frozenset[X], Sequence[X]    repeated, in this order
    a struct                            a message               Mapping             map
    a WALError                          StreamingError
    an AppendResult                     AppendedRange of one                                       LogSnapshot         LogState
    an enum with numbers                int32                   tuple[X, …] | None           a message with one repeated field
    X | None in a tuple, a Mapping      a message with one field               tuple[X, Y]      a message
    the bodies of a transaction         MessageColumns      an idempotency key    bytes, in its stored form

A request that this side does not know, a field in it, and a value of an enum are refused with an InvalidArgumentError and not ignored: a
condition that is ignored is a wrong write. In an answer unknown fields are ignored: a newer server counts more, for example.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import Message as Proto
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from wal.errors import InvalidArgumentError, UnknownError
from wal.message import Message, MessageID
from wal.message.wire_fields import txn_from_proto, txn_to_proto
from wal.requests import broadcasts, cluster, cursors, log, nodes, pchannels, reads, schedule, txns, vchannels, work
from wal.requests.request import Request
from wal.rpc.api import requests_pb2 as proto
from wal.rpc.api.append_pb2 import MessageColumns, ProducerRequest
from wal.rpc.api.nodes_pb2 import ManagerCall
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.appends import bodies_from_proto, bodies_to_proto, key_from_bytes
from wal.rpc.codes import error_from_proto, error_to_proto
from wal.rpc.converters import (
    event_from_proto,
    event_to_proto,
    id_from_bytes,
    position_from_proto,
    position_to_proto,
    ranges_of,
    results_of,
    snapshot_from_proto,
    snapshot_to_proto,
)
from wal.write.idempotency.keys import Key, key_ext

REQUESTS: Final[tuple[type[Request[Any]], ...]] = tuple(
    kind
    for module in (pchannels, cursors, work, schedule, reads, log, vchannels, broadcasts, cluster, nodes)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Request) and kind.__module__ == module.__name__
    if not getattr(kind, "__parameters__", ())  # otherwise a base class, whose requests state the type of their answer
)
"""Everything that can be asked."""
STREAMED: Final[Mapping[str, type[Request[Any]]]] = {
    "append_txn": txns.AppendTxn,
    "begin_txn": txns.BeginTxn,
    "keep_txn": txns.KeepTxn,
    "commit_txn": txns.CommitTxn,
    "rollback_txn": txns.RollbackTxn,
    "withdraw": txns.Withdraw,
}
"""The requests of a stream that writes a pchannel, beside its appends, by their fields in ProducerRequest."""
_FIELDS: Final = {kind: name for name, kind in STREAMED.items()}

_P = TypeVar("_P", bound=Proto)
_S = TypeVar("_S")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


def request_to_proto(request: Request[Any], pchannel: PChannelInfo | None, call: ManagerCall | None = None) -> proto.SubmitRequest:
    """Returns the envelope of a request for this pchannel, or for the log as a whole; `call` is of the leader of a cluster."""
    name, kind = _names()[type(request)], _message("SubmitRequest", type(request))
    fields: dict[str, Any] = {name: _plan(type(request), kind).to_proto(request)}
    return proto.SubmitRequest(pchannel=pchannel, call=call, **fields)


def request_from_proto(envelope: proto.SubmitRequest) -> Request[Any]:
    """Returns the request in an envelope; raises InvalidArgumentError for an unknown request, or one whose checks fail."""
    check_known(envelope)
    name = envelope.WhichOneof("request")
    if name is None:
        raise InvalidArgumentError("the call has no request of this version: set one, or use a server of your client's version")
    kind = _kinds()[name]
    request: Request[Any] = _plan(kind, _message("SubmitRequest", kind)).from_proto(getattr(envelope, name), strict=True)
    return request


def streamed_to_proto(request: Request[Any], number: int, seen_time_tick: int) -> ProducerRequest:
    """Returns the message of a request on a stream that writes a pchannel. The client has seen this tick."""
    name = _FIELDS[type(request)]
    kind: Any = GetMessageClass(ProducerRequest.DESCRIPTOR.fields_by_name[name].message_type)  # type: ignore[arg-type]
    fields: dict[str, Any] = {name: _plan(type(request), kind).to_proto(request)}
    return ProducerRequest(request_id=number, seen_time_tick=seen_time_tick, **fields)


def answer_to_proto(kind: type[Request[Any]], answer: Any) -> proto.SubmitResponse:
    """Returns the envelope of the answer to a request of this type."""
    fields: dict[str, Any] = {_names()[kind]: _answer_plan(kind).to_proto(_Answer(answer))}
    return proto.SubmitResponse(**fields)


def answer_from_proto(kind: type[Request[Any]], envelope: proto.SubmitResponse) -> Any:
    """Returns the answer to a request of this type. Raises UnknownError for one to another request."""
    name = _names()[kind]
    if envelope.WhichOneof("answer") != name:
        raise UnknownError(f"the server answered {envelope.WhichOneof('answer') or 'nothing'} to {name}: use versions that fit each other")
    return _answer_plan(kind).from_proto(getattr(envelope, name), strict=False).value


def struct_to_proto(value: Any, message: type[_P]) -> _P:
    """Returns the message of a struct that is sent on a stream."""
    struct, kind = cast("Any", type(value)), cast("Any", message)
    encoded: _P = _plan(struct, kind).to_proto(value)
    return encoded


def struct_from_proto(kind: type[_S], message: Proto, *, strict: bool = False) -> _S:
    """Returns a struct that came on a stream. Unknown fields are ignored, or refused with `strict`."""
    struct, sent = cast("Any", kind), cast("Any", type(message))
    value: _S = _plan(struct, sent).from_proto(message, strict=strict)
    return value


class _Answer(msgspec.Struct):
    """An answer of a single value, as the converter sees it."""

    value: Any = None


class _Codec(NamedTuple):
    """How the values of one type travel. `from_proto` takes the name of the field too, and whether to refuse unknown fields."""

    to_proto: Callable[[Any], Any]
    from_proto: Callable[[Any, str, bool], Any]


class _Field(NamedTuple):
    name: str
    codec: _Codec
    optional: bool


class _Plan(NamedTuple):
    """How a struct travels as a message."""

    struct: type[Any]
    message: type[Any]
    fields: tuple[_Field, ...]

    def to_proto(self, value: Any) -> Any:
        values: dict[str, Any] = {}
        for name, codec, _ in self.fields:
            if (field := getattr(value, name)) is not None:
                values[name] = codec.to_proto(field)
        try:
            return self.message(**values)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{value!r} cannot be sent: {error}") from error

    def from_proto(self, message: Any, *, strict: bool) -> Any:
        if strict:
            check_known(message)
        return self.struct(
            **{
                name: None if optional and not message.HasField(name) else codec.from_proto(getattr(message, name), name, strict)
                for name, codec, optional in self.fields
            }
        )


def check_known(message: Proto) -> None:
    """Raises InvalidArgumentError for a message with fields of another version."""
    unknown_fields: Any = UnknownFieldSet(message)
    if unknown := [str(field.field_number) for field in unknown_fields]:
        what = message.DESCRIPTOR.name
        raise InvalidArgumentError(
            f"field {', '.join(unknown)} of {what} is unknown here, and nothing was done: use a server of your version, or leave it out"
        )


@cache
def _plan(struct: Any, message: Any) -> _Plan:
    hints = get_type_hints(struct)
    return _planned(struct, message, {name: hints[name] for name in struct.__struct_fields__})


@cache
def _answer_plan(kind: type[Request[Any]]) -> _Plan:
    answer = kind.sent or kind.answer()
    return _planned(_Answer, _message("SubmitResponse", kind), {} if answer in (None, NoneType) else {"value": answer})


def _planned(struct: type[Any], message: type[Any], hints: Mapping[str, Any]) -> _Plan:
    fields = message.DESCRIPTOR.fields_by_name
    if different := set(fields) ^ set(hints):
        raise TypeError(f"{struct.__name__} and its message differ in {', '.join(sorted(different))}")
    return _Plan(struct, message, tuple(_field(fields[name], hint) for name, hint in hints.items()))


def _field(field: Any, hint: Any) -> _Field:
    kind, optional = _without_none(hint)
    if optional and not field.has_presence:
        raise TypeError(f"{field.full_name} may be None: declare it optional")
    return _Field(field.name, _codec(field, kind), optional)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Returns the type without None, and whether None was one of its values."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kinds = tuple([one for one in get_args(hint) if one is not NoneType])
    return Union[kinds], len(kinds) < len(get_args(hint))  # noqa: UP007  # of a tuple


def _codec(field: Any, kind: Any) -> _Codec:
    """Returns how a value of this type travels in this field."""
    origin, message = get_origin(kind), field.message_type
    if message is not None and not field.is_repeated and message.full_name in _KNOWN:
        return _KNOWN[message.full_name]
    if origin in (Mapping, dict):
        entry = _single(message.fields_by_name["value"], get_args(kind)[1])
        if entry is _SAME:
            return _Codec(dict, lambda value, _name, _strict: dict(value))
        return _Codec(
            lambda value: {key: entry.to_proto(one) for key, one in value.items()},
            lambda value, name, strict: {key: entry.from_proto(one, name, strict) for key, one in value.items()},
        )
    if (origin is tuple and get_args(kind)[1:] == (...,)) or origin in (frozenset, Sequence):
        made = tuple if origin is Sequence else origin
        if not field.is_repeated:  # a message with one repeated field, so that None differs from the empty list
            (inner,), wrapper = message.fields, GetMessageClass(message)
            items = _codec(inner, kind)
            return _Codec(
                lambda value: wrapper(**{inner.name: items.to_proto(value)}),
                lambda value, name, strict: items.from_proto(getattr(value, inner.name), name, strict),
            )
        item = _single(field, get_args(kind)[0])
        if item is _SAME:
            return _Codec(lambda value: value, lambda value, _name, _strict: made(value))
        return _Codec(
            lambda value: [item.to_proto(one) for one in value],
            lambda value, name, strict: made([item.from_proto(one, name, strict) for one in value]),
        )
    return _single(field, kind)


def _single(field: Any, kind: Any) -> _Codec:
    message = field.message_type
    if _without_none(kind)[1]:  # an item of a list: a message with one field, absent for None
        ((name, codec, _),) = (_field(one, kind) for one in message.fields)
        wrapper: Any = GetMessageClass(message)

        def unwrapped(value: Any, _name: str, strict: bool) -> Any:
            if strict:
                check_known(value)
            return codec.from_proto(getattr(value, name), name, strict) if value.HasField(name) else None

        return _Codec(lambda value: wrapper() if value is None else wrapper(**{name: codec.to_proto(value)}), unwrapped)
    if message is not None and message.full_name in _KNOWN:
        return _KNOWN[message.full_name]
    if message is not None and get_origin(kind) is tuple:  # of different types, in the order of the numbers of the fields
        parts = [(one.name, _codec(one, kind)) for one, kind in zip(message.fields, get_args(kind), strict=True)]
        whole: Any = GetMessageClass(message)
        return _Codec(
            lambda value: whole(**{name: codec.to_proto(part) for (name, codec), part in zip(parts, value, strict=True)}),
            lambda value, _name, strict: tuple([codec.from_proto(getattr(value, name), name, strict) for name, codec in parts]),
        )
    if message is not None:
        made: Any = GetMessageClass(message)
        plan = _plan(kind, made)
        return _Codec(plan.to_proto, lambda value, _name, strict: plan.from_proto(value, strict=strict))
    if kind == Key:
        return _Codec(key_ext, lambda value, _name, _strict: key_from_bytes(value))
    if kind is MessageID:
        return _Codec(bytes, lambda value, name, _strict: id_from_bytes(name, value))
    if kind is datetime:
        return _Codec(lambda value: (value - _EPOCH) // _US, lambda value, _name, _strict: _EPOCH + timedelta(microseconds=value))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _Codec(lambda value: value.value, lambda value, name, _strict: _member(kind, name, value))
    if kind not in (str, bytes, bool, int, float):
        raise TypeError(f"{field.full_name} is for a {kind}, which has no form on the wire")
    return _SAME


def _member(kind: type[enum.Enum], name: str, value: int) -> enum.Enum:
    try:
        return kind(value)
    except ValueError as error:
        raise InvalidArgumentError(f"{name}={value} is not a {kind.__name__} of this version: use servers of one version") from error


def _bodies(columns: MessageColumns, *, strict: bool) -> Sequence[Message | bytes]:
    if strict:
        check_known(columns)
    return bodies_from_proto(columns)


_SAME: Final = _Codec(lambda value: value, lambda value, _name, _strict: value)
_KNOWN: Final = {
    "wal.rpc.Position": _Codec(position_to_proto, lambda value, _name, _strict: position_from_proto(value)),
    "wal.rpc.StreamingError": _Codec(error_to_proto, lambda value, _name, _strict: error_from_proto(value)),
    "wal.rpc.AppendedRange": _Codec(
        lambda result: ranges_of([(0, result)])[0], lambda appended, _name, _strict: next(results_of(appended))[1]
    ),
    "wal.rpc.LogState": _Codec(snapshot_to_proto, lambda state, _name, _strict: snapshot_from_proto(state)),
    "wal.rpc.EventPosition": _Codec(event_to_proto, lambda value, _name, _strict: event_from_proto(value)),
    "wal.rpc.MessageColumns": _Codec(bodies_to_proto, lambda value, _name, strict: _bodies(value, strict=strict)),
    "wal.message.TxnContext": _Codec(txn_to_proto, lambda value, _name, _strict: txn_from_proto(value)),
}


@cache
def _message(envelope: str, kind: type[Request[Any]]) -> Any:
    """Returns the message of a request, or of its answer, in this envelope."""
    field = proto.DESCRIPTOR.message_types_by_name[envelope].fields_by_name[_names()[kind]]
    assert field.message_type is not None
    return GetMessageClass(field.message_type)


@cache
def _names() -> Mapping[type[Request[Any]], str]:
    """Returns the names of the fields of the envelopes, by the types of their requests."""
    fields: Any = proto.SubmitRequest.DESCRIPTOR.oneofs_by_name["request"].fields
    kinds = {kind.__name__: kind for kind in REQUESTS}
    return {kinds[field.message_type.name]: field.name for field in fields}


@cache
def _kinds() -> Mapping[str, type[Request[Any]]]:
    return {name: kind for kind, name in _names().items()}
