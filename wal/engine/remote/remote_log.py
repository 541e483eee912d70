"""RemoteReadableLog: the log of one pchannel on a server, for its readers.

It knows the log as the server last showed it. A read asks the server for one page, and is asked again while no server can be reached: a
reader outlives the restart of its server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from wal.backends import FramePage, LogSnapshot, ReadableLog
from wal.errors import (
    ChannelFencedError,
    ClosedError,
    FormatError,
    UnavailableError,
    UnknownError,
    UnmatchedChannelTermError,
)
from wal.message import FORM_JOURNAL, LogPosition, Origin
from wal.rpc.api import frames_pb2, pchannel_calls_pb2, pchannel_pb2
from wal.rpc.connection import Connection
from wal.rpc.frame_pages import page_from_proto
from wal.rpc.methods import GET_MOMENT, READ_FRAMES
from wal.rpc.positions import identity_from_proto, position_to_proto
from wal.rpc.reports import tail_from_proto

__all__ = ["MOVED", "PAUSE_FIRST_S", "PAUSE_MAX_S", "RemoteReadableLog", "check_log"]

PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5
MOVED: Final = (ChannelFencedError, ClosedError, UnavailableError, UnmatchedChannelTermError)
"""With these errors a server says that it does not serve a pchannel now: it, or another one, will."""


class RemoteReadableLog(ReadableLog):
    """`connection` returns the connection to the server that has the pchannel; `origin` identifies the log."""

    def __init__(self, origin: Origin, shown: LogSnapshot, connection: Callable[[], Connection]) -> None:
        self.pchannel = origin.pchannel
        self.incarnation = origin.incarnation
        self.form: int = origin.form
        self.origin: Origin = origin
        self.shown: LogSnapshot = shown
        """The log as its readers see it."""
        self._last_truncated: LogPosition | None = None
        self.connection: Callable[[], Connection] = connection
        self._closed = False

    @property
    def durable_end(self) -> int:
        return self.shown.durable_end

    @property
    def earliest(self) -> tuple[int, int]:
        return self.shown.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self._last_truncated

    def bytes_between(self, start: int, end: int) -> int:
        """Returns the bytes of log in [start, end); 0 on Pulsar, where positions do not count bytes."""
        return max(0, end - start) if self.form == FORM_JOURNAL else 0

    def show(self, snapshot: LogSnapshot, last_truncated: LogPosition | None) -> None:
        """Shows readers the log as it is in this snapshot."""
        self.shown = snapshot
        self._last_truncated = last_truncated or self._last_truncated

    async def moment(self) -> tuple[LogSnapshot, LogPosition | None]:
        """Returns the log as it is now, and its last truncated event if that is known."""
        request = pchannel_calls_pb2.PChannelRequest(pchannel=pchannel_pb2.PChannelInfo(name=self.pchannel))
        moment = await self.connection().read(GET_MOMENT, request, f"looking at pchannel {self.pchannel}")
        check_log(identity_from_proto(moment.log), self.origin)
        return tail_from_proto(moment.tail, term=moment.log.pchannel.term, closed=moment.closed)

    async def read(
        self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None
    ) -> FramePage:
        shown = self.shown.durable_end
        request = pchannel_calls_pb2.ReadFramesRequest(
            pchannel=pchannel_pb2.PChannelInfo(name=self.pchannel),
            incarnation=self.incarnation,
            start=position_to_proto(start),
            end=position_to_proto(shown if end is None else min(end, shown)),
            names=None if names is None else frames_pb2.VChannelNames(names=sorted(names)),
            page_bytes=bytes_max,
            pages_max=1,
        )
        pause_s = PAUSE_FIRST_S
        while True:
            if self._closed:
                raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to go on")
            try:
                return await self._page(request)
            except MOVED as error:
                if self._closed:
                    raise
                if pause_s >= PAUSE_MAX_S:
                    _log.warning("reading pchannel %s has to wait: %s", self.pchannel, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def close(self) -> None:
        self._closed = True

    async def _page(self, request: pchannel_calls_pb2.ReadFramesRequest) -> FramePage:
        what = f"reading pchannel {self.pchannel}"
        async with aclosing(self.connection().responses(READ_FRAMES, request, what)) as pages:  # type: ignore[type-var]
            async for page in pages:
                return page_from_proto(page)
        raise UnknownError(f"{what}: the server sent no page")


def check_log(found: Origin, expected: Origin) -> None:
    """Raises FormatError if the server has another log now under the name of this pchannel."""
    if found.incarnation != expected.incarnation or found.form != expected.form:
        raise FormatError(
            f"the server has another log of pchannel {expected.pchannel} now (incarnation {found.incarnation:x}, before it was "
            f"{expected.incarnation:x}): open the log again"
        )


_log: Final = logging.getLogger("wal.remote")
