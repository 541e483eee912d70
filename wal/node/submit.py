"""NodeRequests: the table of a node's handlers by request, for a log in this process and for the clients of a server.

Owns the way from a request to the pchannels that it is for. A request of a client comes with the pchannel that the client has named, in the
client's term. A request of this process goes to whatever pchannel it concerns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.message import MessageID
from wal.node import cursor_requests, read_requests, schedule_requests
from wal.node.node import StreamingNode
from wal.read.figures import PChannelStatistics
from wal.requests.pchannels import ForgetProducer, LastEvent, LatestTick, ListProducers, PChannelRetention, Retention, Statistics, Truncate
from wal.requests.request import Answer, Request, Where
from wal.write.idempotency.keys import ProducerInfo
from wal.write.pchannel import PChannel


class NodeRequests:
    """Executes requests on the pchannels of a node."""

    def __init__(self, node: StreamingNode) -> None:
        self._node = node

    async def submit(self, request: Request[Answer], pchannel: PChannel | None = None) -> Answer:
        """Returns the answer to a request, which a client has sent for this pchannel (None: it comes from this process).

        Raises ChannelNotExistError for a vchannel that does not exist and must not be created, or that is on another pchannel;
        InvalidArgumentError for a request that concerns another pchannel; SessionLostError if the lease of the pchannel is lost; and the
        errors of the request.
        """
        handle = _HANDLERS.get(type(request))
        if handle is None:
            raise InvalidArgumentError(f"{type(request).__name__} is not asked of a node: send it to the coordinator of the log")
        request.check(self._node.settings)
        answer: Answer
        if request.where is Where.EACH_PCHANNEL:
            answer = await handle(self._node, request, list(self._node.pchannels.values()) if pchannel is None else [pchannel])
            return answer
        if request.where is Where.VCHANNEL:
            pchannel = await self._of_vchannel(request.target, pchannel)
        elif pchannel is None and (pchannel := self._node.pchannels.get(request.target)) is None:
            raise request.elsewhere(self._node.pchannels)
        elif request.target != pchannel.channel:
            raise InvalidArgumentError(
                f"{type(request).__name__} is of pchannel {request.target}, and the request is for {pchannel.channel}: name the pchannel "
                "that it concerns"
            )
        pchannel.check_lease()
        answer = await handle(self._node, request, pchannel)
        if not request.writes:
            pchannel.check_lease()  # the answer may be out of date by now
        return answer

    async def _of_vchannel(self, name: str, asked: PChannel | None) -> PChannel:
        """Returns the present or future pchannel of a vchannel. This node's view may be older than the client's."""
        routes = self._node.routes
        vchannels = routes.known
        if name not in vchannels.records or (asked is not None and vchannels.pchannel_of(name) != asked.channel):
            info = await vchannels.look_up(name)
            if info is None and not self._node.settings.create_vchannels:
                raise ChannelNotExistError(f"vchannel {name!r} does not exist: make it with create_vchannel()")
        place = vchannels.pchannel_of(name)
        if asked is not None and place != asked.channel:
            raise ChannelNotExistError(
                f"vchannel {name!r} is on pchannel {place}, not on {asked.channel}: nothing was done; ask the coordinator where it is"
            )
        return routes.here(place, name)


async def _latest_tick(_node: StreamingNode, _request: LatestTick, pchannel: PChannel) -> int:
    return pchannel.promised.tick


async def _last_event(node: StreamingNode, request: LastEvent, pchannel: PChannel) -> MessageID | None:
    incarnation = node.routes.incarnation(request.vchannel)
    return None if incarnation is None else pchannel.last_event((request.vchannel, incarnation))


async def _truncate(node: StreamingNode, request: Truncate, pchannel: PChannel) -> None:
    up_to = pchannel.current(request.up_to)
    if not up_to.same_log(pchannel.log_id):
        raise request.elsewhere(node.pchannels)
    await node.retention.truncate(up_to)


async def _retention(node: StreamingNode, _request: Retention, pchannels: Sequence[PChannel]) -> tuple[PChannelRetention, ...]:
    return tuple(await node.retention.report(pchannels))


async def _statistics(_node: StreamingNode, _request: Statistics, pchannels: Sequence[PChannel]) -> tuple[PChannelStatistics, ...]:
    return tuple(pchannel.statistics() for pchannel in pchannels)


async def _producers(_node: StreamingNode, _request: ListProducers, pchannels: Sequence[PChannel]) -> tuple[ProducerInfo, ...]:
    return tuple(info for pchannel in pchannels for info in pchannel.keyed.table.producers.listed())


async def _forget_producer(node: StreamingNode, request: ForgetProducer, pchannels: Sequence[PChannel]) -> None:
    await node.appends.forget(request.name, pchannels)


_HANDLERS: Final[Mapping[type[Request[Any]], Callable[[StreamingNode, Any, Any], Awaitable[Any]]]] = {
    LatestTick: _latest_tick,
    LastEvent: _last_event,
    Truncate: _truncate,
    Retention: _retention,
    Statistics: _statistics,
    ListProducers: _producers,
    ForgetProducer: _forget_producer,
    **cursor_requests.HANDLERS,
    **schedule_requests.HANDLERS,
    **read_requests.HANDLERS,
}
"""By the type of a request. The last argument is its pchannel; for a request to each pchannel, all pchannels that are asked."""
