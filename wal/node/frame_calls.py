"""FrameCalls: the calls of PChannelService that read frames of the past and answer questions about them.

A page of frames is sent when the client has room for it, so a slow client costs one page of memory and delays no other. A read of many
pages ends when the node stops: the client continues at another node, or at this one when it is back.

Searches in the frames of a log: the position after a tick, the newest event below a position, what frames weigh.

They need of a backend no more than reading and counting bytes, so they work on every one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from wal.errors import InvalidArgumentError, TruncatedError
from wal.frame import RunKind
from wal.message import LogPosition
from wal.network import Method
from wal.node.hosted import Hosted, identity_of, tail_of
from wal.rpc.api import frames_pb2
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.api.pchannel_calls_pb2 import FrameWeight
from wal.rpc.api.pchannel_pb2 import EventPosition, Position
from wal.rpc.draining import Draining
from wal.rpc.frame_pages import READ_PAGES, EncodedPage, frame_pieces
from wal.rpc.methods import COUNT_BYTES, FIND_EVENT_BELOW, FIND_TICK, GET_MOMENT, WEIGH_FRAMES
from wal.rpc.positions import (
    event_from_proto,
    event_to_proto,
    position_from_proto,
    position_to_proto,
)
from wal.rpc.serving import Handler
from wal.rpc.slices import checked_names
from wal.storage.base import PChannelLog, ReadableLog, StoredFrame
from wal.write.pchannel import PChannel

__all__ = [
    "FrameCalls",
    "event_below",
    "position_after",
    "weigh",
    "weigh_pieces",
]

PIECES: Final = 64
"""The most weights of an extent without a limit: enough to share it out among the tasks of a job."""
_PAGE_BYTES: Final = 1 << 20
_PAGES_MAX: Final = 64
"""The most pages that one call weighs: it answers within a deadline, with a bounded number of weights."""
_BACK_BYTES: Final = 1 << 16
"""How far back the search for an event first goes: the last few frames, of which most hold events."""
_NONE: Final = frozenset[str]()


async def position_after(log: PChannelLog, tick: int, start: int, end: int) -> LogPosition:
    """Returns the log position in [start, end) after all events with a tick up to this one; (end, 0) if none has a larger one.

    Promised ticks ascend from frame to frame, so this is a binary search over positions that reads one frame in each step.
    """
    low, high = start, end
    for extent in log.extents():  # a sealed extent knows its newest tick without a read
        if extent.sealed and extent.newest_tick <= tick:
            low = max(low, min(extent.end, end))
    while high - low > 1:
        middle = (low + high) // 2
        frames = (await log.read(middle, names=None, bytes_max=1, end=high)).frames
        if frames and frames[0].view.header.promised_tick <= tick:
            low = frames[0].next_position
        else:
            high = middle
    at = low
    while at < end:
        page = await log.read(at, names=None, bytes_max=1, end=end)
        for frame in page.frames:
            header = frame.view.header
            if header.indices and header.first_tick + header.indices - 1 > tick:
                return frame.position, max(0, tick + 1 - header.first_tick)
        at = page.next_position
    return end, 0


async def event_below(log: ReadableLog, since: LogPosition, below: LogPosition) -> LogPosition | None:
    """Returns the newest event in [since, below), or None if there is none, or if it may be truncated."""
    if below[1]:
        found = (below[0], below[1] - 1)
        return found if found >= since else None
    start, upper, back = max(since[0], log.earliest[0]), below[0], _BACK_BYTES
    try:
        while start < upper:
            lower = at = _back(log, start, upper, back)
            newest: LogPosition | None = None
            while at < upper:
                page = await log.read(at, names=_NONE, bytes_max=_PAGE_BYTES, end=upper)
                newest, at = page.last_event or newest, page.next_position
            if newest is not None:
                return newest if newest >= since else None
            upper, back = lower, 4 * back
    except TruncatedError:
        pass  # what was there is gone
    return None


def weigh_pieces(log: ReadableLog, start: int, end: int) -> list[FrameWeight]:
    """Returns the weights of at most 64 pieces of about equal bytes; only their positions and bytes are known. Reads no frame."""
    total = log.bytes_between(start, end)
    if not total:
        return []
    grain = -(-total // PIECES)
    weights: list[FrameWeight] = []
    while start < end:
        following = _forward(log, start, end, grain)
        weights.append(
            FrameWeight(
                position=position_to_proto(start),
                next_position=position_to_proto(following),
                bytes=log.bytes_between(start, following),
            )
        )
        start = following
    return weights


async def weigh(
    log: ReadableLog,
    start: int,
    end: int,
    names: frozenset[str] | None,
    *,
    rows_max: int | None,
    bytes_max: int | None,
) -> tuple[list[FrameWeight], int]:
    """Returns the weights of the frames in [start, end) that hold rows of these vchannels, and the position up to which it looked.

    It ends after the first frame that exceeds a limit, or after 64 pages.
    """
    weights: list[FrameWeight] = []
    rows = size = 0
    for _ in range(_PAGES_MAX):
        if start >= end:
            break
        page = await log.read(start, names=names, bytes_max=_PAGE_BYTES, end=end)
        for frame in page.frames:
            if (weight := _weight(frame, names)) is None:
                continue
            weights.append(weight)
            rows, size = rows + weight.rows, size + weight.bytes
            if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
                return weights, frame.next_position
        start = page.next_position
    return weights, start


def _weight(frame: StoredFrame, names: frozenset[str] | None) -> FrameWeight | None:
    """Returns the weight of a frame for these vchannels, None when it holds no row of them."""
    header = frame.view.header
    if names is None:
        rows, size = header.indices, header.frame_bytes
    else:
        runs = [run for run in frame.view.runs.find(names) if run.kind != RunKind.SYSTEM]
        rows = sum(1 if run.kind == RunKind.COPY else run.end - run.first for run in runs)
        size = sum(run.body_end - run.body_start for run in runs)
    if not rows:
        return None
    return FrameWeight(
        position=position_to_proto(frame.position),
        next_position=position_to_proto(frame.next_position),
        first_tick=header.first_tick,
        promised_tick=header.promised_tick,
        rows=rows,
        bytes=size,
    )


def _forward(log: ReadableLog, start: int, end: int, size: int) -> int:
    """Returns the first position above `start` with at least `size` bytes before it, or the end."""
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if log.bytes_between(start, middle) >= size else (middle, high)
    return high


def _back(log: ReadableLog, start: int, end: int, size: int) -> int:
    """Returns the last position below `end` with at least `size` bytes after it, or the start."""
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log.bytes_between(middle, end) >= size else (low, middle)
    return low


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
        if rows_max is None and bytes_max is None:
            weights, upto = weigh_pieces(pchannel.log, start, end), end
        else:
            weights, upto = await weigh(pchannel.log, start, end, names, rows_max=rows_max, bytes_max=bytes_max)
        return proto.FrameWeights(weights=weights, next_position=position_to_proto(upto))

    async def _find_tick(self, request: proto.FindTickRequest, _context: object) -> EventPosition:
        pchannel, start, end = self._extent(request.pchannel, request.start, request.end)
        found = event_to_proto(await position_after(pchannel.log, request.time_tick, start, end))
        assert found is not None
        return found

    async def _find_event_below(
        self, request: proto.FindEventBelowRequest, _context: object
    ) -> proto.FindEventBelowResponse:
        pchannel = self._hosted.find(request.pchannel)
        since, below = event_from_proto(request.since), event_from_proto(request.below)
        _check_extent(pchannel, since[0], below[0])
        return proto.FindEventBelowResponse(event=event_to_proto(await event_below(pchannel.log, since, below)))

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
        newest, incarnation = pchannel.tail.newest, pchannel.log.incarnation
        if newest is None or newest < pchannel.log.earliest:
            return 0
        known = self._newest.get(pchannel.channel)
        if known is not None and known[:2] == (newest, incarnation):
            return known[2]
        try:
            page = await pchannel.log.read(newest[0], names=None, bytes_max=1)
        except TruncatedError:
            return 0  # truncated meanwhile, like everything before it
        tick = page.frames[0].view.header.first_tick + newest[1]
        self._newest[pchannel.channel] = newest, incarnation, tick
        return tick


def _check_extent(pchannel: PChannel, start: int, end: int) -> None:
    """Raises InvalidArgumentError unless the extent lies within the durable log. What is truncated is found when it is read."""
    durable = pchannel.tail.durable_end
    if not start <= end <= durable:
        raise InvalidArgumentError(
            f"the extent from {start} to {end} is not in the log of pchannel {pchannel.channel}, which ends at {durable}: start at or "
            "below the end, and end at or below that"
        )


async def _names(given: frames_pb2.VChannelNames) -> frozenset[str]:
    return frozenset(await checked_names(given.names, instead="read all of them, without names"))
