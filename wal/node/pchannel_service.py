"""PChannelService: the calls that belong to one pchannel. The node that has the pchannel serves them, in the term that a request names.

CursorCalls: the calls of PChannelService that load, save, list and delete cursors.

A saved position comes from a client, so it is compared with the log before it is stored: a cursor of another log, or one that is ahead of
what the log holds, would hold back nothing and lose what its reader has not seen.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from google.protobuf.empty_pb2 import Empty

from wal.channels.vchannels import VChannelInfo, check_vchannel
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.network import Method
from wal.node.frame_calls import FrameCalls
from wal.node.hosted import Hosted
from wal.node.node import StreamingNode
from wal.read.cursors.cursor import Cursor, CursorKey, check_cursor
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.converters import (
    cursor_from_proto,
    cursor_to_proto,
    id_from_bytes,
    id_to_bytes,
    info_to_proto,
    key_from_proto,
    producers_to_proto,
    retention_to_proto,
    statistics_to_proto,
)
from wal.rpc.methods import (
    DELETE_CURSORS,
    FORGET_PRODUCER,
    GET_LAST_EVENT,
    GET_LATEST_TICK,
    GET_RETENTION,
    GET_STATISTICS,
    LIST_CURSORS,
    LIST_PRODUCERS,
    LOAD_CURSOR,
    SAVE_CURSOR,
    TRUNCATE,
)
from wal.rpc.serving import Draining, Handler, checked_names
from wal.write.pchannel import PChannel


class CursorCalls:
    """Serves the cursors of an open log, for the pchannels that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted) -> None:
        self._node = node
        self._hosted = hosted

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of these calls."""
        return {LOAD_CURSOR: self._load, SAVE_CURSOR: self._save, LIST_CURSORS: self._list, DELETE_CURSORS: self._delete}

    async def _load(self, request: proto.LoadCursorRequest, _context: object) -> proto.LoadCursorResponse:
        pchannel = self._hosted.find(request.pchannel)
        await checked_names(request.key.vchannels)
        cursor = await self._node.cursors.load(_checked(key_from_proto(request.key)), pchannel=pchannel.channel)
        return proto.LoadCursorResponse(cursor=None if cursor is None else cursor_to_proto(cursor))

    async def _save(self, request: proto.SaveCursorRequest, _context: object) -> proto.SaveCursorResponse:
        pchannel, cursors = self._hosted.find(request.pchannel), self._node.cursors
        await checked_names(request.cursor.key.vchannels)
        request_cursor = cursor_from_proto(request.cursor)
        _checked(request_cursor.key)
        known = self._node.routes.known
        if any(incarnation is not None and incarnation >= known.next_incarnation for incarnation in request_cursor.incarnations):
            await known.catch_up()  # a client may know more than this node
        self._check_position(request_cursor, pchannel)
        if not 0 <= request.waited_s < float("inf"):
            raise InvalidArgumentError(f"waited_s={request.waited_s} is not a time: give the seconds that have passed")
        since_s = time.monotonic() - request.waited_s
        cursor = msgspec.structs.replace(request_cursor, saved_at=cursors.wall(), stale="")
        saved = await cursors.run(
            lambda: cursors.store.save(cursor, earliest=lambda: pchannel.log.earliest, since_s=since_s, forward_only=request.forward_only)
        )
        return proto.SaveCursorResponse(saved=saved)

    async def _list(self, request: proto.PChannelRequest, _context: object) -> proto.Cursors:
        pchannel = self._hosted.find(request.pchannel)
        infos = await self._node.cursors.infos(pchannel=pchannel.channel)
        return proto.Cursors(cursors=map(info_to_proto, infos))

    async def _delete(self, request: proto.DeleteCursorsRequest, _context: object) -> Empty:
        self._hosted.find(request.pchannel)
        name = check_cursor(request.name)
        names = None
        if request.HasField("vchannels"):
            names = _checked(CursorKey.of(name, await checked_names(request.vchannels.names))).vchannels
        await self._node.cursors.delete(name, names)
        return Empty()

    def _check_position(self, cursor: Cursor, pchannel: PChannel) -> None:
        """Raises InvalidArgumentError unless the cursor is of this log, and at or below its durable end."""
        log, end = pchannel.log, pchannel.tail.durable_end
        here = (pchannel.channel, log.incarnation, pchannel.form)
        if (cursor.pchannel, cursor.incarnation, cursor.form) != here:
            raise InvalidArgumentError(
                f"{cursor.key} is of pchannel {cursor.pchannel!r} in incarnation {cursor.incarnation:x}, and this log is of "
                f"{pchannel.channel!r} in incarnation {log.incarnation:x}: save a position that was read from this log"
            )
        newest = max(cursor.start[0], 0 if cursor.event is None else cursor.event[0])
        if newest > end:
            raise InvalidArgumentError(
                f"{cursor.key} is at {newest} of pchannel {pchannel.channel}, above its durable end {end}: save a position that was read"
            )
        following = self._node.routes.known.next_incarnation
        if any(incarnation is not None and incarnation >= following for incarnation in cursor.incarnations):
            raise InvalidArgumentError(
                f"{cursor.key} has an incarnation of a vchannel that does not exist yet (the next one is {following}): give those that "
                "were read"
            )


def _checked(key: CursorKey) -> CursorKey:
    """Returns the key of a cursor whose vchannels are checked. Raises InvalidArgumentError for a bad name, and without a vchannel."""
    check_cursor(key.name)
    if not key.vchannels:
        raise InvalidArgumentError(f"cursor {key.name!r} has no vchannels: name at least one")
    return key


class PChannelService:
    """Serves the pchannels of an open log that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining) -> None:
        self._node = node
        self._hosted = hosted
        self._cursors = CursorCalls(node, hosted)
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
