"""Channel: gRPC's client over the simulated network, with the interface of `grpc.aio` that the product uses.

Wire: one connection, from a channel to a server. It is made by an exchange of messages, and found broken by pings while calls are under
way, by a reset, or by the end of the process at its other side. Calls on it then end with UNAVAILABLE, and nothing of it arrives any more.

A message of a stream is serialized when it is sent, and parsed when it is read. A stream has a window: who writes waits while the other
side does not read.

A unary call may be delayed on its way, and executed twice (`Call.on_its_way`), as one is that a client or a proxy made again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from tests.simulation.loop import Process, SimulatedLoop, current_process
from tests.simulation.network import Direction, Network

CONNECT_S: Final = 2.0
"""How long one attempt to connect may take (`grpc.min_reconnect_backoff_ms` of `wal.network.endpoints`)."""
BACKOFF_S: Final = (0.1, 0.5)
WINDOW: Final = 65_536
"""The bytes that a stream may have under way, as HTTP/2 has by default."""
_Status = grpc.StatusCode


class Wire:
    """A connection. `closed` is why it has ended at the client's side, `server` is what its other side is."""

    def __init__(self, network: Network, client: Process, server: Process, channel: Channel, ping_s: float) -> None:
        self.network = network
        self.client = client
        self.server = server
        self.channel = channel
        self.calls: dict[Call, None] = {}
        self.accepted: Any = None
        """The server's side of it, once it is accepted."""
        self.closed: str = ""
        self.closed_at_server: bool = False
        self._ping_s = ping_s
        self._pinging: asyncio.TimerHandle | None = None
        self._heard_s = 0.0
        self._ends = {client: Direction(), server: Direction()}
        """When the newest message arrives from each side: the end of the connection does after it."""
        network.add(client.name, server.name, self)

    def to_server(self, direction: Direction, deliver: Callable[..., object], *args: Any, size: int = 0) -> None:
        """Sends to the server's side, where nothing arrives after the connection has ended there."""
        self.network.send(self.client.name, self.server, direction, self._at_server, deliver, *args, size=size)
        end = self._ends[self.client]
        end.last_s = max(end.last_s, direction.last_s)

    def to_client(self, direction: Direction, deliver: Callable[..., object], *args: Any, size: int = 0) -> None:
        self.network.send(self.server.name, self.client, direction, self._at_client, deliver, *args, size=size)
        end = self._ends[self.server]
        end.last_s = max(end.last_s, direction.last_s)

    def _at_server(self, deliver: Callable[..., object], *args: Any) -> None:
        if not self.closed_at_server:
            deliver(*args)

    def _at_client(self, deliver: Callable[..., object], *args: Any) -> None:
        if not self.closed:
            self._heard_s = self.client.loop.time()
            deliver(*args)

    def begin(self, call: Call) -> None:
        self.calls[call] = None
        if self._pinging is None:
            self._heard_s = self.client.loop.time()
            self._ping_later()

    def end(self, call: Call) -> None:
        self.calls.pop(call, None)

    # -- how it ends

    def reset(self) -> None:
        """Breaks at both sides, each of which gets a message of its own."""
        loop = self.client.loop
        loop.call_later(0.0005, self.break_at_client, "Connection reset by peer", context=self.client.main.context)
        loop.call_later(0.0005, self.break_at_server, context=self.server.main.context)

    def killed(self, name: str) -> None:
        """The process at one side was killed; its kernel notifies the other side, unless the link is cut."""
        if self.server.name == name and self.server.dead:
            self.close_at_server()
        elif self.client.name == name and self.client.dead:
            self.closed = "killed"
            self.network.send(name, self.server, self._ends[self.client], self.break_at_server)

    def close(self) -> None:
        """Ends it from the client's side, in order."""
        if not self.closed:
            self.closed = "closed"
            self._ended()
            self.network.send(self.client.name, self.server, self._ends[self.client], self.break_at_server)

    def close_at_server(self) -> None:
        """Ends it from the server's side: the client hears that after all that was sent before."""
        self.closed_at_server = True
        self.network.send(self.server.name, self.client, self._ends[self.server], self.break_at_client, "Socket closed")

    def break_at_client(self, why: str) -> None:
        if not self.closed:
            self.closed = why
            self._ended()
            for call in list(self.calls):
                call.finish(_Status.UNAVAILABLE, why)
            self.channel.lost(self, why)

    def break_at_server(self) -> None:
        if not self.closed_at_server:
            self.closed_at_server = True
            if self.accepted is not None:
                self.accepted.lost()

    def _ended(self) -> None:
        self.network.discard(self.client.name, self.server.name, self)
        if self._pinging is not None:
            self._pinging.cancel()

    def _ping_later(self) -> None:
        self._pinging = self.client.loop.call_later(self._ping_s, self._ping, context=self.client.main.context)

    def _ping(self) -> None:
        self._pinging = None
        if self.closed or not self.calls:
            return
        if self.client.loop.time() - self._heard_s < self._ping_s:
            self._ping_later()
            return
        asked_s = self.client.loop.time()
        self.to_server(Direction(), self._answer_ping)

        def judge() -> None:
            if self.closed:
                return
            if self._heard_s < asked_s:
                self.break_at_client("keepalive watchdog timeout")
                self.network.send(self.client.name, self.server, Direction(), self.break_at_server)
            else:
                self._ping_later()

        self._pinging = self.client.loop.call_later(self._ping_s / 2, judge, context=self.client.main.context)

    def _answer_ping(self) -> None:
        self.to_client(Direction(), lambda: None)


class Channel:
    """A channel to one address. It connects when it is asked for its state, or called."""

    network: Network
    """Set by the environment of a run."""

    def __init__(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> None:
        process = current_process()
        assert process is not None, "only simulated processes connect"
        self.address = address
        self.process = process
        self._loop: SimulatedLoop = process.loop
        self._ping_s = dict(options).get("grpc.keepalive_time_ms", 10_000) / 1000
        self.wire: Wire | None = None
        self._state = grpc.ChannelConnectivity.IDLE
        self._why = ""
        self._attempt = 0
        self._backoff_s = BACKOFF_S[0]
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if try_to_connect and self._state is grpc.ChannelConnectivity.IDLE and not self._closed:
            self._connect()
        return self._state

    def unary_unary(self, path: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        def begin(request: Any, *, timeout: float | None = None, metadata: Any = (), wait_for_ready: bool | None = None) -> UnaryCall:
            call = UnaryCall(self, path, metadata, timeout, request_serializer, response_deserializer, bool(wait_for_ready))
            call.send_only(request)
            return call

        return begin

    def unary_stream(self, path: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        def begin(request: Any, *, timeout: float | None = None, metadata: Any = ()) -> Call:
            call = Call(self, path, metadata, timeout, request_serializer, response_deserializer)
            call.send_only(request)
            return call

        return begin

    def stream_stream(self, path: str, request_serializer: Any = None, response_deserializer: Any = None) -> Any:
        def begin(*, timeout: float | None = None, metadata: Any = ()) -> Call:
            return Call(self, path, metadata, timeout, request_serializer, response_deserializer)

        return begin

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        self._attempt += 1
        self._state = grpc.ChannelConnectivity.SHUTDOWN
        wire, self.wire = self.wire, None
        if wire is not None:
            for call in list(wire.calls):
                call.cancel()
            wire.close()
        self._wake()

    async def connected(self, *, wait_for_ready: bool) -> Wire | str:
        """Returns the connection, or why there is none, once the attempt under way has ended."""
        while True:
            if self.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
                assert self.wire is not None, "it is connected"
                return self.wire
            if self._closed:
                return "closed"
            if self._state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not wait_for_ready:
                return self._why
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def lost(self, wire: Wire, why: str) -> None:
        """The connection has ended."""
        if self.wire is wire:
            self.wire = None
            self._state = grpc.ChannelConnectivity.IDLE
            self._why = why
            self._wake()

    # -- connecting

    def _connect(self) -> None:
        self._state = grpc.ChannelConnectivity.CONNECTING
        self._attempt += 1
        attempt, network, direction = self._attempt, self.network, Direction()
        host = network.listeners.get(self.address)
        context = self.process.main.context
        if host is None:
            # The machine refuses; it may never have been there.
            self._loop.call_later(0.001, self._failed, attempt, "Connection refused", context=context)
            return
        server, _ = host
        wire = Wire(network, self.process, server, self, self._ping_s)

        def at_server() -> None:
            accepting = network.listeners.get(self.address)
            if accepting is None or accepting[0] is not server:
                network.send(server.name, self.process, direction, self._failed, attempt, "Connection refused")
                return
            wire.accepted = accepting[1].accept(wire)
            network.send(server.name, self.process, direction, self._made, attempt, wire)

        network.send(self.process.name, server, direction, at_server)
        self._loop.call_later(CONNECT_S, self._failed, attempt, "connection attempt timed out", context=context)

    def _made(self, attempt: int, wire: Wire) -> None:
        if attempt != self._attempt or self._state is not grpc.ChannelConnectivity.CONNECTING or wire.closed:
            wire.close()
            return
        self.wire = wire
        self._state = grpc.ChannelConnectivity.READY
        self._backoff_s = BACKOFF_S[0]
        self._wake()

    def _failed(self, attempt: int, why: str) -> None:
        if attempt != self._attempt or self._state is not grpc.ChannelConnectivity.CONNECTING:
            return
        self._attempt += 1
        self._state = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        self._why = f"failed to connect to all addresses; last error: {self.address}: {why}"
        self._wake()
        pause_s, self._backoff_s = self._backoff_s, min(1.6 * self._backoff_s, BACKOFF_S[1])
        self._loop.call_later(pause_s, self._again, self._attempt, context=self.process.main.context)

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt and not self._closed:
            self._connect()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class Inbox:
    """What a stream has received and nobody has read yet. The other side's window grows when it is read."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._messages: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.ended: bool = False

    def put(self, data: bytes) -> None:
        self._messages.append(data)
        self.wake()

    def end(self) -> None:
        self.ended = True
        self.wake()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> bytes | None:
        """Returns the next message, None after the last one."""
        while not self._messages:
            if self.ended:
                return None
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._messages.popleft()


class Window:
    """How much a side of a stream may still send."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.closed: bool = False

    async def take(self, size: int) -> None:
        """Waits until `size` bytes may be sent; one message may always be."""
        while self._under_way and self._under_way + size > WINDOW and not self.closed:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            await waiting
        self._under_way += size

    def give(self, size: int) -> None:
        self._under_way -= size
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.wake()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class Call:
    """The client's side of a call: a stream both ways, or only of responses."""

    on_its_way: Callable[[Call], tuple[float, float | None]] = staticmethod(lambda _: (0.0, None))
    """Returns how much longer a unary call takes to its server, and after how long it is executed there once more, if it is."""

    def __init__(
        self, channel: Channel, path: str, metadata: Any, timeout: float | None, serialize: Any, parse: Any, wait_for_ready: bool = False
    ) -> None:
        self.path = path
        self.metadata: tuple[tuple[str, Any], ...] = tuple((key, value) for key, value in metadata or ())
        self._loop: SimulatedLoop = channel._loop
        self._serialize = serialize
        self._parse = parse
        self._wait_for_ready = wait_for_ready
        self.sending = Direction()
        self.answering = Direction()
        self.inbox = Inbox(self._loop)
        self.window = Window(self._loop)
        self._wire: Wire | None = None
        self.served: Any = None
        """The server's side of the call, once it has begun there."""
        self._done_writing = False
        self._again_s: float | None = None
        self.where: str = channel.address
        """The address that is called."""
        self.data: bytes = b""
        """The only request, if there is only one."""
        self._status: asyncio.Future[tuple[grpc.StatusCode, str, tuple[Any, ...]]] = self._loop.create_future()
        self._cancelled = False
        self._abrupt = False
        """Whether the call ended without the server's doing: what was not read by then is lost."""
        self._timer = None if timeout is None else self._loop.call_later(timeout, self._late)
        self.deadline_s: float | None = None if timeout is None else self._loop.time() + timeout
        self._begun = self._loop.create_task(self._begin(channel))

    # -- what callers use

    def send_only(self, request: Any) -> None:
        """Sends the only request."""
        data = self.data = self._serialize(request)
        self._done_writing = True
        self._begun.add_done_callback(lambda _: self._send_only(data))

    async def write(self, request: Any) -> None:
        if self._status.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._done_writing:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        data = self._serialize(request)
        try:
            await asyncio.shield(self._begun)
            await self.window.take(len(data))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._status.done():
            await self._raise_for_status()
        self._send(data)

    async def done_writing(self) -> None:
        if not self._status.done() and not self._done_writing:
            self._done_writing = True
            await asyncio.shield(self._begun)
            if self._wire is not None:
                self._wire.to_server(self.sending, lambda: self.served.inbox.end())

    async def read(self) -> Any:
        if self._status.done() and self._abrupt:
            await self._raise_for_status()
            return grpc.aio.EOF
        try:
            data = await self.inbox.take()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if data is None:
            await self._raise_for_status()
            return grpc.aio.EOF
        self._read(len(data))
        return self._parsed(data)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response

    def cancel(self) -> bool:
        if self._status.done():
            return False
        self._cancelled = True
        self.finish(_Status.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._status.done()

    async def code(self) -> grpc.StatusCode:
        return (await asyncio.shield(self._status))[0]

    async def details(self) -> str:
        return (await asyncio.shield(self._status))[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*(await asyncio.shield(self._status))[2])

    # -- what the connection does

    def finish(self, code: grpc.StatusCode, details: str, trailers: tuple[Any, ...] = (), *, told: bool = False) -> None:
        """Ends the call at this side. `told`: the server ended it, and has not to be told."""
        if self._status.done():
            return
        self._abrupt = not told
        self._status.set_result((code, details, trailers))
        self.inbox.end()
        self.window.close()
        if self._timer is not None:
            self._timer.cancel()
        wire = self._wire
        if wire is not None:
            wire.end(self)
            if not told and not wire.closed:
                wire.to_server(self.sending, lambda: self.served.cancelled_by_client())
        elif not self._begun.done():
            self._begun.cancel()

    async def _begin(self, channel: Channel) -> None:
        wire = await channel.connected(wait_for_ready=self._wait_for_ready)
        if isinstance(wire, str):
            if wire == "closed":
                self.cancel()
            else:
                self.finish(_Status.UNAVAILABLE, wire)
            return
        if self._status.done():
            return
        self._wire = wire
        wire.begin(self)
        if isinstance(self, UnaryCall):
            late_s, self._again_s = self.on_its_way(self)
            self.sending.last_s = self._loop.time() + late_s
        wire.to_server(self.sending, self._at_server, wire, size=64)

    def _at_server(self, wire: Wire) -> None:
        self.served = wire.accepted.begin(self)

    def _send_only(self, data: bytes) -> None:
        if not self._status.done() and self._wire is not None:
            self._send(data)
            self._wire.to_server(self.sending, lambda: self.served.inbox.end())
            if self._again_s is not None:
                again = Direction()
                again.last_s = max(self.sending.last_s, self._loop.time()) + self._again_s
                self._wire.to_server(again, self._repeated, self._wire, data, size=64 + len(data))

    def _repeated(self, wire: Wire, data: bytes) -> None:
        served = wire.accepted.begin(_Repeated(self))
        served.inbox.put(data)
        served.inbox.end()

    def _send(self, data: bytes) -> None:
        assert self._wire is not None, "the call has begun"
        self._wire.to_server(self.sending, lambda: self.served.inbox.put(data), size=len(data))

    def _read(self, size: int) -> None:
        if self._wire is not None and not self._status.done():
            self._wire.to_server(Direction(), lambda: self.served.window.give(size))

    def _parsed(self, data: bytes) -> Any:
        try:
            return data if self._parse is None else self._parse(data)
        except Exception:
            return None  # as gRPC does for what it cannot parse

    def _late(self) -> None:
        self.finish(_Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    async def _raise_for_status(self) -> None:
        code, details, trailers = await asyncio.shield(self._status)
        if self._cancelled:
            raise asyncio.CancelledError
        if code is not _Status.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)


class _Repeated:
    """The second execution of a unary call, as its server has it: nobody reads the answer."""

    def __init__(self, call: Call) -> None:
        self.path = call.path
        self.metadata = call.metadata
        self.deadline_s = None
        self.answering = Direction()
        self.inbox = Inbox(call._loop)
        self.window = Window(call._loop)

    def finish(self, *_: object, **__: object) -> None:
        """Nobody waits for its end."""


class UnaryCall(Call):
    """A call with one request and one response: await it."""

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        try:
            data = await self.inbox.take()
            await asyncio.shield(self._status)
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._raise_for_status()
        assert data is not None, "an answer comes before its status"
        return self._parsed(data)
