"""Calls within one process: a client and a server that share an event loop need no socket.

A server that offers this registers itself under its advertised address. A `DirectChannel` to that address calls its handlers, through the
same interceptors and with the same bytes as over a connection, so tokens, bounds, deadlines and the order of a stream are what they are
elsewhere. While no such server is there the channel is one of gRPC's.

It guarantees that a call ends at both sides: the handler's task is cancelled when the caller has gone, and the caller gets UNAVAILABLE when
the server has ended. A side that writes waits while the other one has `WINDOW` bytes that it did not read.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

WINDOW: Final = 1 << 20
_Code: Final = grpc.StatusCode
_servers: Final[dict[str, InProcessServer]] = {}
"""The servers of this process that are called directly, by address."""
_numbers: Final = itertools.count(1)
_log: Final = logging.getLogger("wal.rpc")


class InProcessServer:
    """The handlers of a server for callers on its own loop. It is used as a gRPC server: it takes handlers, starts and stops."""

    def __init__(self, interceptors: Sequence[Any]) -> None:
        """The interceptors are asked in their order; the first one makes of every call one that streams."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._interceptors = tuple(interceptors)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._context = contextvars.copy_context()
        self._address = ""
        self._calls: dict[_Call, None] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Adds handlers, as gRPC's servers do."""
        self._handlers.extend(handlers)

    def start(self, address: str) -> None:
        """Takes the calls to this address from callers on this loop."""
        self._address = address
        _servers[address] = self

    async def stop(self) -> None:
        """Takes no calls any more, and ends those under way. Idempotent."""
        if _servers.get(self._address) is self:
            del _servers[self._address]
        tasks = [call.task for call in self._calls]
        for call in list(self._calls):
            call.finish(_Code.UNAVAILABLE, "the server of this process has ended")
        if tasks:
            await asyncio.wait(tasks)

    def begin(self, call: _Call) -> asyncio.Task[None]:
        """Begins to serve a call."""
        self._calls[call] = None
        task = self.loop.create_task(call.serve(self), name=call.path, context=self._context.copy())
        task.add_done_callback(lambda _: self._calls.pop(call, None))
        return task

    async def handler_of(self, details: _Details, first: int = 0) -> Any:
        """Returns the handler of a call, as the interceptors make it; None if there is none."""
        if first < len(self._interceptors):
            return await self._interceptors[first].intercept_service(lambda given: self.handler_of(given, first + 1), details)
        return next((handler for each in self._handlers if (handler := each.service(details)) is not None), None)


class DirectChannel:
    """A channel to an address: to the server of this process and loop while that is there, else the one that `connect` returns."""

    def __init__(self, address: str, connect: Callable[[], grpc.aio.Channel]) -> None:
        self._address = address
        self._connect = connect
        self._connected: grpc.aio.Channel | None = None
        self._calls: dict[_Call, None] = {}
        self._peer = f"in-process:{next(_numbers)}"
        self._closed = False

    @property
    def server(self) -> InProcessServer | None:
        """The server at the address, if it is in this process and on this loop."""
        server = None if self._closed else _servers.get(self._address)
        return server if server is not None and server.loop is asyncio.get_running_loop() else None

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state, as gRPC's channels do."""
        if self.server is not None:
            return grpc.ChannelConnectivity.READY
        return self._remote().get_state(try_to_connect=try_to_connect)

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        """Returns what makes a call with one request and one response."""
        if (server := self.server) is None:
            return self._remote().unary_unary(path, request_serializer, response_deserializer)

        def begin(request: Any, *, timeout: float | None = None, metadata: Any = (), wait_for_ready: bool | None = None) -> _Call:
            return self._begin(server, path, metadata, (request_serializer, response_deserializer), timeout, request)

        return begin

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        """Returns what makes a call with one request and many responses."""
        if (server := self.server) is None:
            return self._remote().unary_stream(path, request_serializer, response_deserializer)

        def begin(request: Any, *, timeout: float | None = None, metadata: Any = ()) -> _Call:
            return self._begin(server, path, metadata, (request_serializer, response_deserializer), timeout, request)

        return begin

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any) -> Any:
        """Returns what makes a call that streams both ways."""
        if (server := self.server) is None:
            return self._remote().stream_stream(path, request_serializer, response_deserializer)

        def begin(*, timeout: float | None = None, metadata: Any = ()) -> _Call:
            return self._begin(server, path, metadata, (request_serializer, response_deserializer), timeout)

        return begin

    async def close(self, grace: float | None = None) -> None:
        """Cancels the calls under way, and disconnects."""
        self._closed = True
        for call in list(self._calls):
            call.cancel()
        if self._connected is not None:
            await self._connected.close(grace)

    def _remote(self) -> grpc.aio.Channel:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def _begin(
        self, server: InProcessServer, path: str, metadata: Any, serializers: tuple[Any, Any], timeout: float | None, *requests: Any
    ) -> _Call:
        call = _Call(path, self._peer, metadata, *serializers, timeout=timeout)
        self._calls[call] = None
        for request in requests:
            call.send_only(request)
        call.task = server.begin(call)
        call.task.add_done_callback(lambda _: self._calls.pop(call, None))
        return call


class _Pair(NamedTuple):
    """A pair of a call's metadata."""

    key: str
    value: Any


class _Details(NamedTuple):
    """What an interceptor is told of a call (`grpc.HandlerCallDetails`)."""

    method: str
    invocation_metadata: tuple[_Pair, ...]


class _Way:
    """The messages from one side of a call to the other. One task takes, one puts."""

    def __init__(self) -> None:
        self._messages: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self.ended: bool = False

    def put_nowait(self, data: bytes) -> None:
        self._messages.append(data)
        self._size += len(data)
        self._changed.set()

    async def put(self, data: bytes) -> bool:
        """Puts a message once there is room for it; one message always finds room. Returns False if the way has ended."""
        while self._size and self._size + len(data) > WINDOW and not self.ended:
            self._changed.clear()
            await self._changed.wait()
        if not self.ended:
            self.put_nowait(data)
        return not self.ended

    def drop(self) -> None:
        """Drops what nobody took."""
        self._messages.clear()
        self._size = 0

    async def take(self) -> bytes | None:
        """Returns the next message, None after the last one."""
        while not self._messages:
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        data = self._messages.popleft()
        self._size -= len(data)
        self._changed.set()
        return data

    def end(self) -> None:
        self.ended = True
        self._changed.set()


class _Call:
    """A call: for its caller what gRPC's channels return, and by `context` for its handler."""

    task: asyncio.Task[None]
    """The task that serves it."""

    def __init__(self, path: str, peer: str, metadata: Any, serialize: Any, parse: Any, *, timeout: float | None) -> None:
        self.path = path
        self.peer = peer
        self.metadata: tuple[_Pair, ...] = tuple(_Pair(key, value) for key, value in metadata or ())
        self.requests = _Way()
        self.responses = _Way()
        self._serialize = serialize
        self._parse = parse
        self._done_writing = False
        loop = asyncio.get_running_loop()
        self._status: asyncio.Future[tuple[grpc.StatusCode, str, tuple[Any, ...]]] = loop.create_future()
        self._cancelled = False
        self._timer = None if timeout is None else loop.call_later(timeout, self.finish, _Code.DEADLINE_EXCEEDED, "Deadline Exceeded")

    # -- the caller's side

    def send_only(self, request: Any) -> None:
        """Sends the only request."""
        self.requests.put_nowait(self._serialize(request))
        self._done_writing = True
        self.requests.end()

    async def write(self, request: Any) -> None:
        if self._status.done():
            raise asyncio.InvalidStateError("the call has ended")
        if self._done_writing:
            raise asyncio.InvalidStateError("nothing is written after done_writing")
        try:
            await self.requests.put(self._serialize(request))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._status.done():
            await self._raise_for_status()

    async def done_writing(self) -> None:
        self._done_writing = True
        self.requests.end()

    async def read(self) -> Any:
        try:
            data = await self.responses.take()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is not None:
            return self._parsed(data)
        await self._raise_for_status()
        return grpc.aio.EOF

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._each()

    async def _each(self) -> AsyncIterator[Any]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            data = await self.responses.take()
            await asyncio.shield(self._status)
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._raise_for_status()
        assert data is not None, "an answer comes before its status"
        return self._parsed(data)

    def cancel(self) -> bool:
        if self._status.done():
            return False
        self._cancelled = True
        self.finish(_Code.CANCELLED, "the caller cancelled the call")
        return True

    async def code(self) -> grpc.StatusCode:
        return (await asyncio.shield(self._status))[0]

    async def details(self) -> str:
        return (await asyncio.shield(self._status))[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await asyncio.shield(self._status))[2])

    async def _raise_for_status(self) -> None:
        code, details, trailers = await asyncio.shield(self._status)
        if self._cancelled:
            raise asyncio.CancelledError
        if code is not _Code.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)

    def _parsed(self, data: bytes) -> Any:
        try:
            return self._parse(data)
        except Exception:
            return None  # as gRPC does for what it cannot parse

    # -- the end

    def finish(self, code: grpc.StatusCode, details: str) -> None:
        """Ends the call from outside: nothing more of it is read, and its handler is cancelled."""
        if not self._status.done():
            self._end(code, details, ())
            self.responses.drop()
            self.task.cancel()

    def _end(self, code: grpc.StatusCode, details: str, trailers: tuple[Any, ...]) -> None:
        if not self._status.done():
            self._status.set_result((code, details, trailers))
            if self._timer is not None:
                self._timer.cancel()
            self.requests.end()
            self.responses.end()

    # -- the handler's side

    async def serve(self, server: InProcessServer) -> None:
        """Runs the handler of the call."""
        try:
            handler = await server.handler_of(_Details(self.path, self.metadata))
            if handler is None:
                self._end(_Code.UNIMPLEMENTED, "Method not found!", ())
                return
            assert handler.stream_stream is not None, "the first interceptor made it one"
            await handler.stream_stream(None, _Context(self))
            self._end(_Code.OK, "", ())
        except grpc.aio.AbortError:
            self._end(_Code.UNKNOWN, "the handler aborted without a status", ())
        except asyncio.CancelledError:
            self._end(_Code.CANCELLED, "the server cancelled the call", ())
        except Exception as error:
            if not self._status.done():
                _log.error("a handler of %s failed; please report it", self.path, exc_info=error)
            self._end(_Code.UNKNOWN, f"unexpected {type(error).__name__}: {error}", ())

    def abort(self, code: grpc.StatusCode, details: str, trailers: Any) -> None:
        self._end(code, details, tuple((key, value) for key, value in trailers))


class _Context:
    """The context of a handler, with what handlers use of gRPC's."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def invocation_metadata(self) -> tuple[_Pair, ...]:
        return self._call.metadata

    def peer(self) -> str:
        return self._call.peer

    async def read(self) -> Any:
        data = await self._call.requests.take()
        return grpc.aio.EOF if data is None else data

    async def write(self, data: bytes) -> None:
        if not await self._call.responses.put(data):
            raise grpc.aio.InternalError("the caller has ended the call")

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self._call.abort(code, details, trailing_metadata)
        raise grpc.aio.AbortError("the handler has ended the call")
