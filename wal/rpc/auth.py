"""TokenCheck: the server's check of tokens, before any handler of a call runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import grpc
import grpc.aio

from wal.errors import InvalidArgumentError
from wal.rpc.codes import abort
from wal.rpc.headers import token_header, token_in
from wal.secret import Secret

__all__ = ["TokenCheck"]

_WITHOUT_TOKEN: Final = ("/grpc.health.v1.Health/",)
"""Services that need no token: what probes of load balancers ask, which can send none."""


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Refuses every call without one of these tokens, except for health checks: InvalidArgumentError, status UNAUTHENTICATED.

    Tokens are compared in constant time. Several are accepted while they are being changed.
    """

    def __init__(self, tokens: Iterable[Secret]) -> None:
        """Raises InvalidArgumentError for no tokens, or for one that no client can send."""
        self._tokens = tuple(tokens)
        if not self._tokens:
            raise InvalidArgumentError("a check of tokens without a token refuses every call: give at least one")
        for token in self._tokens:
            token_header(token)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        given = token_in(handler_call_details.invocation_metadata or ())
        known = given is not None and sum(given == token for token in self._tokens) > 0  # all are compared, always
        if known or handler_call_details.method.startswith(_WITHOUT_TOKEN):
            return await continuation(handler_call_details)
        return _REFUSED if given is None else _DENIED


def _refusing(text: str) -> grpc.RpcMethodHandler:
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, InvalidArgumentError(text), status=grpc.StatusCode.UNAUTHENTICATED)

    return grpc.stream_stream_rpc_method_handler(refuse)  # serves every kind of call: it reads and sends no message


_REFUSED: Final = _refusing(
    "this server takes calls with a token only, and this one has none: give the client the server's token"
)
_DENIED: Final = _refusing("the token of this call is not the server's: give the client the server's token")
