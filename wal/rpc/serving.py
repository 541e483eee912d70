"""A gRPC server of the protocol: its options, its handlers, and the port at which it listens.

A handler raises errors of `wal.errors`; they end its call with the status and the details of `codes`. Any other exception of a handler is
logged, and ends its own call only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import grpc
import grpc.aio

from wal.errors import StorageError, WALError
from wal.network import PING_S, Method, ServerCertificate, ping_options
from wal.rpc.api import cluster_pb2, streaming_pb2
from wal.rpc.codes import abort
from wal.rpc.conversation import Conversation, parser
from wal.runtime.threads import in_thread

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest request by default: a transaction has at most 4 MiB by default, a frame 4.5."""

METADATA_BYTES_MAX: Final = 16 * 1024
"""The most metadata of a call, with gRPC's own of about 500 bytes."""

_log: Final = logging.getLogger("wal.rpc")

Handler = Callable[[Any, Any], Awaitable[Any]] | Callable[[Any, Any], AsyncIterator[Any]] | Callable[[Any], Awaitable[None]]
"""A handler: `(request, context) -> response`; for a method that answers with many responses, an async generator of the same arguments; for
a method that also takes many requests `(context) -> None`, where the context is a `Conversation`."""


Behavior = Callable[[Any, Any], Awaitable[Any]]
"""A handler of a call: its arguments are the request, or None if requests come by the context, and the context."""


def wrapped(handler: grpc.RpcMethodHandler, around: Callable[[Behavior, Any, Any], Awaitable[Any]]) -> grpc.RpcMethodHandler:
    """Returns a handler of `add_handlers` whose behaviors are called by `around(behavior, request, context)`."""

    def wrap(behavior: Behavior) -> Behavior:
        async def call(request: Any, context: Any) -> Any:
            return await around(behavior, request, context)

        return call

    serializers = (handler.request_deserializer, handler.response_serializer)
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(wrap(handler.unary_unary), *serializers)
    if handler.stream_stream is not None:
        return grpc.stream_stream_rpc_method_handler(wrap(handler.stream_stream), *serializers)
    return grpc.unary_stream_rpc_method_handler(wrap(handler.unary_stream), *serializers)


def server_options(
    *,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    ping_s: float = PING_S,
    connections_max: int = 8_192,
    idle_connection_s: float = 300.0,
    handshake_s: float = 10.0,
    client_calls_max: int = 1_024,
) -> list[tuple[str, Any]]:
    """Returns the options of a server, which refuses a request above `message_bytes_max` before it has room for it.

    A client that is gone without a word is found after `ping_s` and half of it, and its streams end. A connection without a call is closed
    after `idle_connection_s`, and a connection that does not begin with HTTP/2 after `handshake_s`; above `connections_max` new ones are
    closed at once. A client that has twice `client_calls_max` calls waits with more.
    """
    return [
        ("grpc.max_allowed_incoming_connections", connections_max),
        ("grpc.max_connection_idle_ms", round(idle_connection_s * 1000)),
        ("grpc.server_handshake_timeout_ms", round(handshake_s * 1000)),
        # Above the bound of calls, so that a call over that one is refused with the reason.
        ("grpc.max_concurrent_streams", 2 * client_calls_max),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", -1),
        # Without these gRPC refuses some of the calls with more than 8 KiB, by chance, and all above 16 KiB.
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.so_reuseport", 0),  # a second server at the same port is an error, not a partner
        # Clients ping while a call is under way (wal/network/endpoints.py), which gRPC takes for an attack by default.
        ("grpc.http2.min_ping_interval_without_data_ms", round(ping_s * 500)),
        *ping_options(ping_s),
    ]


def add_handlers(server: grpc.aio.Server, handlers: Mapping[Method[Any, Any], Handler]) -> None:
    """Serves these methods by these handlers. Methods that have none are answered with UNIMPLEMENTED."""
    services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    for method, handler in handlers.items():
        _, service, name = method.path.split("/")
        services.setdefault(service, {})[name] = _handler(method, handler, *_arity(method))
    server.add_generic_rpc_handlers(tuple(grpc.method_handlers_generic_handler(service, methods) for service, methods in services.items()))


def handed_on(methods: Iterable[Method[Any, Any]], to: Callable[[Method[Any, Any]], Any]) -> dict[Method[Any, Any], Handler]:
    """Returns handlers of these methods that call the handler which `to` returns at each call; its error ends the call."""
    return {method: _handed_on(method, to, *_arity(method)) for method in methods}


def _handed_on(method: Method[Any, Any], to: Callable[[Method[Any, Any]], Any], many_requests: bool, many_responses: bool) -> Handler:
    async def answer(request: Any, context: Any) -> Any:
        return await to(method)(request, context)

    async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(to(method)(request, context)) as responses:
            async for response in responses:
                yield response

    async def converse(context: Any) -> None:
        await to(method)(context)

    return converse if many_requests else answers if many_responses else answer


async def listen(server: grpc.aio.Server, address: str, *, tls: ServerCertificate | None = None) -> int:
    """Adds a port to a server and returns its number; port 0 is a free one. With `tls` only clients with TLS are served.

    Raises StorageError if nothing can listen at the address.
    """
    await check_free(address)
    try:
        if tls is None:
            port: int = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.credentials)
    except RuntimeError as error:
        raise StorageError(
            f"nothing can listen at {address!r} ({error}): is the port in use, or the host another machine's? Name another address"
        ) from error
    return port


async def check_free(address: str) -> None:
    """Raises StorageError, with the system's reason, if no server can listen at `HOST:PORT` now. gRPC does not report the reason."""
    host, _, port = address.rpartition(":")
    try:
        addresses = await in_thread(socket.getaddrinfo, host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in addresses:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does: not refused after a restart
                probe.bind(place)
    except OSError as error:
        raise StorageError(
            f"nothing can listen at {address!r}: {error.strerror or error}; name a free port on an address of this machine, or stop the "
            "process that has the port"
        ) from error


def _handler(method: Method[Any, Any], handler: Any, many_requests: bool, many_responses: bool) -> grpc.RpcMethodHandler:
    # Requests are parsed here, because gRPC ends a call with INTERNAL when a request cannot be parsed.
    parse, serializer = parser(method), _serializer(method)

    async def answer(request: bytes, context: Any) -> Any:
        try:
            answered = await handler(await parse(request), context)
            return method.response() if answered is None else answered
        except Exception as error:
            await _end(method, context, error)

    async def answers(request: bytes, context: Any) -> None:
        # Responses are written here, because gRPC logs an error for each call whose client has gone while it writes.
        try:
            async with contextlib.aclosing(handler(await parse(request), context)) as responses:
                async for response in responses:
                    await context.write(response)
        except Exception as error:
            await _end(method, context, error)

    async def converse(_requests: object, context: Any) -> None:
        try:
            await handler(Conversation(context, parse))
        except Exception as error:
            await _end(method, context, error)

    if many_requests:
        return grpc.stream_stream_rpc_method_handler(converse, response_serializer=serializer)
    if many_responses:
        return grpc.unary_stream_rpc_method_handler(answers, response_serializer=serializer)
    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=serializer)


def _serializer(method: Method[Any, Any]) -> Callable[[Any], bytes]:
    """Returns the function that serializes the responses of a method. A handler may return bytes, which it has encoded in slices."""
    to_string = method.response.SerializeToString
    return lambda response: response if response.__class__ is bytes else to_string(response)


async def _end(method: Method[Any, Any], context: Any, error: Exception) -> None:
    """Ends a call whose handler raised this. Raises CancelledError if the client is gone: killed, for example, or disconnected."""
    try:
        if isinstance(error, grpc.aio.AbortError | grpc.aio.InternalError):
            raise error  # the handler has ended the call itself, or gRPC could not read or write
        if not isinstance(error, WALError):
            _log.error("a handler of %s failed; please report it", method.path, exc_info=error)
        await abort(context, error)
    except grpc.aio.InternalError as lost:
        _log.debug("a client of %s is gone before the end of its call (%s)", method.path, lost)
        raise asyncio.CancelledError from lost
    finally:
        del error  # its traceback leads to this frame, and to the answers of the handler: they are freed at once


_ARITIES: Final[Mapping[tuple[str, str], tuple[bool, bool]]] = {
    (service.name, method.name): (method.client_streaming, method.server_streaming)
    for file in (streaming_pb2, cluster_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""Whether a method takes many requests, and whether it answers with many responses."""


def _arity(method: Method[Any, Any]) -> tuple[bool, bool]:
    _, service, name = method.path.split("/")
    return _ARITIES[service.rpartition(".")[2], name]
