"""RemoteRequests: the way of a request from a client to the servers that answer it.

The attributes of a request say which: the coordinator, the node of one pchannel, or the nodes of all of them. Where a vchannel is, is known
from the server's news, which may be old: a node that does not have it refuses the request, and the coordinator is asked then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from wal.client.directory import RemoteDirectory
from wal.client.nodes import Nodes
from wal.client.remote_pchannel import RemotePChannel
from wal.errors import ChannelNotExistError, NotLocalError
from wal.requests.request import Answer, Request, Where
from wal.rpc.connection import Connection


class RemoteRequests:
    """Sends the requests of one client. With `in_process` a request that is `local_only` is answered by a server of this process alone."""

    def __init__(
        self, connection: Connection, nodes: Nodes, pchannels: Mapping[str, RemotePChannel], directory: RemoteDirectory, *, in_process: bool
    ) -> None:
        """`connection` is to the coordinator."""
        self._connection = connection
        self._nodes = nodes
        self._pchannels = pchannels
        self._directory = directory
        self._in_process = in_process

    async def submit(self, request: Request[Answer]) -> Answer:
        """Returns the answer to a request; raises what the request says, and the errors of connections."""
        match request.where:
            case Where.COORDINATOR:
                return await self._connection.submit(request)
            case Where.EACH_PCHANNEL:
                outcomes = await asyncio.gather(*(self._nodes.submit(request, name) for name in self._pchannels), return_exceptions=True)
                joined: Answer = request.join(outcomes)
                return joined
            case Where.VCHANNEL:
                return await self._at_vchannel(request)
        if request.target not in self._pchannels:
            raise request.elsewhere(self._pchannels)
        return await self._at(request.target, request)

    async def _at_vchannel(self, request: Request[Answer]) -> Answer:
        """Asks the node of a vchannel. If the vchannel is not there, asks once more where it is."""
        info = self._directory.known.records.get(request.target)
        if info is not None:
            try:
                return await self._at(info.pchannel, request)
            except ChannelNotExistError:
                pass  # it was dropped, and is elsewhere perhaps
        return await self._at(await self._directory.pchannel_of(request.target), request)

    async def _at(self, pchannel: str, request: Request[Answer]) -> Answer:
        """Asks the node of a pchannel. Readers of this client see what the request has changed."""
        connection = self._nodes.connection(pchannel)
        if request.local_only and self._in_process and not connection.is_here:
            raise NotLocalError(
                f"{request.target!r} is on pchannel {pchannel}, whose node at {connection.where} is in another process: a call "
                "without local_only, such as latest_tick(), asks it there"
            )
        answer = await self._nodes.submit(request, pchannel)
        if request.visible:
            await self._pchannels[pchannel].look()
        return answer
