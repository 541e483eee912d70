"""ReadLoop: the read of one scanner on one pchannel, from catch-up to tailing in one loop. Read: the base of every scanner's read.

A `Read` owns how it begins and ends, and the callers that wait for a tick. `ReadLoop` owns: the pchannel that the scanner reads, where its
read begins (cursor and policy), its pages, and its waiting at the tail. A `Progress`, which is pure, holds the state of the read and
returns what is needed next. It advances only between two awaits, so a cancelled read neither loses nor redelivers a message: the next call
continues after the last hand-over. The callers of `fill` drive the loop. A read with a pattern has one for each pchannel (`merged.py`).

Its beginning and each fetch of a page run in at most one task, which the end of the read cancels. A caller that is cancelled
leaves the task running for the next caller: otherwise a caller that polls with a time-out shorter than a fetch would never get a message.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from actors import Actor, ActorRef
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, WALError
from wal.message import ImmutableMessage, Origin
from wal.message.matching import Matching
from wal.read.beginning import AttachRequest, CursorRequest, begin
from wal.read.cursors.cursor import Cursor, CursorKey, Mark
from wal.read.cursors.service import CursorUse
from wal.read.options import Reached, ReadOptions, ReadPosition, Selection, named
from wal.read.page_reads import PAGE_BYTES
from wal.read.pchannel import ReadablePChannel
from wal.read.progress import HandOver, Need, Progress
from wal.storage.base import FramePage
from wal.storage.search import distance, run_async

Spawn = Callable[[Actor, str], ActorRef]
Attach = Callable[[tuple[str, ...]], Awaitable[tuple[ReadablePChannel, Selection, Spawn]]]
"""Finds the pchannel of these vchannels, the vchannels as they are at that moment, and a function that starts a handler's actor."""


class Read(abc.ABC):
    """The read of one scanner. `entered` is the id of the process in which it began, or 0: a forked child's copy needs no closing."""

    __slots__ = (
        "__weakref__", "_done", "_entering", "_options", "_waiter", "_work", "complete", "cursor", "ended", "entered", "error",
        "handler_runs", "progress", "tick_waiters",
    )  # fmt: skip

    progress: HandOver

    def __init__(self, options: ReadOptions, *, cursor: CursorUse | None) -> None:
        self._options = options
        self.cursor: CursorUse | None = cursor
        self.entered: int = 0
        self.ended: bool = False
        self.error: BaseException | None = None
        """The reason why it ended, None after a clean end."""
        self.handler_runs: bool = False
        """Whether a handler's actor drives the read; it is then complete only when the handler is closed."""
        self.complete: bool = False
        self._done: asyncio.Future[None] | None = None
        self._entering = asyncio.Lock()
        self._waiter: asyncio.Future[None] | None = None
        self._work: asyncio.Task[Any] | None = None
        """The beginning, or the fetch of the next page, until a caller takes its result."""
        self.tick_waiters: list[tuple[int, asyncio.Future[None]]] = []
        """The callers of `wait_for`, each with its tick."""

    @property
    def vchannels(self) -> tuple[str, ...]:
        """The vchannels that it reads, none for a read with a pattern."""
        return self._options.vchannels

    @property
    def selected(self) -> tuple[str, ...] | Matching:
        """The vchannels that the read is of, or the pattern."""
        return self._options.pattern or self.vchannels

    @property
    def subject(self) -> str:
        """The subject of the read as text for errors: the names of the vchannels, or the pattern."""
        return named(self.vchannels) if self._options.pattern is None else str(self._options.pattern)

    @property
    @abc.abstractmethod
    def failure(self) -> BaseException | None:
        """The reason why nothing follows in the log that it reads, or None."""

    @property
    @abc.abstractmethod
    def lag_bytes(self) -> int:
        """The bytes of log between its next page and the durable end."""

    @property
    @abc.abstractmethod
    def counts(self) -> tuple[int, int]:
        """How many frames and pages were read."""

    # -- beginning

    async def enter(self) -> Spawn | None:
        """Fixes where the read begins and ends, at the first call; only that call returns the function that starts a handler's actor."""
        async with self._entering:
            if self.entered:
                return None
            if not self.ended:
                work = await self._under_way(self._begin, "beginning of a read")
            if self.ended:
                if self.error is not None:
                    raise self.error
                return None
            self._work = None
            try:
                spawn: Spawn = work.result()
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    self.finish(error)
                raise
            self.entered = os.getpid()
            return spawn

    @abc.abstractmethod
    async def _begin(self) -> Spawn:
        """Fixes where the read begins and ends."""

    @abc.abstractmethod
    async def fill(self) -> bool:
        """Returns True when the progress has the next messages, False at the end. Cancelling it changes nothing."""

    # -- work that outlives a cancelled caller

    async def _under_way(self, start: Callable[[], Coroutine[Any, Any, Any]], name: str) -> asyncio.Task[Any]:
        """Awaits the running task, or starts one, and returns it after its end. A cancelled caller leaves the task running."""
        work = self._work or self._begin_work(start, name)
        if not work.done():
            await asyncio.wait((work,))
        return work

    def _begin_work(self, start: Callable[[], Coroutine[Any, Any, Any]], name: str) -> asyncio.Task[Any]:
        work = self._work = asyncio.get_running_loop().create_task(start(), name=name)
        work.add_done_callback(_retrieve)
        return work

    def _end_work(self) -> asyncio.Task[Any] | None:
        """Cancels what is under way, and returns it."""
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        return work

    def abandon(self) -> None:
        """Ends what is under way for a scanner that nobody holds any more. The garbage collector may call it in any thread."""
        if (work := self._work) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and the task with it
                work.get_loop().call_soon_threadsafe(work.cancel)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- ticks

    def wake_tick_waiters(self) -> None:
        """Wakes the callers of `wait_for` whose tick was handed over. Call it after every hand-over while there are any."""
        if not self.tick_waiters:
            return
        tick = self.progress.tick
        for awaited, future in self.tick_waiters[:]:
            if awaited <= tick and not future.done():
                future.set_result(None)

    async def wait_for(self, time_tick: int) -> None:
        """Returns when everything at or below this tick was handed over, or after a clean end; raises the error that ended the read."""
        if self.progress.tick >= time_tick:
            return
        if self.ended:
            if self.error is not None:
                raise self.error
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (time_tick, future)
        self.tick_waiters.append(entry)
        self._wake()
        try:
            await future
        finally:
            if entry in self.tick_waiters:
                self.tick_waiters.remove(entry)

    # -- the cursor

    def check_cursor(self) -> CursorUse:
        """Returns the cursor, or raises the error that every `save` raises."""
        if self.cursor is None:
            raise InvalidArgumentError("this scanner has no cursor to save: name one with read(…, cursor='name')")
        if isinstance(self.error, ChannelNotExistError):
            raise self.error
        return self.cursor

    @property
    @abc.abstractmethod
    def mark(self) -> Mark | None:
        """What orders its position among the saves of transactions, None before any event; see `Cursor.mark`."""

    @abc.abstractmethod
    async def is_before(self, cursor: CursorUse, event: Mark) -> bool:
        """Returns whether the cursor as it is saved has not passed this event."""

    @abc.abstractmethod
    def cursor_at(self, key: CursorKey, position: ReadPosition | None = None) -> Cursor:
        """Returns this position of the read as a cursor, or (None) where it is now; see `Scanner.save` for the errors."""

    @abc.abstractmethod
    async def save(self, cursor: CursorUse, position: ReadPosition | None = None) -> None:
        """Stores this position durably, or that of the read. The TruncatedError that it may raise names the earliest event that still
        exists."""

    # -- for a consumer

    @property
    @abc.abstractmethod
    def anchor(self) -> Origin:
        """An origin in the log of a pchannel that it reads, with the incarnation to which the state of a consumer belongs, 0 if to none."""

    @abc.abstractmethod
    def cursor_after(self, key: CursorKey, event: ImmutableMessage | None) -> Cursor:
        """Returns the position after this event of the read, or (None) where the read is now, as a cursor."""

    @property
    @abc.abstractmethod
    def places(self) -> tuple[int, ...]:
        """Where it reads next on each pchannel, for `bytes_since`."""

    @abc.abstractmethod
    def bytes_since(self, places: tuple[int, ...]) -> int:
        """Returns how many bytes of log it has read since it was there."""

    @abc.abstractmethod
    def bytes_after(self, cursor: Cursor) -> int:
        """Returns how many bytes of log follow this position of the read; for a pattern, the unread bytes."""

    @abc.abstractmethod
    def fetch_ahead(self) -> None:
        """Begins to fetch the next page from the log, for a caller that works on the messages before it."""

    # -- ending

    async def close(self) -> None:
        """Ends the read cleanly, and what is under way for it."""
        work = self._work
        self.finish(None)
        if work is not None:
            await asyncio.wait((work,))

    def finish(self, error: BaseException | None) -> None:
        """Ends the read, with this error or cleanly; the first reason stays."""
        if self.ended:
            return
        self.ended = True
        self.error = error
        self._end_work()
        self._leave()
        for _, future in self.tick_waiters:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        self._wake()
        if not self.handler_runs:
            self.completed()

    def completed(self) -> None:
        """Notes that the read has ended and that its handler, if it has one, is closed."""
        self.complete = True
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def done(self) -> None:
        """Returns when the read is complete, whatever ended it."""
        if not self.complete:
            if self._done is None:
                self._done = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._done)

    @abc.abstractmethod
    def _leave(self) -> None:
        """Leaves the pchannels that it reads: it has ended."""


class ReadLoop(Read):
    """The read of one pchannel."""

    __slots__ = ("_attach", "_spawn", "on_dropped", "on_joined", "pchannel", "unbroken")

    progress: Progress

    def __init__(self, options: ReadOptions, *, attach: Attach, cursor: CursorUse | None) -> None:
        super().__init__(options, cursor=cursor)
        self._attach = attach
        self.progress = Progress(options)
        self.pchannel: ReadablePChannel
        self._spawn: Spawn
        self.on_dropped: Callable[[str, str, int], object] | None = None
        """Called with the pchannel, the name and the incarnation of a vchannel that was dropped, for a read with a pattern."""
        self.on_joined: Callable[[], object] | None = None
        """Called when pchannels have come to the log, for a read with a pattern."""
        self.unbroken: bool = False
        """Whether the last page was one of recent frames, for which nothing was awaited."""

    @property
    def failure(self) -> BaseException | None:
        return self.pchannel.tail.failure

    @property
    def lag_bytes(self) -> int:
        if not self.entered or self.progress.at >= self.pchannel.tail.durable_end:
            return 0
        log = self.pchannel.log
        return log.bytes_between(self.progress.at, log.durable_end)

    @property
    def counts(self) -> tuple[int, int]:
        return self.progress.frame_count, self.progress.page_count

    # -- as the pchannel sees it, see `Reader`

    def incarnation(self, vchannel: str) -> int | None:
        return self.progress.selection.incarnation(vchannel)

    def ended_by(self, vchannel: str, error: WALError) -> None:
        if vchannel in self.vchannels:
            self.finish(error)

    def dropped(self, vchannel: str, incarnation: int) -> None:
        if self.on_dropped is not None:
            self.on_dropped(self.pchannel.channel, vchannel, incarnation)

    def changed(self) -> None:
        if self.on_dropped is not None and self.entered:
            for name, incarnation in self.progress.selection.ended():
                self.on_dropped(self.pchannel.channel, name, incarnation)

    def joined(self) -> None:
        if self.on_joined is not None:
            self.on_joined()

    def created(self, vchannel: str, pchannel: ReadablePChannel, *, incarnation: int | None = None) -> None:
        if vchannel not in self.vchannels or pchannel is self.pchannel:
            return
        if len(self.vchannels) > 1:
            self.finish(
                InvalidArgumentError(
                    f"vchannel {vchannel!r} was created on {pchannel.channel}, but this scanner reads {', '.join(self.vchannels)} on "
                    f"{self.pchannel.channel}, and a scanner reads one pchannel: read them apart"
                )
            )
            return
        self.pchannel.readers.discard(self)
        if self.entered:
            self._end_work()  # the pchannel that it is moved from held nothing for this reader
        self.pchannel = pchannel
        pchannel.readers.add(self)
        since = None
        if incarnation is not None:
            self.progress.selection.bind(vchannel, incarnation)
            since = pchannel.log.earliest
        self.progress.move(pchannel.origin(), pchannel.tail, since=since)
        self._wake()

    # -- beginning

    async def _begin(self) -> Spawn:
        """Finds the pchannel and begins the progress there; see `begin` for the errors."""
        await run_async(begin(self.progress, has_cursor=self.cursor is not None, measure=distance), self._answer)
        self.pchannel.readers.add(self)  # at once: a caller that was cancelled may come for the result much later
        return self._spawn

    async def _answer(self, request: Any) -> Any:
        """Returns what the beginning needs."""
        match request:
            case AttachRequest():
                self.pchannel, selection, self._spawn = await self._attach(self.vchannels)
                return self.pchannel.moment(), selection
            case CursorRequest():
                assert self.cursor is not None
                return await self._load(self.cursor, self.pchannel)
            case _:
                return await self.pchannel.answer(request)

    # -- continuing

    async def fill(self) -> bool:
        progress = self.progress
        while True:
            if self.ended:
                progress.settle()
                if self.error is not None:
                    raise self.error
                return False
            try:
                try:
                    need = progress.advance(self.pchannel.tail)
                finally:
                    if self.tick_waiters:
                        self.wake_tick_waiters()
                if need is Need.MESSAGES:
                    self.pchannel.check_lease()
                    return True
                if need is Need.PAGE:
                    if self.unbroken:  # otherwise no other task gets a turn of the loop while many pages follow each other
                        self.unbroken = False
                        await asyncio.sleep(0)
                    elif (work := self.take_page()) is not None:
                        await asyncio.wait((work,))
                    continue
                if need is Need.TAIL:
                    if (waiter := self._begin_to_wait()) is not None:
                        try:
                            await waiter
                        finally:
                            waiter.cancel()
                            self._waiter = None
                        self.unbroken = False
                    continue
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.finish(error)
                raise
            self.finish(None)

    def _begin_to_wait(self) -> asyncio.Future[None] | None:
        """Returns the future to await at the tail: for data, or also for a tick if this scanner or a caller of `wait_for` needs one.

        Returns None if the read need not wait. The function is not a coroutine, because each idle scanner would keep the coroutine's frame.
        """
        options = self._options
        ticks: list[int] = []
        if self.tick_waiters or options.until_time_tick is not None:
            ticks = [tick for tick, _ in self.tick_waiters if tick > self.pchannel.tail.promised_tick]
            if options.until_time_tick is not None:
                ticks.append(options.until_time_tick)
        self._waiter = self.tail_waiter(min(ticks, default=None), ticks=options.include_time_ticks)
        return self._waiter

    def tail_waiter(self, tick: int | None, *, ticks: bool = False) -> asyncio.Future[None] | None:
        """Returns a future for the next move of the tail: of data, or also of ticks if this `tick` is needed, or all are (`ticks`).

        Returns None if the tick is promised now.
        """
        if tick is not None and self.pchannel.advance_for(tick):
            return None
        return self.pchannel.tail.waiter(ticks=ticks or tick is not None)

    def take_recent(self) -> bool:
        """Takes the next page from the recent frames; returns False if they do not have it, or if it is being fetched."""
        pchannel, progress = self.pchannel, self.progress
        start = progress.at
        if self._work is not None or start < pchannel.recent.start or start < pchannel.log.earliest[0]:
            return False
        page = pchannel.recent.page(start, progress.page_end, names=progress.selection.names, bytes_max=PAGE_BYTES)
        assert page is not None, "it begins in the window"
        self.unbroken = True
        progress.take(page, pchannel.recent.shared)
        return True

    def take_page(self) -> asyncio.Task[FramePage] | None:
        """Takes the page that is needed, from the recent frames or else from the log; returns the fetch to wait for if it is not here yet.

        Call it again when the fetch has ended, unless the scanner was moved or has ended meanwhile. Raises the error of the fetch.
        """
        if self.take_recent():
            return None
        work = self._work or self._begin_work(self._fetching(), "page of a scanner")
        if not work.done():
            return work
        self._work = None
        self.progress.take(work.result())
        return None

    def fetch_ahead(self) -> None:
        """See `Read.fetch_ahead`. The page that is fetched takes the room of a page."""
        pchannel, progress = self.pchannel, self.progress
        # One fetch runs at once, an ended read needs none, and frames in the window of recent frames need no fetch.
        if self._work is None and not self.ended and progress.has_page(pchannel.tail) and progress.at < pchannel.recent.start:
            self._begin_work(self._fetching(), "page of a scanner")

    def _fetching(self) -> Callable[[], Coroutine[Any, Any, FramePage]]:
        return partial(_fetch, self.pchannel, self.progress.at, self.progress.selection)

    # -- for a consumer

    @property
    def anchor(self) -> Origin:
        return self.pchannel.origin()

    def cursor_after(self, key: CursorKey, event: ImmutableMessage | None) -> Cursor:
        reached = self.progress.reached
        if event is not None:
            at = (event._origin.position, event._index)
            reached = Reached(at, event.time_tick, (at[0], at[1] + 1))
        return cursor_of(key, self.pchannel.origin(), {name: self.incarnation(name) for name in key.vchannels}, reached)

    @property
    def places(self) -> tuple[int, ...]:
        return (self.progress.reached.position[0],)

    def bytes_since(self, places: tuple[int, ...]) -> int:
        (now,) = self.places
        return self.pchannel.log.bytes_between(places[0], now) if places[0] < now else 0

    def bytes_after(self, cursor: Cursor) -> int:
        start, end = cursor.start[0], self.pchannel.tail.durable_end
        return self.pchannel.log.bytes_between(start, end) if start < end else 0

    # -- the cursor

    def cursor_at(self, key: CursorKey, position: ReadPosition | None = None) -> Cursor:
        if isinstance(self.error, ChannelNotExistError):
            raise self.error
        if not self.entered:
            raise InvalidArgumentError(f"the scanner of {named(self.vchannels)} has not begun to read: save it after messages were read")
        reached = self.progress.reached if position is None else self.pchannel.reached_at(position)
        return cursor_of(key, self.pchannel.origin(), {name: self.incarnation(name) for name in self.vchannels}, reached)

    async def save(self, cursor: CursorUse, position: ReadPosition | None = None) -> None:
        pchannel = self.pchannel
        reached = self.progress.reached if position is None else pchannel.reached_at(position)
        try:
            await cursor.save(
                {name: self.incarnation(name) for name in self.vchannels},
                pchannel.origin(),
                start=reached.position,
                event=reached.event,
                time_tick=reached.tick,
            )
        except TruncatedError as error:
            error.earliest = await pchannel.first_event()
            raise

    @property
    def mark(self) -> Mark | None:
        return self.progress.reached.event

    async def is_before(self, cursor: CursorUse, event: Mark) -> bool:
        saved = await self._load(cursor, self.pchannel)
        return saved is None or saved.start <= event

    async def _load(self, cursor: CursorUse, pchannel: ReadablePChannel) -> Cursor | None:
        try:
            return await cursor.load(pchannel=pchannel.channel)
        except TruncatedError as error:
            error.earliest = await pchannel.first_event()
            raise

    def _leave(self) -> None:
        if (pchannel := getattr(self, "pchannel", None)) is not None:
            pchannel.readers.discard(self)


def cursor_of(key: CursorKey, origin: Origin, incarnations: Mapping[str, int | None], reached: Reached) -> Cursor:
    """Returns the progress of a reader of these incarnations, in this log, as a cursor."""
    read = tuple([incarnations.get(name) for name in key.vchannels])
    return Cursor(key, read, origin.pchannel, origin.incarnation, reached.position, reached.event, reached.tick, 0.0, origin.form)


async def _fetch(pchannel: ReadablePChannel, start: int, selection: Selection) -> FramePage:
    """Returns the page of the log that begins here. It does not hold the loop, so a scanner that nobody holds can be collected."""
    try:
        return await pchannel.selected_page(start, selection)
    except TruncatedError as error:  # overtaken: the log names a position, a reader needs the id of an event
        raise await pchannel.overtaken(start) from error


def _retrieve(work: asyncio.Task[Any]) -> None:
    """Takes note of an error that no caller may come for."""
    if not work.cancelled():
        work.exception()
