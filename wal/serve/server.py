"""Server: a gRPC server of the protocol, from its start to its end: bounds, tokens, TLS, the state of the process, and draining.

It serves the handlers that it gets: the handlers of a whole log, a streaming node, or a coordinator.

`States` answers for the process as a component: GetComponentStates, and gRPC's health for probes. `readiness` is a separate health service
for the whole log: a live process may still be unable to serve the log.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import grpc.aio
import msgspec
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from wal.errors import InvalidArgumentError
from wal.network import Method, ServerCertificate, served_by
from wal.rpc.api.component_pb2 import (
    Abnormal,
    ComponentInfo,
    ComponentStates,
    ComponentStatus,
    GetComponentStatesRequest,
    Healthy,
    KeyValuePair,
    StandBy,
    StateCode,
    Stopping,
)
from wal.rpc.auth import TokenCheck
from wal.rpc.draining import Draining
from wal.rpc.methods import COORDINATOR_STATES, NODE_STATES
from wal.rpc.serving import MESSAGE_BYTES_MAX, Handler, add_handlers, listen, server_options
from wal.runtime.threads import in_thread
from wal.serve.access import Access
from wal.serve.bounds import Bounded
from wal.serve.process import ProcessWatch, connections_within
from wal.settings import Settings

COORDINATOR: Final = "streamingcoord"
NODE: Final = "streamingnode"
"""The roles as Milvus names them."""
READINESS: Final = "readiness"
"""The service of gRPC's health, and the key of GetComponentStates, that say whether the whole log can be used."""


class States:
    """The state of this process, in each of these roles."""

    def __init__(self, server_id: int) -> None:
        self.server_id: int = server_id
        self._code: StateCode = Healthy
        self._unready = ""
        """Why the log cannot be used as a whole; empty if it can."""
        self._health = health.aio.HealthServicer()

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of the services of states."""
        return {COORDINATOR_STATES: self._answering(COORDINATOR), NODE_STATES: self._answering(NODE)}

    async def serve_health(self, server: grpc.aio.Server, handlers: Mapping[Method[Any, Any], Handler]) -> None:
        """Adds gRPC's health service to a server: the whole server, and each service of these handlers, is SERVING."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for service in ("", *{method.path.split("/")[1] for method in handlers}):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        await self.ready(self._unready)

    async def leads(self, leads: bool) -> None:
        """Reports whether this process leads. A standby is not SERVING for gRPC's health."""
        if self._code not in (Abnormal, Stopping):
            self._code = Healthy if leads else StandBy
            await self._health.set("", health_pb2.HealthCheckResponse.SERVING if leads else health_pb2.HealthCheckResponse.NOT_SERVING)

    async def ready(self, why_not: str) -> None:
        """Reports whether the whole log can be used: an empty text, or the reason why not."""
        self._unready = why_not
        serving = health_pb2.HealthCheckResponse.NOT_SERVING if why_not else health_pb2.HealthCheckResponse.SERVING
        await self._health.set(READINESS, serving)

    async def failed(self) -> None:
        """Reports that the process can no longer serve the log, and has to be restarted."""
        self._code = Abnormal
        await self._health.enter_graceful_shutdown()

    async def stopping(self) -> None:
        """Reports that the process is stopping."""
        if self._code is not Abnormal:
            self._code = Stopping
        await self._health.enter_graceful_shutdown()

    def _answering(self, role: str) -> Handler:
        async def states(_request: GetComponentStatesRequest, _context: object) -> ComponentStates:
            said = KeyValuePair(key=READINESS, value=self._unready or "ready")
            info = ComponentInfo(nodeID=self.server_id, role=role, state_code=self._code, extra_info=[said])
            return ComponentStates(state=info, status=ComponentStatus())

        return states


DRAIN_S: Final = 5.0
"""How long the end of a server waits for calls under way."""
LATE_S: Final = 0.2
"""How long a stopping server still refuses calls from clients that do not know yet. After that, gRPC ends them without an error of ours."""
SENT_S: Final = 1.0
"""How long the statuses with which calls ended may take to be sent. A connection that is idle ends at once."""
_REQUEST_OVERHEAD_BYTES: Final = 1 << 20
"""Room for the rest of a request beside its messages: names, lengths, keys."""


class Server:
    """A server that serves clients. `listen` creates it; `address` is where it listens, `advertised` the address for clients."""

    def __init__(
        self, access: Access, states: States, draining: Draining, *, interceptors: Sequence[Any], settings: Settings, pchannels: int
    ) -> None:
        """`settings` are those of the log, which bound a request, and `pchannels` is how many pchannels may be here."""
        self.address: str = ""
        self.advertised: str = ""
        self.states: States = states
        self.draining: Draining = draining
        request_bytes = max(settings.message_bytes_max, settings.txn_bytes_max, 1 << 20) + _REQUEST_OVERHEAD_BYTES
        self._request_bytes = max(request_bytes, MESSAGE_BYTES_MAX)
        self.bounded: Bounded = Bounded(access.bounds, request_bytes=self._request_bytes, pchannels=pchannels)
        """The running calls of clients."""
        self.access: Access = access
        """How the server is reached, with the tokens and the files of TLS that were read last."""
        self._interceptors = tuple(interceptors)
        self._server: grpc.aio.Server
        self._watch: ProcessWatch
        self._check: TokenCheck | None = None
        self._certificate: ServerCertificate | None = None

    async def listen(self, handlers: Callable[[str], Mapping[Method[Any, Any], Handler]]) -> Self:
        """Listens, and serves the handlers that `handlers` returns for the advertised address.

        Raises StorageError if nothing can listen at the address, InvalidArgumentError for files that cannot be read.
        """
        access = self.access
        if access.tokens:
            self._check = TokenCheck(access.tokens, monotonic=time.monotonic)
        if access.tls is not None:
            self._certificate = await ServerCertificate.of(access.tls)
        connections = await in_thread(connections_within, access.bounds.connections_max)
        self._watch = ProcessWatch(connections, monotonic=time.monotonic)
        options = server_options(
            message_bytes_max=self._request_bytes,
            connections_max=connections,
            idle_connection_s=access.bounds.idle_connection_s,
            handshake_s=access.bounds.handshake_s,
            client_calls_max=access.bounds.client_calls_max,
        )
        checks = () if self._check is None else (self._check,)
        interceptors = (self.bounded, *checks, *self._interceptors, self.draining)
        server = self._server = grpc.aio.server(interceptors=interceptors, options=options)
        try:
            port = await listen(server, access.listen, tls=self._certificate)
            self.address, self.advertised = access.address(port), access.advertised(port)
            served = handlers(self.advertised)
            add_handlers(server, served)
            await self.states.serve_health(server, served)
            await server.start()
            served_by[self.advertised] = os.getpid()
            await self._watch.start()
        except BaseException:
            await self._stop()
            raise
        return self

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
        self.access = msgspec.structs.replace(self.access, tokens=access.tokens, tls=access.tls)

    async def close(self, *, drain_s: float = DRAIN_S) -> None:
        """Refuses new calls, waits up to `drain_s` for those under way, and stops. Idempotent; if cancelled, the server stops at once."""
        try:
            await self._watch.close()
            await self.states.stopping()
            used = self.draining.calls > 0
            self.draining.begin()
            await self.draining.wait(drain_s)
            if used:
                await asyncio.sleep(LATE_S)
                await self._server.stop(SENT_S)
        finally:
            await self._stop()

    async def cut_off(self) -> None:
        """Stops at once: calls under way end without an answer."""
        await self._watch.close()
        await self._stop()

    async def _stop(self) -> None:
        served_by.pop(self.advertised, None)
        await self._server.stop(None)
