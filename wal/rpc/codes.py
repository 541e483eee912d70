"""Errors as messages and as statuses of gRPC, and back.

Owns the one table of error classes, codes and statuses. An error of `wal.errors` arrives as the same class with the same text and the same
attributes. Any other exception is a defect of its side and arrives as an UnknownError; so does a code that this version does not know.

A StreamingError travels in the answer to a request, or in the details of the status that ends a call: a google.rpc.Status in the trailer
`grpc-status-details-bin`. A status without one was made by gRPC itself, for example for a lost connection: `error_in` returns None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from wal.errors import (
    AuthenticationError,
    BulkAppendError,
    ChannelExistError,
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    ConflictError,
    CorruptionError,
    EndOfStreamError,
    FormatError,
    IgnoredOperationError,
    InnerError,
    InvalidArgumentError,
    InvalidRequestSeqError,
    InvalidTransactionStateError,
    KeyNotExistError,
    LockedError,
    LogWentBackError,
    NoSpaceError,
    NotLeaderError,
    NotLocalError,
    ResourceAcquiredError,
    SessionLostError,
    StorageError,
    StreamingCode,
    TransactionExpiredError,
    TruncatedError,
    UnavailableError,
    UnknownError,
    UnknownOutcomeError,
    UnmatchedChannelTermError,
    UnrecoverableError,
    WALError,
    WouldBlockError,
)
from wal.message import AppendResult, MessageID, ResourceKey
from wal.message.wire_pb2 import ResourceKey as ResourceKeyProto
from wal.rpc.api import error_pb2 as proto
from wal.rpc.converters import id_from_bytes, id_or_none, id_to_bytes, ranges_of, results_of

DETAILS: Final = "grpc-status-details-bin"
"""The trailer in which gRPC's libraries carry a google.rpc.Status (grpc_status.rpc_status in grpcio)."""
DETAILS_BYTES_MAX: Final = 4096
"""The most bytes of a StreamingError in a status: gRPC's libraries take 8 KiB of metadata by default, and base64 adds a third."""
TYPE_URL: Final = "type.googleapis.com/milvus.proto.streaming.StreamingError"
"""The name of the message in the details: Milvus', so that its clients find it."""


class MissingRightError(AuthenticationError):
    """An AuthenticationError of a token that is known, which travels with another status: PERMISSION_DENIED."""


_Status = grpc.StatusCode
STATUSES: Final[Mapping[type[WALError], grpc.StatusCode]] = {
    ChannelExistError: _Status.ALREADY_EXISTS,
    ChannelNotExistError: _Status.FAILED_PRECONDITION,
    ChannelFencedError: _Status.FAILED_PRECONDITION,
    ClosedError: _Status.FAILED_PRECONDITION,
    InvalidRequestSeqError: _Status.FAILED_PRECONDITION,
    UnmatchedChannelTermError: _Status.FAILED_PRECONDITION,
    IgnoredOperationError: _Status.FAILED_PRECONDITION,
    InnerError: _Status.INTERNAL,
    EndOfStreamError: _Status.OUT_OF_RANGE,
    InvalidArgumentError: _Status.INVALID_ARGUMENT,
    MissingRightError: _Status.PERMISSION_DENIED,
    AuthenticationError: _Status.UNAUTHENTICATED,
    KeyNotExistError: _Status.INVALID_ARGUMENT,
    TransactionExpiredError: _Status.FAILED_PRECONDITION,
    InvalidTransactionStateError: _Status.FAILED_PRECONDITION,
    ConflictError: _Status.FAILED_PRECONDITION,
    UnrecoverableError: _Status.FAILED_PRECONDITION,
    ResourceAcquiredError: _Status.FAILED_PRECONDITION,
    UnknownOutcomeError: _Status.UNKNOWN,
    TruncatedError: _Status.OUT_OF_RANGE,
    LogWentBackError: _Status.DATA_LOSS,
    CorruptionError: _Status.DATA_LOSS,
    StorageError: _Status.INTERNAL,
    WouldBlockError: _Status.RESOURCE_EXHAUSTED,
    NoSpaceError: _Status.RESOURCE_EXHAUSTED,
    LockedError: _Status.FAILED_PRECONDITION,
    FormatError: _Status.FAILED_PRECONDITION,
    NotLocalError: _Status.FAILED_PRECONDITION,
    UnavailableError: _Status.UNAVAILABLE,
    NotLeaderError: _Status.UNAVAILABLE,
    SessionLostError: _Status.FAILED_PRECONDITION,
    UnknownError: _Status.UNKNOWN,
    BulkAppendError: _Status.UNKNOWN,
    WALError: _Status.UNKNOWN,
}
"""The classes of errors that travel, with the statuses that end a call with them; each class has its code. The statuses of Milvus'
codes are those of its own servers. A BulkAppendError has the code and the status of its cause, and a class that is not here those of the
first of its bases that is. A plain WALError arrives as an UnknownError."""

_CLASSES: Final[Mapping[int, type[WALError]]] = {
    int(kind.code): kind for kind in STATUSES if kind not in (KeyNotExistError, BulkAppendError, MissingRightError, WALError)
}


def error_to_proto(error: BaseException) -> proto.StreamingError:
    """Returns the message of an error."""
    if isinstance(error, BulkAppendError) and isinstance(error.__cause__, WALError):
        message = error_to_proto(error.__cause__)
        message.fields.bulk.appended.extend(ranges_of(enumerate(error.results)))
        return message
    if not isinstance(error, WALError):
        return proto.StreamingError(code=_number(StreamingCode.UNKNOWN), cause=f"the server failed: {error!r}; please report it")
    message = proto.StreamingError(code=_number(error.code), cause=str(error))
    fields = _fields(error)
    if error.outcome_unknown:
        fields.outcome_unknown = True
    if fields.ByteSize():
        message.fields.CopyFrom(fields)
    return message


def error_from_proto(message: proto.StreamingError) -> WALError:
    """Returns the error of a message."""
    fields = message.fields
    kind = _CLASSES.get(message.code)
    if kind is None:
        error: WALError = UnknownError(f"the server answered with code {message.code}, which this version does not know: {message.cause}")
    else:
        error = _made(kind, message.cause, fields)
    if fields.outcome_unknown and not error.outcome_unknown:
        error.outcome_unknown = True
    if fields.HasField("bulk"):
        # No call of the protocol is a bulk, so the outcomes after the cause and the messages have no field.
        return BulkAppendError.of(error, [*(result for _, result in _results(fields.bulk)), error])
    return error


def status_of(error: BaseException, *, status: grpc.StatusCode | None = None) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Returns the status that ends a call with this error: its code, its text, and the trailers.

    `status` replaces the one of the table. Attributes and texts that are too large for a trailer are left out or cut.
    """
    message = error_to_proto(error)
    if message.ByteSize() > DETAILS_BYTES_MAX:
        message.fields.ClearField("keys")
        if message.fields.HasField("bulk"):
            message.fields.bulk.ClearField("appended")
        message.cause = _cut(message.cause, DETAILS_BYTES_MAX // 2)
        message.fields.expected = _cut(message.fields.expected, DETAILS_BYTES_MAX // 8)
        message.fields.path = _cut(message.fields.path, DETAILS_BYTES_MAX // 8)
    code = status or _status(error)
    text = _cut(message.cause, DETAILS_BYTES_MAX // 8)
    details = proto.Status(code=code.value[0], message=text)
    details.details.add(type_url=TYPE_URL, value=message.SerializeToString())
    return code, text, ((DETAILS, details.SerializeToString()),)


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    error: BaseException,
    *,
    status: grpc.StatusCode | None = None,
    trailers: Sequence[tuple[str, str]] = (),
) -> NoReturn:
    """Ends a call of this side with an error, and these trailers too. It raises in the handler of the call, as `context.abort` does."""
    code, text, details = status_of(error, status=status)
    await context.abort(code, text, (*details, *trailers))
    raise AssertionError("unreachable: abort raises")


def error_in(error: grpc.aio.AioRpcError) -> WALError | None:
    """Returns the error with which the other side ended a call, or None if the status was made by gRPC itself."""
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS or not isinstance(value, bytes):
            continue
        try:
            for detail in proto.Status.FromString(value).details:
                if detail.type_url == TYPE_URL:
                    return error_from_proto(proto.StreamingError.FromString(detail.value))
        except (DecodeError, InvalidArgumentError) as damage:
            return UnknownError(f"the server answered with a status that cannot be read ({damage}): {error.details()}")
    return None


def _status(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, BulkAppendError) and isinstance(error.__cause__, WALError):
        error = error.__cause__
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), _Status.UNKNOWN)


def _number(code: StreamingCode) -> Any:
    return int(code)  # the generated types want an enum of their own, which is an int


def _fields(error: WALError) -> proto.ErrorFields:
    """Returns the attributes of an error that its class has."""
    match error:
        case KeyNotExistError():
            return proto.ErrorFields(key=error.key)
        case ResourceAcquiredError():
            keys = [
                ResourceKeyProto(domain=key.domain, key=key.key, shared=key.shared) for key in error.keys if isinstance(key, ResourceKey)
            ]
            return proto.ErrorFields(keys=keys, holder=error.holder)
        case ConflictError():
            return proto.ErrorFields(last=id_to_bytes(error.last), vchannel=error.vchannel)
        case TruncatedError():
            earliest = error.earliest
            return proto.ErrorFields(earliest=bytes(earliest) if isinstance(earliest, MessageID) else b"")
        case LogWentBackError():
            return proto.ErrorFields(last_common=map(bytes, error.commons))
        case CorruptionError():
            offset = None if error.offset == _NO_OFFSET else error.offset
            return proto.ErrorFields(path=error.path, offset=offset, expected=error.expected)
        case NotLeaderError():
            return proto.ErrorFields(leader=error.leader)
        case LockedError():
            return proto.ErrorFields(pid=error.pid)
        case ChannelFencedError() | UnmatchedChannelTermError():
            return proto.ErrorFields(term=error.term)
    return proto.ErrorFields()


def _made(kind: type[WALError], text: str, fields: proto.ErrorFields) -> WALError:
    """Returns an error of this class with its attributes."""
    if kind is InvalidArgumentError and fields.key:
        return KeyNotExistError(fields.key, text)
    if kind is ResourceAcquiredError:
        keys = [ResourceKey(key.domain, key.key, shared=key.shared) for key in fields.keys]
        return ResourceAcquiredError(text, keys=keys, holder=fields.holder)
    if kind is ConflictError:
        return ConflictError(text, vchannel=fields.vchannel, last=id_or_none("last", fields.last))
    if kind is TruncatedError:
        return TruncatedError(text, earliest=id_from_bytes("earliest", fields.earliest) if fields.earliest else None)
    if kind is LogWentBackError:
        return LogWentBackError(text, commons=[id_from_bytes("last_common", common) for common in fields.last_common])
    if kind is CorruptionError:
        offset = fields.offset if fields.HasField("offset") else _NO_OFFSET
        return CorruptionError(text, path=fields.path, offset=offset, expected=fields.expected)
    if kind is StorageError:
        return StorageError(text, outcome_unknown=fields.outcome_unknown)
    if kind is NotLeaderError:
        return NotLeaderError(text, leader=fields.leader)
    if kind is LockedError:
        return LockedError(text, pid=fields.pid if fields.HasField("pid") else None)
    if kind is ChannelFencedError:
        return ChannelFencedError(text, term=fields.term)
    if kind is UnmatchedChannelTermError:
        return UnmatchedChannelTermError(text, term=fields.term)
    return kind(text)


def _results(bulk: proto.BulkResults) -> Sequence[tuple[int, AppendResult]]:
    return [(number, result) for appended in bulk.appended for number, result in results_of(appended) if result.message_id is not None]


def _cut(text: str, bytes_max: int) -> str:
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= bytes_max else encoded[: bytes_max - 3].decode(errors="ignore") + "…"


_NO_OFFSET: Final = -1
"""The default of `CorruptionError.offset`."""
