"""ClusterReader: a node's reads of all pchannels of its cluster, most of which other nodes have.

The home of the cursor of a pattern needs them for the members that share the cursor. The first such read opens a client of the cluster that
only reads, with the certificate and a token of the servers. A client that a defect or an older copy of the log has ended is replaced at the
next read. The node closes it before its server, which waits for the calls of clients.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wal.errors import closed_log
from wal.location import EtcdLocation, ServerLocation, parse_kv
from wal.message.matching import Matching
from wal.operate.processes.opening import shared_token
from wal.read.loop import Spawn
from wal.read.options import Selection
from wal.read.pchannel import ReadablePChannel
from wal.requests.rights import Right
from wal.runtime.async_only import import_late
from wal.runtime.secret import Secret
from wal.runtime.tasks import end_tasks, retrieve
from wal.serve.access import Access
from wal.settings import Settings

if TYPE_CHECKING:
    from wal.client.log import RemoteLog


class ClusterReader:
    """The client of a node of the cluster at `root`. `close` it."""

    def __init__(self, root: str | Secret, access_now: Callable[[], Access]) -> None:
        self._root = root
        self._access_now = access_now
        self._opening: asyncio.Task[RemoteLog] | None = None
        self._closed = False

    async def attach_matching(self, pattern: Matching) -> tuple[Sequence[tuple[ReadablePChannel, Selection]], Spawn]:
        """Returns all pchannels, caught up, each with the vchannels on it that match, and what starts an actor."""
        return await (await self._opened()).attach_matching(pattern)

    async def close(self) -> None:
        """Ends all reads, and disconnects. Idempotent."""
        self._closed = True
        opening, self._opening = self._opening, None
        await end_tasks(opening)
        if (log := _log_of(opening)) is not None:
            await log.close()

    async def _opened(self) -> RemoteLog:
        if self._closed:
            raise closed_log()
        before = self._opening
        if before is None or (before.done() and ((log := _log_of(before)) is None or log.supervision.failure is not None)):
            # The client outlives the call that opens it, so it takes nothing from the context of the call.
            opening = self._open(_log_of(before))
            self._opening = asyncio.get_running_loop().create_task(opening, name="client of the cluster", context=contextvars.Context())
            self._opening.add_done_callback(retrieve)
        assert self._opening is not None
        return await asyncio.shield(self._opening)

    async def _open(self, before: RemoteLog | None) -> RemoteLog:
        if before is not None:
            await before.close()
        root, access = parse_kv(self._root), self._access_now()
        assert isinstance(root, EtcdLocation), "the root is in etcd"
        servers = ServerLocation((), root=root)
        if (tls := access.tls) is not None:
            ca, certificate, key = [None if file is None else Path(file) for file in (tls.ca, tls.certificate, tls.key)]
            servers = ServerLocation((), True, ca, certificate, key, root)
        await import_late("wal.client.log")
        from wal.client.log import RemoteLog  # shared cursors of patterns alone need it

        log = RemoteLog(servers, Settings(token=shared_token(access, Right.READ)), read_only=True)
        await log.open()
        return log


def _log_of(opening: asyncio.Task[RemoteLog] | None) -> RemoteLog | None:
    """Returns the client that was opened, None if none was."""
    return None if opening is None or not opening.done() or opening.cancelled() or opening.exception() else opening.result()
