"""Mutations: what can be wrong with a message. Everything comes from the random numbers that are given, so a failure can be repeated."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS: Final = (0, 1, -1, 2, 77, 1 << 31, (1 << 31) - 1, -(1 << 31), (1 << 32) - 1, 1 << 53, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1)
FLOATS: Final = (0.0, -1.0, 1e-9, 1e308, math.inf, -math.inf, math.nan)
TEXTS: Final = ("", "_", "_tt", "a/b", " ", "\0", "x" * 600, "ü" * 300, "/", "..", "-1", "wal_0", "fuzz-a", "fuzz-b", "\U0001f600", "\n")
RESERVED: Final = ("_v", "_t", "_tt", "_btt", "_vc", "_tx", "_h", "_bh", "_ik", "_lcs", "_what", "", "mine")
VALUES: Final = ("", "1", "2", "8", "77", "900", "901", "902", "999", "zz", "CAE=", "CP////////////8B", "*", "fuzz-a", "x" * 70_000)
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
_COLUMN: Final = 4
"""The bytes of a number in a column."""


def mutated(message: Message, chance: Random) -> bytes:
    """Returns the serialized form of a message after one to three changes: of its bytes, or of its fields."""
    if chance.random() < 0.3:
        return _bytes_changed(message.SerializeToString(), chance)
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(chance.randint(1, 3)):
        _change_a_field(copy, chance)
    return copy.SerializeToString()


def _bytes_changed(data: bytes, chance: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << chance.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = chance.randrange(256)
            case 2:
                del changed[at:]
            case 3:
                changed[at:at] = chance.randbytes(chance.randint(1, 9))
            case _:
                changed[at:at] = changed[chance.randrange(len(changed) + 1) :][:50]
    return bytes(changed)


def _change_a_field(message: Message, chance: Random) -> None:
    places = list(_places(message))
    if not places:
        return
    owner, field = chance.choice(places)
    if chance.random() < 0.25:
        owner.ClearField(field.name)
    elif field.is_repeated:
        _change_a_list(owner, field, chance)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        getattr(owner, field.name).SetInParent()
    else:
        setattr(owner, field.name, _value(field, getattr(owner, field.name), chance))


def _change_a_list(owner: Message, field: FieldDescriptor, chance: Random) -> None:
    values: Any = getattr(owner, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        if key.type == FieldDescriptor.TYPE_STRING and value.type == FieldDescriptor.TYPE_STRING:
            values[chance.choice((*RESERVED, *values))] = chance.choice(VALUES)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if values and chance.random() < 0.7:
            values.extend([values[0]] * chance.choice((1, 3, 100)))
        else:
            values.add()
    elif chance.random() < 0.4:
        values.extend(list(values[:10]) * chance.choice((1, 7, 1000)))
    else:
        values.append(_value(field, values[0] if values else None, chance))


def _value(field: FieldDescriptor, now: Any, chance: Random) -> Any:
    kind = field.cpp_type
    if kind in _RANGES:
        lowest, highest = _RANGES[kind]
        near = [] if not isinstance(now, int) else [now + 1, now - 1]
        return chance.choice([number for number in (*INTEGERS, *near) if lowest <= number <= highest])
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return not now
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(now or b"", chance)
    return chance.choice(TEXTS)


def _bytes(now: bytes, chance: Random) -> bytes:
    """Returns other bytes: of another length, or with another number in a column of numbers."""
    match chance.randrange(5):
        case 0:
            return b""
        case 1:
            return now[: chance.randrange(len(now) + 1)]
        case 2:
            return now * chance.choice((2, 1000)) if len(now) < 1000 else now[::-1]
        case 3 if len(now) >= _COLUMN:
            changed = bytearray(now)
            at = chance.randrange(len(now) // _COLUMN) * _COLUMN
            changed[at : at + _COLUMN] = struct.pack("<I", chance.choice((0, 1, 9999, 1 << 31, (1 << 32) - 1)))
            return bytes(changed)
        case _:
            return chance.randbytes(chance.choice((1, 4, 8, 40)))


def _places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Yields the fields of a message, set or not, and those of the messages in it."""
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        yield message, field
        if field.type != FieldDescriptor.TYPE_MESSAGE or (field.message_type is not None and field.message_type.GetOptions().map_entry):
            continue
        if field.is_repeated:
            for part in getattr(message, field.name):
                yield from _places(part)
        elif message.HasField(field.name):
            yield from _places(getattr(message, field.name))
