"""What the end of a call means: its answer, the error of the other side, or a status that gRPC made itself."""

from __future__ import annotations

from typing import Final, TypeVar

import grpc
import grpc.aio

from wal.errors import FormatError, InvalidArgumentError, UnavailableError, UnknownOutcomeError, WALError
from wal.rpc.codes import error_in

__all__ = ["explain", "explain_end", "received"]

Response = TypeVar("Response")

_REFUSED: Final = frozenset(
    (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    )
)
"""The statuses of gRPC itself for calls that no handler saw: too large, unknown, not allowed."""


def received(response: Response | None, what: str, *, writing: bool) -> Response:
    """Returns the response. Raises an error for None, which gRPC returns for bytes that it cannot read as the message of this call."""
    if response is not None:
        return response
    text = f"{what}: the answer cannot be read as the message of this call"
    if writing:
        raise UnknownOutcomeError(f"{text}, so what was asked for may have been done: look before you repeat it")
    raise FormatError(f"{text}: use a server and a client of the same version")


def explain(error: grpc.aio.AioRpcError, what: str, *, writing: bool) -> WALError:
    """Returns the server's error; or, for a status that gRPC made itself, what it means. `writing`: the call may have changed something."""
    if (told := error_in(error)) is not None:
        return told
    said = f"{what}: {error.details() or error.code().name}"
    if error.code() in _REFUSED:
        return InvalidArgumentError(
            f"{said}; nothing was changed: is it a server of this log, and is the request below its limit?"
        )
    if writing:
        return UnknownOutcomeError(
            f"{said}; it was sent and no answer came, so it may have been carried out: look before you repeat it"
        )
    return UnavailableError(f"{said}; nothing was changed: try again")


def explain_end(error: grpc.aio.AioRpcError, what: str) -> WALError:
    """Returns the error of a stream that has ended, as `explain` does. What became of its requests, only its owner can say."""
    explained = explain(error, what, writing=False)
    if isinstance(explained, UnavailableError) and error_in(error) is None:
        return UnavailableError(f"{what}: {error.details() or error.code().name}")
    return explained
