"""Bounds: accounts for the calls and bytes that a server's clients have in flight.

A server counts three things, for all clients together and for each client: calls and streams, bytes of requests that may be arriving, and
bytes of answers that are encoded and not yet read. A client is a connection: several connections with one token or address may belong to
independent processes. Over a bound a call ends with WouldBlockError, which is the status RESOURCE_EXHAUSTED, and names the bound; others
are served on. Health checks are answered under all of them.

`Bounded` is the outermost interceptor. It serves every kind of call as a stream. Only a stream shows when a request is read and when an
answer has left:

* A unary request is read when the largest request would have room, and has `UPLOAD_S` to arrive.
* An answer counts from when it is encoded until the next one of its call was taken by HTTP/2, which waits for the client to read. An answer
  that needs much memory earlier, a page of frames, reserves its room first (`Conversation.room`), and waits a while for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio

from wal.errors import WALError, WouldBlockError
from wal.rpc.codes import abort
from wal.rpc.methods import MILVUS_PRODUCE, PRODUCE
from wal.settings import ServerBounds

UPLOAD_S: Final = 30.0
"""How long a request may take to arrive."""
ROOM_S: Final = 5.0
"""How long a call waits for room, for its request or for a page of frames."""
SMALL_BYTES: Final = 64 * 1024
"""An answer up to this size is counted and never refused: it ends no stream on which a client waits for something else."""
_ALWAYS: Final = "/grpc.health.v1.Health/Check"
_PRODUCES: Final = (PRODUCE.path, MILVUS_PRODUCE.path)


class Budget:
    """Room that calls take and release: `most` for all clients, `client_most` for each. A call that is alone gets more."""

    def __init__(self, what: str, name: str, most: int, client_most: int) -> None:
        """`what` is counted, as errors name it; the setting `name` has the bound, and `client_` with that name a client's."""
        self.used: int = 0
        self.refused: int = 0
        """How many calls got a WouldBlockError."""
        self.by_client: dict[str, int] = {}
        self._what, self._name = what, name
        self._most, self._client_most = most, client_most
        self._waiting: dict[asyncio.Future[None], tuple[str, int]] = {}

    def has_room(self, client: str, size: int) -> bool:
        own = self.by_client.get(client, 0)
        return not (own and own + size > self._client_most) and not (self.used and self.used + size > self._most)

    def take(self, client: str, size: int) -> None:
        """Takes room. Raises WouldBlockError if there is none."""
        if not self.has_room(client, size):
            raise self._refusal(client)
        self.force(client, size)

    def force(self, client: str, size: int) -> None:
        """Takes room, also if there is none."""
        self.used += size
        self.by_client[client] = self.by_client.get(client, 0) + size

    async def wait(self, client: str, size: int, timeout_s: float) -> None:
        """Takes room when there is some. Raises WouldBlockError if that takes longer than `timeout_s`."""
        if self.has_room(client, size):
            self.force(client, size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[granted] = client, size
        try:
            async with asyncio.timeout(timeout_s):
                await granted
        except TimeoutError:
            if not self._was_granted(granted):
                raise self._refusal(client) from None
        except BaseException:
            if self._was_granted(granted):
                self.release(client, size)
            raise

    def release(self, client: str, size: int) -> None:
        """Returns room, and grants it to the waiting calls, in their order."""
        self.used -= size
        if left := self.by_client.pop(client, 0) - size:  # an empty answer takes nothing
            self.by_client[client] = left
        for granted, (other, waiting_size) in list(self._waiting.items()):
            if self.has_room(other, waiting_size):
                del self._waiting[granted]
                self.force(other, waiting_size)
                if not granted.done():
                    granted.set_result(None)

    def _was_granted(self, granted: asyncio.Future[None]) -> bool:
        return self._waiting.pop(granted, None) is None

    def _refusal(self, client: str) -> WouldBlockError:
        own = self.by_client.get(client, 0)
        self.refused += 1
        return WouldBlockError(
            f"this connection has {own} {self._what} under way, and all together {self.used}: at most client_{self._name}="
            f"{self._client_most} and {self._name}={self._most} are accepted; end some, read what was answered, or raise the setting"
        )


class Bounded(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Holds all calls to these bounds. `request_bytes` is the size of the largest request, `pchannels` the number of pchannels here."""

    def __init__(self, bounds: ServerBounds, *, request_bytes: int, pchannels: int) -> None:
        self.calls: Budget = Budget("calls", "calls_max", bounds.calls_max, bounds.client_calls_max)
        self.uploads: Budget = Budget("bytes of requests", "upload_bytes_max", bounds.upload_bytes_max, bounds.client_upload_bytes_max)
        self.answers: Budget = Budget("bytes of answers", "answer_bytes_max", bounds.answer_bytes_max, bounds.client_answer_bytes_max)
        self.producers: Budget = Budget(
            "Produce streams", "produce_streams_max", bounds.produce_streams_max, max(bounds.client_produce_streams_max, 2 * pchannels)
        )
        """Each of them may have a part of a request in memory, and nobody is told how large that is."""
        self._request_bytes = request_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or method == _ALWAYS:
            return handler
        serve = self._stream if handler.stream_stream is not None else self._single
        budgets = (self.calls, self.producers) if method in _PRODUCES else (self.calls,)

        async def call(requests: object, context: Any) -> None:
            client = context.peer()
            with contextlib.ExitStack() as taken:
                try:
                    for budget in budgets:
                        budget.take(client, 1)
                        taken.callback(budget.release, client, 1)
                except WouldBlockError as refusal:
                    await abort(context, refusal)
                counted = _Context(context, client, self.answers, handler, method)
                taken.callback(counted.end)
                try:
                    await serve(handler, requests, counted)
                except grpc.aio.InternalError as lost:  # the client is gone, and gRPC would log an error
                    raise asyncio.CancelledError from lost

        return grpc.stream_stream_rpc_method_handler(call)

    async def _stream(self, handler: grpc.RpcMethodHandler, requests: object, context: _Context) -> None:
        await handler.stream_stream(requests, context)

    async def _single(self, handler: grpc.RpcMethodHandler, _requests: object, context: _Context) -> None:
        """Serves a call with one request."""
        if (data := await self._read(context)) is None:
            return
        parse = handler.request_deserializer
        request = data if parse is None else parse(data)
        if handler.unary_unary is not None:
            await context.answer(await handler.unary_unary(request, context))
            return
        await handler.unary_stream(request, context)

    async def _read(self, context: _Context) -> bytes | None:
        """Returns the request of a call, or None if its client has gone."""
        try:
            await self.uploads.wait(context.client, self._request_bytes, ROOM_S)
        except WouldBlockError as refusal:
            await abort(context, refusal)
        try:
            reading = asyncio.ensure_future(context.read())
            # The handler may be cancelled, or give up. The read is not cancelled then, since gRPC for Python never frees what arrives after
            # that. It ends with the call, or with the server, and nobody wants its error.
            reading.add_done_callback(lambda read: read.cancelled() or read.exception())
            await asyncio.wait((reading,), timeout=UPLOAD_S)
            if not reading.done():
                await abort(context, WouldBlockError(f"the request did not arrive within {UPLOAD_S:g} s: send it faster"))
            data = reading.result()
            return None if data is grpc.aio.EOF else data
        finally:
            self.uploads.release(context.client, self._request_bytes)


class _Context:
    """The context of a call, whose answers are counted. Everything else is that of gRPC."""

    def __init__(self, context: Any, client: str, answers: Budget, handler: grpc.RpcMethodHandler, method: str) -> None:
        self.client = client
        self._context = context
        self._answers = answers
        self._serialize = handler.response_serializer
        self._is_produce = method in _PRODUCES
        """Whether an answer may not be refused: the client would not know the outcomes of what was executed."""
        self._taken = 0
        """The room that the call has. It keeps that of its last answer, which HTTP/2 may have taken and not sent yet."""
        self._reserved = False
        """Whether the call has asked for its room before it makes its answers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """A block in which the call has room for this many bytes of answers. Waits for the room; raises WouldBlockError if none becomes
        free.

        A call takes over the room of its last answer. If each call waited for room while it has some, all might wait.
        """
        if size > self._taken:
            if not self._taken:
                await self._answers.wait(self.client, size, ROOM_S)
            else:
                self._answers.force(self.client, size - self._taken)
            self._taken = size
        self._reserved = True
        try:
            yield
        finally:
            self._reserved = False

    async def write(self, response: Any) -> None:
        """Writes a response of a stream. Raises WouldBlockError without room for it."""
        data = self._serialize(response) if self._serialize is not None else response
        size = len(data)
        if size > self._taken:
            if size > SMALL_BYTES and not self._is_produce and not self._taken:
                self._answers.take(self.client, size)
            else:
                self._answers.force(self.client, size - self._taken)
            self._taken = size
        await self._context.write(data)
        if not self._reserved:
            self._shrink(size)

    def _shrink(self, size: int) -> None:
        """Keeps room for the last answer only."""
        if size < self._taken:
            self._answers.release(self.client, self._taken - size)
            self._taken = size

    def end(self) -> None:
        """Gives all room back, since the call has ended."""
        self._shrink(0)

    async def answer(self, response: Any) -> None:
        """Writes a response after its handler has returned, and ends the call without room for it."""
        try:
            await self.write(response)
        except WALError as refusal:
            await abort(self, refusal)
