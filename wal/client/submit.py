"""RemoteRequests: the way of a request from a client to the servers that answer it.

The attributes of a request say which: the coordinator, the node of one pchannel, or the nodes of all of them. Where a vchannel is, is known
from the server's news, which may be old: a node that does not have it refuses the request, and the coordinator is asked then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from wal.channels.vchannels import VChannelInfo
from wal.client.appends import RemoteAppends
from wal.client.directory import RemoteDirectory
from wal.client.figures import SeenTick
from wal.client.nodes import Nodes
from wal.client.pauses import Pauses
from wal.client.remote_pchannel import RemotePChannel
from wal.errors import ChannelNotExistError, NotLocalError, UnavailableError
from wal.requests.request import Answer, Request, Where
from wal.rpc.connection import Connection
from wal.settings import Settings
from wal.write.in_flight import InFlight

WRITES_MAX: Final = 64
"""The most writing requests to vchannels that are under way; others wait for them. A server takes 1,024 calls of a connection."""
_UNBOUNDED: Final = contextlib.nullcontext()


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
        in_flight: InFlight,
        settings: Settings,
        *,
        in_process: bool,
    ) -> None:
        """`connection` is to the coordinator, and `settings` are those of the log."""
        self._connection = connection
        self._nodes = nodes
        self._pchannels = pchannels
        self._directory = directory
        self._appends = appends
        self._seen = seen
        self._in_flight = in_flight
        self._settings = settings
        self._in_process = in_process
        self._writes = asyncio.Semaphore(WRITES_MAX)

    async def submit(self, request: Request[Answer]) -> Answer:
        """Returns the answer to a request, sent once the bytes in flight have room; raises the errors of the request and of connections."""
        request.check(self._settings)
        if not (room := request.room):
            return await self._submit(request)
        await self._in_flight.take(room)
        try:
            return await self._submit(request)
        finally:
            self._in_flight.release(room)

    async def _submit(self, request: Request[Answer]) -> Answer:
        if "seen_time_tick" in request.__struct_fields__:
            request = msgspec.structs.replace(request, seen_time_tick=self._seen.value)
        answer = await self._sent(request)
        self._seen.saw(request.newest_tick(answer))
        return answer

    async def _sent(self, request: Request[Answer]) -> Answer:
        match request.where:
            case Where.COORDINATOR:
                return await self._at_coordinator(request)
            case Where.EACH_PCHANNEL:
                outcomes = await asyncio.gather(*(self._nodes.submit(request, name) for name in self._pchannels), return_exceptions=True)
                joined: Answer = request.join(outcomes)
                return joined
            case Where.VCHANNEL:
                async with self._writes if request.writes else _UNBOUNDED:
                    return await self._at_vchannel(request)
        if request.target not in self._pchannels:
            raise request.elsewhere(self._pchannels)
        return await self._at(request.target, request)

    async def _at_coordinator(self, request: Request[Answer]) -> Answer:
        """Asks the coordinator. Appends of this client to vchannels that end with the request are executed before it."""
        answers: list[Answer] = []

        async def ask() -> None:
            with self._directory.forgetting(request.ends):
                answers.append(await self._insist(request))

        send: Callable[[], Awaitable[None]] = ask
        for name in request.ends:
            send = partial(self._appends.dropping, name, send)
        await send()
        if isinstance(answers[0], VChannelInfo):
            self._directory.learn(answers[0])
        return answers[0]

    async def _insist(self, request: Request[Answer]) -> Answer:
        """Sends a request again that is refused as unavailable, with which nothing was done, as long as its attributes say."""
        pauses: Pauses | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.insists_s
        while True:
            try:
                return await self._connection.submit(request)
            except UnavailableError:
                if loop.time() >= deadline:
                    raise
            pauses = pauses or Pauses()
            await asyncio.sleep(pauses.next())

    async def _at_vchannel(self, request: Request[Answer]) -> Answer:
        """Asks the node of a vchannel. While that node refuses and the coordinator names another one, asks there.

        The place of a vchannel that is known may be old, and another client may create an unknown vchannel elsewhere meanwhile.
        """
        record = self._directory.known.records.get(request.target)
        place = await self._place(request) if record is None else record.pchannel
        while True:
            try:
                return await self._at(place, request)
            except ChannelNotExistError:
                refused, place = place, await self._place(request)
                if record is None and place == refused:
                    raise
            record = None

    async def _place(self, request: Request[Answer]) -> str:
        """Returns the pchannel of the vchannel of a request, by the coordinator, which creates the vchannel if the request does."""
        if not request.creates:
            return await self._directory.pchannel_of(request.target)
        (info,) = await self._directory.located_to_write((request.target,))
        return info.pchannel

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
