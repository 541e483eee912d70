"""LogCheck: the server's check that a client has opened the log that is served here, before any handler of a call runs.

A server may be started on another directory, on an empty one, or at an address that a client has for one of several servers. Executed on
the other log, a call would write acknowledged keys again, commit what was begun elsewhere, or read at positions that mean something else.
A client that names no log is not judged: it is older, or has not asked yet which log there is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from wal.engine.local.log import LocalLog
from wal.errors import FormatError, InvalidArgumentError, LogWentBackError, WALError
from wal.rpc.codes import abort
from wal.rpc.headers import log_header, log_in

__all__ = ["LogCheck"]


class LogCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Refuses every call for another log than this one with a FormatError, for this one before a restore with a LogWentBackError.

    The trailer `log-id` ends the client that gets it.
    """

    def __init__(self, log: LocalLog) -> None:
        self._log = log

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        try:
            opened, own = log_in(handler_call_details.invocation_metadata or ()), self._log.log_id
        except InvalidArgumentError as error:
            return _refusing_other_log(error)
        if opened in (None, own):
            return await continuation(handler_call_details)
        if (restored := _restored(self._log, opened)) is not None:
            return _refusing_other_log(restored, log_header(own))
        another = FormatError(
            f"this client opened log {opened:x}, and the server at this address has log {own:x} now: nothing was done. Look whether the "
            "server was started on the right directory, or the address names the right server; then open the log again"
        )
        return _refusing_other_log(another, log_header(own))


def _restored(log: LocalLog, opened: int) -> LogWentBackError | None:
    """Returns the error for a client that opened the log before it was restored from a copy; None if it never was this log."""
    lineages = {name: pchannel.log.lineage for name, pchannel in log.pchannels.items()}
    first = next(iter(lineages.values()))
    parents = [restore.parent for restore in first.restores]
    if opened not in parents:
        return None
    since = len(parents) - parents.index(opened)
    lost: list[LogWentBackError] = []
    for name, lineage in lineages.items():  # a restore is one of all pchannels
        if restores := lineage.restores[-since:]:
            error = lineage.lost("what this client opened", name, min(restores, key=lambda one: one.fork))
            lost.append(error)
    return LogWentBackError(str(lost[0]), commons=[common for error in lost for common in error.commons])


def _refusing_other_log(error: WALError, *trailers: tuple[str, str]) -> grpc.RpcMethodHandler:
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, error, trailers=trailers)

    return grpc.stream_stream_rpc_method_handler(refuse)  # serves every kind of call: it reads and sends no message
