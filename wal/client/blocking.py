"""BlockingRemote: a log on the network for threads without an event loop.

Owns a `RemoteLog` that is open for reading, and the thread whose event loop runs it. A call waits for a server that is being restarted, for
a bounded time. `end_calls` and `close` end calls under way, from any thread. A forked child has to open the log again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from wal.channels.vchannel_map import VChannelMap, VChannelView
from wal.channels.vchannels import VChannelInfo, place
from wal.client.log import RemoteLog
from wal.client.pauses import Pauses
from wal.client.remote_log import MOVED
from wal.errors import ClosedError, FormatError, UnavailableError, UnknownOutcomeError, closed_log
from wal.location import ServerLocation
from wal.message import FORM_JOURNAL, Lineage, LogPosition
from wal.read.cursors.cursor import Cursor, CursorKey, pattern_home
from wal.read.cursors.store import SavedCursors
from wal.read.read_only_core import ReadOnlySource
from wal.requests.cursors import ListCursors, LoadCursor, SaveCursor
from wal.requests.reads import CountBytes, FindEventBelow, FindTick, NewestTick, WeighFrames
from wal.requests.request import Request
from wal.requests.vchannels import ListVChannels
from wal.runtime.loop_thread import LoopThread
from wal.settings import Settings
from wal.storage.base import FramePage, LogSnapshot
from wal.storage.read_only import ReadOnlyPChannelLog, VChannelChoice
from wal.storage.search import Weighed

_T = TypeVar("_T")

PATIENCE_S: Final = 30.0
"""How long a call waits for a server, as an append does (`wal.client.producer`)."""


class BlockingRemote:
    """The log that these servers serve, open until `close`. Any number of threads may call.

    The constructor connects, and raises the errors of `open_wal`; without a server, after at least `wait_s`. An object that is
    garbage-collected without `close` closes itself.
    """

    def __init__(self, servers: ServerLocation, settings: Settings, *, wait_s: float = 0.0) -> None:
        opened = _Opened()
        self._thread = LoopThread(collected=opened.close_in)
        self._running: dict[concurrent.futures.Future[Any], object] = {}
        try:
            self.log: RemoteLog = self._thread.call(opened.open, servers, settings, wait_s)
        except BaseException:
            self._thread.stop()
            raise
        self._thread.closing = opened.close

    def start(self, call: Callable[[], Awaitable[_T]], what: str, *, owner: object = None) -> concurrent.futures.Future[_T]:
        """Starts a call in the loop and returns the future of its result. The call is repeated while no server answers.

        `what` names the call in errors; `end_calls` ends the calls of an `owner`. The future raises UnavailableError after `PATIENCE_S`.
        """
        future = self._thread.start(_patient, call, f"{what} of {self.log.place}")
        self._running[future] = owner
        future.add_done_callback(lambda done: self._running.pop(done, None))
        return future

    def result(self, future: concurrent.futures.Future[_T]) -> _T:
        """Waits for a started call and returns its result. An interrupt cancels the call; a call that was ended raises ClosedError."""
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError(f"the log at {self.log.place} was closed while a call was under way") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, call: Callable[[], Awaitable[_T]], what: str, *, owner: object = None) -> _T:
        """Returns the result of a call; see `start`."""
        return self.result(self.start(call, what, owner=owner))

    def submit(self, request: Request[_T], *, owner: object = None) -> _T:
        """Returns the answer to a request that may be sent twice."""
        return self.call(lambda: self.log.submit(request), request.doing, owner=owner)

    def end_calls(self, owner: object) -> None:
        """Ends the calls of this owner that are under way."""
        for future, its in list(self._running.items()):
            if its is owner:
                future.cancel()

    def view(self, records: Mapping[str, VChannelInfo], floors: Mapping[str, int]) -> VChannelView:
        """Returns these vchannels as a view; `floors` has the smallest incarnation that an unknown one can have, by pchannel."""
        by_pchannel: dict[str, dict[str, int]] = {name: {} for name in list(self.log.pchannels)}
        for info in records.values():
            by_pchannel[info.pchannel][info.name] = info.incarnation
        maps = {
            name: VChannelMap(self.log.pchannels[name].log.incarnation, floors.get(name, 0), incarnations)
            for name, incarnations in by_pchannel.items()
        }
        return VChannelView(records, maps)

    def close(self) -> None:
        """Ends the calls under way and disconnects. Idempotent."""
        for future in list(self._running):
            future.cancel()
        self._thread.stop()


class _Opened:
    """The open log as its loop holds it: without a reference to the BlockingRemote, which can therefore be garbage-collected."""

    def __init__(self) -> None:
        self._log: RemoteLog | None = None

    async def open(self, servers: ServerLocation, settings: Settings, wait_s: float) -> RemoteLog:
        log = RemoteLog(servers, settings, read_only=True, wait_s=wait_s)
        await log.open()
        self._log = log
        return log

    async def close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            await log.close()

    async def close_in(self, _loop: asyncio.AbstractEventLoop) -> None:
        await self.close()


async def _patient(call: Callable[[], Awaitable[_T]], what: str) -> _T:
    """Repeats the call, which does no harm, until it succeeds. An error other than a missing server is raised at once.

    After `PATIENCE_S` it raises UnknownOutcomeError if the call may have changed something, else UnavailableError.
    """
    pauses, why, unknown = Pauses(), "no answer came", False
    try:
        async with asyncio.timeout(PATIENCE_S) as patience:
            while True:
                try:
                    return await call()
                except MOVED as error:
                    why = str(error)
                except UnknownOutcomeError as error:
                    why, unknown = str(error), True
                await asyncio.sleep(pauses.next())
    except TimeoutError as error:
        if not patience.expired():
            raise
        text = f"{what}: no server answered within {PATIENCE_S:g} s, the last one said: {why}"
        if unknown:
            raise UnknownOutcomeError(f"{text}; it may have been carried out: it may be repeated") from error
        raise UnavailableError(f"{text}; nothing was changed: try again") from error


_Read = tuple[int, int, frozenset[str] | None, int]
"""The start of a page, the end of the read, its vchannels, and the bytes of a page."""


class BlockingLog(ReadOnlyPChannelLog):
    """The log of one pchannel on a server, read from threads without an event loop.

    Owns the prefetched page: while a caller works on a page, the next page of the same read is under way. The server pushes how far the log
    reaches, so looking at it costs no request.

    See `ReadOnlyPChannelLog`. The server searches; without `follow`, `refresh` returns what the last `reach` found.
    """

    refresh_waits: bool = True

    def __init__(self, remote: BlockingRemote, pchannel: str) -> None:
        self.pchannel: str = pchannel
        self._remote = remote
        self._remote_pchannel = remote.log.pchannels[pchannel]
        self.incarnation: int = self._remote_pchannel.log.incarnation
        self.lineage: Lineage = self._remote_pchannel.log.lineage
        self._ahead: tuple[_Read, concurrent.futures.Future[FramePage]] | None = None
        self._turn = threading.Lock()
        self._closed = False

    @property
    def form(self) -> int:
        """The form of the log's message ids."""
        return self._remote_pchannel.log.form

    @property
    def earliest(self) -> tuple[int, int]:
        return self._remote_pchannel.log.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return self._remote_pchannel.log.last_truncated

    def refresh(self) -> LogSnapshot:
        """Returns the log as the server last showed it. Raises the error that ended its readers, for example for a recreated log."""
        self._check_open()
        if (failure := self._remote_pchannel.tail.failure) is not None:
            raise failure
        return self._remote_pchannel.log.shown

    def reach(self) -> LogSnapshot:
        """Returns the log as it is now, from the server."""
        self._check_open()
        self._remote.call(self._remote_pchannel.look, f"looking at pchannel {self.pchannel}", owner=self)
        return self._remote_pchannel.log.shown

    def follow(self) -> None:
        """Lets the server push how far the log reaches from now on. Without it, `refresh` returns what the last `reach` found."""
        self._remote.call(self._follow, f"following pchannel {self.pchannel}", owner=self)

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns frames in [start, end) as `ReadOnlyPChannelLog.page` does, and begins to fetch the following ones."""
        self._check_open()
        read: _Read = (start, end, names, bytes_max)
        with self._turn:
            ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == read:
            future = ahead[1]
        else:
            if ahead is not None:
                ahead[1].cancel()
            future = self._fetch(read)
        page = self._remote.result(future)
        if page.next_position < end and bytes_max >= _AHEAD_BYTES_MIN:
            following: _Read = (page.next_position, end, names, bytes_max)
            with self._turn:
                if self._ahead is None and not self._closed:
                    self._ahead = following, self._fetch(following)
        return page

    def bytes_for(self, names: frozenset[str] | None, start: LogPosition, end: int) -> int:
        if names is not None or self._remote_pchannel.log.form == FORM_JOURNAL:
            return self.bytes_between(start[0], end)  # cursors are shown by the server, which has the indexes
        return self._submit(CountBytes(self.pchannel, start[0], end))

    def position_after(self, tick: int, start: int, end: int) -> LogPosition:
        return self._submit(FindTick(self.pchannel, tick, start, end))

    def event_below(self, since: LogPosition, below: LogPosition) -> LogPosition | None:
        if below[1]:
            return super().event_below(since, below)
        below = min(below, (self.reach().durable_end, 0))
        if since >= below:
            return None
        return self._submit(FindEventBelow(self.pchannel, since, below))

    def newest_tick(self) -> int:
        return self._submit(NewestTick(self.pchannel))

    def names(self, start: int, end: int, choice: VChannelChoice) -> frozenset[str] | None:
        """Returns the vchannels of this choice, None if there are too many.

        A vchannel is listed before its first frame is durable, so all with a frame below a durable end are listed now.
        """
        if isinstance(choice, frozenset):
            return choice
        infos = self._submit(ListVChannels())
        names = frozenset(info.name for info in infos if info.pchannel == self.pchannel and info.name in choice)
        return names if len(names) <= _NAMES_MAX else None

    def weigh(self, start: int, end: int, choice: VChannelChoice | None, *, rows_max: int | None, bytes_max: int | None) -> Weighed:
        names = None if choice is None else self.names(start, end, choice)
        weighed = self._submit(WeighFrames(self.pchannel, start, end, names, rows_max, bytes_max))
        # The smallest position of a frame after the last one may be above the end of the log, where blocks are aligned.
        weights = [msgspec.structs.replace(weight, next_position=min(weight.next_position, end)) for weight in weighed.weights]
        return Weighed(weights, weighed.upto)

    def bytes_between(self, start: int, end: int) -> int:
        return self._remote_pchannel.log.bytes_between(start, end)

    def close(self) -> None:
        """Ends the calls under way. Idempotent."""
        with self._turn:
            self._closed = True
            self._ahead = None
        self._remote.end_calls(self)

    def _fetch(self, read: _Read) -> concurrent.futures.Future[FramePage]:
        start, end, names, bytes_max = read
        log = self._remote_pchannel.log
        return self._remote.start(
            lambda: log.read(start, names=names, bytes_max=bytes_max, end=end), f"reading pchannel {self.pchannel}", owner=self
        )

    def _submit(self, request: Request[_T]) -> _T:
        self._check_open()
        return self._remote.submit(request, owner=self)

    async def _follow(self) -> None:
        self._remote_pchannel.follow()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_log(f"of pchannel {self.pchannel!r}")


_NAMES_MAX: Final = 16_384
"""If a pattern matches more vchannels than this, whole frames are fetched: the names alone would make requests of half a megabyte."""
_AHEAD_BYTES_MIN: Final = 1 << 16
"""A read of smaller pages looks at single frames, so the following page is not fetched."""


class BlockingCursors(SavedCursors):
    """The cursors of a log on the network, for threads without an event loop. The servers keep them.

    `ends` returns, by pchannel, where the log is known to end.
    """

    def __init__(self, remote: BlockingRemote, ends: Callable[[], Mapping[str, int]]) -> None:
        self._remote = remote
        self._ends = ends

    def load(self, key: CursorKey) -> Cursor | None:
        """Returns the cursor to resume from, or None if nothing is saved. Raises TruncatedError for a stale one.

        Only the home of patterns or the pchannel of its vchannels is asked: another one has it at its own beginning, as a cursor that was
        saved before they were.
        """
        log = self._remote.log
        if key.pattern:
            return self._remote.submit(LoadCursor(key, pattern_home(log.pchannels)))
        infos = map(log.vchannels.records.get, key.vchannels)
        known = next((info.pchannel for info in infos if info is not None), None)
        pchannel = known or place(key.vchannels[0], list(log.pchannels))
        return self._remote.submit(LoadCursor(key, pchannel))

    def saved_keys(self) -> list[CursorKey]:
        return [CursorKey(info.name, info.vchannels, info.pattern) for info in self._remote.submit(ListCursors())]

    def save(self, cursor: Cursor, *, forward_only: bool = False) -> bool:
        """Stores a cursor; see `SavedCursors.save`."""
        # The smallest position of a later frame may be above the end of the log, where blocks are aligned; nothing lies between the two.
        cursor = msgspec.structs.replace(cursor, start=min(cursor.start, (self._ends()[cursor.pchannel], 0)))
        home = pattern_home(self._remote.log.pchannels) if cursor.key.pattern else ""
        return self._remote.submit(SaveCursor(cursor, forward_only, home))


class BlockingSource(ReadOnlySource):
    """A log on the network as a source for reads in the caller's thread (`wal.read.read_only_core.ReadOnlySource`).

    The servers push how far the log reaches and which vchannels there are, so a read that waits at the tail sends no requests. While no
    server can be reached, the last known state stays valid, and a reader at the tail waits.

    See `ReadOnlySource`; opening it waits at least `wait_s` for a server.

    With `follow=False` the servers push nothing: a log is what its last `reach` found.
    """

    name: str
    form: int
    cursors: SavedCursors

    def __init__(self, servers: ServerLocation, settings: Settings, *, wait_s: float, follow: bool = True) -> None:
        self.location: str = str(servers)
        self._servers = servers
        self._settings = settings
        self._wait_s = wait_s
        self._follow = follow
        self._remote: BlockingRemote | None = None
        self._logs: dict[str, BlockingLog] = {}
        self._view = VChannelView({}, {})
        self._viewed = -1
        """The version of the known vchannels from which `_view` was built."""

    @property
    def remote(self) -> BlockingRemote:
        """The open log. Raises the error that has ended it."""
        return self._opened()

    def absence(self, waited_s: float) -> FormatError | None:
        """Returns None: a server has opened its log before it can be reached, and `open` waits for the server."""
        return None

    def open(self) -> None:
        self._remote = remote = BlockingRemote(self._servers, self._settings, wait_s=self._wait_s)
        self.name = remote.log.name
        self.form = next(iter(remote.log.pchannels.values())).log.form
        self.cursors = BlockingCursors(remote, lambda: {name: log.refresh().durable_end for name, log in self._logs.items()})

    def pchannels(self) -> list[str]:
        return list(self._opened().log.pchannels)

    def open_log(self, pchannel: str) -> BlockingLog:
        log = self._logs[pchannel] = BlockingLog(self._opened(), pchannel)
        if self._follow:
            log.follow()
        return log

    def vchannels(self, *, newest: bool = False) -> VChannelView:
        assert not newest, "calls that need the newest state ask the server, through RemoteDirectory"
        remote = self._opened()
        if remote.log.vchannels.version != self._viewed:
            self._viewed, records, floors = remote.call(self._known, "looking at the vchannels")
            if new := {info.pchannel for info in records.values()} - set(remote.log.pchannels):
                remote.call(partial(remote.log.use, new), "looking at new pchannels")
            self._view = remote.view(records, floors)
        return self._view

    def has_writer(self) -> bool:
        return True  # a server that answers has the log open for writing

    def is_current(self) -> bool:
        return self._remote is None or self._remote.log.supervision.failure is None

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()

    async def _known(self) -> tuple[int, dict[str, VChannelInfo], dict[str, int]]:
        known = self._opened().log.vchannels
        return known.version, dict(known.records), dict(known.floors)

    def _opened(self) -> BlockingRemote:
        assert self._remote is not None, "the source is used before open()"
        if (failure := self._remote.log.supervision.failure) is not None:
            raise failure
        return self._remote
