"""NodeCalls: the leader's calls to nodes, each to one start of a node.

Owns the connections, one for each start of a node, and the common fields of every call: the node that it is for, and the calling leader. A
call is made once, or is repeated until it is answered if repeating it changes nothing more. Decisions are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from wal.coordinator.assignments import NodeStart
from wal.network import Method
from wal.requests.request import Answer, Request
from wal.rpc.api import nodes_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.connection import Connection
from wal.rpc.methods import ASSIGN, COLLECT_STATUS, REMOVE

STATUS_S: Final = 2.0
"""The time that a node may take for a status call."""
MOVE_S: Final = 3600.0
"""The deadline of an Assign or a Remove. Its progress decides, long before this, whether it continues."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class NodeCalls:
    """The calls of the leader with this token. `connect` returns a connection to an address, without waiting for it."""

    def __init__(self, leader: int, connect: Callable[[str], Awaitable[Connection]]) -> None:
        self._leader = leader
        self._connect = connect
        self._connections: dict[int, Connection] = {}

    def of(self, node: NodeStart) -> nodes_pb2.ManagerCall:
        """Returns the common fields of a call to this node."""
        return nodes_pb2.ManagerCall(server_id=node.server_id, leader=self._leader)

    async def assign(self, node: NodeStart, name: str, term: int, *, floor: int) -> None:
        """Has the node open a pchannel in this term, above this tick; returns when it can be read and written."""
        request = proto.StreamingNodeManagerAssignRequest(pchannel=PChannelInfo(name=name, term=term), call=self.of(node), floor=floor)
        await self.call(node, ASSIGN, request, f"assigning pchannel {name} in term {term}", timeout_s=MOVE_S)

    async def remove(self, node: NodeStart, name: str, term: int) -> int:
        """Has the node close a pchannel that it has in this term or an earlier one; returns a tick above which it issued none."""
        request = proto.StreamingNodeManagerRemoveRequest(pchannel=PChannelInfo(name=name, term=term), call=self.of(node))
        answer = await self.call(node, REMOVE, request, f"removing pchannel {name} in term {term}", timeout_s=MOVE_S)
        return answer.floor

    async def status(self, node: NodeStart, *, timeout_s: float = STATUS_S) -> proto.StreamingNodeManagerCollectStatusResponse:
        """Returns the node's pchannels, and its clock."""
        request = proto.StreamingNodeManagerCollectStatusRequest(call=self.of(node))
        return await self.call(node, COLLECT_STATUS, request, "asking for a node's status", timeout_s=timeout_s)

    async def call(
        self, node: NodeStart, method: Method[_Request, _Response], request: _Request, what: str, *, timeout_s: float | None = None
    ) -> _Response:
        """Returns the node's answer; a call without an answer is repeated until the deadline."""
        connection = await self._connection(node)
        return await connection.call(method, request, f"{what} at node {node.server_id:x}", timeout_s=timeout_s, writing=True)

    async def submit(self, node: NodeStart, request: Request[Answer], pchannel: PChannelInfo) -> Answer:
        """Returns the node's answer to a request for a pchannel in its term."""
        connection = await self._connection(node)
        return await connection.submit(request, pchannel.name, term=pchannel.term, call=self.of(node))

    async def _connection(self, node: NodeStart) -> Connection:
        connection = self._connections.get(node.server_id)
        if connection is None:
            connection = await self._connect(node.address)
            other = self._connections.setdefault(node.server_id, connection)
            if other is not connection:
                await connection.close()
                connection = other
        return connection

    async def forget(self, server_id: int) -> None:
        """Disconnects from a lost node: running calls to it end."""
        if (connection := self._connections.pop(server_id, None)) is not None:
            await connection.close()

    async def close(self) -> None:
        """Disconnects from all nodes. Idempotent."""
        for server_id in list(self._connections):
            await self.forget(server_id)
