"""The protocol against its contract: the same services, messages, numbers and spellings, and the same bytes, in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from tests.rpc.contract import PACKAGE, ROOT, TEXT, Contract
from wal import engine as base
from wal.errors import StreamingCode
from wal.message import wire_pb2
from wal.network import Method
from wal.rpc import methods
from wal.rpc.api import cluster_pb2, component_pb2, error_pb2, pchannel_pb2, streaming_pb2

OURS = {
    name: descriptor
    for file in (streaming_pb2, pchannel_pb2, error_pb2, component_pb2, wire_pb2)
    for name, descriptor in file.DESCRIPTOR.message_types_by_name.items()
}


def test_every_message_has_the_contracts_fields(contract: Contract) -> None:
    def shape(field: FieldDescriptor) -> tuple[object, ...]:
        """Returns what two sides must agree on to understand a field, and its names."""
        kind = field.message_type or field.enum_type
        oneof = field.containing_oneof
        return (
            field.name,
            field.number,
            field.type if kind is None or field.type != FieldDescriptor.TYPE_ENUM else FieldDescriptor.TYPE_INT32,
            field.is_repeated,
            None if field.message_type is None else field.message_type.name,
            None if oneof is None else oneof.name,
        )

    messages = contract.messages()
    assert set(re.findall(r"\bmessage (\w+) \{", TEXT.read_text())) == set(contract.file.message_types_by_name)
    for name, descriptor in messages.items():
        ours = {field.number: field for field in OURS[name].fields}
        for field in descriptor.fields:
            assert shape(ours[field.number]) == shape(field), f"{name}.{field.name}"


def test_our_own_fields_are_far_from_the_contracts(contract: Contract) -> None:
    own_numbers_from = 100
    # Ours, at the numbers of later versions of Milvus' protocol.
    later_numbers = {("ProduceMessageResponseResult", number) for number in (2, 3, 4)}
    for name, descriptor in contract.messages().items():
        numbers = {field.number for field in descriptor.fields}
        for field in OURS[name].fields:
            if field.number not in numbers and (name, field.number) not in later_numbers:
                assert field.number >= own_numbers_from, f"{name}.{field.name}"


def test_every_enum_has_the_contracts_values(contract: Contract) -> None:
    ours = {**streaming_pb2.DESCRIPTOR.enum_types_by_name, **error_pb2.DESCRIPTOR.enum_types_by_name}
    assert set(contract.enums()) == {"PChannelMetaState", "StreamingCode"}
    for name, descriptor in contract.enums().items():
        values = {value.name: value.number for value in ours[name].values}
        assert {value.name: value.number for value in descriptor.values}.items() <= values.items()


def test_codes_of_the_wire_are_those_of_the_errors() -> None:
    values = {value.name: value.number for value in error_pb2.StreamingCode.DESCRIPTOR.values}
    assert values == {f"STREAMING_CODE_{code.name}": code.value for code in StreamingCode}


def test_every_method_has_the_contracts_path_and_types(contract: Contract) -> None:
    ours = {one.path: one for one in vars(methods).values() if isinstance(one, Method)}
    services = contract.file.services_by_name
    expected = {f"/{PACKAGE}.{service.name}/{one.name}": one for service in services.values() for one in service.methods}
    assert {path for path in ours if path.startswith("/milvus.")} == set(expected)
    for path, method in expected.items():
        assert ours[path].request.DESCRIPTOR.name == method.input_type.name
        assert ours[path].response.DESCRIPTOR.name == method.output_type.name


def test_every_method_of_ours_is_in_the_table() -> None:
    ours = {one.path: one for one in vars(methods).values() if isinstance(one, Method)}
    for service in cluster_pb2.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            found = ours.pop(f"/{service.full_name}/{method.name}")
            assert (method.input_type, method.output_type) == (found.request.DESCRIPTOR, found.response.DESCRIPTOR)
    assert all(path.startswith("/milvus.") for path in ours)


def test_every_method_of_an_engine_has_its_calls() -> None:
    # What an engine answers by itself, or hands out; a transaction's context and the limits come with its other calls.
    of_the_client = {
        "abandon", "appends", "broadcasts", "context", "is_waiting", "message_bytes_max", "no_room", "place", "released", "writable",
    }  # fmt: skip

    text = (ROOT / "wal/rpc/api/cluster.proto").read_text().partition("syntax")[0]
    for protocol in (base.ReadableEngine, base.WritableEngine, base.Appends, base.EngineTxn):
        for name in {*vars(protocol), *getattr(protocol, "__annotations__", {})}:
            if not name.startswith("_") and name not in of_the_client:
                assert re.search(rf"\b{name}\b", text), f"{protocol.__name__}.{name}: say which calls carry it out"
    mentioned = set(re.findall(r"(?:LogService|PChannelService)[.:] ?([A-Z]\w+)", text))
    methods_of_ours = {method.name for service in cluster_pb2.DESCRIPTOR.services_by_name.values() for method in service.methods}
    assert len(mentioned) > 2
    assert mentioned <= methods_of_ours


SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
}


def fill(draw: Callable[[st.SearchStrategy[Any]], Any], descriptor: Descriptor, depth: int = 0) -> Message:
    """Returns a message with drawn values in some of its fields."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if depth > 4 or not draw(st.booleans()):
            continue
        target = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            texts = SCALARS[FieldDescriptor.TYPE_STRING]
            target.update(draw(st.dictionaries(texts, texts, max_size=3)))
        elif field.message_type is not None and field.is_repeated:
            target.extend(fill(draw, field.message_type, depth + 1) for _ in range(draw(st.integers(0, 2))))
        elif field.message_type is not None:
            target.CopyFrom(fill(draw, field.message_type, depth + 1))
            target.SetInParent()
        else:
            values = (
                st.sampled_from([value.number for value in field.enum_type.values]) if field.enum_type is not None else SCALARS[field.type]
            )
            if field.is_repeated:
                target.extend(draw(st.lists(values, max_size=3)))
            else:
                setattr(message, field.name, draw(values))
    return message


@given(st.data())
def test_we_read_what_a_client_of_the_contract_writes(contract: Contract, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(contract.messages())))
    theirs = fill(data.draw, contract.messages()[name])
    ours = message_factory.GetMessageClass(OURS[name]).FromString(theirs.SerializeToString())
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert json_format.MessageToDict(ours) == json_format.MessageToDict(theirs)


@given(st.data())
def test_client_of_the_contract_reads_what_we_write(contract: Contract, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(contract.messages())))
    ours = fill(data.draw, OURS[name])
    theirs = contract.kind(name).FromString(ours.SerializeToString())
    again = message_factory.GetMessageClass(OURS[name]).FromString(theirs.SerializeToString())
    assert again == ours  # what is ours passes through, unknown to them
    theirs.DiscardUnknownFields()
    known = message_factory.GetMessageClass(OURS[name]).FromString(theirs.SerializeToString())
    for field in theirs.DESCRIPTOR.fields:
        if field.message_type is None:
            assert getattr(known, field.name) == getattr(ours, field.name)
