"""PChannelService: the calls that belong to one pchannel. The node that has the pchannel serves them, in the term that a request names.

Those about cursors are in `cursor_calls.py`, those about frames in `frame_calls.py`, those about scheduled messages in `schedule_calls.py`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty

from wal.channels.vchannels import VChannelInfo, check_vchannel
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.network import Method
from wal.node.cursor_calls import CursorCalls
from wal.node.frame_calls import FrameCalls
from wal.node.hosted import Hosted
from wal.node.node import StreamingNode
from wal.node.schedule_calls import ScheduleCalls
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.converters import id_from_bytes, id_to_bytes, producers_to_proto, retention_to_proto, statistics_to_proto
from wal.rpc.methods import FORGET_PRODUCER, GET_LAST_EVENT, GET_LATEST_TICK, GET_RETENTION, GET_STATISTICS, LIST_PRODUCERS, TRUNCATE
from wal.rpc.serving import Draining, Handler
from wal.write.pchannel import PChannel


class PChannelService:
    """Serves the pchannels of an open log that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining) -> None:
        self._node = node
        self._hosted = hosted
        self._cursors = CursorCalls(node, hosted)
        self._schedules = ScheduleCalls(node, hosted)
        self._frames = FrameCalls(hosted, draining)

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of all methods of the service."""
        return {
            GET_LATEST_TICK: self._latest_tick,
            GET_LAST_EVENT: self._last_event,
            TRUNCATE: self._truncate,
            GET_RETENTION: self._retention,
            GET_STATISTICS: self._statistics,
            LIST_PRODUCERS: self._producers,
            FORGET_PRODUCER: self._forget_producer,
            **self._cursors.handlers(),
            **self._schedules.handlers(),
            **self._frames.handlers(),
        }

    async def _latest_tick(self, request: proto.VChannelRequest, _context: object) -> proto.TickResponse:
        pchannel, _ = self._found(request)
        return proto.TickResponse(time_tick=pchannel.promised.tick)

    async def _last_event(self, request: proto.VChannelRequest, _context: object) -> proto.LastEventResponse:
        pchannel, info = self._found(request)
        last = None if info is None else pchannel.last_event((info.name, info.incarnation))
        return proto.LastEventResponse(last=id_to_bytes(last))

    def _found(self, request: proto.VChannelRequest) -> tuple[PChannel, VChannelInfo | None]:
        """Returns the pchannel of a request and its vchannel, or None if that would only be created by an append."""
        pchannel = self._hosted.find(request.pchannel)
        name = check_vchannel(request.vchannel)
        info = self._node.routes.known.records.get(name)
        if info is None and not self._node.settings.create_vchannels:
            raise ChannelNotExistError(f"vchannel {name!r} does not exist: make it with create_vchannel()")
        if info is not None and info.pchannel != pchannel.channel:
            raise InvalidArgumentError(
                f"vchannel {name!r} is on pchannel {info.pchannel}, not on {pchannel.channel}: LocateVChannels tells where one is"
            )
        return pchannel, info

    async def _truncate(self, request: proto.TruncateRequest, _context: object) -> Empty:
        pchannel = self._hosted.find(request.pchannel)
        up_to = id_from_bytes("up_to", request.up_to.id)
        if up_to.pchannel != pchannel.channel:
            raise InvalidArgumentError(
                f"up_to {up_to} is of pchannel {up_to.pchannel}, and the request is for {pchannel.channel}: name the pchannel of the id"
            )
        await self._node.truncate(up_to)
        return Empty()

    async def _retention(self, request: proto.PChannelRequest, _context: object) -> proto.Retention:
        pchannel = self._hosted.find(request.pchannel)
        (report,) = await self._node.retention.report((pchannel,))
        return retention_to_proto(report)

    async def _statistics(self, request: proto.PChannelRequest, _context: object) -> proto.Statistics:
        return statistics_to_proto(self._hosted.find(request.pchannel).statistics())

    async def _producers(self, request: proto.PChannelRequest, _context: object) -> proto.Producers:
        return producers_to_proto(self._hosted.find(request.pchannel).keyed.table.producers.listed())

    async def _forget_producer(self, request: proto.ForgetProducerRequest, _context: object) -> Empty:
        await self._node.appends.forget_producer(request.name, (self._hosted.find(request.pchannel),))
        return Empty()
