"""Node: a log that this process serves to clients, from the start of its server to its end.

The log stays its owner's: it is opened before the node starts, and closed after the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc.aio

from wal.engine.local.log import LocalLog
from wal.node.access import Access
from wal.node.draining import Draining
from wal.node.fence import Fence
from wal.node.hosted import Hosted
from wal.node.log_check import LogCheck
from wal.node.services import all_handlers
from wal.node.states import States
from wal.rpc.auth import TokenCheck
from wal.rpc.serving import add_handlers, listen, server_options

__all__ = ["Node"]

DRAIN_S: Final = 5.0
"""How long the end of a node waits for calls under way."""
LATE_S: Final = 0.2
"""How long a stopping node still refuses calls from clients that do not know yet. After that, gRPC ends them without an error of ours."""
SENT_S: Final = 1.0
"""How long the statuses with which calls ended may take to be sent. A connection that is idle ends at once."""
_SERVER_ID: Final = 1
"""The id of the only node of a log that has no coordinator."""
_REQUEST_OVERHEAD_BYTES: Final = 1 << 20
"""What a request has besides the messages in it: names, lengths, keys."""


class Node:
    """A node that serves clients. `start` creates it; `address` is where it listens."""

    def __init__(self, server: grpc.aio.Server, address: str, draining: Draining, states: States) -> None:
        self.address: str = address
        self._server = server
        self._draining = draining
        self._states = states

    @classmethod
    async def start(cls, log: LocalLog, access: Access) -> Node:
        """Serves an open log.

        Raises StorageError if nothing can listen at the address, InvalidArgumentError for files that cannot be read.
        """
        draining, states, hosted = Draining(), States(_SERVER_ID), Hosted(log.pchannels)
        interceptors: Sequence[Any] = (LogCheck(log), Fence(), draining)
        if access.tokens:
            interceptors = (TokenCheck(access.tokens), *interceptors)
        settings = log.settings
        request_bytes = max(settings.message_bytes_max, settings.txn_bytes_max, 1 << 20) + _REQUEST_OVERHEAD_BYTES
        server = grpc.aio.server(
            interceptors=interceptors, options=server_options(message_bytes_max=max(request_bytes, 8 << 20))
        )
        try:
            port = await listen(server, access.listen, tls=access.tls)
            handlers = all_handlers(log, hosted, draining, states, address=access.advertised(port))
            add_handlers(server, handlers)
            await states.serve_health(server, handlers)
            await server.start()
        except BaseException:
            await server.stop(None)
            raise
        return cls(server, access.address(port), draining, states)

    async def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Refuses new calls, waits up to `drain_s` for those under way, and stops. Idempotent; if cancelled, the node stops at once."""
        try:
            await self._states.stopping()
            used = self._draining.calls > 0
            self._draining.begin()
            await self._draining.wait(drain_s)
            if used:
                await asyncio.sleep(LATE_S)
                await self._server.stop(SENT_S)
        finally:
            await self._server.stop(None)
