"""ReadablePChannel: a pchannel as scanners use it, whichever process writes it.

Owns: the readers, the tail they wait at, the window of recent frames they share, and the questions about ids that only the log can answer.
In the writer's process it is the base of `PChannel`, for the log of another process that of `ReadOnlyPChannel`. It never writes.
"""

from __future__ import annotations

import abc
import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from wal.errors import InvalidArgumentError, TruncatedError, WALError
from wal.frame import EncodedFrame
from wal.message import Lineage, LogPosition, MessageID, Origin
from wal.read.figures import PChannelStatistics
from wal.read.lease import OWN, Lease, lost_lease
from wal.read.options import Reached, ReadPosition, Selection
from wal.read.page_reads import PageReads
from wal.read.recent import RecentFrames
from wal.read.truncated import event_of, first_event, overtaken
from wal.storage.base import FramePage, LogSnapshot, ReadableLog
from wal.storage.search import MomentRequest, PageRequest, TickRequest, distance, position_after, run_async, truncated_tick

PREPARED_BYTES_MAX: Final = 64 * 1024
"""The largest frame that is decoded while it is written: the time on the disk covers that work, and a larger one keeps a core busy."""


class Moment(msgspec.Struct, frozen=True, gc=False):
    """A pchannel as its readers see it at one moment. See `LogMoment`."""

    log: ReadableLog
    origin: Origin
    lineage: Lineage
    durable_end: int
    earliest: LogPosition
    promised_tick: int
    newest: LogPosition | None
    failure: BaseException | None

    @property
    def last_truncated(self) -> LogPosition | None:
        return self.log.last_truncated


class Reader(Protocol):
    """A scanner as the pchannel that it reads uses it."""

    @property
    def vchannels(self) -> tuple[str, ...]:
        """The vchannels that it reads."""

    def incarnation(self, vchannel: str) -> int | None:
        """Returns the incarnation of this vchannel that it reads, or None if it has met none yet."""

    def ended_by(self, vchannel: str, error: WALError) -> None:
        """Ends the reader with this error if it names the vchannel, which was dropped."""

    def dropped(self, vchannel: str, incarnation: int) -> None:
        """Has a reader by a pattern hand over nothing more of this incarnation of the vchannel, whose record is gone."""

    def changed(self) -> None:
        """Stops deliveries from vchannels that have ended, in a reader by a pattern."""

    def joined(self) -> None:
        """Has a reader by a pattern read the pchannels that have come to the log; their events are later than all promised ticks."""

    def created(self, vchannel: str, pchannel: ReadablePChannel, *, incarnation: int | None = None) -> None:
        """Moves the reader to this pchannel, where the vchannel was created, if it waits for the vchannel on another one.

        With its `incarnation` the vchannel may have been created some time ago: the reader then reads that incarnation from its beginning.
        """


class ReadablePChannel(abc.ABC):
    """A pchannel for reading. `channel` is its name, `form` that of its message ids. All its methods run on the loop."""

    log: ReadableLog

    def __init__(self, log: ReadableLog, *, form: int, promised_tick: int, newest: LogPosition | None, lease: Lease = OWN) -> None:
        """`promised_tick` and `newest` are those known together with `log.durable_end`.

        The lease is `OWN` for the log of another process, which anyone with access may read; a server checks its lease before it sends.
        """
        self.lease: Lease = lease
        self.channel: str = log.pchannel
        self.log = log
        log.lineage.note(log.pchannel)
        self.form = form
        # Weak references, so that a scanner which was never closed is garbage-collected and leaves the set.
        self.readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self.reads: PageReads = PageReads(log)
        self.recent: RecentFrames = RecentFrames(log.durable_end)
        self.tail: Tail = Tail(durable_end=log.durable_end, promised_tick=promised_tick, newest=newest)

    async def page(self, start: int, names: frozenset[str] | None) -> FramePage:
        """Returns the page of the log that begins here, for a scanner of these vchannels (None: of all); it may have frames of others."""
        return await self.reads.page(start, names)

    async def selected_page(self, start: int, selection: Selection) -> FramePage:
        """Returns the page of the log that begins here, for a scanner of a selection; it may have frames of others."""
        return await selection.page(partial(self.page, start))

    def origin(self, position: int = 0) -> Origin:
        """Returns the origin of the frame at this position; any of them names the log."""
        return Origin(self.channel, self.log.incarnation, position, self.form)

    @property
    def log_id(self) -> MessageID:
        """An id of this log, for checking whether another id belongs to it."""
        return self.origin().message_id(0)

    def current(self, message_id: MessageID) -> MessageID:
        """Returns the id under the log's incarnation if it is of an earlier one, before a restore; else as it is.

        Raises LogWentBackError if its event was lost by a restore.
        """
        return self.log.lineage.current(message_id) if message_id.pchannel == self.channel else message_id

    def check_lease(self) -> None:
        """Raises SessionLostError unless this process may answer for the pchannel. Call it right before an answer leaves."""
        if not self.lease.alive:
            raise self.lose()

    def lose(self) -> WALError:
        """Takes note that the lease is lost; returns the error for whoever would get an answer."""
        return lost_lease(self.channel)

    @abc.abstractmethod
    def advance_for(self, tick: int) -> bool:
        """Promises this tick for a reader that waits for it, and returns True, if that can be done at once."""

    async def wait_promised(self, tick: int) -> None:
        """Returns when this tick is promised. Raises the reason why nothing follows in the log, UnavailableError if nobody promises it."""
        tail = self.tail
        while tail.promised_tick < tick and not self.advance_for(tick):
            if tail.failure is not None:
                raise tail.failure
            await tail.waiter(ticks=True)

    def expect(self, frame: EncodedFrame) -> None:
        """Has a small frame decoded while it is written, after the readers have taken what is durable."""
        if self.readers and frame.length <= PREPARED_BYTES_MAX:
            asyncio.get_running_loop().call_soon(self._prepare, frame)

    def _prepare(self, frame: EncodedFrame) -> None:
        if self.tail.is_awaited():
            self.recent.prepare(frame)

    def show(self, position: int, frame: EncodedFrame, *, promised_tick: int) -> None:
        """Shows the next durable frame to the readers."""
        self.recent.add(position, frame)
        indices = frame.header.indices
        # Not the log's own durable end, which may be after a frame whose outcome is not known here yet.
        self.tail.data_moved(durable_end=position + 1, promised_tick=promised_tick, newest=(position, indices - 1) if indices else None)

    def moment(self) -> Moment:
        """Returns the log as its readers see it now."""
        tail, log = self.tail, self.log
        return Moment(log, self.origin(), log.lineage, tail.durable_end, log.earliest, tail.promised_tick, tail.newest, tail.failure)

    async def answer(self, request: PageRequest | TickRequest | MomentRequest) -> FramePage | LogPosition | Moment:
        """Returns what a question needs of this log."""
        match request:
            case MomentRequest():
                return self.moment()
            case TickRequest():
                search = position_after(request.time_tick, request.start, request.end, distance)
                return await run_async(search, self.answer)
            case _:
                return await self.log.read(request.start, names=request.names, bytes_max=request.bytes_max, end=request.end)

    async def event_of(self, message_id: MessageID) -> MessageID | None:
        """Returns the event of this id: the id itself, or a body's transaction; None if its frame is gone or holds no such event."""
        return await run_async(event_of(self.moment(), message_id), self.answer)

    async def first_event(self) -> MessageID | None:
        """Returns the id of the earliest event that is not truncated, or None."""
        return await run_async(first_event(), self.answer)

    async def first_local_event(self) -> MessageID | None:
        """Returns the id of the earliest event that the log stores itself, or None; an archive may have earlier ones."""

        async def answer(request: PageRequest | TickRequest | MomentRequest) -> FramePage | LogPosition | Moment:
            if isinstance(request, MomentRequest):
                return msgspec.structs.replace(self.moment(), earliest=self.log.local_earliest)
            return await self.answer(request)

        return await run_async(first_event(), answer)

    async def end_of(self, message_id: MessageID) -> LogPosition | None:
        """Returns the log position right after this event, where the log begins once truncated up to it; None if it is truncated already.

        A body counts as its transaction. Raises InvalidArgumentError for an id above the durable end, or of no event.
        """
        position, index = message_id.position, message_id.index
        if position >= self.tail.durable_end:
            raise InvalidArgumentError(
                f"message id {message_id} is above the durable end {self.tail.durable_end} of pchannel {self.channel}: truncate up "
                "to a message that was appended"
            )
        if (position, index) < self.log.earliest:
            return None
        event = await self.event_of(message_id)
        if event is None:
            raise InvalidArgumentError(f"message id {message_id} names no event of pchannel {self.channel}: use an id that was read")
        return (position, event.index + 1)

    async def truncated_tick(self) -> int:
        """Returns a tick that all truncated events are at or below, and all that are left above; see `wal.storage.search`."""
        log, tail = self.log, self.tail
        return await run_async(truncated_tick(log.truncated_tick, log.earliest, tail.durable_end, tail.promised_tick), self.answer)

    def reached_at(self, position: ReadPosition) -> Reached:
        """Returns the progress of a reader at this position. Raises InvalidArgumentError for one of another log, or above the durable
        end."""
        if not isinstance(position, ReadPosition):
            raise TypeError(f"a position must be a ReadPosition, not {type(position).__name__}")
        event = self.current(position.message_id)
        if not event.same_log(self.log_id) or event.position >= self.tail.durable_end:
            raise InvalidArgumentError(
                f"position {position} is in another log, or above the durable end {self.tail.durable_end} of pchannel {self.channel}: "
                "save the position of a message that was read"
            )
        return Reached((event.position, event.index), position.time_tick, (event.position, event.index + 1))

    async def overtaken(self, position: int) -> TruncatedError:
        """Returns the error for a read under way whose next frames are gone."""
        return overtaken(self.channel, position, await self.first_event())

    def _counts(self, **writing: Any) -> PChannelStatistics:
        """Returns the counts of reading, with these of writing."""
        reads = self.reads
        return PChannelStatistics(
            name=self.channel,
            readers=len(self.readers),
            durable_end=self.tail.durable_end,
            page_reads=reads.count,
            shared_pages=reads.shared_count,
            shared_page_bytes=reads.shared.size,
            **writing,
        )


class ShownLog(ReadableLog):
    """A log that another process writes. Its readers see what `show` was last called with, and no more."""

    shown: LogSnapshot
    """The log as its readers see it."""

    @property
    def lineage(self) -> Lineage:
        return self.shown.lineage

    @property
    def durable_end(self) -> int:
        return self.shown.durable_end

    def show(self, snapshot: LogSnapshot) -> None:
        """Shows readers the log as it is in this snapshot."""
        self.shown = snapshot


class ShownPChannel(ReadablePChannel):
    """A pchannel that another process writes, as the scanners of this process see it."""

    log: ShownLog

    @abc.abstractmethod
    async def catch_up(self) -> None:
        """Shows readers everything that is durable now."""

    async def answer(self, request: PageRequest | TickRequest | MomentRequest) -> FramePage | LogPosition | Moment:
        if isinstance(request, MomentRequest):
            await self.catch_up()
        return await super().answer(request)

    def statistics(self) -> PChannelStatistics:
        """Returns a snapshot of its counts; those of writing are 0."""
        cause = self.tail.failure
        failure = "" if cause is None else f"{type(cause).__name__}: {cause}"
        return self._counts(term=self.log.shown.term, promise=self.tail.promised_tick, failure=failure)

    def show_snapshot(self, snapshot: LogSnapshot, newest: LogPosition | None = None) -> bool:
        """Shows readers this snapshot: moves the tail and wakes the scanners that wait at it. Returns whether there was new data.

        `newest` is an event that is durable there. A snapshot that is older than what they see changes nothing.
        """
        tail = self.tail
        if snapshot.durable_end < tail.durable_end:
            return False
        self.log.show(snapshot)
        newest = max(filter(None, (tail.newest, snapshot.newest, newest)), default=None)
        if snapshot.durable_end == tail.durable_end:
            tail.newest = newest
            tail.tick_moved(snapshot.promised_tick)
            return False
        promised_tick = max(tail.promised_tick, snapshot.promised_tick)
        tail.data_moved(durable_end=snapshot.durable_end, promised_tick=promised_tick, newest=newest)
        return True


_SWEEP_MIN: Final = 64


class Tail:
    """The end of a pchannel as readers see it, and how they wait for it to advance.

    It has one version and two lists of waiters: for data, and for data or ticks. A snapshot is consistent: everything at or below
    `promised_tick` is below `durable_end`.

    The end of a log: reads take the frames that begin below `durable_end`.

    `newest` is the newest durable event known, None before any.
    """

    __slots__ = ("_data", "_sweep_at", "_ticks", "durable_end", "failure", "newest", "on_failure", "promised_tick")

    def __init__(self, *, durable_end: int, promised_tick: int, newest: LogPosition | None) -> None:
        self.durable_end: int = durable_end
        self.promised_tick: int = promised_tick
        self.newest = newest
        self.failure: BaseException | None = None
        """The reason why nothing follows: the log was closed, or it failed."""
        self.on_failure: Callable[[BaseException], object] | None = None
        """Is called once, with the reason why nothing follows."""
        self._data: list[asyncio.Future[None]] = []
        self._ticks: list[asyncio.Future[None]] = []
        self._sweep_at = _SWEEP_MIN

    def is_awaited(self) -> bool:
        """Returns whether a scanner waits."""
        return any(not waiter.done() for waiters in (self._data, self._ticks) for waiter in waiters)

    def data_moved(self, *, durable_end: int, promised_tick: int, newest: LogPosition | None) -> None:
        """Moves the end because a frame became durable."""
        self.durable_end = durable_end
        if newest is not None:
            self.newest = newest
        self.promised_tick = promised_tick
        _wake(self._data)
        _wake(self._ticks)

    def tick_moved(self, promised_tick: int) -> None:
        """Moves only the promised tick."""
        if promised_tick > self.promised_tick:
            self.promised_tick = promised_tick
            _wake(self._ticks)

    def fail(self, cause: BaseException) -> None:
        """Ends the log for its readers: all that wait are woken and raise the cause. The first cause stays."""
        if self.failure is None:
            self.failure = cause
            if self.on_failure is not None:
                self.on_failure(cause)
        _wake(self._data)
        _wake(self._ticks)

    def waiter(self, *, ticks: bool) -> asyncio.Future[None]:
        """Returns a future that is resolved at the next move: of data, or with `ticks` of either. Cancel it to stop waiting."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._ticks if ticks else self._data
        waiters.append(future)
        if len(waiters) > self._sweep_at:  # drops cancelled waiters; at most every other one is
            for each in (self._data, self._ticks):
                each[:] = [waiter for waiter in each if not waiter.done()]
            self._sweep_at = _SWEEP_MIN + 2 * max(len(self._data), len(self._ticks))
        return future


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    if waiters:
        woken = waiters[:]
        waiters.clear()
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)
