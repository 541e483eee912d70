"""RemoteReadableLog: the log of one pchannel on a server, for its readers.

It has the last state of the log that the server has shown. A first read asks the server for one page. A read that begins at the end of
another page belongs to a reader that moves forward: the server sends such a reader all pages up to the end of the log, without a request
for each. A page is found by its first position, so a reader need not report its end. Readers that want the same page at the same time share
one read. A read is repeated while no server can be reached, so a reader outlives the restart of its server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, TypeVar

import msgspec

from wal.client.nodes import Nodes
from wal.client.pauses import Pauses
from wal.client.shared_calls import SharedCalls
from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    FormatError,
    SessionLostError,
    UnavailableError,
    UnknownError,
    UnmatchedChannelTermError,
    WALError,
    WouldBlockError,
    closed_log,
)
from wal.message import FORM_JOURNAL, Lineage, MessageID, Origin
from wal.message.matching import Matching
from wal.read.options import ReadPosition
from wal.read.pchannel import ShownLog
from wal.requests.reads import GetMoment
from wal.rpc.api import frames_pb2, pchannel_pb2
from wal.rpc.connection import Connection
from wal.rpc.converters import position_to_proto, tail_from_proto
from wal.rpc.frame_pages import READ_PAGES, EncodedPage
from wal.runtime.tasks import keep_task
from wal.storage.base import FramePage, LogSnapshot
from wal.storage.search import PageRequest

AHEAD_PAGES: Final = 2
"""The pages that are kept for the reader. One arrives while the reader works on another; a third makes no measurable difference."""


class PagesAhead:
    """The pages that the server sends to one reader before the reader asks for them.

    Owns one call and the task that takes its pages, at most `AHEAD_PAGES` before the reader does. The rest waits at the server: HTTP/2 has
    a window for each call, so a reader that is slow costs a few pages of memory, and holds up no other.

    The pages of one call, in order, up to the position `end`. `task` runs the call; cancel it to end the call.
    """

    def __init__(self, responses: AsyncGenerator[EncodedPage, None], *, end: int, name: str) -> None:
        self.end: int = end
        self._pages: deque[FramePage] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._moved = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._take(responses), name=name)

    async def next(self) -> FramePage | None:
        """Returns the next page, None after the last one; raises the error with which the call ended. Cancelling it loses no page."""
        while not self._pages:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._moved.clear()
            await self._moved.wait()
        self._moved.set()
        return self._pages.popleft()

    async def _take(self, responses: AsyncGenerator[EncodedPage, None]) -> None:
        try:
            async with aclosing(responses):
                async for response in responses:
                    self._pages.append(response.page())
                    self._moved.set()
                    while len(self._pages) >= AHEAD_PAGES:
                        self._moved.clear()
                        await self._moved.wait()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._moved.set()


MOVED: Final = (ChannelFencedError, ClosedError, SessionLostError, UnavailableError, UnmatchedChannelTermError)
"""With these errors a server says that it does not serve a pchannel now: it, or another one, will."""
NOT_HERE: Final = (*MOVED, ChannelNotExistError)
"""MOVED, and ChannelNotExistError, which for a call without a vchannel means that the server does not have the pchannel."""
LATER: Final = (*NOT_HERE, WouldBlockError)
"""The same, and with a server that has reached one of its bounds: a reader asks again, with pauses."""
PAGE_BYTES: Final = 1 << 20
"""The largest page that is asked for: gRPC copies a message several times, which takes longer once it is not in the processor's cache."""
READERS_MAX: Final = 8
"""The most readers that get pages before they ask: a reader that pauses holds up to 16 MiB, most of it in the windows of gRPC."""
_ENDS_MAX: Final = 256

Names = frozenset[str] | Matching | None
"""The vchannels that a read is for: names, a pattern, or (None) all."""
_Following = tuple[int, Names, int, int | None]
"""The next read of a reader that reads on: the start, the vchannels, the size of a page, and the end of the read if it has one."""


class RemoteReadableLog(ShownLog):
    """`shown` is the log as its readers see it at first; `end` is called with the error of another log.

    `connection` returns the connection to the server that has the pchannel now; `reporter` returns, before a call, the function that gets
    the call's error if the server does not have the pchannel.
    """

    def __init__(self, shown: LogSnapshot, nodes: Nodes, end: Callable[[WALError], None]) -> None:
        self.origin: Origin = shown.origin
        self.pchannel = self.origin.pchannel
        self.incarnation = self.origin.incarnation
        self.form: int = self.origin.form
        self.shown: LogSnapshot = shown
        """The log as its readers see it."""
        self.seen: ReadPosition | None = None
        """The newest event that this client has read or written, with its tick. The log must still have it after every reconnect."""
        self.losses: int = 0
        """How often a stream or a call was lost: after each an older copy of the log may be there …"""
        self.checked: int = 0
        """… and the losses after which it was checked that the log still has `seen`."""
        self.check_again: Callable[[], Awaitable[None]]
        """Checks that; raises LogWentBackError if the log went back. Set by the owner of the log."""
        self.connection: Callable[[], Connection] = partial(nodes.connection, self.pchannel)
        self.reporter: Callable[[], Callable[[WALError], None]] = partial(nodes.reporter, self.pchannel)
        self._nodes = nodes
        self._end_client = end
        self._closed = False
        self._ends: OrderedDict[_Following, None] = OrderedDict()
        """Where single pages ended, the newest last."""
        self._ahead: OrderedDict[_Following, PagesAhead] = OrderedDict()
        """The pages that were sent early, by the read that takes them; the reader that was last served is last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads: SharedCalls[FramePage] = SharedCalls()
        self._moments: SharedCalls[LogSnapshot] = SharedCalls()

    @property
    def earliest(self) -> tuple[int, int]:
        return self.shown.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self.shown.last_truncated

    @property
    def truncated_tick(self) -> int | None:
        return self.shown.truncated_tick

    def bytes_between(self, start: int, end: int) -> int:
        """Returns the bytes of log in [start, end); 0 on Pulsar, where positions do not count bytes."""
        return max(0, end - start) if self.form == FORM_JOURNAL else 0

    def show(self, snapshot: LogSnapshot) -> None:
        """Shows readers the log as it is in this snapshot; what was truncated last stays known."""
        if snapshot.last_truncated is None:
            snapshot = msgspec.structs.replace(snapshot, last_truncated=self.shown.last_truncated)
        super().show(snapshot)

    def check(self, identity: Origin, later: Lineage) -> None:
        """Ends the client, and raises FormatError, if the server has another log of this pchannel now. A server may name none."""
        own = self.origin
        if not identity.incarnation:
            return
        if identity.incarnation != own.incarnation or identity.form != own.form:
            error: WALError = FormatError(
                f"the server has another log of pchannel {own.pchannel} now (incarnation {identity.incarnation:x}, before it was "
                f"{own.incarnation:x}): nothing was done. Look whether the server was started on the right directory; then open the log "
                "again"
            )
            if (restore := later.since(own.incarnation)) is not None:
                error = later.lost("the end of the log that this client opened", own.pchannel, restore, own.form)
            self._end_client(error)
            raise error

    async def moment(self) -> LogSnapshot:
        """Returns the log as it is now."""
        return await self._moments.join_next("moment", self._moment)

    async def _moment(self) -> LogSnapshot:
        moment = await self._nodes.submit(GetMoment(self.pchannel), self.pchannel)
        self.check(moment.origin, moment.lineage)
        return moment

    def snapshot(self, tail: pchannel_pb2.TailState, *, term: int) -> LogSnapshot:
        """Returns the log as a server has just described it."""
        return tail_from_proto(tail, self.origin, self.lineage, term=term)

    async def read(self, start: int, *, names: Names, bytes_max: int, end: int | None = None) -> FramePage:
        page = await self._page_from(start, names, bytes_max, end)
        frame = next((frame for frame in reversed(page.frames) if frame.view.header.indices), None)
        if frame is not None:
            header = frame.view.header
            self.saw(frame.position, header.indices - 1, header.first_tick + header.indices - 1)
        return page

    def saw(self, position: int, index: int, time_tick: int) -> None:
        """Notes an event that this client has read or written."""
        seen = self.seen
        if seen is None or (position, index) > (seen.message_id.position, seen.message_id.index):
            self.seen = ReadPosition(MessageID(self.pchannel, self.incarnation, position, index, self.form), time_tick)

    async def _page_from(self, start: int, names: Names, bytes_max: int, end: int | None) -> FramePage:
        following = (start, names, min(bytes_max, PAGE_BYTES), end)
        if self.earliest[0] <= start < self._end(end) and bytes_max > 1:  # a reader of a single frame does not move forward
            return await self._reads.join(following, lambda: self._forward(following))
        # A page that was truncated meanwhile is refused, as without pages ahead.
        if (ahead := self._ahead.pop(following, None)) is not None:
            ahead.task.cancel()
        return await self._read(*following)

    async def _forward(self, following: _Following) -> FramePage:
        """Returns the page of a reader that goes forward, out of those ahead if there are any."""
        start, names, bytes_max, end = following
        ahead = self._ahead.pop(following, None)
        if ahead is None and following in self._ends and self._is_far(following):
            ahead = self._send_ahead(following)
        if ahead is not None and (page := await self._next(following, ahead)) is not None:
            return page
        page = await self._read(start, names, bytes_max, end)
        self._ends[page.next_position, names, bytes_max, end] = None
        if len(self._ends) > _ENDS_MAX:
            self._ends.popitem(last=False)
        return page

    def _end(self, end: int | None) -> int:
        """Returns where a read to `end` ends in the log as it is known now."""
        durable_end = self.shown.durable_end
        return durable_end if end is None else min(end, durable_end)

    def _is_far(self, following: _Following) -> bool:
        """Returns whether the read has more than a page of log before it."""
        start, _, bytes_max, read_end = following
        end = self._end(read_end)
        return end - start > bytes_max if self.form == FORM_JOURNAL else start < end

    def _send_ahead(self, following: _Following) -> PagesAhead:
        """Asks for all pages from here to the end of the read, or of the log as far as it is known now."""
        start, names, bytes_max, read_end = following
        end, what = self._end(read_end), f"reading pchannel {self.pchannel}"
        self._ends.pop(following, None)
        responses = self.connection().responses(READ_PAGES, self._request(start, names, bytes_max, end), what)
        ahead = PagesAhead(responses, end=end, name=what)
        keep_task(self._tasks, ahead.task)
        return ahead

    async def _next(self, following: _Following, ahead: PagesAhead) -> FramePage | None:
        """Returns the next of the pages that were sent early. Returns None if they end here or the server is gone."""
        try:
            page = await ahead.next()
        except asyncio.CancelledError:
            self._keep(following, ahead)
            raise
        except LATER:
            self.losses += 1
            return None
        if page is not None and page.next_position < ahead.end:
            self._keep((page.next_position, *following[1:]), ahead)
        return page

    def _keep(self, following: _Following, ahead: PagesAhead) -> None:
        """Keeps the pages for the reader that asks for them next."""
        if (other := self._ahead.pop(following, None)) is not None:
            other.task.cancel()
        self._ahead[following] = ahead
        if len(self._ahead) > READERS_MAX:
            self._ahead.popitem(last=False)[1].task.cancel()

    def _request(self, start: int, names: Names, bytes_max: int, end: int, *, pages_max: int = 0) -> frames_pb2.ReadFramesRequest:
        return frames_pb2.ReadFramesRequest(
            pchannel=pchannel_pb2.PChannelInfo(name=self.pchannel),
            incarnation=self.incarnation,
            start=position_to_proto(start),
            end=position_to_proto(end),
            names=frames_pb2.VChannelNames(names=sorted(names)) if isinstance(names, frozenset) else None,
            pattern=names.pattern if isinstance(names, Matching) else "",
            page_bytes=bytes_max,
            pages_max=pages_max,
        )

    async def _read(self, start: int, names: Names, bytes_max: int, end: int | None) -> FramePage:
        """Returns a page from a server, and waits for one while no server can be reached."""
        request = self._request(start, names, bytes_max, self._end(end), pages_max=1)

        async def ask() -> FramePage:
            if self.checked < self.losses:
                await self.check_again()
            return await self._page(request)

        return await self.patiently(ask)

    async def patiently(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Returns what a server answers; asks again, after pauses, while no server can be reached. ClosedError once the log is closed."""
        pauses: Pauses | None = None  # made at the first failure: this is the way of every page
        while True:
            if self._closed:
                raise closed_log(f"of pchannel {self.pchannel!r}")
            report = self.reporter()
            try:
                return await ask()
            except LATER as error:
                if self._closed:
                    raise
                self.losses += 1
                report(error)
                pauses = pauses or Pauses()
                if pauses.to_tell():
                    _log.warning("reading pchannel %s has to wait: %s", self.pchannel, error)
            await asyncio.sleep(pauses.next())

    async def look_at(self, request: PageRequest) -> FramePage:
        """Returns a page of what a server has, without waiting for one, and without a check whether the log went back."""
        start, end = request.start, request.end
        return await self._page(self._request(start, request.names, request.bytes_max, end, pages_max=1))

    async def close(self) -> None:
        self._closed = True
        for task in (tasks := list(self._tasks)):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _page(self, request: frames_pb2.ReadFramesRequest) -> FramePage:
        what, first = f"reading pchannel {self.pchannel}", None
        async with aclosing(self.connection().responses(READ_PAGES, request, what)) as pages:
            async for page in pages:  # to the end of the call: a cancelled one makes its server log that it could not send the status
                first = first or page.page()
        if first is None:
            raise UnknownError(f"{what}: the server sent no page")
        return first


_log: Final = logging.getLogger("wal.remote")
_T = TypeVar("_T")
