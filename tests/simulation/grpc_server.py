"""Server: gRPC's server over the simulated network, with the interface of `grpc.aio` that the product uses.

A call runs as a task of the server's process, through the interceptors, in the order in which gRPC asks them. It is cancelled when its
client cancels it, when its deadline has passed, and when the connection has ended. `Accepted` is the server's side of a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio

from tests.simulation.grpc_channel import Inbox, Window, Wire
from tests.simulation.loop import Process, SimulatedLoop, current_process
from tests.simulation.network import Direction, Network

_log = logging.getLogger("tests.simulation")
_Status = grpc.StatusCode


class Metadatum(NamedTuple):
    """A pair of a call's metadata."""

    key: str
    value: Any


class CallDetails(NamedTuple):
    """The interceptor's data of a call (`grpc.HandlerCallDetails`)."""

    method: str
    invocation_metadata: tuple[Metadatum, ...]


class Server:
    """A server of the process that creates it."""

    network: Network
    """Set by the environment of a run."""

    def __init__(self, *, interceptors: Sequence[Any] = (), options: object = None) -> None:
        process = current_process()
        assert process is not None, "only simulated processes serve"
        self.process = process
        self.loop: SimulatedLoop = process.loop
        self.interceptors = tuple(interceptors)
        self.calls: dict[ServerCall, None] = {}
        self._handlers: list[Any] = []
        self._accepted: dict[Accepted, None] = {}
        self._address = ""
        self._stopped = False
        self._number = 0

    def add_insecure_port(self, address: str) -> int:
        self._address = address
        return int(address.rpartition(":")[2])

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Generic handlers find the same methods."""

    async def start(self) -> None:
        self.network.listeners[self._address] = self.process, self

    async def stop(self, grace: float | None) -> None:
        if not self._stopped:
            self._stopped = True
            if self.network.listeners.get(self._address, (None, None))[1] is self:
                del self.network.listeners[self._address]
        if grace and self.calls:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    while self.calls:
                        await asyncio.wait([call.task for call in self.calls])
        for accepted in list(self._accepted):
            accepted.close()

    def accept(self, wire: Wire) -> Accepted:
        self._number += 1
        accepted = Accepted(self, wire, f"ipv4:{wire.client.name}:{self._number}")
        self._accepted[accepted] = None
        return accepted

    def forget(self, accepted: Accepted) -> None:
        self._accepted.pop(accepted, None)

    async def handler_of(self, details: CallDetails) -> Any:
        """Returns the handler of a call, as the interceptors make it; None if there is none."""

        async def from_here(first: int, details: CallDetails) -> Any:
            if first < len(self.interceptors):
                return await self.interceptors[first].intercept_service(lambda given: from_here(first + 1, given), details)
            return next((found for each in self._handlers if (found := each.service(details)) is not None), None)

        return await from_here(0, details)


class Accepted:
    """The server's side of a connection."""

    def __init__(self, server: Server, wire: Wire, peer: str) -> None:
        self.server = server
        self.wire = wire
        self.peer = peer
        self._calls: dict[ServerCall, None] = {}

    def begin(self, call: Any) -> ServerCall:
        served = ServerCall(self, call)
        self._calls[served] = None
        self.server.calls[served] = None
        return served

    def ended(self, served: ServerCall) -> None:
        self._calls.pop(served, None)
        self.server.calls.pop(served, None)

    def lost(self) -> None:
        """The connection has ended: so do its calls."""
        self.server.forget(self)
        for served in list(self._calls):
            served.cancelled_by_client()

    def close(self) -> None:
        """The server ends the connection."""
        if not self.wire.closed_at_server:
            self.wire.close_at_server()
            self.lost()


class ServerCall:
    """A call, as its server has it: the context of its handler."""

    on_request: Callable[[ServerCall, bytes], object] = staticmethod(lambda *_: None)
    """Called with each message that a handler reads, and its call."""
    on_answer: Callable[[ServerCall, bytes], object] = staticmethod(lambda *_: None)
    """Called with each message that is sent, and its call."""

    def __init__(self, accepted: Accepted, call: Any) -> None:
        loop = accepted.server.loop
        self.inbox = Inbox(loop)
        self.window = Window(loop)
        self.number = loop.next_number()
        self.path: str = call.path
        self.client: str = accepted.wire.client.name
        """The process that calls."""
        self.server: Process = accepted.server.process
        self.answering: Direction = call.answering
        self.request: bytes = b""
        """The newest message of the client."""
        self._accepted = accepted
        self._call = call
        self._metadata = tuple(Metadatum(*pair) for pair in call.metadata)
        self._serialize: Any = None
        self._parse: Any = None
        self._status_sent = False
        self._gone = False
        self._timer = None if call.deadline_s is None else loop.call_at(call.deadline_s, self.cancelled_by_client)
        self.task: asyncio.Task[None] = loop.create_task(self._serve(), context=accepted.server.process.main.context.copy())

    # -- the context of the handler

    def invocation_metadata(self) -> tuple[Metadatum, ...]:
        return self._metadata

    def peer(self) -> str:
        return self._accepted.peer

    async def read(self) -> Any:
        data = await self.inbox.take()
        if data is None:
            return grpc.aio.EOF
        self.request = data
        self.on_request(self, data)
        if not self._gone:
            self._accepted.wire.to_client(_none(), self._call.window.give, len(data))
        return data if self._parse is None else self._parse(data)

    async def write(self, response: Any) -> None:
        data = response if self._serialize is None else self._serialize(response)
        await self.window.take(len(data))
        if self._gone or self._status_sent:
            raise grpc.aio.InternalError("the client of this call is gone")
        self.on_answer(self, data)
        self._accepted.wire.to_client(self._call.answering, self._call.inbox.put, data, size=len(data))

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        self._send_status(code, details, tuple((key, value) for key, value in trailing_metadata))
        raise grpc.aio.AbortError("Locally aborted.")

    # -- the call

    def cancelled_by_client(self) -> None:
        """The client has cancelled the call, or is gone, or the deadline has passed."""
        if not self._gone:
            self._gone = True
            self.inbox.end()
            self.window.close()
            self.task.cancel()

    async def _serve(self) -> None:
        try:
            handler = await self._accepted.server.handler_of(CallDetails(self._call.path, self._metadata))
            if handler is None:
                self._send_status(_Status.UNIMPLEMENTED, "Method not found!", ())
                return
            self._serialize, self._parse = handler.response_serializer, handler.request_deserializer
            if handler.stream_stream is not None:
                await handler.stream_stream(self._requests(), self)
            else:
                request = await self.read()
                if request is grpc.aio.EOF:
                    return
                if handler.unary_unary is not None:
                    await self.write(await handler.unary_unary(request, self))
                else:
                    async for response in handler.unary_stream(request, self):
                        await self.write(response)
            self._send_status(_Status.OK, "", ())
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._send_status(_Status.CANCELLED, "the server cancelled the call", ())
        except Exception as error:
            if not self._gone:
                _log.error("a handler of %s failed", self._call.path, exc_info=error)
            self._send_status(_Status.UNKNOWN, f"Unexpected {type(error)}: {error}", ())
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._accepted.ended(self)

    async def _requests(self) -> Any:
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request

    def _send_status(self, code: grpc.StatusCode, details: str, trailers: tuple[Any, ...]) -> None:
        if not self._status_sent:
            self._status_sent = True
            if not self._gone:
                self._accepted.wire.to_client(self._call.answering, lambda: self._call.finish(code, details, trailers, told=True))


def _none() -> Direction:

    return Direction()
