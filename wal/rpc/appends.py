"""Messages to append as the columns of the wire, and back; the outcomes of requests on a Produce stream as one message, and back. Pure.

A column that would hold only defaults is empty. A message that cannot be appended is an error of its own, in its place among the others;
only columns that contradict each other make the whole request an InvalidArgumentError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain, islice, repeat
from typing import Final, TypeVar

from msgspec import structs

from wal.errors import CorruptionError, InvalidArgumentError, WALError
from wal.frame import decode_key
from wal.message import (
    AppendResult,
    ForgottenResult,
    Message,
    MessageID,
    MessageType,
    decode_properties,
    encode_properties,
    properties_count,
)
from wal.message.properties import PROPERTIES_MAX, check_properties
from wal.requests.appends import NO_BARRIER, NOT_EXPECTED, PART_ROWS_MAX, PLAIN, ROWS_A_TURN, Append, WriteOptions
from wal.rpc.api import append_pb2 as proto
from wal.rpc.codes import error_from_proto, error_to_proto
from wal.rpc.converters import Numbered, id_from_bytes, id_to_bytes, range_of, ranges_of, results_of
from wal.write.idempotency.keys import Key, ProducerKey, check_key, key_ext
from wal.write.operations import Together

Refusals = dict[int, WALError]
"""The errors of rows that cannot be appended."""


def append_to_proto(append: Append) -> proto.Append:
    """Encodes messages to append."""
    count = len(append.payloads)
    message = proto.Append(messages=rows_to_proto(append))
    if append.options:
        keys = [b"" if one.key is None else key_ext(one.key) for one in append.options]
        if any(keys):
            message.key_lengths, message.keys = _lengths(keys), b"".join(keys)
        barriers = [one.barrier_time_tick for one in append.options]
        if any(barriers):
            message.barrier_time_ticks = struct.pack(f"<{count}Q", *barriers)
        expected = [_expected_to_bytes(one.expected_last, append, row) for row, one in enumerate(append.options)]
        if any(expected):
            message.expected_lengths, message.expected = _lengths(expected), b"".join(expected)
    return message


def appends_from_proto(message: proto.Append) -> Iterator[tuple[Append, Refusals]]:
    """Yields the messages to append in parts, each with the errors of its rows that cannot be appended.

    Each part is made when it is asked for, so a caller gives other tasks their turn in between. Raises InvalidArgumentError at once for
    columns that contradict each other.
    """
    count = count_of(message.messages)
    columns = ReceivedColumns(message.messages)
    ticks = message.barrier_time_ticks
    if columns.is_plain and not (message.key_lengths or message.expected_lengths or ticks):
        return (columns.take(min(PART_ROWS_MAX, count - first)) for first in range(0, count, PART_ROWS_MAX))
    keys = _optional(message.key_lengths, message.keys, count, "keys")
    expected = _optional(message.expected_lengths, message.expected, count, "expected")
    if ticks and len(ticks) != 8 * count:
        raise _contradiction("barrier_time_ticks", f"{len(ticks)} bytes", f"8 for each of {count} messages")
    barriers = iter(struct.unpack(f"<{count}Q", ticks)) if ticks else None

    def part(size: int) -> tuple[Append, Refusals]:
        append, refusals = columns.take(size)
        options: list[WriteOptions] = []
        for row in range(size):
            barrier = NO_BARRIER if barriers is None else next(barriers)
            key, last = b"" if keys is None else next(keys), b"" if expected is None else next(expected)
            if not (barrier or key or last):
                options.append(PLAIN)
                continue
            try:
                expected_last = _expected_from_bytes(last, append.vchannel(row)) if last else NOT_EXPECTED
                options.append(WriteOptions(barrier, key_from_bytes(key) if key else None, expected_last))
            except InvalidArgumentError as error:
                refusals.setdefault(row, error)
                options.append(PLAIN)
        return structs.replace(append, options=options), refusals

    return (part(min(ROWS_A_TURN, count - first)) for first in range(0, count, ROWS_A_TURN))


def count_of(columns: proto.MessageColumns) -> int:
    """Returns how many messages these columns have. Raises InvalidArgumentError if it is not a whole number."""
    lengths = len(columns.payload_lengths)
    if lengths % 4:
        raise _contradiction("payload_lengths", f"{lengths} bytes", "4 for each message")
    return lengths // 4


def rows_to_proto(rows: Append) -> proto.MessageColumns:
    """Encodes the vchannels, payloads, types and properties of messages."""
    columns = proto.MessageColumns(vchannels=rows.vchannels, payload_lengths=_lengths(rows.payloads), payloads=b"".join(rows.payloads))
    if rows.numbers:
        columns.vchannel_numbers = _pack(rows.numbers)
    if rows.types:
        columns.types = _pack(rows.types)
    if rows.properties:
        columns.properties_lengths, columns.properties = _lengths(rows.properties), b"".join(rows.properties)
    return columns


class ReceivedColumns:
    """The columns of messages on the wire, of which rows are taken from the front.

    `is_plain`: all are INSERTs for one vchannel, without properties. Raises InvalidArgumentError for columns that contradict each other.
    """

    def __init__(self, columns: proto.MessageColumns) -> None:
        names, count = columns.vchannels, count_of(columns)
        self.names: list[str] = list(names)
        self.is_plain: bool = not (columns.vchannel_numbers or columns.types or columns.properties_lengths)
        self._payloads = _parts(columns.payload_lengths, columns.payloads, count, "payloads")
        self._numbers: Iterator[int] | None = None
        if columns.vchannel_numbers:
            numbers = _numbers(columns.vchannel_numbers, count, "vchannel_numbers")
            if max(numbers, default=0) >= len(names):
                raise _contradiction("vchannel_numbers", f"{max(numbers)}", f"one of {len(names)} vchannels")
            self._numbers = iter(numbers)
        elif count and len(names) != 1:
            raise _contradiction("vchannels", f"{len(names)} names", "1 name, or vchannel_numbers")
        self._types = iter(_numbers(columns.types, count, "types")) if columns.types else None
        self._properties = _optional(columns.properties_lengths, columns.properties, count, "properties")

    def take(self, size: int) -> tuple[Append, Refusals]:
        """Takes rows to append, and the errors of invalid messages, except the check of their vchannels' names."""
        refusals: Refusals = {}
        payloads = list(islice(self._payloads, size))
        numbers = () if self._numbers is None else tuple(islice(self._numbers, size))
        types = () if self._types is None else list(islice(self._types, size))
        if not _TYPES.keys() >= {*types}:
            types = [_or_refused(_type, kind, row, refusals) or _INSERT for row, kind in enumerate(types)]
        properties: Sequence[bytes] = ()
        if self._properties is not None:
            stored = list(islice(self._properties, size))
            properties = [_or_refused(_checked_properties, each, row, refusals) or b"" if each else b"" for row, each in enumerate(stored)]
        return Append(self.names, payloads, numbers, types, properties), refusals

    def take_bodies(self, size: int) -> list[Message]:
        """Takes the bodies of a transaction. Raises InvalidArgumentError for the first invalid message."""
        payloads = list(islice(self._payloads, size))
        numbers = repeat(0) if self._numbers is None else self._numbers
        types = repeat(_INSERT) if self._types is None else self._types
        properties = repeat(b"") if self._properties is None else self._properties
        return [
            Message(self.names[number], payload, message_type=_type(kind), properties=_decoded_properties(stored))
            for payload, number, kind, stored in zip(payloads, numbers, types, properties, strict=False)
        ]


def bodies_to_proto(bodies: Sequence[Message | bytes]) -> proto.MessageColumns:
    """Encodes the bodies of a transaction: all `bytes`, for its only vchannel, or all messages."""
    if {*map(type, bodies)} <= {bytes}:
        return rows_to_proto(Append((), bodies))  # type: ignore[arg-type]
    return rows_to_proto(Append.of(bodies))  # type: ignore[arg-type]


def bodies_from_proto(columns: proto.MessageColumns) -> Sequence[Message | bytes]:
    """Returns the bodies of a transaction. Raises InvalidArgumentError for the first invalid message."""
    count = count_of(columns)
    if not (columns.vchannels or columns.vchannel_numbers or columns.types or columns.properties_lengths):
        return list(_parts(columns.payload_lengths, columns.payloads, count, "payloads"))
    return ReceivedColumns(columns).take_bodies(count)


def key_from_bytes(stored: bytes) -> Key:
    """Returns the idempotency key of these bytes. Raises InvalidArgumentError for any that no key has."""
    try:
        key_parts = decode_key(stored)
        if key_parts is not None:
            name, sequence = key_parts
            key: Key = check_key(name) if sequence is None else ProducerKey(name, sequence)
            if key_ext(key) == stored:
                return key
    except CorruptionError as error:
        raise InvalidArgumentError(f"an idempotency key cannot be decoded: {error}") from error
    raise InvalidArgumentError(f"the bytes {stored[:40]!r} are not an idempotency key: send its stored form (wal/frame/ext.py)")


def _expected_to_bytes(expected: Mapping[str, MessageID | None], append: Append, row: int) -> bytes:
    if not expected:
        return b""
    last = expected[append.vchannel(row)]
    return _NO_EVENT if last is None else id_to_bytes(last)


def _expected_from_bytes(stored: bytes, vchannel: str) -> Mapping[str, MessageID | None]:
    return {vchannel: None if stored == _NO_EVENT else id_from_bytes("expected_last", stored)}


def _type(number: int) -> MessageType:
    if (kind := _TYPES.get(number)) is None:
        raise InvalidArgumentError(f"message type {number} is unknown: this version has {sorted(_TYPES)}")
    return kind


def _decoded_properties(stored: bytes) -> dict[str, str]:
    if (count := properties_count(stored)) > PROPERTIES_MAX:
        raise InvalidArgumentError(
            f"a message has {count} properties, and at most {PROPERTIES_MAX} are accepted over the network: put them into the payload"
        )
    try:
        return decode_properties(stored)
    except CorruptionError as error:
        raise InvalidArgumentError(f"the properties of a message cannot be decoded: {error}") from error


def _checked_properties(stored: bytes) -> bytes:
    """Returns the stored form of properties that a message may have."""
    properties = check_properties(_decoded_properties(stored))
    return encode_properties(properties) if properties else b""


def _or_refused(decode: Callable[[_S], _T], stored: _S, row: int, refusals: Refusals) -> _T | None:
    """Returns the value of a row, or None, and notes why the row cannot be appended."""
    try:
        return decode(stored)
    except InvalidArgumentError as error:
        refusals.setdefault(row, error)
        return None


def _optional(lengths: bytes, joined: bytes, count: int, what: str) -> Iterator[bytes] | None:
    return _parts(lengths, joined, count, what) if lengths else None


def _parts(lengths: bytes, joined: bytes, count: int, what: str) -> Iterator[bytes]:
    """Yields the parts of joined bytes, `count` of these lengths."""
    numbers = _numbers(lengths, count, f"lengths of {what}")
    if sum(numbers) != len(joined):
        raise _contradiction(what, f"{len(joined)} bytes", f"{sum(numbers)}, as the lengths say")
    return map(BytesIO(joined).read, numbers)


def _numbers(column: bytes, count: int, what: str) -> tuple[int, ...]:
    if len(column) != 4 * count:
        raise _contradiction(what, f"{len(column)} bytes", f"4 for each of {count} messages")
    return struct.unpack(f"<{count}I", column)


def _lengths(parts: Sequence[bytes]) -> bytes:
    return _pack(list(map(len, parts)))


def _pack(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _contradiction(what: str, value: str, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"the columns of a request contradict each other: {what} has {value}, expected {expected}")


_INSERT: Final = MessageType.INSERT
_NO_EVENT: Final = b"\0"
"""Stands for an expectation that the vchannel never had an event; no id has these bytes."""
_TYPES: Final = {int(kind): kind for kind in MessageType}
_S = TypeVar("_S")
_T = TypeVar("_T")


Outcome = AppendResult | ForgottenResult | BaseException
"""The outcome of a request, or of one message of an append."""
Answered = tuple[int, int, Outcome | Together]
"""The number of the first of consecutive requests, how many they are, and their outcome. `Together` has a result for each."""


def outcomes_to_proto(outcomes: Iterable[Answered]) -> proto.Outcomes:
    """Encodes the outcomes of requests; in ascending order the message is smallest."""
    message = proto.Outcomes()
    results: list[Numbered] = []
    error: BaseException | None = None
    next_failed: int | None = None
    for request_id, count, outcome in outcomes:
        if isinstance(outcome, Together):
            message.appended.append(range_of(request_id, outcome))
            continue
        if not isinstance(outcome, BaseException):
            results.append((request_id, outcome))
            continue
        encoded = message.failed[-1].error if outcome is error else error_to_proto(outcome)
        if request_id == next_failed and encoded == message.failed[-1].error:
            message.failed[-1].count += count
        else:
            message.failed.append(proto.FailedRange(first_request_id=request_id, count=count, error=encoded))
        error, next_failed = outcome, request_id + count
    message.appended.extend(ranges_of(results))
    return message


def outcomes_from_proto(outcomes: proto.Outcomes) -> Iterator[tuple[int, Outcome]]:
    """Returns the outcomes of appends, results before errors. Requests that failed together share one error."""
    return chain(chain.from_iterable(map(results_of, outcomes.appended)), chain.from_iterable(map(_failed, outcomes.failed)))


def _failed(failed: proto.FailedRange) -> Iterator[tuple[int, Outcome]]:
    numbers = range(failed.first_request_id, failed.first_request_id + failed.count)
    return zip(numbers, repeat(error_from_proto(failed.error)), strict=False)
