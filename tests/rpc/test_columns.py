"""Messages to append as columns: what is sent arrives, and what no client of ours would send is refused, each for itself if possible."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.serve.columns import columns_of, request_of
from wal.errors import InvalidArgumentError
from wal.message import Message, MessageID, MessageType
from wal.requests.appends import NOT_EXPECTED, UNCHECKED, Append, WriteOptions
from wal.rpc.api import append_pb2
from wal.rpc.api.append_pb2 import MessageColumns
from wal.rpc.appends import append_to_proto, appends_from_proto, key_from_bytes
from wal.write.idempotency.keys import ProducerKey, key_ext

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.sampled_from(["orders", "payments", "ö"])
properties = st.dictionaries(texts.filter(lambda key: not key.startswith("_")), texts, max_size=3)
messages = st.builds(Message, names, st.binary(max_size=40)) | st.builds(
    Message, names, st.binary(max_size=40), message_type=st.sampled_from(list(MessageType)), properties=properties
)
keys = st.none() | texts.filter(bool) | st.builds(ProducerKey, texts.filter(bool), st.integers(0, 2**63 - 1))
ids = st.builds(MessageID, st.sampled_from(["p-1", "p-2"]), st.integers(0, 2), st.integers(0, 2), st.integers(0, 5))
expected = st.just(UNCHECKED) | st.none() | ids
appends = st.tuples(messages, st.just(0) | st.integers(0, 2**64 - 1), keys, expected)


def alike(one: Message, other: object) -> bool:
    return isinstance(other, Message) and (
        (one.vchannel, one.payload, one.message_type, one.properties)
        == (other.vchannel, other.payload, other.message_type, other.properties)
    )


def arrived(request: append_pb2.Append) -> list[Any]:
    """Returns each message of a request, or its error."""
    found: list[Any] = []
    for rows, refusals in appends_from_proto(request):
        found += [refusals.get(row) or rows.message(row) for row in range(len(rows))]
    return found


@given(st.lists(appends, min_size=1, max_size=8))
def test_appends_arrive_as_they_were_sent(sent: list[Any]) -> None:
    options = [
        WriteOptions(barrier, key, NOT_EXPECTED if last is UNCHECKED else {message.vchannel: last}) for message, barrier, key, last in sent
    ]
    append = structs.replace(Append.of([one[0] for one in sent]), options=options)
    ((rows, refusals),) = appends_from_proto(append_pb2.Append.FromString(append_to_proto(append).SerializeToString()))
    assert not refusals
    assert [rows.options_of(row) for row in range(len(rows))] == options
    assert all(alike(message, rows.message(row)) for row, (message, *_) in enumerate(sent))


def test_plain_messages_for_one_vchannel_cost_four_bytes_each_beside_their_payload() -> None:
    plain = [Message("orders", b"x" * 1000)] * 256
    assert request_of(1, [(message, 0, None) for message in plain]).ByteSize() < 256 * 1004 + 40


def lengths(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def test_columns_that_contradict_each_other_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"payload_lengths": b"\0" * 5, "vchannels": ["a"]}, "payload_lengths has 5 bytes, expected 4 for each"),
        ({"payload_lengths": lengths(3), "payloads": b"ab", "vchannels": ["a"]}, "payloads has 2 bytes, expected 3"),
        ({"payload_lengths": lengths(1), "payloads": b"abc", "vchannels": ["a"]}, "payloads has 3 bytes, expected 1"),
        ({"payload_lengths": lengths(0)}, "vchannels has 0 names"),
        ({"payload_lengths": lengths(0), "vchannels": ["a", "b"]}, "vchannels has 2 names"),
        ({"payload_lengths": lengths(0), "vchannels": ["a"], "vchannel_numbers": lengths(1)}, "vchannel_numbers has 1"),
        ({"payload_lengths": lengths(0), "vchannels": ["a"], "types": lengths(2, 2)}, "types has 8 bytes"),
        (
            {"payload_lengths": lengths(0), "vchannels": ["a"], "properties_lengths": lengths(2**32 - 1)},
            "properties has 0 bytes, expected 4294967295",
        ),
    ]
    for columns, words in cases:
        with subtests.test(repr(columns)), pytest.raises(InvalidArgumentError, match=words):
            appends_from_proto(append_pb2.Append(messages=MessageColumns(**columns)))  # type: ignore[arg-type]


@pytest.mark.parametrize("column", ["key_lengths", "barrier_time_ticks", "expected_lengths"])
def test_column_of_another_length_than_the_messages_is_refused(column: str) -> None:
    request = request_of(1, [(Message("orders", b"x"), 0, None)]).append
    setattr(request, column, lengths(0, 0, 0))
    with pytest.raises(InvalidArgumentError, match="contradict"):
        appends_from_proto(request)


def test_message_that_cannot_be_made_is_an_error_among_the_others() -> None:
    columns = columns_of([Message("orders", b"1", properties={"a": "b"})] * 4)
    stored = columns.properties[: len(columns.properties) // 4]
    reserved = stored.replace(b"a", b"_")
    columns.properties = stored + reserved + b"\xff" * len(stored) + stored
    columns.types = lengths(2, 2, 2, 60_000)
    first, second, third, fourth = arrived(append_pb2.Append(messages=columns))
    assert alike(Message("orders", b"1", properties={"a": "b"}), first)
    for error, words in ((second, "'_'"), (third, "cannot be decoded"), (fourth, "60000")):
        assert isinstance(error, InvalidArgumentError)
        assert words in str(error)


def test_expectation_that_is_no_id_is_an_error_of_its_message() -> None:
    request = request_of(1, [(Message("orders", b"x"), 0, None)] * 3).append
    request.expected_lengths, request.expected = lengths(0, 1, 2), b"\0\1\2"
    first, second, third = arrived(request)
    assert alike(Message("orders", b"x"), first)
    assert alike(Message("orders", b"x"), second), "it expects no event"
    assert isinstance(third, InvalidArgumentError)
    assert "expected_last" in str(third)


@given(st.binary(max_size=24))
def test_bytes_are_a_key_or_are_refused(stored: bytes) -> None:
    try:
        key = key_from_bytes(stored)
    except InvalidArgumentError:
        return
    assert key_ext(key) == stored


@given(st.binary(max_size=200))
def test_any_request_is_answered(data: bytes) -> None:
    """No bytes on the wire raise anything else than an InvalidArgumentError."""
    request = append_pb2.Append()
    request.messages.vchannels.extend(["a", ""])
    half = len(data) // 2
    request.messages.payload_lengths, request.messages.payloads = data[:half], data[half:]
    request.messages.vchannel_numbers = request.messages.types = data[:half]
    try:
        arrived(request)
    except InvalidArgumentError:
        pass
