"""Nodes: which server has which pchannel, as AssignmentDiscover reports it, and the connections to these servers.

Owns the task that follows the assignments. The pchannels of the server that sends the assignments are reached over the existing connection,
because its advertised address may not be the one used here; those of another server are reached at its advertised address. A server that
does not have a pchannel as it was told is reported to the coordinator, once for each term.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from wal.client.pauses import Pauses
from wal.client.supervision import Supervision
from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    SessionLostError,
    UnavailableError,
    UnmatchedChannelTermError,
    WALError,
)
from wal.requests.reads import GetMoment
from wal.requests.request import Answer, Request
from wal.rpc.api import pchannel_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.codes import error_to_proto
from wal.rpc.connection import Connection, Stream
from wal.rpc.methods import ASSIGNMENT_DISCOVER
from wal.runtime.tasks import end_tasks, keep_task

MISPLACED: Final = (ChannelFencedError, ChannelNotExistError, UnmatchedChannelTermError)
"""The errors with which a server says that it does not have a pchannel, or not in the term that it was told."""

ELSEWHERE: Final = (*MISPLACED, ClosedError, SessionLostError, UnavailableError)
"""The errors with which a server, or the way to it, says that a pchannel is elsewhere, or nowhere for the moment."""
MOVING_S: Final = 30.0
"""How long a call waits for a pchannel that is on no server."""
LOWER_S: Final = 15.0
"""How long a deposed leader may push assignments at most: its session is over then."""
LEAVE_S: Final = 1.0
"""How long answers of a server that has nothing any more are waited for. One that was killed, or stands still, answers nothing."""
Version = tuple[int, int]


class Nodes:
    """The connection for each pchannel, from `start` until `close`. `connect` returns a connection to an address without waiting for it."""

    def __init__(self, coordinator: Connection, connect: Callable[[str], Awaitable[Connection]], supervision: Supervision) -> None:
        self._coordinator = coordinator
        self._connect = connect
        self._supervision = supervision
        self._version: Version = (-1, -1)
        self._lower_since_s: float | None = None
        """Since when only lower versions than the known one were pushed."""
        self._terms: dict[str, int] = {}
        """The term in which each pchannel is assigned."""
        self._places: dict[str, Connection] = {}
        """The connection for each pchannel that is not on the coordinator's server. One that nobody has is looked for where it was."""
        self._connections: dict[str, Connection] = {}
        self._first_assignments: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the assignments are known."""
        self._following: asyncio.Task[None] | None = None
        self._stream: Stream[proto.AssignmentDiscoverRequest, proto.AssignmentDiscoverResponse] | None = None
        self._reported: dict[str, int] = {}
        """The newest term that was reported on this stream, by pchannel."""
        self._reporting: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        """The connections that are being closed, since their servers have nothing any more."""

    async def start(self, timeout_s: float) -> None:
        """Returns when the assignments are known. Raises UnavailableError if no server sends them in time."""
        self._following = self._supervision.keep(self._follow, "follow assignments")
        if not await self._supervision.begun(self._first_assignments, self._following, timeout_s=timeout_s):
            raise UnavailableError(
                f"the server at {self._coordinator.where} did not say within {timeout_s} s which server has which pchannel: try again"
            )

    def connection(self, pchannel: str) -> Connection:
        """Returns the connection to the server that has this pchannel. If none has it, returns the coordinator's, which can say why."""
        return self._places.get(pchannel, self._coordinator)

    def may_move(self, pchannel: str) -> bool:
        """Returns whether a pchannel is at a node of a cluster, or at none at the moment, and not at the one server that there is."""
        return pchannel in self._places or pchannel not in self._terms

    async def submit(self, request: Request[Answer], pchannel: str) -> Answer:
        """Returns the answer of the server of a pchannel to a request, wherever the pchannel moves meanwhile.

        It is sent again, elsewhere perhaps, while servers refuse it because they do not have the pchannel; then it was not executed.

        A vchannel that does not exist is refused with the same error. That is raised if the server has the pchannel in the same term before
        and after the call: a node that was started again at its address has none of them, as long as the coordinator does not know of it.
        A pchannel that is on no server for `MOVING_S` is an outage, whatever its last server said: UnavailableError.
        """
        pauses: Pauses | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + MOVING_S
        before: tuple[Connection, int] | None = None
        while True:
            connection, report = self.connection(pchannel), self.reporter(pchannel)
            try:
                return await connection.submit(request, pchannel)
            except ELSEWHERE as error:
                if not self.may_move(pchannel) or error.outcome_unknown or self._supervision.closing:
                    raise
                if isinstance(error, ChannelNotExistError) and (term := await self._term_at(connection, pchannel)) is not None:
                    if before == (connection, term):
                        raise
                    before = connection, term
                    continue
                before = None
                report(error)
                if loop.time() >= deadline:
                    raise self._nowhere(pchannel, error) from error
                pauses = pauses or Pauses()
                await asyncio.sleep(pauses.next())

    @staticmethod
    def _nowhere(pchannel: str, error: WALError) -> UnavailableError:
        """Returns the error of a call for a pchannel that is on no server for long; `error` is what was said last."""
        return UnavailableError(f"pchannel {pchannel} was on no server for {MOVING_S:g} s, nothing was done: try again ({error})")

    async def _term_at(self, connection: Connection, pchannel: str) -> int | None:
        """Returns the term in which a server has a pchannel now, or None if it does not say so."""
        try:
            return (await connection.submit(GetMoment(pchannel), pchannel)).term
        except WALError:
            return None

    def reporter(self, pchannel: str) -> Callable[[WALError], None]:
        """Returns what reports the error of a call that is made now."""
        return partial(self._report, pchannel, self._terms.get(pchannel, 0))

    def _report(self, pchannel: str, term: int, error: WALError) -> None:
        """Reports a server's error for a pchannel to the coordinator, if the error means that the assignment is wrong.

        Without a stream it reports nothing: the next stream begins with the assignments. After a new assignment of the pchannel it reports
        nothing either: the error is older.
        """
        is_told = self._stream is None or self._reported.get(pchannel, -1) >= term
        if not isinstance(error, MISPLACED) or is_told or self._terms.get(pchannel, 0) > term:
            return
        assert self._stream is not None
        self._reported[pchannel] = term
        report = proto.ReportAssignmentErrorRequest(pchannel=pchannel_pb2.PChannelInfo(name=pchannel, term=term), err=error_to_proto(error))
        request = proto.AssignmentDiscoverRequest(report_error=report)
        keep_task(self._reporting, self._supervision.start(partial(self._stream.write_if_open, request), f"report {pchannel}"))

    def stop(self, cause: WALError | None = None) -> None:
        """Ends all waits for the servers, as `Connection.stop` does."""
        for connection in self._connections.values():
            connection.stop(cause)

    async def close_unless_answering(self, after_s: float) -> None:
        """After this time closes the connections to servers that are gone or frozen: those which do not answer within the same time."""
        await asyncio.sleep(after_s)
        connections = (self._coordinator, *self._connections.values())
        await asyncio.gather(*(connection.close_unless_answering(after_s) for connection in connections))

    async def close(self) -> None:
        """Stops following the assignments, and disconnects from all servers except the coordinator."""
        following, self._following = self._following, None  # its cancellation holds its stream, and a stream holds the connection
        await end_tasks(following, *self._reporting, *self._leaving)
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def _follow(self) -> None:
        pauses = Pauses()
        while True:
            try:
                stream = await self._coordinator.stream(ASSIGNMENT_DISCOVER, "asking which server has which pchannel")
                self._stream, self._reported = stream, {}
                try:
                    while (response := await stream.read()) is not None:
                        if response.HasField("full_assignment"):
                            if not await self._take(response.full_assignment):
                                break  # and ask again: another one may lead
                            pauses.reset()
                finally:
                    self._stream = None
                    stream.cancel()
            except WALError as error:
                if pauses.to_tell():
                    _log.warning("the assignments of pchannels are not followed now: %s", error)
            await asyncio.sleep(pauses.next())

    async def _take(self, full: proto.FullStreamingNodeAssignmentWithVersion) -> bool:
        """Adopts these assignments, unless newer ones are known; returns whether the sender is valid."""
        version = (getattr(full.version, "global"), full.version.local)
        if version < self._version and not self._went_back(version):
            return bool(version[0] == self._version[0])
        self._lower_since_s = None
        places = self._places.copy()
        for assignment in full.assignments:
            node = assignment.node
            names = [info.name for info in assignment.channels]
            if full.HasField("answered_by") and node.server_id == full.answered_by.server_id:
                for name in names:
                    places.pop(name, None)
                continue
            if node.address not in self._connections:
                self._connections[node.address] = await self._connect(node.address)
            places |= dict.fromkeys(names, self._connections[node.address])
        self._version, self._places = version, places
        self._terms = {info.name: info.term for assignment in full.assignments for info in assignment.channels}
        used = set(map(id, places.values()))
        for address, connection in list(self._connections.items()):
            if id(connection) not in used:
                del self._connections[address]
                keep_task(self._leaving, self._supervision.start(partial(_leave, connection), f"leave {address}"))
        if not self._first_assignments.done():
            self._first_assignments.set_result(None)
        return True

    def _went_back(self, version: Version) -> bool:
        """Returns whether a lower version is valid: it comes from a restored etcd, whose revisions went back. A deposed leader pushes a
        lower version too, but only until its session ends.
        """
        if version[0] == self._version[0]:
            return False
        now_s = asyncio.get_running_loop().time()
        if self._lower_since_s is None:
            self._lower_since_s = now_s
        return now_s - self._lower_since_s >= LOWER_S


async def _leave(connection: Connection) -> None:
    """Closes the connection to a server that has no pchannel any more, after a moment for its last answers."""
    gone = UnavailableError(f"the server at {connection.where} has none of its pchannels any more: ask where they are now")
    connection.stop(gone)
    try:
        await asyncio.sleep(LEAVE_S)
    finally:
        await connection.leave(gone)


_log: Final = logging.getLogger("wal.remote")
