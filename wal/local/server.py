"""LogServer: a log that this process serves to clients, from the start of its server to its end.

The log stays its owner's: it is opened before the node starts, and closed after the node.

All services of a node. A new one is a file of its own whose `handlers()` are added here.

The state of a node as its component: both GetComponentStates, and gRPC's health for probes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from wal.coordinator.discovery import Discovery
from wal.coordinator.log_service import LogService
from wal.errors import ChannelFencedError, ClosedError, InvalidArgumentError, WALError
from wal.local.access import Access
from wal.local.log import LocalLog
from wal.local.process import ProcessWatch, connections_within
from wal.network import Method, ServerCertificate
from wal.node.bounds import Bounded
from wal.node.consume import ConsumeService
from wal.node.fence import CallFence, LogCheck
from wal.node.hosted import Hosted
from wal.node.pchannel_service import PChannelService
from wal.node.produce import ProduceService
from wal.rpc.api.component_pb2 import (
    Abnormal,
    ComponentInfo,
    ComponentStates,
    ComponentStatus,
    GetComponentStatesRequest,
    Healthy,
    StateCode,
    Stopping,
)
from wal.rpc.auth import TokenCheck
from wal.rpc.methods import COORDINATOR_STATES, NODE_STATES
from wal.rpc.serving import MESSAGE_BYTES_MAX, Draining, Handler, add_handlers, listen, server_options
from wal.settings import ServerBounds


def all_handlers(
    log: LocalLog, hosted: Hosted, draining: Draining, states: States, *, address: str, bounds: ServerBounds
) -> dict[Method[Any, Any], Handler]:
    """Returns the handlers of all methods that this process serves.

    `log` is the open log, `hosted` the pchannels of it that are here. What a service does for a pchannel it asks of `hosted` first; a
    stream that lasts asks `draining` to be told when the node stops. Clients reach the node at `address`.
    """
    return {
        **states.handlers(),
        **Discovery(hosted, draining, server_id=states.server_id, address=address).handlers(),
        **LogService(
            log.coordinator, log.node, draining, name=log.name, form=log.backend.form, frame_bytes_max=log.frame_bytes_max
        ).handlers(),
        **ProduceService(log.node, hosted, draining, bounds).handlers(),
        **ConsumeService(log.node, hosted, draining).handlers(),
        **PChannelService(log.node, hosted, draining).handlers(),
    }


COORDINATOR: Final = "streamingcoord"
NODE: Final = "streamingnode"
"""The roles as Milvus names them."""


class States:
    """The state of this process, in each of these roles."""

    def __init__(self, server_id: int) -> None:
        self.server_id: int = server_id
        self._code: StateCode = Healthy
        self._health = health.aio.HealthServicer()

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of the services of states."""
        return {COORDINATOR_STATES: self._answering(COORDINATOR), NODE_STATES: self._answering(NODE)}

    async def serve_health(self, server: grpc.aio.Server, handlers: Mapping[Method[Any, Any], Handler]) -> None:
        """Adds gRPC's health service to a server: the whole server, and each service of these handlers, is SERVING."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for service in ("", *{method.path.split("/")[1] for method in handlers}):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    async def failed(self) -> None:
        """Tells everybody who asks that the process cannot serve the log any more, and has to be started again."""
        self._code = Abnormal
        await self._health.enter_graceful_shutdown()

    async def stopping(self) -> None:
        """Tells everybody who asks that the process is stopping."""
        if self._code is not Abnormal:
            self._code = Stopping
        await self._health.enter_graceful_shutdown()

    def _answering(self, role: str) -> Handler:
        async def states(_request: GetComponentStatesRequest, _context: object) -> ComponentStates:
            return ComponentStates(state=ComponentInfo(nodeID=self.server_id, role=role, state_code=self._code), status=ComponentStatus())

        return states


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


class LogServer:
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
    async def start(cls, log: LocalLog, access: Access) -> LogServer:
        """Serves an open log.

        Raises StorageError if nothing can listen at the address, InvalidArgumentError for files that cannot be read.
        """
        draining, states, hosted = Draining(), States(_SERVER_ID), Hosted(log.node.pchannels)
        interceptors: Sequence[Any] = (LogCheck(log.coordinator.log_id, log.node.pchannels), CallFence(), draining)
        check = TokenCheck(access.tokens, monotonic=time.monotonic) if access.tokens else None
        if check is not None:
            interceptors = (check, *interceptors)
        certificate = await ServerCertificate.of(access.tls) if access.tls is not None else None
        settings = log.settings
        request_bytes = max(settings.message_bytes_max, settings.txn_bytes_max, 1 << 20) + _REQUEST_OVERHEAD_BYTES
        request_bytes, bounds = max(request_bytes, MESSAGE_BYTES_MAX), access.bounds
        bounded = Bounded(bounds, request_bytes=request_bytes, pchannels=len(log.coordinator.pchannels))
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
        for pchannel in log.node.pchannels.values():
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
