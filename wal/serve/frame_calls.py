"""FrameCalls: the calls of PChannelService that read frames of the past and answer questions about them.

A page of frames is sent when the client has room for it, so a slow client costs one page of memory and delays no other. A read of many
pages ends when the node stops: the client continues at another node, or at this one when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, TypeVar

from wal.channels.slices import checked_names
from wal.errors import InvalidArgumentError
from wal.message import LogPosition
from wal.network import Method
from wal.rpc.api import frames_pb2
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.api.pchannel_pb2 import EventPosition, Position
from wal.rpc.converters import event_from_proto, event_to_proto, position_from_proto, position_to_proto
from wal.rpc.frame_pages import READ_PAGES, EncodedPage, frame_pieces
from wal.rpc.methods import COUNT_BYTES, FIND_EVENT_BELOW, FIND_TICK, GET_MOMENT, WEIGH_FRAMES
from wal.rpc.serving import Draining, Handler
from wal.serve.hosted import Hosted, identity_of, tail_of
from wal.storage import search
from wal.storage.base import FrameWeight, ReadableLog
from wal.write.pchannel import PChannel

Answer = TypeVar("Answer")
PAGE_BYTES: Final = 1 << 20
PAGE_BYTES_MAX: Final = 4 << 20
"""The largest page, about the largest frame: a client that wants more bytes asks for more pages."""
_FRAMES_A_TURN: Final = 128
"""How many frames are converted before other tasks get their turn: about a millisecond."""


class FrameCalls:
    """Serves the frames of the pchannels that are `hosted` here."""

    def __init__(self, hosted: Hosted, draining: Draining) -> None:
        self._hosted = hosted
        self._draining = draining
        self._newest: dict[str, tuple[LogPosition, int, int]] = {}
        """By pchannel: its newest event when it was last asked for, the incarnation of the log, and the event's tick."""

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of these calls."""
        return {
            GET_MOMENT: self._moment,
            READ_PAGES: self._read,
            WEIGH_FRAMES: self._weigh,
            FIND_TICK: self._find_tick,
            FIND_EVENT_BELOW: self._find_event_below,
            COUNT_BYTES: self._count_bytes,
        }

    async def _moment(self, request: proto.PChannelRequest, _context: object) -> proto.Moment:
        pchannel = self._hosted.find(request.pchannel)
        moment = proto.Moment(log=identity_of(pchannel), tail=tail_of(pchannel))
        moment.newest_time_tick = await self._newest_tick(pchannel)
        pchannel.check_lease()
        return moment

    async def _read(self, request: proto.ReadFramesRequest, context: Any) -> AsyncIterator[EncodedPage]:
        pchannel = self._hosted.find(request.pchannel)
        log = pchannel.log
        if request.incarnation not in (0, log.incarnation):
            raise InvalidArgumentError(
                f"pchannel {pchannel.channel!r} has a log of incarnation {log.incarnation:x}, not {request.incarnation:x}: the positions "
                "are of another log"
            )
        if request.page_bytes > PAGE_BYTES_MAX:
            raise InvalidArgumentError(
                f"page_bytes={request.page_bytes} is above {PAGE_BYTES_MAX}: ask for smaller pages, as many as you need"
            )
        start = position_from_proto(request.start)
        end = position_from_proto(request.end) if request.HasField("end") else pchannel.tail.durable_end
        _check_extent(pchannel, start, end)
        names = await _names(request.names) if request.HasField("names") else None
        sent, page_bytes = 0, request.page_bytes or PAGE_BYTES
        with contextlib.nullcontext() if request.pages_max == 1 else self._draining.ending():
            while start < end and (not request.pages_max or sent < request.pages_max):
                async with context.room(page_bytes):  # before it is read, until the client has it
                    page = await log.read(start, names=names, bytes_max=page_bytes, end=end)
                    pieces: list[bytes] = []
                    for number, frame in enumerate(page.frames, 1):
                        pieces += frame_pieces(frame, names)
                        if number % _FRAMES_A_TURN == 0:
                            await asyncio.sleep(0)
                    encoded, following = EncodedPage.of(page, start=start, pieces=pieces), page.next_position
                    del page, pieces  # the client may take its time
                    pchannel.check_lease()
                    yield encoded
                start, sent = following, sent + 1

    async def _weigh(self, request: proto.WeighFramesRequest, _context: object) -> proto.FrameWeights:
        pchannel, start, end = self._extent(request.pchannel, request.start, request.end)
        names = await _names(request.names) if request.HasField("names") else None
        rows_max = request.rows_max if request.HasField("rows_max") else None
        bytes_max = request.bytes_max if request.HasField("bytes_max") else None
        log = pchannel.log
        if rows_max is None and bytes_max is None:
            weighed = search.Weighed(search.weigh_pieces(start, end, log.bytes_between), end)
        else:
            weighed = await self._run(log, search.weigh(start, end, names, rows_max=rows_max, bytes_max=bytes_max))
        return proto.FrameWeights(weights=map(_weight_to_proto, weighed.weights), next_position=position_to_proto(weighed.upto))

    async def _find_tick(self, request: proto.FindTickRequest, _context: object) -> EventPosition:
        pchannel, start, end = self._extent(request.pchannel, request.start, request.end)
        log, tick = pchannel.log, request.time_tick
        for extent in log.extents():  # a sealed extent knows its newest tick without a read
            if extent.sealed and extent.newest_tick <= tick:
                start = max(start, min(extent.end, end))
        position = event_to_proto(await self._run(log, search.position_after(tick, start, end, log.bytes_between)))
        assert position is not None
        return position

    async def _find_event_below(self, request: proto.FindEventBelowRequest, _context: object) -> proto.FindEventBelowResponse:
        pchannel = self._hosted.find(request.pchannel)
        log, since, below = pchannel.log, event_from_proto(request.since), event_from_proto(request.below)
        _check_extent(pchannel, since[0], below[0])
        event = await self._run(log, search.event_below(since, below, log.earliest, log.bytes_between))
        return proto.FindEventBelowResponse(event=event_to_proto(event))

    async def _run(self, log: ReadableLog, question: search.Search[Answer]) -> Answer:
        return await search.run_async(question, lambda page: log.read(page.start, names=page.names, bytes_max=page.bytes_max, end=page.end))

    async def _count_bytes(self, request: proto.ExtentRequest, _context: object) -> proto.CountBytesResponse:
        pchannel, start, end = self._extent(request.pchannel, request.start, request.end)
        return proto.CountBytesResponse(bytes=pchannel.log.bytes_between(start, end))

    def _extent(self, info: Any, first: Position, last: Position) -> tuple[PChannel, int, int]:
        """Returns the pchannel of a request, and the extent of its log that the request names."""
        pchannel = self._hosted.find(info)
        start, end = position_from_proto(first), position_from_proto(last)
        _check_extent(pchannel, start, end)
        return pchannel, start, end

    async def _newest_tick(self, pchannel: PChannel) -> int:
        """Returns the tick of the newest event, 0 if there is none that is not truncated."""
        newest, log = pchannel.tail.newest, pchannel.log
        known = self._newest.get(pchannel.channel)
        if known is not None and known[:2] == (newest, log.incarnation) and known[0] >= log.earliest:
            return known[2]
        tick = await self._run(log, search.newest_tick(newest, log.earliest))
        if newest is not None and tick:
            self._newest[pchannel.channel] = newest, log.incarnation, tick
        return tick


def _weight_to_proto(weight: FrameWeight) -> proto.FrameWeight:
    return proto.FrameWeight(
        position=position_to_proto(weight.position),
        next_position=position_to_proto(weight.next_position),
        first_tick=weight.first_tick,
        promised_tick=weight.promised_tick,
        rows=weight.rows,
        bytes=weight.size,
    )


def _check_extent(pchannel: PChannel, start: int, end: int) -> None:
    """Raises InvalidArgumentError unless the extent lies within the durable log. What is truncated is found when it is read."""
    durable = pchannel.tail.durable_end
    if not start <= end <= durable:
        raise InvalidArgumentError(
            f"the extent from {start} to {end} is not in the log of pchannel {pchannel.channel}, which ends at {durable}: start at or "
            "below the end, and end at or below that"
        )


async def _names(vchannel_names: frames_pb2.VChannelNames) -> frozenset[str]:
    return frozenset(await checked_names(vchannel_names.names, instead="read all of them, without names"))
