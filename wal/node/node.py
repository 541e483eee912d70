"""Node: a log that this process serves to clients, from the start of its server to its end.

The log stays its owner's: it is opened before the node starts, and closed after the node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import grpc.aio

from wal.engine.local.log import LocalLog
from wal.errors import ChannelFencedError, ClosedError, InvalidArgumentError, WALError
from wal.network import ServerCertificate
from wal.node.access import Access
from wal.node.bounds import Bounded
from wal.node.draining import Draining
from wal.node.fence import Fence
from wal.node.hosted import Hosted
from wal.node.log_check import LogCheck
from wal.node.process import ProcessWatch, connections_within
from wal.node.services import all_handlers
from wal.node.states import States
from wal.rpc.auth import TokenCheck
from wal.rpc.serving import MESSAGE_BYTES_MAX, add_handlers, listen, server_options

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

    def __init__(
        self,
        server: grpc.aio.Server,
        address: str,
        draining: Draining,
        states: States,
        watch: ProcessWatch,
        bounded: Bounded,
        check: TokenCheck | None,
        certificate: ServerCertificate | None,
    ) -> None:
        self.address: str = address
        self.failure: asyncio.Future[WALError] = asyncio.get_running_loop().create_future()
        """The reason why a pchannel takes nothing any more until the log is opened again, once there is one. The node is NOT_SERVING then.

        A pchannel that another server has taken over is no such reason: opening the log again would take it back."""
        self._server = server
        self._draining = draining
        self._states = states
        self._failing: asyncio.Task[None] | None = None
        self._watch = watch
        self.bounded: Bounded = bounded
        """What clients have under way."""
        self._check = check
        self._certificate = certificate

    @classmethod
    async def start(cls, log: LocalLog, access: Access) -> Node:
        """Serves an open log.

        Raises StorageError if nothing can listen at the address, InvalidArgumentError for files that cannot be read.
        """
        draining, states, hosted = Draining(), States(_SERVER_ID), Hosted(log.pchannels)
        interceptors: Sequence[Any] = (LogCheck(log), Fence(), draining)
        check = TokenCheck(access.tokens, monotonic=time.monotonic) if access.tokens else None
        if check is not None:
            interceptors = (check, *interceptors)
        certificate = await ServerCertificate.of(access.tls) if access.tls is not None else None
        settings = log.settings
        request_bytes = max(settings.message_bytes_max, settings.txn_bytes_max, 1 << 20) + _REQUEST_OVERHEAD_BYTES
        request_bytes, bounds = max(request_bytes, MESSAGE_BYTES_MAX), access.bounds
        bounded = Bounded(bounds, request_bytes=request_bytes, pchannels=len(log.pchannels))
        connections = await asyncio.to_thread(connections_within, bounds.connections_max)
        watch = ProcessWatch(connections, monotonic=time.monotonic)
        options = server_options(
            message_bytes_max=request_bytes,
            connections_max=connections,
            idle_connection_s=bounds.idle_connection_s,
            handshake_s=bounds.handshake_s,
            client_calls_max=bounds.client_calls_max,
        )
        server = grpc.aio.server(interceptors=(bounded, *interceptors), options=options)
        try:
            port = await listen(server, access.listen, tls=certificate)
            handlers = all_handlers(log, hosted, draining, states, address=access.advertised(port), bounds=bounds)
            add_handlers(server, handlers)
            await states.serve_health(server, handlers)
            await server.start()
            await watch.start()
        except BaseException:
            await server.stop(None)
            raise
        node = cls(server, access.address(port), draining, states, watch, bounded, check, certificate)
        for pchannel in log.pchannels.values():
            pchannel.tail.on_failure = node._look_at
            if pchannel.tail.failure is not None:
                node._look_at(pchannel.tail.failure)
        return node

    async def renew(self, access: Access) -> None:
        """Takes the tokens and the certificate of this access from now on. Calls under way whose tokens were taken back end.

        Nothing is changed if this raises InvalidArgumentError: for files that cannot be used, and for tokens or TLS where there were none,
        or the reverse, which is settled at the start.
        """
        for what, was, now in (
            ("tokens", self._check is not None, bool(access.tokens)),
            ("TLS", self._certificate is not None, access.tls is not None),
        ):
            if was != now:
                raise InvalidArgumentError(
                    f"the server was started {'with' if was else 'without'} {what}, which is settled until it ends: start it again"
                )
        if self._certificate is not None and access.tls is not None:
            await self._certificate.renew(access.tls)
        if self._check is not None:
            self._check.renew(access.tokens)

    async def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Refuses new calls, waits up to `drain_s` for those under way, and stops. Idempotent; if cancelled, the node stops at once."""
        try:
            await self._watch.close()
            if self._failing is not None:
                await self._failing
            await self._states.stopping()
            used = self._draining.calls > 0
            self._draining.begin()
            await self._draining.wait(drain_s)
            if used:
                await asyncio.sleep(LATE_S)
                await self._server.stop(SENT_S)
        finally:
            await self._server.stop(None)

    def _look_at(self, cause: BaseException) -> None:
        """Notes why a pchannel has ended, if that is a failure of this process."""
        if isinstance(cause, ClosedError | ChannelFencedError) or self.failure.done():
            return
        if isinstance(cause, WALError):
            self.failure.set_result(cause)
            self._failing = asyncio.get_running_loop().create_task(self._states.failed(), name="node failed")
