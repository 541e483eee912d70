"""The state of a node as its component: both GetComponentStates, and gRPC's health for probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from wal.network import Method
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
from wal.rpc.methods import COORDINATOR_STATES, NODE_STATES
from wal.rpc.serving import Handler

__all__ = ["States"]

COORDINATOR: Final = "streamingcoord"
NODE: Final = "streamingnode"
"""The roles as the contract's system names them."""


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
            return ComponentStates(
                state=ComponentInfo(nodeID=self.server_id, role=role, state_code=self._code), status=ComponentStatus()
            )

        return states
