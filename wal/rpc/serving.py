"""A gRPC server of the protocol: its options, its handlers, the port at which it listens, and its end.

A handler raises errors of `wal.errors`; they end its call with the status and the details of `codes`. Any other exception of a handler is
logged, and ends its own call only. `Draining` is the end of a node: new calls are refused, streams are asked to end, and calls under way
are waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from wal.channels.slices import SLICE
from wal.errors import ClosedError, InvalidArgumentError, StorageError, WALError
from wal.network import PING_S, Method, ServerCertificate, ping_options
from wal.rpc.api import cluster_pb2, streaming_pb2
from wal.rpc.codes import abort
from wal.rpc.frame_pages import fields_in
from wal.runtime.tasks import end_tasks, retrieve
from wal.runtime.threads import in_thread

MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest request by default: a transaction has at most 4 MiB by default, a frame 4.5."""

METADATA_BYTES_MAX: Final = 16 * 1024
"""The most metadata of a call, with gRPC's own of about 500 bytes."""

COUNTED_BYTES: Final = 256 * 1024
"""The size above which the fields of a request are counted before it is parsed."""
ENTRIES_MAX: Final = 262_144
"""The most fields of a request, in all its messages: more than the 65,536 names of a cursor with their incarnations have."""
_ENTRIES_A_TURN: Final = 8192

Handler = Callable[[Any, Any], Awaitable[Any]] | Callable[[Any, Any], AsyncIterator[Any]] | Callable[[Any], Awaitable[None]]
"""A handler: `(request, context) -> response`; for a method that answers with many responses, an async generator of the same arguments; for
a method that also takes many requests `(context) -> None`, where the context is a `Conversation`."""


Behavior = Callable[[Any, Any], Awaitable[Any]]
"""What a handler does with the request of a call, or with None if those come by its context, and the context."""


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
    parse, serializer = _parser(method), _serializer(method)

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


class Conversation:
    """The part of a call's context that the handler of a stream uses. Reads must not overlap."""

    def __init__(self, context: Any, parse: Callable[[bytes], Awaitable[Any]]) -> None:
        self.invocation_metadata: Callable[[], Any] = context.invocation_metadata
        self.write: Callable[[Any], Awaitable[None]] = context.write
        self._context = context
        self._read = context.read
        self._parse = parse
        self._reader: asyncio.Task[Any] | None = None
        """The task whose read is under way."""
        self._ended = False

    def room(self, size: int) -> contextlib.AbstractAsyncContextManager[None]:
        """A block in which the call has room for this many bytes of answers. Waits for the room; raises WouldBlockError if none becomes
        free.
        """
        block: contextlib.AbstractAsyncContextManager[None] = self._context.room(size)
        return block

    async def read(self) -> Any:
        """Returns the next request, or EOF, also when a reader was ended. Raises InvalidArgumentError for an invalid request. End a task
        that may wait here with `end`. Only a stopping node cancels such a task.
        """
        if self._ended:
            return grpc.aio.EOF
        self._reader = asyncio.current_task()
        try:
            data = await self._read()
        finally:
            self._reader = None
        return grpc.aio.EOF if data is grpc.aio.EOF or self._ended else await self._parse(data)

    async def end(self, reader: asyncio.Task[Any]) -> None:
        """Ends a task that reads: when this returns, it gets no request any more, and does nothing else. Its error is of no interest.

        A read that is under way is not cancelled. It gets EOF when the call ends, and the task ends then: gRPC for Python never frees a
        request that arrives for a read that was cancelled (https://github.com/grpc/grpc/issues/43360), and clients may send some on
        streams that end.
        """
        self._ended = True
        reader.add_done_callback(retrieve)
        if reader is not self._reader:
            await end_tasks(reader)


def _parser(method: Method[Any, Any]) -> Callable[[bytes], Awaitable[Any]]:
    """Returns the function that parses the requests of a method. It raises InvalidArgumentError for bytes that are not a request."""
    from_string, kind = method.request.FromString, method.request.DESCRIPTOR

    async def parse(data: bytes) -> Any:
        try:
            if len(data) > COUNTED_BYTES:
                await _check_entries(method, kind, data)
            return from_string(data)
        except (DecodeError, IndexError) as error:
            raise InvalidArgumentError(
                f"a request of {method.path} has {len(data)} bytes that cannot be parsed ({error}): send the message "
                f"{method.request.DESCRIPTOR.name}"
            ) from error

    return parse


async def _check_entries(method: Method[Any, Any], kind: Any, data: bytes) -> None:
    """Raises InvalidArgumentError for a request with more than `ENTRIES_MAX` fields, DecodeError for an invalid encoding.

    Parsing keeps the loop, and takes 40 ns for each field: millions of empty names fit a request.
    """
    entries = 0
    waiting = [(kind, 0, len(data))]
    while waiting:
        kind, start, end = waiting.pop()
        for number, _, first, last in fields_in(data, start, end):
            entries += 1
            if entries > ENTRIES_MAX:
                raise InvalidArgumentError(
                    f"a request of {method.path} has more than {ENTRIES_MAX} fields in its {len(data)} bytes: send several smaller ones"
                )
            if entries % _ENTRIES_A_TURN == 0:
                await asyncio.sleep(0)
            field = kind.fields_by_number.get(number)
            if first < last and field is not None and field.message_type is not None:
                waiting.append((field.message_type, first, last))


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


_log: Final = logging.getLogger("wal.rpc")


_ANSWERED_TO_THE_END: Final = (
    "/grpc.health.v1.Health/",
    "/milvus.proto.streaming.StreamingCoordStateService/",
    "/milvus.proto.streaming.StreamingNodeStateService/",
)
"""The services that say that the node is stopping."""


class Draining(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """An interceptor that counts the calls under way. Streams call `on_begin` to be told when they have to end."""

    def __init__(self) -> None:
        self.begun: bool = False
        """Whether the node is stopping."""
        self._callbacks: dict[Callable[[], object], None] = {}
        self.calls: int = 0
        """How many calls are under way."""
        self._idle = asyncio.Event()
        self._idle.set()

    def on_begin(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls `callback` when the node begins to stop, at once if it has begun; the returned function takes that back."""
        if self.begun:
            callback()
        self._callbacks[callback] = None
        return lambda: self._callbacks.pop(callback, None)

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """A block that ends with ClosedError when the node begins to stop, in the middle of a wait."""
        task = asyncio.current_task()
        assert task is not None
        forget = self.on_begin(task.cancel)
        try:
            yield
        except asyncio.CancelledError:
            if not self.begun or task.uncancel():  # it was cancelled by another one, perhaps as well
                raise
            raise self.error() from None
        finally:
            forget()

    def begin(self) -> None:
        """Refuses new calls from now on, and asks the streams to end. Idempotent."""
        if not self.begun:
            self.begun = True
            for callback in list(self._callbacks):
                callback()

    async def wait(self, timeout_s: float) -> bool:
        """Returns True when no call is under way, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @staticmethod
    def error() -> WALError:
        """Returns the error of a call that ends because the node does."""
        return ClosedError("the server is being stopped: connect again, to it or to another one")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        if handler_call_details.method.startswith(_ANSWERED_TO_THE_END):
            return await continuation(handler_call_details)
        if self.begun:
            return _REFUSED
        handler = await continuation(handler_call_details)
        return None if handler is None else wrapped(handler, self._counted)

    async def _counted(self, behavior: Behavior, request: Any, context: Any) -> Any:
        with self._under_way():
            return await behavior(request, context)

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """A block that is a call under way."""
        self.calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self._idle.set()


async def _refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await abort(context, Draining.error())


_REFUSED: Final = grpc.stream_stream_rpc_method_handler(_refuse)
"""Serves every kind of call: it reads and sends no message."""


_T = TypeVar("_T")


async def encoded(items: Iterable[_T], message_of: Callable[[list[_T]], Message], *rest: Message) -> bytes:
    """Returns the encoded message that has all items in a repeated field, and the fields of `rest`.

    `message_of` returns the message of a slice: encoded messages that follow each other are one.
    """
    parts: list[bytes] = [message.SerializeToString() for message in rest]
    every = iter(items)
    while some := list(islice(every, SLICE)):
        parts.append(message_of(some).SerializeToString())
        await asyncio.sleep(0)
    return b"".join(parts)
