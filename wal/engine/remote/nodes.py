"""Nodes: which server has which pchannel, as AssignmentDiscover reports it, and the connections to these servers.

Owns the task that follows the assignments. The pchannels of the server that sends the assignments are reached over the existing connection,
because its advertised address may not be the one used here; those of another server are reached at its advertised address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from wal.engine.remote.remote_log import PAUSE_FIRST_S, PAUSE_MAX_S
from wal.errors import UnavailableError, WALError
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.connection import Connection
from wal.rpc.methods import ASSIGNMENT_DISCOVER

__all__ = ["Nodes"]

Version = tuple[int, int]


class Nodes:
    """The connection for each pchannel, from `start` until `close`. `connect` returns a connection to an address without waiting for it."""

    def __init__(self, coordinator: Connection, connect: Callable[[str], Awaitable[Connection]]) -> None:
        self._coordinator = coordinator
        self._connect = connect
        self._version: Version = (-1, -1)
        self._places: dict[str, Connection] = {}
        """The connection for each pchannel that is not on the coordinator's server."""
        self._connections: dict[str, Connection] = {}
        self._told = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Returns when the assignments are known. Raises UnavailableError if no server sends them in time."""
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="follow assignments")
        try:
            async with asyncio.timeout(timeout_s):
                await self._told.wait()
        except TimeoutError:
            raise UnavailableError(
                f"the server at {self._coordinator.where} did not say within {timeout_s} s which server has which pchannel: try again"
            ) from None

    def connection(self, pchannel: str) -> Connection:
        """Returns the connection to the server that has this pchannel. If none has it, returns the coordinator's, which can say why."""
        return self._places.get(pchannel, self._coordinator)

    def stop(self) -> None:
        """Ends all waits for the servers, as `Connection.stop` does."""
        for connection in self._connections.values():
            connection.stop()

    async def close(self) -> None:
        """Stops following the assignments, and disconnects from all servers except the coordinator."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def _follow(self) -> None:
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                stream = await self._coordinator.stream(ASSIGNMENT_DISCOVER, "asking which server has which pchannel")
                try:
                    while (response := await stream.read()) is not None:
                        if response.HasField("full_assignment"):
                            await self._take(response.full_assignment)
                            pause_s = PAUSE_FIRST_S
                finally:
                    stream.cancel()
            except WALError as error:
                if pause_s >= PAUSE_MAX_S:
                    _log.warning("the assignments of pchannels are not followed now: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _take(self, full: proto.FullStreamingNodeAssignmentWithVersion) -> None:
        """Adopts these assignments, unless newer ones are known."""
        version = (getattr(full.version, "global"), full.version.local)
        if version < self._version:
            return
        places: dict[str, Connection] = {}
        for assignment in full.assignments:
            node = assignment.node
            if full.HasField("answered_by") and node.server_id == full.answered_by.server_id:
                continue
            if node.address not in self._connections:
                self._connections[node.address] = await self._connect(node.address)
            places |= dict.fromkeys([info.name for info in assignment.channels], self._connections[node.address])
        self._version, self._places = version, places
        self._told.set()


_log: Final = logging.getLogger("wal.remote")
