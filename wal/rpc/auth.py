"""TokenCheck: the server's check of tokens and their rights, before any handler of a call runs.

Tokens that a server takes, each with a name and rights, and the right that each method of the protocol needs. A token file has a token a
line. `NAME RIGHTS TOKEN` is a token with a name, which log lines show, and some of the rights, separated by commas; any other line is a
token with all of them. Empty lines, and lines that begin with `# `, are skipped.

    # the service that writes
    shop   read,write  4f9d…
    report read        a71c…
    b30e…
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from wal.errors import AuthenticationError, InvalidArgumentError
from wal.requests.rights import ALL_RIGHTS, Right, calling_with
from wal.rpc.codes import MissingRightError, abort
from wal.rpc.headers import token_header, token_in
from wal.rpc.methods import (
    ASSIGN,
    ASSIGNMENT_DISCOVER,
    COLLECT_STATUS,
    CONSUME,
    COORDINATOR_STATES,
    FOLLOW_TAIL,
    MILVUS_PRODUCE,
    NODE_STATES,
    PRODUCE,
    READ_FRAMES,
    REMOVE,
    SUBMIT,
    WATCH_VCHANNELS,
)
from wal.rpc.serving import Behavior, wrapped
from wal.runtime.secret import Secret

_WRITES: Final = (PRODUCE, MILVUS_PRODUCE)
_SERVES: Final = (ASSIGN, REMOVE, COLLECT_STATUS)
_READS: Final = (COORDINATOR_STATES, NODE_STATES, ASSIGNMENT_DISCOVER, CONSUME, WATCH_VCHANNELS, FOLLOW_TAIL, READ_FRAMES)
RIGHTS: Final = {
    method.path: right for right, methods in ((Right.READ, _READS), (Right.WRITE, _WRITES), (Right.SERVER, _SERVES)) for method in methods
}
"""The right that each method needs, by its path. The request of SUBMIT has its own."""
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


def right_for(path: str) -> Right | None:
    """Returns the right that the method with this path needs, None for SUBMIT; `read` for an unknown method, so that its caller gets the
    error for that.
    """
    return None if path == SUBMIT.path else RIGHTS.get(path, Right.READ)


def tokens_in(text: str) -> list[Token]:
    """Returns the tokens of a token file.

    Raises InvalidArgumentError for a token that no client can send, and for a repeated name.
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


_WITHOUT_TOKEN: Final = ("/grpc.health.v1.Health/",)
"""Services that need no token, since the probes of load balancers cannot send one."""
WARNING_PAUSE_S: Final = 1.0
"""The least time between two warnings about refused calls: a refused client may come again at once."""
_log: Final = logging.getLogger("wal.rpc")


class _Allowed(msgspec.Struct):
    """Why a call is served: its token, and the rights that it has needed until now."""

    token: Token
    rights: set[Right]


def _lacking(right: Right, what: str) -> MissingRightError:
    """Returns the error of a call whose token has not this right."""
    return MissingRightError(
        f"the token of this call has no right to {what}, which needs {right.value!r}: use a token that has it, or have it added in the "
        "server's token file"
    )


def _missing(right: Right, token: Token) -> str:
    called = f"the token {token.name!r}" if token.name else "a token"
    return f"the right {right.value!r} of {called}"


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Refuses every call without one of these tokens, or whose token has not the right that its method needs: AuthenticationError.

    The status is UNAUTHENTICATED, and PERMISSION_DENIED for a missing right. Health checks need no token. Tokens are compared in constant
    time; several are accepted while they are being changed. A WARNING names the address of a refused client.
    """

    def __init__(self, tokens: Iterable[Token], *, monotonic: Callable[[], float]) -> None:
        """Raises InvalidArgumentError for no tokens."""
        self._tokens = _checked(tokens)
        self._under_way: dict[asyncio.Task[Any], _Allowed] = {}
        self._ended: set[asyncio.Task[Any]] = set()
        """The calls under way whose tokens were taken back."""
        self._monotonic = monotonic
        self._told_at_s = -math.inf
        self._untold = 0

    def renew(self, tokens: Iterable[Token]) -> None:
        """Takes these tokens from now on; calls under way that they do not allow end. Raises InvalidArgumentError for no tokens."""
        self._tokens = _checked(tokens)
        for task, allowed in self._under_way.items():
            if not self._allows(allowed) and task not in self._ended:
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
        if right is not None and right not in token.rights:
            return self._refusing(_lacking(right, method), _missing(right, token))
        handler, known = await continuation(handler_call_details), token

        async def call(behavior: Behavior, request: Any, context: Any) -> Any:
            return await self._while_allowed(behavior, request, context, _Allowed(known, set() if right is None else {right}))

        return None if handler is None else wrapped(handler, call)

    async def _while_allowed(self, behavior: Behavior, request: Any, context: Any, allowed: _Allowed) -> Any:
        """Serves a call until its token, or a right that it needs, is taken back."""
        if not self._allows(allowed):  # it was taken back while the request arrived
            await abort(context, _UNKNOWN, status=grpc.StatusCode.UNAUTHENTICATED)

        def demand(right: Right, what: str) -> None:
            if right not in allowed.token.rights:
                self._tell(context.peer(), _missing(right, allowed.token))
                raise _lacking(right, what)
            allowed.rights.add(right)

        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = allowed
        try:
            with calling_with(demand):
                return await behavior(request, context)
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel():  # it was cancelled by another one, perhaps as well
                raise
            await abort(context, _UNKNOWN, status=grpc.StatusCode.UNAUTHENTICATED)
        finally:
            del self._under_way[task]
            self._ended.discard(task)

    def _allows(self, allowed: _Allowed) -> bool:
        token = self._token(allowed.token.secret)
        return token is not None and allowed.rights <= token.rights

    def _token(self, secret: Secret) -> Token | None:
        matching_token = None
        for token in self._tokens:  # all are compared, always
            if secret == token.secret:
                matching_token = token
        return matching_token

    def _refusing(self, error: AuthenticationError, missing: str) -> grpc.RpcMethodHandler:
        """Returns a handler that refuses the call, and reports the refusal."""

        async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            self._tell(context.peer(), missing)
            await abort(context, error)

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
