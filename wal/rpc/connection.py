"""Connection: calls and streams to one of several addresses that serve the same, each with a deadline.

Owns: the channels, the token, and the rules for sending a call twice. A read is retried until its deadline, at another address if one
exists. A write is executed at most once: without a connection it is not sent (UnavailableError); sent and not answered it may have been
carried out (UnknownOutcomeError). A repeatable write is retried as a read is, and raises the errors of a write. A server that is stopping
refuses calls, with ClosedError, and a coordinator that does not lead, with NotLeaderError: all of them are sent again, there or elsewhere.
Without a leader a call waits for `UNREACHABLE_S`, whatever its deadline: the session of a dead leader lives for 10 s by default. Any other
error of the server is raised as it is, and a stream is never opened again here: its owner handles the loss.

An abandoned change without an answer is no longer executed after the answer to a later call. Changes carry the session of this connection
and a number, which grows with each abandoned change, and a server rejects an old number (`wal.serve.fence`).

Silence is found by pings while a call is under way (`wal.network.Endpoints`). A stream is written no faster than the other side reads it:
HTTP/2 has a window for each stream, so an unread stream holds up no other.
"""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

import grpc
import grpc.aio

from wal.errors import (
    ClosedError,
    FormatError,
    InvalidArgumentError,
    NotLeaderError,
    SessionLostError,
    UnavailableError,
    UnknownOutcomeError,
    WALError,
)
from wal.network import PING_S, Endpoints, Method, Reach, TlsFiles, served_by
from wal.requests.request import Answer
from wal.requests.request import Request as LogRequest
from wal.rpc.api.component_pb2 import GetComponentStatesRequest
from wal.rpc.api.nodes_pb2 import ManagerCall
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.codes import error_in
from wal.rpc.converter import answer_from_proto, request_to_proto
from wal.rpc.headers import LOG_ID, Header, log_header, session_header, token_header
from wal.rpc.methods import NODE_STATES, SUBMIT
from wal.runtime.backoff import Backoff
from wal.runtime.secret import Secret

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
    if (server_error := error_in(error)) is not None:
        return server_error
    said = f"{what}: {error.details() or error.code().name}"
    if error.code() in _REFUSED:
        return InvalidArgumentError(f"{said}; nothing was changed: is it a server of this log, and is the request below its limit?")
    if writing:
        return UnknownOutcomeError(f"{said}; it was sent and no answer came, so it may have been carried out: look before you repeat it")
    return UnavailableError(f"{said}; nothing was changed: try again")


def explain_end(error: grpc.aio.AioRpcError, what: str) -> WALError:
    """Returns the error of a stream that has ended, as `explain` does. Its owner decides which of its requests have an unknown outcome."""
    explained = explain(error, what, writing=False)
    if isinstance(explained, UnavailableError) and error_in(error) is None:
        return UnavailableError(f"{what}: {error.details() or error.code().name}")
    return explained


Request = TypeVar("Request")

TIMEOUT_S: Final = 10.0
"""The default deadline of a call."""
UNREACHABLE_S: Final = 30.0
"""How long a call without a deadline waits for a server. A server that is restarted is back much sooner."""
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5
_TRIES_OF_A_READ: Final = 3
"""A read spends at most this fraction of its time at one of several addresses, so that a frozen server does not use it up."""

ShownToken = Secret | Callable[[], Secret | None] | None
"""The token that calls show, a function that returns it, or None."""


class Connection:
    """The calls to the servers at `addresses` (`host:port`). `open` creates it; `timeout_s` is the default deadline of a call."""

    def __init__(self, endpoints: Endpoints, *, timeout_s: float, token: ShownToken) -> None:
        self._endpoints = endpoints
        self._token = token
        self._log_headers: tuple[Header, ...] = ()
        self._tries = _TRIES_OF_A_READ if len(endpoints.addresses) > 1 else 1
        self._closing = False
        self._cause: WALError | None = None
        """The error that every unsent call raises; set by `stop`."""
        self._gone: UnavailableError | None = None
        """Why the servers were given up, if they were."""
        self._reach = Reach(endpoints, scheme="wal")
        self._other_log: Callable[[WALError], None] = _ignore
        self._session = uuid.uuid4().hex
        self._streams: WeakSet[Stream[Any, Any]] = WeakSet()
        self._given_up = 0
        """How often changes were given up; the number of the calls that follow."""
        self.timeout_s = timeout_s

    @classmethod
    async def open(
        cls,
        addresses: Sequence[str],
        *,
        tls: TlsFiles | None = None,
        token: ShownToken = None,
        timeout_s: float = TIMEOUT_S,
        ping_s: float = PING_S,
    ) -> Connection:
        """Returns a connection that connects at its first call; with `tls` it is encrypted, and shows the client's certificate.

        Each call shows the token, or the one that the function returns then. A server that is silent for `ping_s` while a call is
        under way is pinged, and given up after half of it. Raises InvalidArgumentError for addresses, times, tokens or files that
        cannot be used.
        """
        if isinstance(addresses, str) or not addresses:
            raise InvalidArgumentError("no addresses are given: name for example ['127.0.0.1:8810']")
        if not timeout_s > 0:
            raise InvalidArgumentError(f"timeout_s={timeout_s} is not above 0: a call needs time to be answered")
        credentials: grpc.ChannelCredentials | None = None if tls is None else await tls.credentials()
        probe = (NODE_STATES, GetComponentStatesRequest())
        endpoints = Endpoints(addresses, credentials=credentials, probe=probe, ping_s=ping_s)
        _token_headers(token)
        return cls(endpoints, timeout_s=timeout_s, token=token)

    def belong_to(self, log_id: int, other_log: Callable[[WALError], None]) -> None:
        """Names this log in all calls from now on. `other_log` is called with the error of a server that has another one."""
        self._log_headers = (log_header(log_id),)
        self._other_log = other_log

    @property
    def _headers(self) -> tuple[Header, ...]:
        return (*_token_headers(self._token), *self._log_headers)

    def add(self, address: str) -> None:
        """Adds a server that serves the same."""
        self._endpoints.add(address)
        self._tries = _TRIES_OF_A_READ if len(self._endpoints.addresses) > 1 else 1

    @property
    def is_here(self) -> bool:
        """Whether the server is in this process."""
        return any(served_by.get(address) == os.getpid() for address in self._endpoints.addresses)

    @property
    def where(self) -> str:
        """Returns the addresses as text."""
        return ",".join(self._endpoints.addresses)

    async def submit(
        self,
        request: LogRequest[Answer],
        pchannel: str | None = None,
        *,
        term: int = 0,
        call: ManagerCall | None = None,
        timeout_s: float | None = None,
        again: bool = False,
    ) -> Answer:
        """Returns the answer to a request for this pchannel, or for the log as a whole; raises as `call` does.

        The attributes of the request decide how it is sent; with `again` it is always sent until it is answered. In term 0 the
        server has the pchannel in any term. `call` names the node that a leader addresses.
        """
        what = request.doing if pchannel is None or request.target else f"{request.doing} of pchannel {pchannel}"
        if call is not None:
            what = f"{what} at node {call.server_id:x}"
        envelope = request_to_proto(request, None if pchannel is None else PChannelInfo(name=pchannel, term=term), call)
        answer = await self.call(
            SUBMIT,
            envelope,
            what,
            timeout_s=timeout_s or request.timeout_s,
            writing=request.writes,
            once=not (request.repeatable or again),
            changes=request.changes,
        )
        return request.unpacked(answer_from_proto(type(request), answer))

    async def stream(self, method: Method[Request, Response], what: str, *, timeout_s: float | None = None) -> Stream[Request, Response]:
        """Opens a stream of requests and responses. It waits for a connection for `timeout_s`; the stream itself has no deadline."""
        number, channel = await self._connected(self._deadline(timeout_s), what)
        call = channel.stream_stream(method.path, **method.serializers())(metadata=self._metadata(changes=True))
        stream: Stream[Request, Response] = Stream(call, self._name(number, what), partial(self._look, number))
        self._streams.add(stream)
        return stream

    async def responses(
        self, method: Method[Request, Response], request: Request, what: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[Response, None]:
        """Yields the responses to one request. It waits for a connection for `timeout_s`; the call itself has no deadline.

        Closing the generator ends the call.
        """
        number, channel = await self._connected(self._deadline(timeout_s), what)
        call = channel.unary_stream(method.path, **method.serializers())(request, metadata=self._headers)
        try:
            async for response in call:
                yield received(response, self._name(number, what), writing=False)
        except grpc.aio.AioRpcError as error:
            if isinstance(error_in(error), ClosedError):
                self._endpoints.leave(number)
            self._look(number, error, explained := explain(error, self._name(number, what), writing=False))
            raise explained from error
        except asyncio.CancelledError:
            if not self._ended_it():
                raise
            raise self._ended(what, writing=False) from None
        finally:
            call.cancel()

    def stop(self, cause: WALError | None = None) -> None:
        """Ends all waits: from now on a call that finds no connection, or would be retried, raises ClosedError.

        With a cause every call from now on raises it, and sends nothing.
        """
        self._closing = True
        self._cause = self._cause or cause
        self._endpoints.stop()

    async def close_unless_answering(self, timeout_s: float) -> None:
        """Closes the connection, which ends what is under way, unless a server answers in time: a frozen server stays connected."""
        if (endpoint := self._endpoints.connected()) is not None:
            _, channel = endpoint
            call = channel.unary_unary(NODE_STATES.path, **NODE_STATES.serializers())
            try:
                await call(GetComponentStatesRequest(), timeout=timeout_s, metadata=self._headers)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                    return
        await self.close()

    async def leave(self, gone: UnavailableError) -> None:
        """Ends what is under way, as a lost connection does, and disconnects: nothing answers there any more, for the reason `gone`."""
        self._gone = gone
        self.stop(gone)
        for stream in list(self._streams):
            stream.cancel()
        await self._endpoints.close()

    async def close(self) -> None:
        """Ends what is under way and disconnects. Idempotent."""
        self.stop()
        await self._endpoints.close()

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        what: str,
        *,
        timeout_s: float | None = None,
        writing: bool = False,
        once: bool = False,
        changes: bool = False,
    ) -> Response:
        """Returns the answer to a call, which is sent until it is answered, or executed at most once. `what` names it in errors.

        Without an answer, a call that is `writing` raises UnknownOutcomeError if it may have been carried out, others UnavailableError.
        With an infinite `timeout_s` the server may take any time, as long as one can be reached within `UNREACHABLE_S`.
        """
        loop = asyncio.get_running_loop()
        began, deadline = loop.time(), self._deadline(timeout_s)
        backoff: Backoff | None = None
        total = deadline - began
        unknown: WALError | None = None
        while True:
            try:
                number, channel = await self._connected(deadline if deadline < math.inf else loop.time() + UNREACHABLE_S, what)
            except WALError as error:
                if unknown is None:
                    raise
                raise unknown from error
            left = deadline - loop.time()
            timeout = max(0.001, left if once else min(left, total / self._tries))
            call, sent_as = channel.unary_unary(method.path, **method.serializers()), self._given_up
            try:
                response = await call(
                    request,
                    timeout=timeout if timeout < math.inf else None,
                    metadata=self._metadata(changes),
                    # A write for which the connection is closed before it was sent waits for another one: it would fail as if it was sent.
                    wait_for_ready=once,
                )
                answer: Response = received(response, self._name(number, what), writing=writing)
                return answer
            except grpc.aio.AioRpcError as error:
                self._look(number, error, explained := explain(error, self._name(number, what), writing=writing))
                server_error = error_in(error)
                unanswered = server_error is None and not isinstance(explained, InvalidArgumentError)
                lost = unanswered and not once
                if unanswered:
                    self._give_up(changes, sent_as)
                if lost and writing:
                    unknown = explained
                stopping = isinstance(server_error, ClosedError) and not server_error.outcome_unknown
                overtaken = isinstance(server_error, SessionLostError) and sent_as < self._given_up
                if lost:
                    self._endpoints.turn_away(number)
                elif stopping:
                    self._endpoints.leave(number)
                if isinstance(server_error, NotLeaderError):
                    deadline = max(deadline, began + UNREACHABLE_S)
                elif not (lost or stopping or overtaken):
                    raise explained from error
                backoff = backoff or Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S)
                if self._closing or loop.time() + backoff.next_s >= deadline:
                    raise unknown or explained from error
            except asyncio.CancelledError:
                self._give_up(changes, sent_as)
                if not self._ended_it():
                    raise
                raise self._ended(what, writing=writing) from None
            await asyncio.sleep(backoff.next())

    def _metadata(self, changes: bool) -> tuple[Header, ...]:
        if self._given_up or changes:
            return (*self._headers, session_header(self._session, self._given_up))
        return self._headers

    def _look(self, number: int, error: grpc.aio.AioRpcError, explained: WALError) -> None:
        """Notes the end of a call: a server that has another log names it in a trailer, and a standby names the leader."""
        if isinstance(explained, NotLeaderError):
            self._endpoints.follow(number, explained.leader)
        if any(key == LOG_ID for key, _ in error.trailing_metadata() or ()):
            self._other_log(explained)

    def _give_up(self, changes: bool, sent_as: int) -> None:
        """Notes that a call with this number has no answer: if it was a change, calls from now on overtake it."""
        if changes:
            self._given_up = max(self._given_up, sent_as + 1)

    def _ended_it(self) -> bool:
        """Returns whether closing this connection ended a call, and not a cancelled caller: gRPC raises CancelledError for both."""
        task = asyncio.current_task()
        return self._closing and not (task is not None and task.cancelling())

    def _ended(self, what: str, *, writing: bool) -> WALError:
        """Returns the error of a call that was under way when the log was closed, or the server was given up."""
        if self._gone is not None:
            said = f"{what}: {self._gone}"
            return UnknownOutcomeError(f"{said}; it may have been carried out") if writing else UnavailableError(said)
        error = ClosedError(f"{what}: the log was closed before the server answered; open it again to continue")
        error.outcome_unknown = writing
        return error

    async def _connected(self, deadline: float, what: str) -> tuple[int, Any]:
        result = None if self._cause is not None else await self._reach.connected(deadline)
        if self._cause is not None:
            raise self._cause
        if result is None:
            raise ClosedError(f"the connection was closed before {self.where} could be reached: {what} was not sent")
        if isinstance(result, str):
            raise UnavailableError(f"no server is reachable, {what} was not sent; tried {result}")
        return result

    def _deadline(self, timeout_s: float | None) -> float:
        return asyncio.get_running_loop().time() + (self.timeout_s if timeout_s is None else timeout_s)

    def _name(self, number: int, what: str) -> str:
        return f"{self._endpoints.addresses[number]}, {what}"


def _token_headers(token: ShownToken) -> tuple[Header, ...]:
    secret = token if token is None or isinstance(token, Secret) else token()
    return () if secret is None else (token_header(secret),)


def _ignore(_error: WALError) -> None:
    """Does nothing with the error of a server that has another log: the caller gets it."""


class Stream(Generic[Request, Response]):
    """The client's side of a stream of requests and responses.

    One task may write while another reads. `ended` is called with the status that ended it, and the error that it means.
    """

    def __init__(self, call: Any, what: str, ended: Callable[[grpc.aio.AioRpcError, WALError], None]) -> None:
        self._call = call
        self._what = what
        self._end = ended
        self._cancelled = False

    async def write(self, request: Request) -> None:
        """Sends a request; waits while the other side does not read. Raises the error with which the stream ended."""
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        except asyncio.InvalidStateError as error:  # the call has ended, or `finish` was called
            raise await self._ended() from error
        except asyncio.CancelledError:
            if not self._is_cancelled():
                raise
            raise self._closed() from None

    async def write_if_open(self, request: Request) -> None:
        """Sends a request, unless the stream has ended."""
        try:
            await self.write(request)
        except WALError:
            pass

    async def read(self) -> Response | None:
        """Returns the next response; None when the other side ended the stream well. Raises the error with which it ended."""
        try:
            response = await self._call.read()
            if response is grpc.aio.EOF:
                if await self._call.code() is not grpc.StatusCode.OK:
                    raise await self._ended()
                return None
        except grpc.aio.AioRpcError as error:
            raise self._explained(error) from error
        except asyncio.CancelledError:
            if not self._is_cancelled():
                raise
            raise self._closed() from None
        answer: Response = received(response, self._what, writing=False)
        return answer

    def cancel(self) -> None:
        """Ends the stream at once."""
        self._cancelled = True
        self._call.cancel()

    def _is_cancelled(self) -> bool:
        """Returns whether it was this stream that was cancelled, and not the task that uses it: gRPC raises CancelledError for both."""
        task = asyncio.current_task()
        return self._cancelled and task is not None and not task.cancelling()

    async def _ended(self) -> WALError:
        """Returns the error with which the call ended."""
        code = await self._call.code()
        if code is grpc.StatusCode.OK or self._cancelled:
            return self._closed()
        metadata = await self._call.trailing_metadata()
        error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, await self._call.details())
        return self._explained(error)

    def _explained(self, error: grpc.aio.AioRpcError) -> WALError:
        self._end(error, explained := explain_end(error, self._what))
        return explained

    def _closed(self) -> ClosedError:
        return ClosedError(f"{self._what}: the stream has ended")
