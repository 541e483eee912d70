"""The metadata of a call: the request that creates a stream, a client's token, the log that it opened, and its session.

A stream of Milvus' protocol is created by a message in its metadata, in base64: `create-producer` for Produce, `create-consumer` for
Consume. A client with a token sends `authorization: Bearer TOKEN`. `calls-session: SESSION NUMBER` identifies late
calls (`wal.serve.fence`), and on a stream the connected client. `log-id: ID`, hexadecimal, is the log that the client opened: a server with
another log refuses the call, with its own id in the trailer of this name. Metadata is sent in the clear unless the connection has TLS.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from wal.errors import InvalidArgumentError
from wal.rpc.api.streaming_pb2 import CreateConsumerRequest, CreateProducerRequest
from wal.runtime.secret import Secret

Header = tuple[str, str]
Metadata = Iterable[tuple[str, str | bytes]]
"""The metadata of a call, as gRPC gives it to a server."""

CREATE_PRODUCER: Final = "create-producer"
CREATE_CONSUMER: Final = "create-consumer"
_AUTHORIZATION: Final = "authorization"
_BEARER: Final = "Bearer "
_CALLS_SESSION: Final = "calls-session"
LOG_ID: Final = "log-id"
_SESSION: Final = re.compile(r"([!-~]{1,64}) ([0-9]{1,18})")
_HEX: Final = re.compile(r"[0-9a-f]{1,16}")

_P = TypeVar("_P", bound=Proto)


def producer_in(metadata: Metadata) -> CreateProducerRequest:
    """Returns the request in the metadata of Produce. Raises InvalidArgumentError without a request that names a pchannel."""
    request = _decoded(metadata, CREATE_PRODUCER, CreateProducerRequest)
    _check_pchannel(request.pchannel.name, CREATE_PRODUCER)
    return request


def consumer_in(metadata: Metadata) -> CreateConsumerRequest:
    """Returns the request in the metadata of Consume. Raises InvalidArgumentError without a request that names a pchannel."""
    request = _decoded(metadata, CREATE_CONSUMER, CreateConsumerRequest)
    _check_pchannel(request.pchannel.name, CREATE_CONSUMER)
    return request


def token_header(token: Secret) -> Header:
    """Returns the metadata that shows a token. Raises InvalidArgumentError for a token that no header can carry."""
    text = token.reveal()
    if not text or not text.isascii() or not text.isprintable() or text != text.strip():
        raise InvalidArgumentError("a token must have 1 or more printable ASCII characters, and no space at its ends: choose another one")
    return _AUTHORIZATION, _BEARER + text


def token_in(metadata: Metadata) -> Secret | None:
    """Returns the token in the metadata of a call, or None."""
    values = [value for key, value in metadata if key == _AUTHORIZATION]
    if len(values) != 1 or not isinstance(values[0], str) or not values[0].startswith(_BEARER):
        return None
    return Secret(values[0].removeprefix(_BEARER))


def session_header(session: str, number: int) -> Header:
    """Returns the metadata of a call of a session, which has given up changes with lower numbers."""
    return _CALLS_SESSION, f"{session} {number}"


def session_in(metadata: Metadata) -> tuple[str, int] | None:
    """Returns the session in the metadata of a call, and its number, or None. Raises InvalidArgumentError for an unreadable session."""
    values = [value for key, value in metadata if key == _CALLS_SESSION]
    if not values:
        return None
    match = _SESSION.fullmatch(values[0]) if len(values) == 1 and isinstance(values[0], str) else None
    if match is None:
        raise InvalidArgumentError(
            f"the header {_CALLS_SESSION!r} is {values[0][:100]!r}: send one, of up to 64 visible characters of ASCII, a space and a number"
        )
    return match[1], int(match[2])


def client_in(metadata: Metadata) -> str:
    """Returns the client that the metadata of a call name: its session; empty if they name none. Raises as `session_in` does."""
    session = session_in(metadata)
    return "" if session is None else session[0]


def log_header(log_id: int) -> Header:
    """Returns the metadata that names a log: in a call the log that its client opened, in a trailer the log of the server."""
    return LOG_ID, f"{log_id:x}"


def log_in(metadata: Metadata) -> int | None:
    """Returns the log that the metadata of a call name, or None. Raises InvalidArgumentError for a name that cannot be read."""
    values = [value for key, value in metadata if key == LOG_ID]
    if not values:
        return None
    if len(values) != 1 or not isinstance(values[0], str) or not _HEX.fullmatch(values[0]):
        raise InvalidArgumentError(
            f"the header {LOG_ID!r} is {values[0][:100]!r}: send the log_id that DescribeLog answered, hexadecimal, or none"
        )
    return int(values[0], 16)


def _decoded(metadata: Metadata, name: str, kind: type[_P]) -> _P:
    values = [value for key, value in metadata if key == name]
    if len(values) != 1:
        raise InvalidArgumentError(f"the call has {len(values)} headers {name!r}: send one, the base64 of a {kind.DESCRIPTOR.name}")
    request = kind()
    try:
        request.ParseFromString(base64.b64decode(values[0], validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise InvalidArgumentError(
            f"the header {name!r} is {values[0][:100]!r}, which cannot be decoded ({error}): send the base64 of a {kind.DESCRIPTOR.name}"
        ) from error
    return request


def _check_pchannel(name: str, header: str) -> None:
    if not name:
        raise InvalidArgumentError(f"the header {header!r} names no pchannel: name a pchannel that AssignmentDiscover shows on this node")
