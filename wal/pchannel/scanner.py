"""Scanner: one reader of one or several vchannels of a pchannel, from catch-up to tailing in one loop.

What it has read and what comes next is a `Progress`, which is pure; the scanner fetches the pages that it needs, waits at the tail to
be woken, and moves to another pchannel when its vchannel is made there. The progress moves only between two awaits, so a cancelled
read neither loses nor repeats a message: the next call goes on where the last one handed over. Without a handler the consumer's own
task drives it; with one it runs by itself from entry.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from actors import Actor, ActorRef
from wal.async_only import AsyncOnly
from wal.backends import FramePage
from wal.cursors import Cursor, CursorUse
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, WALError
from wal.message import ImmutableMessage, MessageID, Origin
from wal.pchannel.handler import Handler, HandlerActor
from wal.reading import Need, Progress, ReadOptions, ReadPosition, Selection, named

if TYPE_CHECKING:
    from wal.pchannel.readable import ReadablePChannel

__all__ = ["Scanner", "ScannerStatistics"]

PAGE_BYTES: Final = 2 * 1024 * 1024
"""About so much log is fetched at a time: large enough for sequential reads, small enough to keep memory flat."""


class ScannerStatistics(msgspec.Struct, frozen=True):
    """Counts since the scanner was entered. `lag_bytes`: what lies between it and the durable end."""

    messages: int
    frames: int
    pages: int
    lag_bytes: int
    ended: bool


Attach = Callable[["Scanner"], Awaitable[tuple["ReadablePChannel", Selection, "Spawn"]]]
"""Finds the pchannel a scanner reads, its vchannels as they are at that moment, and what starts an actor for its handler."""
Spawn = Callable[[Actor, str], ActorRef]


class Scanner(AsyncOnly):
    """Messages in tick order, each once. Use it as `async with` and `async for`, or with a handler.

    What ends a scanner with a handler is logged, and raised by leaving the block, unless `done()` returned or `error` was read before.
    Errors of the read itself (TruncatedError, CorruptionError, ClosedError, ChannelNotExistError when a vchannel is dropped) are
    raised where the read is driven, and kept in `error`.
    """

    _with_form = "'async with log.read(…) as scanner'"

    if not TYPE_CHECKING:

        def __iter__(self):
            raise TypeError("a Scanner is iterated in an event loop: write 'async for message in scanner'")

    def __init__(
        self,
        options: ReadOptions,
        *,
        attach: Attach,
        handler: Handler | None = None,
        cursor: CursorUse | None = None,
    ) -> None:
        self._options = options
        self._cursor = cursor
        self._attach = attach
        self._handler = handler
        self._actor: HandlerActor | None = None
        self._entered = 0  # the process in which it was; a forked child has a copy that nobody needs to close
        self._entering = asyncio.Lock()
        self._ended = False
        self._error: BaseException | None = None
        self._complete = False
        self._done: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._tick_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._pchannel: ReadablePChannel
        self._progress = Progress(options)
        self._unbroken = False

    @property
    def vchannels(self) -> tuple[str, ...]:
        """The vchannels it reads."""
        return self._options.vchannels

    # -- entering and ending

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
        if kind is None and self._actor is not None:
            self._actor.raise_unheard()

    async def done(self) -> None:
        """Returns when the scanner has ended, for whatever reason, and its handler is closed. Never raises; `error` says why."""
        if not self._complete:
            if self._done is None:
                self._done = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._done)
        self._told(self._error)

    @property
    def error(self) -> BaseException | None:
        """Why the scanner ended; None while it runs and after a clean end."""
        self._told(self._error)
        return self._error

    def _told(self, error: BaseException | None) -> None:
        """Somebody was told of this error: leaving the block of a scanner with a handler does not raise it any more."""
        if error is not None and self._actor is not None:
            self._actor.unheard = None

    async def close(self) -> None:
        """Ends the scanner cleanly; whoever waits for a message sees the end. Idempotent.

        A handler that is at work may finish its message; one that takes longer than the actor system's stop timeout is cancelled.
        """
        self._finish(None)
        self._progress.let_go()
        if self._actor is not None:
            if self._actor.inside:
                self._actor.ref.stop_nowait()
            else:
                await self._actor.ref.stop()

    def __del__(self) -> None:
        if self._entered == os.getpid() and not self._ended and self._pchannel.tail.failure is None:
            warnings.warn(
                f"the scanner of {named(self.vchannels)} was collected while it was open: read within `async with` (without "
                "an event loop: `with`), or close() it",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ImmutableMessage:
        progress = self._progress
        messages, at = progress.messages, progress.following
        if at >= len(messages):
            self._refuse_handler()
            messages = []  # not held while it waits
            if not await self._fill():
                raise StopAsyncIteration
            messages, at = progress.messages, 0
        message = messages[at]
        progress.following = at + 1
        if self._tick_waiters:
            self._wake_tick_waiters()
        return message

    async def batches(self, size_max: int = 1024) -> AsyncIterator[list[ImmutableMessage]]:
        """Pages of 1 to `size_max` messages. After a cancellation ask for `batches` again: it goes on where it was."""
        if not isinstance(size_max, int) or isinstance(size_max, bool):
            raise TypeError(f"size_max must be an int, not {size_max!r}")
        if size_max < 1:
            raise InvalidArgumentError(f"size_max={size_max}: a page holds at least 1 message")
        self._refuse_handler()
        progress = self._progress
        while True:
            if progress.following >= len(progress.messages) and not await self._fill():
                return
            page = progress.messages[progress.following : progress.following + size_max]
            progress.following += len(page)
            if self._tick_waiters:
                self._wake_tick_waiters()
            yield page
            del page  # not held while it waits

    async def page(self) -> list[ImmutableMessage]:
        """What comes next, at least one message; empty at the end. It counts as handed over by `hand_over`, for who does that elsewhere."""
        self._refuse_handler()
        progress = self._progress
        if progress.following >= len(progress.messages) and not await self._fill():
            return []
        return progress.messages[progress.following :]

    def hand_over(self, count: int) -> None:
        """So many messages of the last `page` were handed over."""
        progress = self._progress
        progress.following = min(progress.following + count, len(progress.messages))
        if self._tick_waiters:
            self._wake_tick_waiters()

    @property
    def position(self) -> ReadPosition | None:
        """Behind what was handed over, stretches that held nothing for this reader included; None before anything."""
        return self._progress.position

    async def save(self) -> None:
        """Stores `position` under the name of its cursor; durable when it returns. Retention keeps what follows it from then on.

        Before anything was handed over it stores where the read begins. InvalidArgumentError without `cursor=…`, ChannelNotExistError
        when a vchannel was dropped, TruncatedError when the cursor has turned stale or the log was truncated past the position:
        `delete_cursor`, then begin anew.
        """
        cursor = self._saved_by()
        if not self._entered:
            await self._enter()
            if not self._entered:  # it ended before it began
                return
            self._saved_by()
        progress, pchannel = self._progress, self._pchannel
        reached = progress.reached
        try:
            await cursor.save(
                {name: progress.selection.incarnation(name) for name in self.vchannels},
                _log(pchannel),
                start=reached.position,
                event=reached.event,
                time_tick=reached.tick,
                earliest=lambda: pchannel.log.earliest,
            )
        except TruncatedError as error:
            error.earliest = await pchannel.first_event()
            raise

    def _saved_by(self) -> CursorUse:
        """The cursor, or what makes every `save` refuse."""
        if self._cursor is None:
            raise InvalidArgumentError("this scanner has no cursor to save: name one with read(…, cursor='name')")
        if isinstance(self._error, ChannelNotExistError):
            raise self._error
        return self._cursor

    async def wait_for(self, time_tick: int) -> None:
        """Returns when everything at or below `time_tick` was handed over; raises the scanner's error if it ends before.

        Someone has to drive the scanner meanwhile: its handler, or another task that iterates.
        """
        if not isinstance(time_tick, int) or isinstance(time_tick, bool):
            raise TypeError(f"time_tick must be an int, not {time_tick!r}")
        if self._handler is not None and not self._entered:
            await self._enter()
        if self._progress.reached.tick >= time_tick:
            return
        if self._ended:
            self._told(self._error)
            if self._error is not None:
                raise self._error
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (time_tick, future)
        self._tick_waiters.append(entry)
        self._wake()
        try:
            await future
        except BaseException as error:
            self._told(error if error is self._error else None)
            raise
        finally:
            if entry in self._tick_waiters:
                self._tick_waiters.remove(entry)

    def statistics(self) -> ScannerStatistics:
        """A snapshot of its counts."""
        progress = self._progress
        behind = bool(self._entered) and progress.at < self._pchannel.tail.durable_end
        log = self._pchannel.log
        lag = log.bytes_between(progress.at, log.durable_end) if behind else 0
        return ScannerStatistics(progress.message_count, progress.frame_count, progress.page_count, lag, self._ended)

    def ended_by(self, vchannel: str, error: WALError) -> None:
        """A vchannel was dropped: the scanner ends with this error if it reads it."""
        if vchannel in self._options.vchannels:
            self._finish(error)

    def incarnation(self, vchannel: str) -> int | None:
        """The life of this vchannel that it reads; None while it has met none."""
        return self._progress.selection.incarnation(vchannel)

    def made(self, vchannel: str, pchannel: ReadablePChannel, *, incarnation: int | None = None) -> None:
        """A vchannel was made: if it is the one this scanner waits for, and lies elsewhere than expected, the scanner moves there.

        With its `incarnation` this may have been some time ago: then the scanner looks for all of that life of it.
        """
        if vchannel not in self.vchannels or pchannel is self._pchannel:
            return
        if len(self.vchannels) > 1:
            self._finish(
                InvalidArgumentError(
                    f"vchannel {vchannel!r} was made on {pchannel.channel}, but this scanner reads {', '.join(self.vchannels)} on "
                    f"{self._pchannel.channel}, and a scanner reads one pchannel: read them apart"
                )
            )
            return
        self._pchannel.readers.discard(self)
        self._pchannel = pchannel
        pchannel.readers.add(self)
        since = None
        if incarnation is not None:
            self._progress.selection.bind(vchannel, incarnation)
            since = pchannel.log.earliest
        self._progress.move(_log(pchannel), pchannel.tail, since=since)
        self._wake()

    # -- the reading loop

    async def _enter(self) -> None:
        """Fixes where the read begins and ends; the first use does it."""
        async with self._entering:
            if self._entered:
                return
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            try:
                pchannel, selection, spawn = await self._attach(self)
                saved = None
                if self._cursor is not None:
                    saved = await self._saved(self._cursor, pchannel)
                    pchannel, selection, spawn = await self._attach(self)
                    if saved is not None and saved.pchannel == pchannel.channel:
                        self._progress.go_on(saved.start, saved.position)
                if pchannel.tail.failure is not None:
                    raise pchannel.tail.failure
                self._pchannel = pchannel
                if (truncated := self._begin(selection)) is not None:
                    by_id = self._options.resume is None and saved is None
                    whole = await pchannel.event_of(truncated) if by_id else None
                    if whole is not None:  # the id of a body: what counts is where its transaction lies
                        pchannel, selection, spawn = await self._attach(self)
                        self._pchannel = pchannel
                    if whole is None or self._begin(selection, whole) is not None:
                        raise await pchannel.truncated(truncated)
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    self._finish(error)
                raise
            pchannel.readers.add(self)
            self._entered = os.getpid()
            if self._handler is not None:
                self._actor = HandlerActor(self, self._handler)
                spawn(self._actor, f"scanner of {', '.join(self.vchannels)}").tell(None)

    def _begin(self, selection: Selection, after: MessageID | None = None) -> MessageID | None:
        pchannel = self._pchannel
        log = pchannel.log
        return self._progress.begin(
            _log(pchannel), selection, pchannel.tail, log.earliest, after=after, last_truncated=log.last_truncated
        )

    async def _saved(self, cursor: CursorUse, pchannel: ReadablePChannel) -> Cursor | None:
        """What was saved for this read."""
        try:
            return await cursor.load(pchannel=pchannel.channel)
        except TruncatedError as error:
            error.earliest = await pchannel.first_event()
            raise

    async def _fill(self) -> bool:
        """Has the progress make the next messages; False at the end. Cancelling it changes nothing."""
        if not self._entered:
            await self._enter()
        progress = self._progress
        while True:
            if self._ended:
                progress.settle()
                if self._error is not None:
                    raise self._error
                return False
            try:
                try:
                    need = progress.advance(self._pchannel.tail)
                finally:
                    if self._tick_waiters:
                        self._wake_tick_waiters()
                if need is Need.MESSAGES:
                    return True
                if need is Need.PAGE:
                    if (page := await self._page(progress.at, progress.page_end)) is not None:
                        progress.take(page)
                    del page  # not held while it waits
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
                self._finish(error)
                raise
            self._finish(None)

    def _begin_to_wait(self) -> asyncio.Future[None] | None:
        """What to await at the tail for what the scanner has not got: data, or also a tick, if it or someone else waits for one.

        None when there is no need to wait. It is no coroutine of its own, whose frame each idle scanner would keep.
        """
        tail, options = self._pchannel.tail, self._options
        wanted = [tick for tick, _ in self._tick_waiters if tick > tail.promised_tick]
        if options.until_time_tick is not None:
            wanted.append(options.until_time_tick)
        if wanted and self._pchannel.advance_for(min(wanted)):
            return None
        self._waiter = tail.waiter(ticks=bool(wanted) or options.include_time_ticks)
        return self._waiter

    async def _page(self, start: int, end: int) -> FramePage | None:
        """The page from `start` on, from the recent frames or else from the log; None when the scanner was moved meanwhile."""
        pchannel, names = self._pchannel, self._progress.selection.names
        if self._unbroken:  # many pages could follow each other without anybody else getting a turn of the loop
            self._unbroken = False
            await asyncio.sleep(0)
            if pchannel is not self._pchannel:
                return None
        if start >= pchannel.log.earliest[0]:
            page = pchannel.recent.page(start, end, names=names, bytes_max=PAGE_BYTES)
            if page is not None:
                self._unbroken = True
                return page
        try:
            page = await pchannel.log.read(start, names=names, bytes_max=PAGE_BYTES)
        except TruncatedError as error:  # overtaken: the log knows the place, a reader needs the id of an event
            raise await pchannel.overtaken(start) from error
        # If it was moved, then from a place that held nothing for this reader.
        return page if pchannel is self._pchannel else None

    def _wake_tick_waiters(self) -> None:
        tick = self._progress.reached.tick
        for wanted, future in self._tick_waiters[:]:
            if wanted <= tick and not future.done():
                future.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _finish(self, error: BaseException | None) -> None:
        if self._ended:
            return
        self._ended = True
        self._error = error
        if self._entered:
            self._pchannel.readers.discard(self)
        for _, future in self._tick_waiters:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)
        self._wake()
        if self._actor is None:
            self._completed()

    def _completed(self) -> None:
        """It has ended, and so has its handler."""
        self._complete = True
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _refuse_handler(self) -> None:
        if self._handler is not None and not (self._actor is not None and self._actor.inside):
            raise InvalidArgumentError(
                "this scanner was given a handler and runs by itself: wait for it with done() or wait_for(), or read without a handler"
            )


def _log(pchannel: ReadablePChannel) -> Origin:
    return Origin(pchannel.channel, pchannel.log.incarnation, 0, pchannel.form)
