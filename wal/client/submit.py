"""RemoteRequests: the way of a request from a client to the servers that answer it.

The attributes of a request say which: the coordinator, the node of one pchannel, or the nodes of all of them. Where a vchannel is, is known
from the server's news, which may be old: a node that does not have it refuses the request, and the coordinator is asked then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec

from wal.channels.vchannels import VChannelInfo
from wal.client.appends import RemoteAppends
from wal.client.calls import Pauses, SeenTick
from wal.client.directory import RemoteDirectory
from wal.client.nodes import Nodes
from wal.client.remote_pchannel import RemotePChannel
from wal.errors import ChannelNotExistError, NotLocalError, UnavailableError
from wal.requests.request import Answer, Request, Where
from wal.rpc.connection import Connection


class RemoteRequests:
    """Sends the requests of one client. With `in_process` a request that is `local_only` is answered by a server of this process alone."""

    def __init__(
        self,
        connection: Connection,
        nodes: Nodes,
        pchannels: Mapping[str, RemotePChannel],
        directory: RemoteDirectory,
        appends: RemoteAppends,
        seen: SeenTick,
        *,
        in_process: bool,
    ) -> None:
        """`connection` is to the coordinator."""
        self._connection = connection
        self._nodes = nodes
        self._pchannels = pchannels
        self._directory = directory
        self._appends = appends
        self._seen = seen
        self._in_process = in_process

    async def submit(self, request: Request[Answer]) -> Answer:
        """Returns the answer to a request; raises what the request says, and the errors of connections."""
        match request.where:
            case Where.COORDINATOR:
                return await self._at_coordinator(request)
            case Where.EACH_PCHANNEL:
                outcomes = await asyncio.gather(*(self._nodes.submit(request, name) for name in self._pchannels), return_exceptions=True)
                joined: Answer = request.join(outcomes)
                return joined
            case Where.VCHANNEL:
                return await self._at_vchannel(request)
        if request.target not in self._pchannels:
            raise request.elsewhere(self._pchannels)
        return await self._at(request.target, request)

    async def _at_coordinator(self, request: Request[Answer]) -> Answer:
        """Asks the coordinator. What this client has appended to vchannels that end with the request is taken before it."""
        if "seen_time_tick" in request.__struct_fields__:
            request = msgspec.structs.replace(request, seen_time_tick=self._seen.value)
        answers: list[Answer] = []

        async def ask() -> None:
            with self._directory.forgetting(request.ends):
                answers.append(await self._insist(request))

        send: Callable[[], Awaitable[None]] = ask
        for name in request.ends:
            send = partial(self._appends.dropping, name, send)
        await send()
        self._seen.saw(request.newest_tick(answers[0]))
        if isinstance(answers[0], VChannelInfo):
            self._directory.learn(answers[0])
        return answers[0]

    async def _insist(self, request: Request[Answer]) -> Answer:
        """Sends a request again that is refused as unavailable, with which nothing was done, as long as its attributes say."""
        loop, pauses = asyncio.get_running_loop(), Pauses()
        deadline = loop.time() + request.insists_s
        while True:
            try:
                return await self._connection.submit(request)
            except UnavailableError:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(pauses.next())

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
