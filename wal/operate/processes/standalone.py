"""LogServer: a log that this process serves to clients, from the start of its server to its end.

The log belongs to its owner, who opens it before the server starts and closes it after. This file lists all services of a log whose
coordinator and only node are this process. A new service is a file of its own whose `handlers()` are added here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

from wal.errors import ChannelFencedError, ClosedError, WALError
from wal.location import Location
from wal.network import Method
from wal.node.local.log import LocalLog
from wal.requests.pchannels import Retention
from wal.rpc.draining import Draining
from wal.rpc.serving import Handler
from wal.serve.access import Access
from wal.serve.discovery import Discovery
from wal.serve.fence import LogCheck
from wal.serve.frame_calls import FrameCalls
from wal.serve.hosted import Hosted
from wal.serve.milvus import ConsumeService
from wal.serve.milvus_produce import MilvusProduceService
from wal.serve.produce import ProduceService
from wal.serve.server import DRAIN_S, Server, States
from wal.serve.submit import SubmitService, hosted_calls
from wal.serve.tail import AllTickRounds, TailService
from wal.serve.watch import WatchService
from wal.settings import ServerBounds, Settings

if TYPE_CHECKING:
    from wal.operate.metrics.snapshot import SnapshotSource


_SERVER_ID: Final = 1
"""The id of the only node of a log that has no coordinator."""


def all_handlers(
    log: LocalLog, hosted: Hosted, draining: Draining, states: States, *, address: str, bounds: ServerBounds
) -> dict[Method[Any, Any], Handler]:
    """Returns the handlers of all methods that this process serves.

    `log` is the open log, `hosted` are its pchannels in this process. A service first gets a pchannel from `hosted`; a long-lived stream
    registers with `draining` for the end of the node. Clients reach the node at `address`.
    """
    rounds, requests = AllTickRounds(), log.coordinator_requests(draining.ending)
    draining.on_begin(lambda: log.coordinator.end_waiting(draining.error))
    return {
        **states.handlers(),
        **Discovery(hosted, draining, server_id=states.server_id, address=address).handlers(),
        **WatchService(log.coordinator, draining).handlers(),
        **ProduceService(log.node, hosted, draining, bounds).handlers(),
        **MilvusProduceService(log.node, hosted, draining, bounds).handlers(),
        **ConsumeService(log.node, hosted, draining, rounds).handlers(),
        **TailService(log.node, hosted, draining, bounds, rounds).handlers(),
        **FrameCalls(hosted, draining, log.node.routes.matching).handlers(),
        **SubmitService(node=hosted_calls(log.node, hosted), coordinator=requests.submit).handlers(),
    }


class LogServer(Server):
    """The server of an open log. `start` creates it."""

    def __init__(self, log: LocalLog, access: Access) -> None:
        self.failure: asyncio.Future[WALError] = asyncio.get_running_loop().create_future()
        """The first reason why a pchannel has failed until the log is opened again. The node is then NOT_SERVING.

        A pchannel that another server has taken over does not count: opening the log again would take it back.
        """
        self._failing: asyncio.Task[None] | None = None
        interceptors = (LogCheck(log.coordinator.log_id, log.node.pchannels),)
        pchannels = len(log.coordinator.pchannels)
        super().__init__(access, States(_SERVER_ID), Draining(), interceptors=interceptors, settings=log.settings, pchannels=pchannels)

    @classmethod
    async def start(cls, log: LocalLog, access: Access) -> Self:
        """Serves an open log. Raises what `Server.listen` raises."""
        server, hosted = cls(log, access), Hosted(log.node.pchannels)
        await server.listen(
            lambda address: all_handlers(log, hosted, server.draining, server.states, address=address, bounds=access.bounds)
        )
        for pchannel in log.node.pchannels.values():
            pchannel.tail.on_failure = server._look_at
            if pchannel.tail.failure is not None:
                server._look_at(pchannel.tail.failure)
        return server

    async def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Rejects new calls, waits up to `drain_s` for running ones, and stops. Idempotent; if cancelled, the server stops at once."""
        if self._failing is not None:
            await self._failing
        await super().close(drain_s=drain_s)

    def _look_at(self, cause: BaseException) -> None:
        """Records the end of a pchannel, if it is a failure of this process."""
        if isinstance(cause, ClosedError | ChannelFencedError) or self.failure.done():
            return
        if isinstance(cause, WALError):
            self.failure.set_result(cause)
            self._failing = asyncio.get_running_loop().create_task(self.states.failed(), name="node failed")


class ServedLog:
    """A log that this process opens, serves and closes: its only writer, its coordinator and its only node. `open` creates it."""

    def __init__(self, log: LocalLog, server: LogServer) -> None:
        self.server: LogServer = server
        self.log: LocalLog = log

    @classmethod
    async def open(cls, location: Location, settings: Settings, access: Access) -> ServedLog:
        """Opens the log and serves it; raises the errors of both."""
        log = LocalLog(location, settings)
        await log.open()
        try:
            return cls(log, await LogServer.start(log, access))
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(log.close()))
            raise

    async def failed(self) -> WALError:
        """Returns the reason once the log can no longer be written."""
        return await asyncio.shield(self.server.failure)

    def measured(self) -> SnapshotSource:
        """Returns the source of the log's metrics."""
        from wal.operate.metrics.snapshot import Snapshots  # only on request

        log = self.log
        return Snapshots(log.statistics, log.cursors.infos, lambda: log.submit(Retention()))

    async def close(self) -> None:
        """Ends the server, and closes the log."""
        try:
            await self.server.close()
        finally:
            await self.log.close()
