"""Payloads to values, without a JVM: the values that a decoder may return, and the message that the error names when it returns another."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal import MessageID
from wal.errors import InvalidArgumentError
from wal.spark.foreach.decoding import Decode, PayloadDecoder

STRUCT = pa.struct([("dest", pa.string()), ("delay", pa.int32())])


class Flight(msgspec.Struct):
    dest: str
    delay: int | None = None


def message_id(number: int) -> MessageID:
    return MessageID("p0", 1, 4096, number)


def values(decode: Decode, *payloads: bytes | None, on_error: str = "raise") -> list[Any]:
    ids = pa.array([bytes(message_id(number)) for number in range(len(payloads))], pa.binary())
    vchannels = pa.array(["JFK"] * len(payloads), pa.string())
    decoder = PayloadDecoder(decode, STRUCT, naming=("message_id", "vchannel"), on_error=on_error)
    decoded = decoder(pa.array(payloads, pa.binary()), ids, vchannels)
    decoded.validate(full=True)
    assert decoded.type == STRUCT
    found: list[Any] = decoded.to_pylist()
    return found


def test_decoder_returns_a_dict_tuple_or_object(subtests: pytest.Subtests) -> None:
    class Row(NamedTuple):
        dest: str
        delay: int | None

    cases: dict[str, Decode] = {
        "dict": json.loads,
        "struct": msgspec.json.Decoder(Flight).decode,
        "tuple": lambda payload: Row(**json.loads(payload)),
        "list": lambda payload: list(json.loads(payload).values()),
    }
    for case, decode in cases.items():
        with subtests.test(case):
            got = values(decode, b'{"dest": "ATL", "delay": 7}', None, b'{"dest": "ORD", "delay": null}')
            assert got == [{"dest": "ATL", "delay": 7}, None, {"dest": "ORD", "delay": None}]


def test_missing_keys_are_null_and_extra_ignored() -> None:
    assert values(json.loads, b'{"dest": "ATL", "gate": 3}', b"{}") == [{"dest": "ATL", "delay": None}, {"dest": None, "delay": None}]


def test_decoder_may_return_different_kinds_of_values() -> None:
    kinds: dict[bytes, Any] = {b"1": {"dest": "A", "delay": 1}, b"2": ("B", 2), b"3": Flight("C", 3), b"4": None}
    assert values(lambda payload: kinds[payload], *kinds) == [
        {"dest": "A", "delay": 1},
        {"dest": "B", "delay": 2},
        {"dest": "C", "delay": 3},
        None,
    ]


def test_message_that_cannot_be_decoded_is_named(subtests: pytest.Subtests) -> None:
    cases: dict[str, tuple[Decode, str]] = {
        "decoder raises": (json.loads, "JSONDecodeError"),
        "wrong type": (lambda payload: {"dest": payload, "delay": "late"} if payload == b"x" else None, "'delay' is not a int32"),
        "too large": (lambda payload: {"dest": "A", "delay": 1 << 40} if payload == b"x" else None, "'delay' is not a int32"),
        "too few": (lambda payload: ("A",) if payload == b"x" else None, "1 values for 2 fields"),
        "no attributes": (lambda payload: object() if payload == b"x" else None, "a object has no dest, delay"),
    }
    for case, (decode, why) in cases.items():
        with subtests.test(case):
            with pytest.raises(InvalidArgumentError) as caught:
                values(decode, b"{}", b"{}", b"x", b"{}")
            assert f"message {message_id(2)} of vchannel 'JFK'" in str(caught.value)
            assert why in str(caught.value)
            assert "on_error='null'" in str(caught.value)


def test_on_error_null_keeps_the_other_rows() -> None:
    got = values(json.loads, b'{"dest": "ATL"}', b"x", b'{"delay": "late"}', b'{"delay": 3}', on_error="null")
    assert got == [{"dest": "ATL", "delay": None}, None, None, {"dest": None, "delay": 3}]


def test_error_names_only_columns_at_hand() -> None:
    payloads = pa.array([b"x"], pa.binary())
    with pytest.raises(InvalidArgumentError, match="the payload of a message cannot be decoded"):
        PayloadDecoder(json.loads, STRUCT)(payloads)
    with pytest.raises(InvalidArgumentError, match="the payload of a message of vchannel 'JFK' cannot be decoded"):
        PayloadDecoder(json.loads, STRUCT, naming=("vchannel",))(payloads, pa.array(["JFK"]))


@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries({}, optional={"dest": st.none() | st.text(), "delay": st.none() | st.integers(-(2**31), 2**31 - 1)})
    )
)
def test_every_row_has_its_own_value(rows: list[dict[str, Any] | None]) -> None:
    payloads = [b"%d" % number for number in range(len(rows))]
    expected = [None if row is None else {"dest": row.get("dest"), "delay": row.get("delay")} for row in rows]
    assert values(lambda payload: rows[int(payload)], *payloads) == expected
