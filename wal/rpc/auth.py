"""TokenCheck: the server's check of tokens and their rights, before any handler of a call runs.

Tokens that a server takes, each with a name and rights, and the right that each method of the protocol needs.

A token file has a token a line. `NAME RIGHTS TOKEN` is a token with a name, which log lines show, and some of the rights, separated by
commas; any other line is a token with all of them. Empty lines, and those that begin with `# `, are left out.

    # the service that writes
    shop   read,write  4f9d…
    report read        a71c…
    b30e…
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from wal.errors import AuthenticationError, InvalidArgumentError
from wal.rpc.codes import abort
from wal.rpc.headers import token_header, token_in
from wal.rpc.methods import (
    ABORT_BROADCAST,
    ACK_BROADCAST,
    ALLOCATE_IDS,
    ALLOCATE_TIME_TICKS,
    APPEND_BROADCAST,
    APPEND_COPIES,
    ASSIGN,
    ASSIGNMENT_DISCOVER,
    AWAIT_RESOURCE_KEY,
    CANCEL_SCHEDULED,
    CLAIM_CURSOR,
    COLLECT_STATUS,
    CONSUME,
    COORDINATOR_STATES,
    COUNT_BYTES,
    CREATE_CHANNELS,
    CREATE_VCHANNEL,
    DELETE_CURSORS,
    DESCRIBE_CHANNELS,
    DESCRIBE_LOG,
    DESTORY_CHANNELS,
    DRAIN_NODE,
    DROP_VCHANNEL,
    END_VCHANNELS,
    FIND_EVENT_BELOW,
    FIND_TICK,
    FOLLOW_TAIL,
    FORGET_BROADCASTS,
    FORGET_PRODUCER,
    GET_BROADCAST_STATISTICS,
    GET_CLUSTER_STATUS,
    GET_LAST_EVENT,
    GET_LATEST_TICK,
    GET_MOMENT,
    GET_RETENTION,
    GET_STATISTICS,
    KEEP_CURSOR,
    LIST_BROADCASTS,
    LIST_COPIES,
    LIST_CURSORS,
    LIST_PRODUCERS,
    LIST_SCHEDULED,
    LIST_VCHANNELS,
    LOAD_CURSOR,
    LOCATE_VCHANNELS,
    MILVUS_PRODUCE,
    NAME_CURSOR_HOME,
    NODE_STATES,
    PAUSE_BALANCER,
    PRODUCE,
    READ_COPY,
    READ_FRAMES,
    REMOVE,
    SAVE_CURSOR,
    SCHEDULE,
    TRUNCATE,
    WATCH_VCHANNELS,
    WEIGH_FRAMES,
)
from wal.rpc.serving import Behavior, wrapped
from wal.runtime.secret import Secret


class Right(enum.Enum):
    """What a token allows. None of them includes another one."""

    READ = "read"
    """Everything that changes no event: reads, cursors of readers, lists, statistics."""
    WRITE = "write"
    """Appends, transactions, consumers and their cursors, broadcasts and their acks, scheduled messages, and the creation of vchannels."""
    ADMIN = "admin"
    """What takes something from others: truncate, drop, abort a broadcast, delete cursors, forget producers, drain nodes, pause moves."""
    SERVER = "server"
    """What the servers of a cluster ask of each other: it is for the one token that they share."""


ALL_RIGHTS: Final = frozenset(Right)

_WRITES: Final = (
    PRODUCE, MILVUS_PRODUCE, NAME_CURSOR_HOME, CLAIM_CURSOR, KEEP_CURSOR,
    APPEND_BROADCAST, ACK_BROADCAST, AWAIT_RESOURCE_KEY, CREATE_VCHANNEL, CREATE_CHANNELS, ALLOCATE_IDS, ALLOCATE_TIME_TICKS,
    SCHEDULE, CANCEL_SCHEDULED,
)  # fmt: skip
_ADMINISTERS: Final = (
    TRUNCATE, DROP_VCHANNEL, DESTORY_CHANNELS, ABORT_BROADCAST, DELETE_CURSORS, FORGET_PRODUCER, DRAIN_NODE, PAUSE_BALANCER,
)  # fmt: skip
_SERVES: Final = (
    ASSIGN, REMOVE, COLLECT_STATUS, END_VCHANNELS, APPEND_COPIES, LIST_COPIES, READ_COPY, FORGET_BROADCASTS,
)  # fmt: skip
_READS: Final = (
    COORDINATOR_STATES, NODE_STATES, ASSIGNMENT_DISCOVER, CONSUME, DESCRIBE_LOG, LOCATE_VCHANNELS, LIST_VCHANNELS, WATCH_VCHANNELS,
    DESCRIBE_CHANNELS, LIST_BROADCASTS, GET_BROADCAST_STATISTICS, GET_LATEST_TICK, GET_LAST_EVENT, GET_RETENTION, GET_STATISTICS,
    LIST_PRODUCERS, LIST_SCHEDULED, LOAD_CURSOR, SAVE_CURSOR, LIST_CURSORS, GET_MOMENT, FOLLOW_TAIL, READ_FRAMES, WEIGH_FRAMES, FIND_TICK,
    FIND_EVENT_BELOW, COUNT_BYTES, GET_CLUSTER_STATUS,
)  # fmt: skip
"""Two of them ask for more where it matters: LOCATE_VCHANNELS to create, and SAVE_CURSOR to move a cursor of consumers or transactions."""
RIGHTS: Final = {
    method.path: right
    for right, methods in ((Right.READ, _READS), (Right.WRITE, _WRITES), (Right.ADMIN, _ADMINISTERS), (Right.SERVER, _SERVES))
    for method in methods
}
"""The right that each method needs, by its path."""
_RIGHT: Final = "(?:" + "|".join(right.value for right in Right) + ")"
_NAMED: Final = re.compile(rf"(?P<name>\S+)\s+(?P<rights>{_RIGHT}(?:,{_RIGHT})*)\s+(?P<token>\S+)")


class Token(msgspec.Struct, frozen=True):
    """A token that clients may show. `name` is what log lines call it; it is empty for a token that has none."""

    secret: Secret
    name: str = ""
    rights: frozenset[Right] = ALL_RIGHTS

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError for a token that no client can send."""
        token_header(self.secret)


def right_for(path: str) -> Right:
    """Returns the right that the method with this path needs; `read` for one that nobody serves, whose caller learns that."""
    return RIGHTS.get(path, Right.READ)


def tokens_in(text: str) -> list[Token]:
    """Returns the tokens of a token file.

    Raises InvalidArgumentError for one that no client can send, and for a name that is there twice.
    """
    tokens: list[Token] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("# "):
            continue
        match = _NAMED.fullmatch(line.strip())
        if match is None:
            tokens.append(Token(Secret(line)))
            continue
        if any(token.name == match["name"] for token in tokens):
            raise InvalidArgumentError(f"the name {match['name']!r} is there twice: give each token a name of its own")
        rights = frozenset(map(Right, match["rights"].split(",")))
        tokens.append(Token(Secret(match["token"]), match["name"], rights))
    return tokens


_calling: ContextVar[frozenset[Right]] = ContextVar("rights of the caller", default=ALL_RIGHTS)


@contextlib.contextmanager
def calling_with(token: Token) -> Iterator[None]:
    """A block in which `check_right` is about this token."""
    before = _calling.set(token.rights)
    try:
        yield
    finally:
        _calling.reset(before)


def check_right(right: Right, what: str) -> None:
    """Raises AuthenticationError unless the token of the call that is being served has this right. `what` is what needs it."""
    if right not in _calling.get():
        raise lacking(right, what)


def lacking(right: Right, what: str) -> AuthenticationError:
    """Returns the error of a call whose token has not this right."""
    return AuthenticationError(
        f"the token of this call has no right to {what}, which needs {right.value!r}: use a token that has it, or have it added in the "
        "server's token file"
    )


_WITHOUT_TOKEN: Final = ("/grpc.health.v1.Health/",)
"""Services that need no token: what probes of load balancers ask, which can send none."""
WARNING_PAUSE_S: Final = 1.0
"""Refused calls are told at most this often: a client that is refused may come again at once."""
_log: Final = logging.getLogger("wal.rpc")


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Refuses every call without one of these tokens, or whose token has not the right that its method needs: AuthenticationError.

    The status is UNAUTHENTICATED, and PERMISSION_DENIED for a missing right. Health checks need no token. Tokens are compared in constant
    time; several are accepted while they are being changed. A WARNING names the address of a refused client.
    """

    def __init__(self, tokens: Iterable[Token], *, monotonic: Callable[[], float]) -> None:
        """Raises InvalidArgumentError for no tokens."""
        self._tokens = _checked(tokens)
        self._under_way: dict[asyncio.Task[Any], tuple[Secret, Right]] = {}
        self._ended: set[asyncio.Task[Any]] = set()
        """The calls under way whose tokens were taken back."""
        self._monotonic = monotonic
        self._told_at_s = -math.inf
        self._untold = 0

    def renew(self, tokens: Iterable[Token]) -> None:
        """Takes these tokens from now on; calls under way that they do not allow end. Raises InvalidArgumentError for no tokens."""
        self._tokens = _checked(tokens)
        for task, (secret, right) in self._under_way.items():
            if not self._allows(secret, right) and task not in self._ended:
                self._ended.add(task)
                task.cancel()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        method = handler_call_details.method
        if method.startswith(_WITHOUT_TOKEN):
            return await continuation(handler_call_details)
        secret, right = token_in(handler_call_details.invocation_metadata or ()), right_for(method)
        token = None if secret is None else self._token(secret)
        if token is None:
            return self._refusing(_WITHOUT if secret is None else _UNKNOWN, "a token" if secret is None else "its token")
        if right not in token.rights:
            called = f"the token {token.name!r}" if token.name else "a token"
            return self._refusing(lacking(right, method), f"the right {right.value!r} of {called}", denied=True)
        handler, known = await continuation(handler_call_details), token

        async def call(behavior: Behavior, request: Any, context: Any) -> Any:
            with calling_with(known):
                return await self._while_allowed(behavior, request, context, (known.secret, right))

        return None if handler is None else wrapped(handler, call)

    async def _while_allowed(self, behavior: Behavior, request: Any, context: Any, allowed_by: tuple[Secret, Right]) -> Any:
        """Serves a call until its token is taken back."""
        if not self._allows(*allowed_by):  # it was taken back while the request arrived
            await abort(context, _UNKNOWN, status=grpc.StatusCode.UNAUTHENTICATED)
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = allowed_by
        try:
            return await behavior(request, context)
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel():  # it was cancelled by another one, perhaps as well
                raise
            await abort(context, _UNKNOWN, status=grpc.StatusCode.UNAUTHENTICATED)
        finally:
            del self._under_way[task]
            self._ended.discard(task)

    def _allows(self, secret: Secret, right: Right) -> bool:
        token = self._token(secret)
        return token is not None and right in token.rights

    def _token(self, secret: Secret) -> Token | None:
        matching_token = None
        for token in self._tokens:  # all are compared, always
            if secret == token.secret:
                matching_token = token
        return matching_token

    def _refusing(self, error: AuthenticationError, missing: str, *, denied: bool = False) -> grpc.RpcMethodHandler:
        """Returns a handler that refuses the call, and tells that."""
        status = grpc.StatusCode.PERMISSION_DENIED if denied else grpc.StatusCode.UNAUTHENTICATED

        async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            self._tell(context.peer(), missing)
            await abort(context, error, status=status)

        return grpc.stream_stream_rpc_method_handler(refuse)  # serves every kind of call: it reads and sends no message

    def _tell(self, address: str, missing: str) -> None:
        now_s = self._monotonic()
        if now_s - self._told_at_s < WARNING_PAUSE_S:
            self._untold += 1
            return
        others = f" ({self._untold} other calls were refused since the last such line)" if self._untold else ""
        _log.warning("a call from %s was refused for %s%s", address, missing, others)
        self._told_at_s, self._untold = now_s, 0


def _checked(tokens: Iterable[Token]) -> tuple[Token, ...]:
    checked = tuple(tokens)
    if not checked:
        raise InvalidArgumentError("a check of tokens without a token refuses every call: give at least one")
    return checked


_WITHOUT: Final = AuthenticationError(
    "this server takes calls with a token only, and this one has none: give the client the server's token"
)
_UNKNOWN: Final = AuthenticationError("the token of this call is not the server's: give the client the server's token")
