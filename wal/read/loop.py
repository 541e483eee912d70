"""ReadLoop: the machinery of one scanner, from catch-up to tailing in one loop.

Owns: the pchannel that the scanner reads, where its read begins (cursor and policy), its pages, its waiting at the tail, and how it
ends. A `Progress`, which is pure, knows what was read and what is needed next. It advances only between two awaits, so a cancelled
read neither loses nor redelivers a message: the next call continues after the last hand-over. The callers of `fill` drive the loop.

Its beginning and each fetch of a page run in a task, at most one at a time, which the end of the read cancels. A caller that is cancelled
leaves the task running for the next caller: otherwise a caller that polls with a time-out shorter than a fetch would never get a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from actors import Actor, ActorRef
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, WALError
from wal.message import LogPosition, Origin
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.service import CursorUse
from wal.read.options import Reached, ReadOptions, ReadPosition, Selection, named
from wal.read.page_reads import PAGE_BYTES
from wal.read.pchannel import ReadablePChannel
from wal.read.progress import AttachRequest, CursorRequest, Need, Progress, begin
from wal.storage.base import FramePage
from wal.storage.search import distance, run_async

Spawn = Callable[[Actor, str], ActorRef]
Attach = Callable[[tuple[str, ...]], Awaitable[tuple[ReadablePChannel, Selection, Spawn]]]
"""Finds the pchannel of these vchannels, the vchannels as they are at that moment, and a function that starts a handler's actor."""


class ReadLoop:
    """The read of one scanner. `entered` is the id of the process in which it began, or 0: a forked child's copy needs no closing."""

    __slots__ = (
        "__weakref__", "_attach", "_done", "_entering", "_options", "_spawn", "_unbroken", "_waiter", "_work", "complete",
        "cursor", "ended", "entered", "error", "handler_runs", "pchannel", "progress", "tick_waiters",
    )  # fmt: skip

    def __init__(self, options: ReadOptions, *, attach: Attach, cursor: CursorUse | None) -> None:
        self._options = options
        self._attach = attach
        self.cursor: CursorUse | None = cursor
        self.progress: Progress = Progress(options)
        self.pchannel: ReadablePChannel
        self._spawn: Spawn
        self.entered: int = 0
        self.ended: bool = False
        self.error: BaseException | None = None
        """The reason why it ended, None after a clean end."""
        self.handler_runs: bool = False
        """Whether a handler's actor drives the loop; the read is then complete only when the handler is closed."""
        self.complete: bool = False
        self._done: asyncio.Future[None] | None = None
        self._entering = asyncio.Lock()
        self._waiter: asyncio.Future[None] | None = None
        self._work: asyncio.Task[Any] | None = None
        """The beginning, or the fetch of the page that begins at `progress.at`, until a caller takes its result."""
        self.tick_waiters: list[tuple[int, asyncio.Future[None]]] = []
        """The callers of `wait_for`, each with its tick."""
        self._unbroken = False

    # -- as the pchannel sees it, see `Reader`

    @property
    def vchannels(self) -> tuple[str, ...]:
        return self._options.vchannels

    def incarnation(self, vchannel: str) -> int | None:
        return self.progress.selection.incarnation(vchannel)

    def ended_by(self, vchannel: str, error: WALError) -> None:
        if vchannel in self.vchannels:
            self.finish(error)

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
        """Returns True when the progress has the next messages, False at the end. Cancelling it changes nothing."""
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
                    if self._work is not None or self._unbroken or not self._take_recent():
                        await self._take_page()
                    continue
                if need is Need.TAIL:
                    if (waiter := self._begin_to_wait()) is not None:
                        try:
                            await waiter
                        finally:
                            waiter.cancel()
                            self._waiter = None
                        self._unbroken = False
                    continue
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self.finish(error)
                raise
            self.finish(None)

    def _begin_to_wait(self) -> asyncio.Future[None] | None:
        """Returns the future to await at the tail: for data, or also for a tick if this scanner or a caller of `wait_for` needs one.

        Returns None if there is no need to wait. It is no coroutine: each idle scanner would keep the coroutine's frame.
        """
        tail, options = self.pchannel.tail, self._options
        if not self.tick_waiters and options.until_time_tick is None:
            self._waiter = tail.waiter(ticks=options.include_time_ticks)
            return self._waiter
        ticks = [tick for tick, _ in self.tick_waiters if tick > tail.promised_tick]
        if options.until_time_tick is not None:
            ticks.append(options.until_time_tick)
        if ticks and self.pchannel.advance_for(min(ticks)):
            return None
        self._waiter = tail.waiter(ticks=bool(ticks) or options.include_time_ticks)
        return self._waiter

    def _take_recent(self) -> bool:
        """Takes the next page from the recent frames; returns False if they do not have it."""
        pchannel, progress = self.pchannel, self.progress
        start = progress.at
        if start < pchannel.recent.start or start < pchannel.log.earliest[0]:
            return False
        page = pchannel.recent.page(start, progress.page_end, names=progress.selection.names, bytes_max=PAGE_BYTES)
        assert page is not None, "it begins in the window"
        self._unbroken = True
        progress.take(page, pchannel.recent.shared)
        return True

    async def _take_page(self) -> None:
        """Takes the next page, from the recent frames or else from the log, unless the scanner is moved or ended meanwhile."""
        pchannel, progress = self.pchannel, self.progress
        if self._unbroken:  # otherwise no other task gets a turn of the loop while many pages follow each other
            self._unbroken = False
            await asyncio.sleep(0)
            if pchannel is not self.pchannel or (self._work is None and self._take_recent()):
                return
        work = await self._under_way(self._fetching(), "page of a scanner")
        if work is self._work:
            self._work = None
            progress.take(work.result())

    def fetch_ahead(self) -> None:
        """Begins to fetch the next page from the log, for a caller that works on the frames before it. It takes the room of a page."""
        pchannel, progress = self.pchannel, self.progress
        if self._work is None and not self.ended and progress.has_page(pchannel.tail) and progress.at < pchannel.recent.start:
            self._begin_work(self._fetching(), "page of a scanner")

    def _fetching(self) -> Callable[[], Coroutine[Any, Any, FramePage]]:
        return partial(_fetch, self.pchannel, self.progress.at, self.progress.selection.names)

    # -- work that outlives a cancelled caller

    async def _under_way(self, start: Callable[[], Coroutine[Any, Any, Any]], name: str) -> asyncio.Task[Any]:
        """Returns the task that is under way, or else the one that this starts, once it has ended. A cancelled caller leaves it running."""
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
        tick = self.progress.reached.tick
        for awaited, future in self.tick_waiters[:]:
            if awaited <= tick and not future.done():
                future.set_result(None)

    async def wait_for(self, time_tick: int) -> None:
        """Returns when everything at or below this tick was handed over, or after a clean end; raises the error that ended the read."""
        if self.progress.reached.tick >= time_tick:
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

    def cursor_at(self, key: CursorKey, position: ReadPosition | None = None) -> Cursor:
        """Returns this position of the read as a cursor, or (None) where it is now; see `Scanner.save` for the errors."""
        if isinstance(self.error, ChannelNotExistError):
            raise self.error
        if not self.entered:
            raise InvalidArgumentError(f"the scanner of {named(self.vchannels)} has not begun to read: save it after messages were read")
        reached = self.progress.reached if position is None else self.pchannel.reached_at(position)
        return cursor_of(key, self.pchannel.origin(), {name: self.incarnation(name) for name in self.vchannels}, reached)

    async def save(self, cursor: CursorUse, position: ReadPosition | None = None) -> None:
        """Stores this position durably, or that of the read. The TruncatedError that it may raise names the earliest event that still
        exists."""
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

    async def is_before(self, cursor: CursorUse, event: LogPosition) -> bool:
        """Returns whether the cursor as it is saved has not passed this event."""
        saved = await self._load(cursor, self.pchannel)
        return saved is None or saved.start <= event

    async def _load(self, cursor: CursorUse, pchannel: ReadablePChannel) -> Cursor | None:
        try:
            return await cursor.load(pchannel=pchannel.channel)
        except TruncatedError as error:
            error.earliest = await pchannel.first_event()
            raise

    def check_cursor(self) -> CursorUse:
        """Returns the cursor, or raises the error that every `save` raises."""
        if self.cursor is None:
            raise InvalidArgumentError("this scanner has no cursor to save: name one with read(…, cursor='name')")
        if isinstance(self.error, ChannelNotExistError):
            raise self.error
        return self.cursor

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
        if (pchannel := getattr(self, "pchannel", None)) is not None:
            pchannel.readers.discard(self)
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


def cursor_of(key: CursorKey, origin: Origin, incarnations: Mapping[str, int | None], reached: Reached) -> Cursor:
    """Returns the progress of a reader of these incarnations, in this log, as a cursor."""
    read = tuple([incarnations.get(name) for name in key.vchannels])
    return Cursor(key, read, origin.pchannel, origin.incarnation, reached.position, reached.event, reached.tick, 0.0, origin.form)


async def _fetch(pchannel: ReadablePChannel, start: int, names: frozenset[str] | None) -> FramePage:
    """Returns the page of the log that begins here. It does not hold the loop, so a scanner that nobody holds can be collected."""
    try:
        return await pchannel.page(start, names)
    except TruncatedError as error:  # overtaken: the log names a position, a reader needs the id of an event
        raise await pchannel.overtaken(start) from error


def _retrieve(work: asyncio.Task[Any]) -> None:
    """Takes note of an error that no caller may come for."""
    if not work.cancelled():
        work.exception()
