"""ServedLog: a log that this process opens, serves and closes. The process is its only writer, its coordinator and its only node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from wal.errors import WALError
from wal.local.log import LocalLog
from wal.local.server import LogServer
from wal.location import Location
from wal.node.access import Access
from wal.settings import Settings

if TYPE_CHECKING:
    from wal.metrics.snapshot import SnapshotSource


class ServedLog:
    """A log and its server. `open` creates it."""

    def __init__(self, log: LocalLog, server: LogServer) -> None:
        self.server: LogServer = server
        self.log: LocalLog = log

    @classmethod
    async def open(cls, location: Location, settings: Settings, access: Access) -> ServedLog:
        """Opens the log and serves it; raises what either of the two raises."""
        log = LocalLog(location, settings)
        await log.open()
        try:
            return cls(log, await LogServer.start(log, access))
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(log.close()))
            raise

    async def failed(self) -> WALError:
        """Returns the reason once the log cannot be written any more."""
        return await asyncio.shield(self.server.failure)

    def measured(self) -> SnapshotSource:
        """Returns what is measured of the log."""
        from wal.metrics.snapshot import Snapshots  # only where it is asked for

        log = self.log
        return Snapshots(log.statistics, log.cursors.infos, log.retention_report)

    async def close(self) -> None:
        """Ends the server, and closes the log."""
        try:
            await self.server.close()
        finally:
            await self.log.close()
