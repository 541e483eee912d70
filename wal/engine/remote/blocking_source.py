"""BlockingSource: a log on the network as a source for reads in the caller's thread (`wal.engine.read_only.source.ReadOnlySource`).

The servers push how far the log reaches and which vchannels there are, so a read that waits at the tail sends no requests. While no server
can be reached, the last known state stays valid, and a reader at the tail waits.
"""

from __future__ import annotations

from wal.channels import VChannelInfo, VChannelView
from wal.cursors import SavedCursors
from wal.engine.remote.blocking import BlockingRemote
from wal.engine.remote.blocking_cursors import BlockingCursors
from wal.engine.remote.blocking_log import BlockingLog
from wal.errors import FormatError
from wal.location import ServerLocation
from wal.settings import Settings

__all__ = ["BlockingSource"]


class BlockingSource:
    """The log of these servers. See `ReadOnlySource`; opening it waits at least `wait_s` for a server."""

    name: str
    form: int
    cursors: SavedCursors

    def __init__(self, servers: ServerLocation, settings: Settings, *, wait_s: float) -> None:
        self.location: str = str(servers)
        self._servers = servers
        self._settings = settings
        self._wait_s = wait_s
        self._remote: BlockingRemote | None = None
        self._logs: dict[str, BlockingLog] = {}
        self._view = VChannelView({}, {})
        self._viewed = -1
        """The version of the known vchannels from which `_view` was built."""

    def absence(self, waited_s: float) -> FormatError | None:
        """Returns None: a server has opened its log before it can be reached, and `open` waits for the server."""
        return None

    def open(self) -> None:
        self._remote = remote = BlockingRemote(self._servers, self._settings, wait_s=self._wait_s)
        self.name = remote.log.name
        self.form = next(iter(remote.log.pchannels.values())).log.form
        self.cursors = BlockingCursors(
            remote, lambda: {name: log.refresh().durable_end for name, log in self._logs.items()}
        )

    def pchannels(self) -> list[str]:
        return list(self._opened().log.pchannels)

    def open_log(self, pchannel: str) -> BlockingLog:
        log = self._logs[pchannel] = BlockingLog(self._opened(), pchannel)
        log.follow()
        return log

    def vchannels(self) -> VChannelView:
        remote = self._opened()
        if remote.log.vchannels.version != self._viewed:
            self._viewed, records, floors = remote.call(self._known, "looking at the vchannels")
            self._view = remote.view(records, floors)
        return self._view

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()

    async def _known(self) -> tuple[int, dict[str, VChannelInfo], dict[str, int]]:
        known = self._opened().log.vchannels
        return known.version, dict(known.records), dict(known.floors)

    def _opened(self) -> BlockingRemote:
        assert self._remote is not None, "the source is used before open()"
        if (failure := self._remote.log.supervision.failure) is not None:
            raise failure
        return self._remote
