"""EtcdConnection: calls to an etcd of one or more members, each with a deadline.

Owns: the endpoints, the token, and the rules for sending a call twice. A read is retried, at another member if there is one, until its
deadline. A write is sent once: without a connection it is not sent (UnavailableError). A write that was sent and not answered may have been
carried out, or a slow member may still do so; reading back would not settle it (UnknownOutcomeError). A call that etcd refused without an
effect is retried in either case.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from wal.errors import ClosedError, InvalidArgumentError, UnavailableError, WouldBlockError
from wal.network import Endpoints, Method, Reach
from wal.runtime.backoff import Backoff
from wal.runtime.secret import Secret
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.refusals import Refusal, classify, explain
from wal.storage.kv.etcd.requests import AUTHENTICATE, TXN
from wal.storage.kv.records import PLAIN, is_sealed, sealed, unsealed


class EtcdToken:
    """Identifies this client to an etcd with authentication.

    It owns the token that etcd issued for a name and a password. It runs a single renewal, however many calls were refused, and never shows
    the password.

    `authenticate` returns a new token; None if etcd runs without authentication.
    """

    def __init__(self, authenticate: Callable[[], Awaitable[str | None]]) -> None:
        self._authenticate = authenticate
        self._lock = asyncio.Lock()
        self._known = False
        self.value: str | None = None

    async def get(self) -> str | None:
        """Returns the token for the next call."""
        if not self._known:
            await self._renew(None, first=True)
        return self.value

    async def renew(self, refused: str | None) -> None:
        """Gets another token than `refused`, unless another caller renewed it meanwhile."""
        await self._renew(refused, first=False)

    async def _renew(self, refused: str | None, *, first: bool) -> None:
        async with self._lock:
            if (first and self._known) or self.value != refused:
                return
            self.value = await self._authenticate()
            self._known = True


Request = TypeVar("Request")
Response = TypeVar("Response")

_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
_TRIES_OF_A_READ: Final = 3
"""A read spends at most this fraction of its time at one of several members, so that a frozen member does not use it up."""
_RENEWALS_MAX: Final = 3
_LEADER: Final = ("hasleader", "true")
"""Asks a member that has lost its leader to refuse at once (etcd's rpctypes.MetadataRequireLeaderKey)."""


class EtcdConnection:
    """The calls to one etcd. `timeout_s` is the default deadline of a call."""

    def __init__(self, endpoints: Endpoints, *, timeout_s: float, user: tuple[str, Secret] | None) -> None:
        self._endpoints = endpoints
        self._reach = Reach(endpoints, scheme="etcd")
        self._user = user
        self._token = None if user is None else EtcdToken(self._authenticate)
        self._calls: dict[tuple[int, str], Any] = {}
        self._closing = False
        self._tries = _TRIES_OF_A_READ if len(endpoints.addresses) > 1 else 1
        self.timeout_s = timeout_s
        self.attempts: int = 0
        """Calls and streams that were sent, repeated ones included."""

    @property
    def where(self) -> str:
        """Returns the members as text."""
        return ",".join(self._endpoints.addresses)

    async def read(self, method: Method[Request, Response], request: Request, what: str, *, timeout_s: float | None = None) -> Response:
        """Returns the answer to a call that changes nothing, retried until the deadline. Raises UnavailableError without an answer
        by then.
        """
        return await self._call(method, request, what, timeout_s, writing=False)

    async def write(self, method: Method[Request, Response], request: Request, what: str, *, timeout_s: float | None = None) -> Response:
        """Returns the answer to a call that changes data, sent at most once.

        Raises UnavailableError when it was not carried out, and UnknownOutcomeError when it may have been.
        """
        return await self._call(method, request, what, timeout_s, writing=True)

    async def open_stream(self, method: Method[Request, Response], what: str, *, timeout_s: float | None) -> EtcdStream:
        """Opens a stream to a connected member. With `timeout_s` None it waits without limit, and the stream has no deadline."""
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        number, channel = await self._connected(deadline, what)
        token = await self.token()
        call = channel.stream_stream(method.path, **method.serializers())
        self.attempts += 1
        return EtcdStream(call(metadata=_metadata(token), timeout=self._left(deadline)), number, token)

    async def failed(self, stream: EtcdStream, error: grpc.aio.AioRpcError) -> Refusal:
        """Returns the meaning of the end of a stream; leaves the member, or renews the token, if that helps."""
        refusal = classify(_code(error), error.details() or "")
        if refusal in (Refusal.AWAY, Refusal.BUSY):
            self._endpoints.turn_away(stream.number)
        elif refusal is Refusal.TOKEN:
            await self.renew(stream.token)
        return refusal

    async def renew(self, refused: str | None) -> bool:
        """Replaces the token `refused`; returns False without a user."""
        if self._token is None:
            return False
        await self._token.renew(refused)
        return True

    def stop(self) -> None:
        """Ends all waits: from now on a call that finds no member, or would be retried, raises ClosedError."""
        self._closing = True
        self._endpoints.stop()

    async def close(self) -> None:
        self.stop()
        await self._endpoints.close()

    async def _call(
        self, method: Method[Request, Response], request: Request, what: str, timeout_s: float | None, *, writing: bool
    ) -> Response:
        loop = asyncio.get_running_loop()
        total = self.timeout_s if timeout_s is None else timeout_s
        deadline = loop.time() + total
        backoff, renewals, last = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S), 0, ""
        while True:
            number, channel = await self._connected(deadline, what, last)
            token = None if method is AUTHENTICATE else await self.token()
            remaining = deadline - loop.time()
            try:
                self.attempts += 1
                return await self._unary(number, channel, method)(  # type: ignore[no-any-return]
                    request, timeout=max(0.001, remaining if writing else min(remaining, total / self._tries)), metadata=_metadata(token)
                )
            except grpc.aio.AioRpcError as error:
                last = error.details() or str(error.code())
                refusal = classify(_code(error), last)
            if refusal is Refusal.TOKEN and self._token is not None and renewals < _RENEWALS_MAX:
                renewals += 1
                await self._token.renew(token)
                continue
            if refusal in (Refusal.AWAY, Refusal.BUSY):
                self._endpoints.turn_away(number)
            again = refusal is Refusal.BUSY or (refusal is Refusal.AWAY and not writing)
            if not again or self._closing or loop.time() + backoff.next_s >= deadline:
                where = self._endpoints.addresses[number]
                raise explain(refusal, f"etcd at {where}, {what}", last, writing=writing)
            await asyncio.sleep(backoff.next())

    def _unary(self, number: int, channel: grpc.aio.Channel, method: Method[Any, Any]) -> Any:
        key = (number, method.path)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = channel.unary_unary(method.path, **method.serializers())
        return call

    async def _connected(self, deadline: float | None, what: str, last: str = "") -> tuple[int, grpc.aio.Channel]:
        channel = await self._reach.connected(math.inf if deadline is None else deadline)
        if channel is None:
            raise ClosedError(f"the KV was closed before etcd could be reached; {what} was not sent")
        if isinstance(channel, str):
            again = f" again after: {last}" if last else ""
            raise UnavailableError(f"etcd is not reachable, {what} was not sent{again}; tried {channel}")
        return channel

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())

    async def token(self) -> str | None:
        """Returns the token that identifies this client; None without a user."""
        return None if self._token is None else await self._token.get()

    async def _authenticate(self) -> str | None:
        assert self._user is not None
        name, password = self._user
        try:
            answer = await self.read(
                AUTHENTICATE, rpc.AuthenticateRequest(name=name, password=password.reveal()), f"authenticating user {name!r}"
            )
        except InvalidArgumentError as error:
            if "authentication is not enabled" in str(error):
                return None  # such an etcd needs no token
            raise
        return answer.token


class EtcdStream:
    """One stream, the number of its member and the token with which it was opened."""

    def __init__(self, call: Any, number: int, token: str | None) -> None:
        self._call = call
        self.number = number
        self.token = token

    async def write(self, request: object) -> None:
        await self._call.write(request)

    async def read(self) -> Any:
        """Returns the next answer; None when the member ended the stream. Raises AioRpcError when it broke."""
        answer = await self._call.read()
        return None if answer is grpc.aio.EOF else answer

    def cancel(self) -> None:
        self._call.cancel()


def get(key: bytes, end: bytes = b"") -> rpc.RequestOp:
    """Returns the operation that loads a key, or a range."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, range_end=end))


def delete(key: bytes, end: bytes = b"") -> rpc.RequestOp:
    """Returns the operation that removes a key, or a range."""
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=end))


def _metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return (_LEADER,) if token is None else (_LEADER, ("token", token))


def _code(error: grpc.aio.AioRpcError) -> int:
    code: int = error.code().value[0]
    return code


Answer = TypeVar("Answer")


class EtcdCalls:
    """The calls of one EtcdKV through its `connection`, on the event loop that created this object.

    It owns the count of calls in progress, their bound, and the store's highest revision in their answers. The KV, its sessions and its
    elections make their calls through the same EtcdCalls, so that a close waits for all of them.

    `root` is the prefix of each key in etcd. At most `waiting_max` calls may be in progress; above it a call raises WouldBlockError.
    """

    def __init__(self, connection: EtcdConnection, *, root: str, waiting_max: int) -> None:
        self.connection = connection
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.idle: asyncio.Event = asyncio.Event()
        """Set while no call is in progress."""
        self.idle.set()
        self.revision: int = 0
        self.operations: int = 0
        self.commits: int = 0
        self.waiting: int = 0
        self.sealed: bool = False
        """Whether records are saved with their checksums: not before a writer of the root has added these to all, see `KVBase.upgrade`. It
        is derived from the existing records.
        """
        self.plain: Final = frozenset(root + key for key in PLAIN)
        """The complete keys whose values never get a checksum."""
        self._root = root
        self._waiting_max = waiting_max

    def full_key(self, key: str) -> bytes:
        """Returns the key as etcd has it."""
        return (self._root + key).encode()

    def kept(self, key: str, value: str) -> bytes:
        """Returns the stored form of this value of a complete key."""
        return (sealed(key, value) if self.sealed and key not in self.plain else value).encode()

    def value(self, key: bytes, kept: bytes) -> str:
        """Returns the value of a record, checked. Raises CorruptionError if it is damaged."""
        self.sealed = self.sealed or is_sealed(kept)
        return unsealed(key, kept, f"etcd at {self.connection.where}", bare=True)

    async def read(self, method: Method[Request, Response], request: Request, what: str) -> Response:
        """Makes a call that changes no key, as an operation of the KV."""
        answer = await self.count(self.connection.read(method, request, what))
        self.saw(answer)
        return answer

    def put(self, key: bytes, value: str, *, lease: int = 0) -> rpc.RequestOp:
        """Returns the operation that saves this value on a full key; it is removed with the lease."""
        put = rpc.PutRequest(key=key, value=self.kept(key.decode(), value), lease=lease)
        return rpc.RequestOp(request_put=put)

    async def transact(self, compares: Sequence[rpc.Compare], operations: Sequence[rpc.RequestOp], what: str) -> rpc.TxnResponse:
        """Runs one transaction that changes something, as one call; etcd carries it out only if all of `compares` hold."""
        return await self.count(self.send(compares, operations, what))

    async def send(
        self, compares: Sequence[rpc.Compare], operations: Sequence[rpc.RequestOp], what: str, *, otherwise: Iterable[rpc.RequestOp] = ()
    ) -> rpc.TxnResponse:
        """Runs the transaction of `transact` within a call that is already counted; `otherwise` is read if a comparison fails."""
        request = rpc.TxnRequest(compare=compares, success=operations, failure=otherwise)
        answer = await self.connection.write(TXN, request, what)
        self.commits += answer.succeeded
        self.saw(answer)
        return answer

    async def count(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """Runs one call, which counts as in progress until it ends."""
        if asyncio.get_running_loop() is not self.loop:  # a forked child has another loop as well
            call.close()
            raise InvalidArgumentError("this KV was opened by another event loop: open a KV in each loop")
        if self.waiting >= self._waiting_max:
            call.close()
            raise WouldBlockError(f"{self._waiting_max} calls wait for etcd: await some of them first")
        self.waiting += 1
        self.idle.clear()
        try:
            return await call
        finally:
            self.operations += 1
            self.waiting -= 1
            if not self.waiting:
                self.idle.set()

    def saw(self, answer: Any) -> int:
        """Records and returns the revision of the store in an answer."""
        revision: int = answer.header.revision
        self.revision = max(self.revision, revision)
        return revision
