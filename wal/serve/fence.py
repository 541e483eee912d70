"""CallFence: rejects a change whose client has abandoned it and sent a later one.

Requests on a lost connection may still arrive. So the changes of a client carry a session and a number, which the client raises
whenever it gives up a change without an answer; after that its other requests carry them too. A call with a higher number waits for the
changes with lower ones that have begun, and those that come after it are refused. So what its answer shows is final.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from wal.errors import FormatError, InvalidArgumentError, LogWentBackError, SessionLostError, WALError
from wal.requests.request import Request
from wal.rpc.codes import abort
from wal.rpc.headers import Metadata, log_header, log_in, session_in
from wal.write.pchannel import PChannel

_T = TypeVar("_T")
SESSIONS_MAX: Final = 16_384
"""How many sessions that have given up a change are remembered; the one that was silent longest is forgotten first."""


class CallFence:
    """Executes the changes of each session in the order of their numbers, or not at all."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, int] = OrderedDict()
        """The highest number of each session that has given up a change."""
        self._begun: dict[str, dict[asyncio.Future[Any], int]] = {}
        """The changes under way, by session, with their numbers."""

    async def execute(self, metadata: Metadata, request: Request[Any], answer: Callable[[], Awaitable[_T]]) -> _T:
        """Returns the answer to a request whose call has this metadata, at its turn. Raises SessionLostError for a late change."""
        session = session_in(metadata)
        if session is None:
            return await answer()
        self._note(*session)
        await self._turn(*session, changes=request.changes)
        if not request.changes or request.waits:  # a waiting call is listed once it has begun, and withdrawn otherwise
            return await answer()
        # Shielded, because gRPC cancels the handler when the connection is lost, and that does not undo what has begun.
        return await asyncio.shield(self._begin(answer(), *session))

    async def _turn(self, session: str, number: int, *, changes: bool) -> None:
        """Returns when the changes with lower numbers that have begun have ended. Raises SessionLostError for a late change."""
        while older := [change for change, its in self._begun.get(session, {}).items() if its < number]:
            await asyncio.wait(older)
        if changes and number < self._newest.get(session, 0):
            raise late()

    def _note(self, session: str, number: int) -> None:
        """Refuses changes with a lower number from now on."""
        if number > self._newest.get(session, 0):
            self._newest[session] = number
        if session in self._newest:
            self._newest.move_to_end(session)
            if len(self._newest) > SESSIONS_MAX:
                self._newest.popitem(last=False)

    def _begin(self, change: Awaitable[_T], session: str, number: int) -> asyncio.Future[_T]:
        """Executes a change in a task of its own, for which calls with a higher number wait."""
        begun = self._begun.setdefault(session, {})
        task = asyncio.ensure_future(change)
        begun[task] = number

        def ended(_: object) -> None:
            del begun[task]
            if not begun and self._begun.get(session) is begun:
                del self._begun[session]
            if not task.cancelled():
                task.exception()  # retrieved, also if the client is gone

        task.add_done_callback(ended)
        return task


def late() -> SessionLostError:
    """Returns the error of a change that came too late: nothing of it was executed."""
    return SessionLostError(
        "this call arrived after one that its client made later, when it had given up a change: nothing was changed; call again with the "
        "newest number"
    )


def _refusing(error: WALError, *trailers: tuple[str, str]) -> grpc.RpcMethodHandler:
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, error, trailers=trailers)

    return grpc.stream_stream_rpc_method_handler(refuse)  # serves every kind of call: it reads and sends no message


class LogCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """The server's check that a client has opened the log that is served here, and of a call's session, before any handler of a call runs.

    A server may be started on another directory, on an empty one, or at an address that a client has for one of several servers. Executed
    on the other log, a call would write acknowledged keys again, commit what was begun elsewhere, or read at positions that mean something
    else. A client that names no log is not judged: it is older, or has not asked yet which log there is.

    Refuses every call for another log than this one with a FormatError, for this one before a restore with a LogWentBackError.

    The trailer `log-id` ends the client that gets it. A session that cannot be read is an InvalidArgumentError.
    """

    def __init__(self, log_id: int | None, pchannels: Mapping[str, PChannel]) -> None:
        """`log_id` identifies the log (None: it is not known yet), and `pchannels` are those of it that are here."""
        self.log_id: int | None = log_id
        self._pchannels = pchannels

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        try:
            metadata = handler_call_details.invocation_metadata or ()
            session_in(metadata)
            opened, own = log_in(metadata), self.log_id
        except InvalidArgumentError as error:
            return _refusing(error)
        if own is None or opened in (None, own):
            return await continuation(handler_call_details)
        if (restored := _restored(self._pchannels, opened)) is not None:
            return _refusing(restored, log_header(own))
        another = FormatError(
            f"this client opened log {opened:x}, and the server at this address has log {own:x} now: nothing was done. Look whether the "
            "server was started on the right directory, or the address names the right server; then open the log again"
        )
        return _refusing(another, log_header(own))


def _restored(pchannels: Mapping[str, PChannel], opened: int) -> LogWentBackError | None:
    """Returns the error for a client that opened the log before it was restored from a copy; None if it never was this log."""
    lineages = {name: pchannel.log.lineage for name, pchannel in pchannels.items()}
    if not lineages:
        return None
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
