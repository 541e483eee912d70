"""The outcomes of requests on a Produce stream, results and errors, as one message, and back. Pure.

Messages to append as columns, and back. Pure.

A column that would hold only defaults is empty. A message that cannot be appended is an error of its own, in its place among the others;
only columns that contradict each other make the whole request an InvalidArgumentError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import repeat
from typing import Final

from wal.errors import CorruptionError, InvalidArgumentError
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
from wal.message.properties import PROPERTIES_MAX
from wal.rpc.api import append_pb2 as proto
from wal.rpc.codes import error_from_proto, error_to_proto
from wal.rpc.converters import Numbered, id_to_bytes, ranges_of, results_of
from wal.write.idempotency.keys import Key, ProducerKey, check_key, key_ext

Append = tuple[Message, int, Key | None]
"""A message, its barrier time tick (0: none), and its idempotency key."""


def request_of(
    first_request_id: int, appends: Sequence[Append], *, seen_time_tick: int = 0, expected_last: proto.ExpectedLast | None = None
) -> proto.Append:
    """Returns the request for these appends; they are numbered from `first_request_id` on."""
    request = proto.Append(
        first_request_id=first_request_id,
        messages=columns_of([append[0] for append in appends]),
        seen_time_tick=seen_time_tick,
        expected_last=expected_last,
    )
    if any(key is not None for _, _, key in appends):
        keys = [b"" if key is None else key_ext(key) for _, _, key in appends]
        request.key_lengths, request.keys = _lengths(keys), b"".join(keys)
    if any(barrier for _, barrier, _ in appends):
        request.barrier_time_ticks = struct.pack(f"<{len(appends)}Q", *[barrier for _, barrier, _ in appends])
    return request


def appends_of(request: proto.Append) -> Iterator[tuple[int, Append | InvalidArgumentError]]:
    """Yields the appends of a request with their numbers; an error in place of one that cannot be made.

    Each is made when it is asked for, so a caller can make them in slices. Raises InvalidArgumentError at once for columns that contradict
    each other.
    """
    count = count_of(request.messages)
    messages = messages_of(request.messages)
    keys = _parts(request.key_lengths, request.keys, count, "keys") if request.key_lengths else repeat(b"", count)
    ticks = request.barrier_time_ticks
    if ticks and len(ticks) != 8 * count:
        raise _contradiction("barrier_time_ticks", f"{len(ticks)} bytes", f"8 for each of {count} messages")
    barriers = struct.unpack(f"<{count}Q", ticks) if ticks else repeat(0, count)
    return _appends(request.first_request_id, messages, barriers, keys)


def count_of(columns: proto.MessageColumns) -> int:
    """Returns how many messages these columns have. Raises InvalidArgumentError if it is no whole number."""
    lengths = len(columns.payload_lengths)
    if lengths % 4:
        raise _contradiction("payload_lengths", f"{lengths} bytes", "4 for each message")
    return lengths // 4


def plain_of(request: proto.Append) -> tuple[str, list[bytes]] | None:
    """Returns the vchannel and the payloads of a request of plain messages for one vchannel: INSERTs without properties, keys or barriers.

    Returns None for any other request. Raises InvalidArgumentError for columns that contradict each other.
    """
    columns = request.messages
    lengths, names = columns.payload_lengths, columns.vchannels
    if (
        request.HasField("expected_last")
        or request.key_lengths
        or request.barrier_time_ticks
        or columns.types
        or columns.properties_lengths
    ):
        return None
    if columns.vchannel_numbers or len(names) != 1 or not lengths or len(lengths) % 4:
        return None
    return names[0], list(_parts(lengths, columns.payloads, len(lengths) // 4, "payloads"))


def columns_of(messages: Sequence[Message]) -> proto.MessageColumns:
    """Returns the columns of these messages."""
    names = list(dict.fromkeys([message.vchannel for message in messages]))
    payloads = [message.payload for message in messages]
    columns = proto.MessageColumns(vchannels=names, payload_lengths=_lengths(payloads), payloads=b"".join(payloads))
    if len(names) > 1:
        number = dict(zip(names, range(len(names)), strict=True))
        columns.vchannel_numbers = _pack([number[message.vchannel] for message in messages])
    if any(message.message_type is not _INSERT for message in messages):
        columns.types = _pack([int(message.message_type) for message in messages])
    if any(message.properties for message in messages):
        properties = [encode_properties(message.properties) if message.properties else b"" for message in messages]
        columns.properties_lengths, columns.properties = _lengths(properties), b"".join(properties)
    return columns


def messages_of(columns: proto.MessageColumns) -> Iterator[Message | InvalidArgumentError]:
    """Yields the messages of these columns; an error in place of one that cannot be made.

    Each is made when it is asked for. Raises InvalidArgumentError at once for columns that contradict each other.
    """
    names, count = columns.vchannels, count_of(columns)
    payloads = _parts(columns.payload_lengths, columns.payloads, count, "payloads")
    if columns.vchannel_numbers:
        numbers = _numbers(columns.vchannel_numbers, count, "vchannel_numbers")
        if max(numbers, default=0) >= len(names):
            raise _contradiction("vchannel_numbers", f"{max(numbers)}", f"one of {len(names)} vchannels")
        every = list(names)
        vchannels: Iterable[str] = map(every.__getitem__, numbers)
    elif count and len(names) != 1:
        raise _contradiction("vchannels", f"{len(names)} names", "1 name, or vchannel_numbers")
    else:
        vchannels = repeat(names[0] if count else "", count)
    if not columns.types and not columns.properties_lengths:
        return map(_plain_message, vchannels, payloads)
    types: Iterable[int] = _numbers(columns.types, count, "types") if columns.types else repeat(int(_INSERT), count)
    stored: Iterable[bytes] = (
        _parts(columns.properties_lengths, columns.properties, count, "properties") if columns.properties_lengths else repeat(b"", count)
    )
    return map(_message, vchannels, payloads, types, stored)


def key_of(stored: bytes) -> Key | None:
    """Returns the idempotency key of these bytes, None for none. Raises InvalidArgumentError for any that no key has."""
    if not stored:
        return None
    try:
        key_parts = decode_key(stored)
        if key_parts is not None:
            name, sequence = key_parts
            key: Key = check_key(name) if sequence is None else ProducerKey(name, sequence)
            if key_ext(key) == stored:
                return key
    except CorruptionError as error:
        raise InvalidArgumentError(f"an idempotency key cannot be decoded: {error}") from error
    raise InvalidArgumentError(f"the bytes {stored[:40]!r} are no idempotency key: send its stored form (wal/frame/ext.py)")


def expected_to_proto(expected: Mapping[str, MessageID | None]) -> list[proto.ExpectedLast]:
    """Encodes the last events that some vchannels are expected to have, by name."""
    return [proto.ExpectedLast(vchannel=name, last=id_to_bytes(last)) for name, last in expected.items()]


def _appends(
    first: int, messages: Iterable[Message | InvalidArgumentError], barriers: Iterable[int], keys: Iterable[bytes]
) -> Iterator[tuple[int, Append | InvalidArgumentError]]:
    for number, (message, barrier, stored) in enumerate(zip(messages, barriers, keys, strict=False), first):
        if isinstance(message, InvalidArgumentError):
            yield number, message
            continue
        try:
            key = key_of(stored)
        except InvalidArgumentError as error:
            yield number, error
        else:
            yield number, (message, barrier, key)


def _plain_message(vchannel: str, payload: bytes) -> Message | InvalidArgumentError:
    try:
        return Message(vchannel, payload)
    except InvalidArgumentError as error:  # the name of the vchannel
        return error


def _message(vchannel: str, payload: bytes, message_type: int, stored: bytes) -> Message | InvalidArgumentError:
    try:
        kind = _TYPES.get(message_type)
        if kind is None:
            return InvalidArgumentError(f"message type {message_type} is not one that this version knows: {sorted(_TYPES)}")
        if (count := properties_count(stored)) > PROPERTIES_MAX:
            return _too_many_properties(count)
        properties = decode_properties(stored) if stored else {}
        return Message(vchannel, payload, message_type=kind, properties=properties)
    except InvalidArgumentError as error:
        return error
    except CorruptionError as error:
        return InvalidArgumentError(f"the properties of a message cannot be decoded: {error}")


def _too_many_properties(count: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"a message has {count} properties, and at most {PROPERTIES_MAX} are accepted over the network: put them into the payload"
    )


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
_TYPES: Final = {int(kind): kind for kind in MessageType}


Outcome = AppendResult | ForgottenResult | BaseException
"""What became of an append."""


def outcomes_to_proto(outcomes: Iterable[tuple[int, Outcome]]) -> proto.Outcomes:
    """Returns the message of the outcomes of appends, each with the number of its request; in ascending order it is smallest."""
    results: list[Numbered] = []
    failed: list[proto.FailedRange] = []
    error: BaseException | None = None
    next_failed: int | None = None
    for request_id, outcome in outcomes:
        if not isinstance(outcome, BaseException):
            results.append((request_id, outcome))
            continue
        message = failed[-1].error if outcome is error else error_to_proto(outcome)
        if request_id == next_failed and message == failed[-1].error:
            failed[-1].count += 1
        else:
            failed.append(proto.FailedRange(first_request_id=request_id, count=1, error=message))
        error, next_failed = outcome, request_id + 1
    return proto.Outcomes(appended=ranges_of(results), failed=failed)


def outcomes_from_proto(outcomes: proto.Outcomes) -> Iterator[tuple[int, Outcome]]:
    """Yields the outcomes of appends, results before errors. Requests that failed together share one error."""
    for appended in outcomes.appended:
        yield from results_of(appended)
    for failed in outcomes.failed:
        error = error_from_proto(failed.error)
        for request_id in range(failed.first_request_id, failed.first_request_id + failed.count):
            yield request_id, error
