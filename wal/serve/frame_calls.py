"""FrameCalls: the method ReadFrames of PChannelService, which reads frames of the past.

A page of frames is sent when the client has room for it, so a slow client costs one page of memory and delays no other. A read of many
pages ends when the node stops: the client continues at another node, or at this one when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from wal.errors import InvalidArgumentError
from wal.message.matching import Matching
from wal.network import Method
from wal.node.read_requests import check_extent, names_of
from wal.read.options import MatchingSelection
from wal.rpc.api import frames_pb2 as proto
from wal.rpc.converters import position_from_proto
from wal.rpc.draining import Draining
from wal.rpc.frame_pages import READ_PAGES, EncodedPage, frame_pieces
from wal.rpc.serving import Handler
from wal.serve.hosted import Hosted
from wal.storage.base import FramePage
from wal.write.pchannel import PChannel

PAGE_BYTES: Final = 1 << 20
PAGE_BYTES_MAX: Final = 4 << 20
"""The largest page, about the largest frame: a client that wants more bytes asks for more pages."""
_FRAMES_A_TURN: Final = 128
"""How many frames are converted before other tasks get their turn: about a millisecond."""


class FrameCalls:
    """Serves the frames of the pchannels that are `hosted` here.

    `select` returns what a reader with a pattern reads of a pchannel; None where a page costs the same, whichever vchannels it is for.
    """

    def __init__(self, hosted: Hosted, draining: Draining, select: Callable[[Matching, str], MatchingSelection] | None = None) -> None:
        self._hosted = hosted
        self._draining = draining
        self._select = select

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handlers of these calls."""
        return {READ_PAGES: self._read}

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
        check_extent(pchannel, start, end)
        names = await names_of(request.names.names if request.HasField("names") else None)
        pattern = Matching(request.pattern) if request.pattern else None
        if pattern is not None and names is not None:
            raise InvalidArgumentError(f"a read names {len(names)} vchannels and {pattern}: give one of them")
        choice = None if pattern is not None and pattern.pattern == "*" else pattern or names
        sent, page_bytes = 0, request.page_bytes or PAGE_BYTES
        with contextlib.nullcontext() if request.pages_max == 1 else self._draining.ending():
            while start < end and (not request.pages_max or sent < request.pages_max):
                async with context.room(page_bytes):  # before it is read, until the client has it
                    if pattern is None:
                        page = await log.read(start, names=names, bytes_max=page_bytes, end=end)
                    else:
                        page = await self._matching_page(pchannel, pattern, start, bytes_max=page_bytes, end=end)
                    pieces: list[bytes] = []
                    for number, frame in enumerate(page.frames, 1):
                        if pattern is None or choice is None or frame.view.runs.find(pattern):
                            pieces += frame_pieces(frame, choice)
                        if number % _FRAMES_A_TURN == 0:
                            await asyncio.sleep(0)
                    encoded, following = EncodedPage.of(page, start=start, pieces=pieces), page.next_position
                    del page, pieces  # the client may take its time
                    pchannel.check_lease()
                    yield encoded
                start, sent = following, sent + 1

    async def _matching_page(self, pchannel: PChannel, pattern: Matching, start: int, *, bytes_max: int, end: int) -> FramePage:
        """Returns a page for a reader with a pattern; it may have frames of other vchannels."""
        if self._select is None:
            return await pchannel.log.read(start, names=None, bytes_max=bytes_max, end=end)
        selection = self._select(pattern, pchannel.channel)
        return await selection.page(lambda names: pchannel.log.read(start, names=names, bytes_max=bytes_max, end=end))
