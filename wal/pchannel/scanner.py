"""Scanner: one reader of one or several vchannels of a pchannel, from catch-up to tailing in one loop.

It reads pages of frames below the durable end, assembles one frame at a time, and waits at the tail to be woken. Its state moves only
between two awaits, so a cancelled read neither loses nor repeats a message: the next call goes on where the last one handed over.
Without a handler the consumer's own task drives it; with one it runs by itself from entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec

from actors import Actor, ActorRef
from wal.backends import FramePage, StoredFrame
from wal.errors import InvalidArgumentError, TruncatedError, WALError
from wal.message import ImmutableMessage, ImmutableTxnMessage, MessageID, MessageType, Origin, TimeTickMessage
from wal.pchannel.handler import Handler, HandlerActor
from wal.reading import (
    DeliverPolicy,
    EventFilter,
    Latest,
    ReadPosition,
    Selection,
    StartAfter,
    StartFrom,
    assemble,
)

if TYPE_CHECKING:
    from wal.pchannel.pchannel import PChannel

__all__ = ["ReadOptions", "Scanner", "ScannerStatistics"]

PAGE_BYTES: Final = 1024 * 1024
"""About so much log is fetched at a time: large enough for sequential reads, small enough to keep memory flat."""


class ReadOptions(msgspec.Struct, frozen=True):
    """What a read asks for; see `WALAccesser.read`."""

    vchannels: tuple[str, ...]
    policy: DeliverPolicy
    event_filter: EventFilter
    follow: bool = True
    until_time_tick: int | None = None
    resume: ReadPosition | None = None
    include_time_ticks: bool = False


class ScannerStatistics(msgspec.Struct, frozen=True):
    """Counts since the scanner was entered. `lag_bytes`: what lies between it and the durable end."""

    messages: int
    frames: int
    pages: int
    lag_bytes: int
    ended: bool


Attach = Callable[["Scanner"], Awaitable[tuple["PChannel", Selection, "Spawn"]]]
"""Finds the pchannel a scanner reads, its vchannels as they are at that moment, and what starts an actor for its handler."""
Spawn = Callable[[Actor, str], ActorRef]


class Scanner:
    """Messages in tick order, each once. Use it as `async with` and `async for`, or with a handler.

    Errors of the read itself (TruncatedError, CorruptionError, ClosedError, ChannelNotExistError when a vchannel is dropped) are
    raised where the read is driven, and kept in `error`.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        attach: Attach,
        handler: Handler | None = None,
    ) -> None:
        self._options = options
        self._attach = attach
        self._handler = handler
        self._actor: HandlerActor | None = None
        self._entered = False
        self._entering = asyncio.Lock()
        self._ended = False
        self._error: BaseException | None = None
        self._complete = False
        self._done: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._tick_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._pchannel: PChannel
        self._selection: Selection
        self._filter = options.event_filter
        # Where the next page begins, and where this read ends (None: it follows).
        self._at = 0
        self._end: int | None = None
        self._end_promise = 0
        # Events whose last index is below this (position, index) were handed over before; see `_skip`.
        self._from: tuple[int, int] | None = None
        self._after: tuple[int, int] | None = None
        # The page at hand: frames still to be assembled, what the page says of itself, and the messages of the current frame.
        self._frames: deque[StoredFrame] = deque()
        self._page_event: tuple[int, int] | None = None
        self._page_promise = 0
        self._buffer: list[ImmutableMessage] = []
        self._next = 0
        # Handed over so far, when the buffer is used up: the newest event passed, and the tick up to which everything was.
        self._event: tuple[int, int] | None = None
        self._tick = 0
        self._told_tick = 0
        # The same for the frame whose messages are in the buffer, once these are handed over.
        self._frame_event: tuple[int, int] | None = None
        self._frame_tick = 0
        self._over = False
        self._unbroken = False
        self._messages = self._frame_count = self._pages = 0

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

    async def done(self) -> None:
        """Returns when the scanner has ended, for whatever reason, and its handler is closed. Never raises; `error` says why."""
        if not self._complete:
            if self._done is None:
                self._done = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._done)

    @property
    def error(self) -> BaseException | None:
        """Why the scanner ended; None while it runs and after a clean end."""
        return self._error

    async def close(self) -> None:
        """Ends the scanner cleanly; whoever waits for a message sees the end. Idempotent.

        A handler that is at work may finish its message; one that takes longer than the actor system's stop timeout is cancelled.
        """
        self._finish(None)
        self._let_go()
        if self._actor is not None:
            if self._actor.inside:
                self._actor.ref.stop_nowait()
            else:
                await self._actor.ref.stop()

    # -- messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ImmutableMessage:
        at = self._next
        if at >= len(self._buffer):
            self._refuse_handler()
            if not await self._fill():
                raise StopAsyncIteration
            at = 0
        message = self._buffer[at]
        self._next = at + 1
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
        while True:
            if self._next >= len(self._buffer) and not await self._fill():
                return
            page = self._buffer[self._next : self._next + size_max]
            self._next += len(page)
            if self._tick_waiters:
                self._wake_tick_waiters()
            yield page

    @property
    def position(self) -> ReadPosition | None:
        """Behind what was handed over, stretches that held nothing for this reader included; None before anything."""
        event, tick = self._handed()
        if event is None:
            return self._options.resume
        return ReadPosition(self._origin(event[0]).message_id(event[1]), tick)

    async def wait_for(self, time_tick: int) -> None:
        """Returns when everything at or below `time_tick` was handed over; raises the scanner's error if it ends before.

        Someone has to drive the scanner meanwhile: its handler, or another task that iterates.
        """
        if not isinstance(time_tick, int) or isinstance(time_tick, bool):
            raise TypeError(f"time_tick must be an int, not {time_tick!r}")
        if self._handler is not None and not self._entered:
            await self._enter()
        if self._handed()[1] >= time_tick:
            return
        if self._ended:
            if self._error is not None:
                raise self._error
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (time_tick, future)
        self._tick_waiters.append(entry)
        self._wake()
        try:
            await future
        finally:
            if entry in self._tick_waiters:
                self._tick_waiters.remove(entry)

    def statistics(self) -> ScannerStatistics:
        """A snapshot of its counts."""
        behind = self._entered and self._at < self._pchannel.tail.durable_end
        lag = self._pchannel.log.durable_end - self._at if behind else 0
        return ScannerStatistics(self._messages, self._frame_count, self._pages, lag, self._ended)

    def ended_by(self, vchannel: str, error: WALError) -> None:
        """A vchannel was dropped: the scanner ends with this error if it reads it."""
        if vchannel in self._options.vchannels:
            self._finish(error)

    def made(self, vchannel: str, pchannel: PChannel) -> None:
        """A vchannel was made: if it is the one this scanner waits for, and lies elsewhere than expected, the scanner moves there."""
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
        self._at = pchannel.tail.durable_end
        self._end = None if self._end is None else self._at
        self._from = self._after = None
        self._event = self._frame_event = self._page_event = None
        self._frames.clear()
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
                pchannel, self._selection, spawn = await self._attach(self)
                if pchannel.tail.failure is not None:
                    raise pchannel.tail.failure
                self._pchannel = pchannel
                if (truncated := self._begin()) is not None:
                    whole = await pchannel.event_of(truncated) if self._options.resume is None else None
                    if whole is not None:  # the id of a body: what counts is where its transaction lies
                        pchannel, self._selection, spawn = await self._attach(self)
                        self._pchannel = pchannel
                    if whole is None or self._begin(whole) is not None:
                        raise await pchannel.truncated(truncated)
            except BaseException as error:
                if not isinstance(error, asyncio.CancelledError):
                    self._finish(error)
                raise
            pchannel.readers.add(self)
            self._entered = True
            if self._handler is not None:
                self._actor = HandlerActor(self, self._handler)
                spawn(self._actor, f"scanner of {', '.join(self.vchannels)}").tell(None)

    def _begin(self, after: MessageID | None = None) -> MessageID | None:
        """Fixes start and end; returns the id that the read should start at if that has been truncated.

        `after` is the event to start after, in the place of a policy that names a body of it.
        """
        tail, log, options = self._pchannel.tail, self._pchannel.log, self._options
        earliest = log.earliest
        self._end = None if options.follow else tail.durable_end
        self._end_promise = tail.promise
        policy = options.policy
        if options.resume is not None:
            policy = StartAfter(options.resume.message_id)
            self._tick = options.resume.time_tick
        if after is not None and isinstance(policy, StartAfter):
            policy = StartAfter(after)
        if isinstance(policy, StartFrom | StartAfter):
            start = self._own(policy.message_id)
            inclusive = isinstance(policy, StartFrom)
            # The last truncated event itself is no lost start: everything after it is there.
            if start < earliest and (inclusive or start != (earliest[0], earliest[1] - 1)):
                return policy.message_id
            if inclusive:
                self._from = start
            else:
                self._after = start
                self._event = start
            self._at = max(start[0], earliest[0])
        elif isinstance(policy, Latest):
            self._at = tail.durable_end
            self._tick = tail.promise
            self._event = tail.newest
        else:
            self._at = earliest[0]
        if self._from is None or self._from < earliest:
            self._from = earliest
        return None

    def _own(self, message_id: MessageID) -> tuple[int, int]:
        """The (position, index) of an id, checked to be one of this log."""
        origin = self._origin(0)
        if not message_id.same_log(origin.message_id(0)):
            raise InvalidArgumentError(
                f"message id {message_id} belongs to another pchannel, or to another life of it, than {self._options.vchannels[0]!r} "
                f"lies on ({origin.pchannel}:{origin.incarnation:x}): use an id that was read from this vchannel"
            )
        if message_id.position >= self._pchannel.tail.durable_end:
            raise InvalidArgumentError(
                f"message id {message_id} lies above the durable end {self._pchannel.tail.durable_end} of pchannel "
                f"{origin.pchannel}: use the id of a message that was appended"
            )
        return (message_id.position, message_id.index)

    async def _fill(self) -> bool:
        """Puts the next messages into the buffer; False at the end. Cancelling it changes nothing."""
        if not self._entered:
            await self._enter()
        while True:
            self._pass_buffer()
            if self._ended:
                if self._error is not None:
                    raise self._error
                return False
            try:
                if self._frames:
                    if self._assemble(self._frames.popleft()):
                        return True
                    continue
                if await self._more():
                    if self._buffer:
                        return True
                    continue
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                self._finish(error)
                raise
            self._finish(None)

    async def _more(self) -> bool:
        """Fetches a page, or waits at the tail; False when the read is over."""
        tail = self._pchannel.tail
        options = self._options
        durable_end, promise = tail.durable_end, tail.promise
        end = durable_end if self._end is None else min(self._end, durable_end)
        if self._over:
            return self._last_tick(options.until_time_tick or 0)
        if self._at < end:
            if tail.failure is not None:
                raise tail.failure
            if (page := await self._page(end)) is None:
                return True
            self._at = page.next_position
            self._pages += 1
            if self._end is not None and page.promise > self._end_promise:
                # The page reaches beyond this read's end: only its frames below the end count.
                self._frames.extend(frame for frame in page.frames if frame.position < end)
                self._page_event, self._page_promise = None, 0
            else:
                self._frames.extend(page.frames)
                self._page_event, self._page_promise = page.last_event, page.promise
            return True
        if self._end is not None:
            return self._last_tick(self._end_promise)
        until = options.until_time_tick
        self._pass_tick(promise)
        if until is not None and promise >= until:
            return self._last_tick(until)
        if tail.failure is not None:
            raise tail.failure
        if options.include_time_ticks and promise > self._told_tick:
            self._tell_tick(promise)
            return True
        wanted = [tick for tick, _ in self._tick_waiters if tick > promise]
        if until is not None:
            wanted.append(until)
        if wanted and self._pchannel.advance_for(min(wanted)):
            return True
        self._waiter = tail.waiter(ticks=bool(wanted) or options.include_time_ticks)
        try:
            await self._waiter
        finally:
            self._waiter.cancel()
            self._waiter = None
        return True

    async def _page(self, end: int) -> FramePage | None:
        """The next page below `end`, from the recent frames or else from the log; None when the scanner was moved meanwhile."""
        if self._unbroken:  # many pages could follow each other without anybody else getting a turn of the loop
            self._unbroken = False
            await asyncio.sleep(0)
        pchannel, names = self._pchannel, self._selection.names
        if self._at >= pchannel.log.earliest[0]:
            page = pchannel.recent.page(self._at, end, names=names, bytes_max=PAGE_BYTES)
            if page is not None:
                self._unbroken = True
                return page
        try:
            page = await pchannel.log.read(self._at, names=names, bytes_max=PAGE_BYTES)
        except TruncatedError as error:  # overtaken: the log knows the place, a reader needs the id of an event
            raise await pchannel.overtaken(self._at) from error
        # If it was moved, then from a place that held nothing for this reader.
        return page if pchannel is self._pchannel else None

    def _last_tick(self, promise: int) -> bool:
        """At the end of a read: its last TimeTick message, if it wants those and has not had it."""
        if not self._options.include_time_ticks or promise <= self._told_tick:
            return False
        self._tell_tick(promise)
        return True

    def _assemble(self, frame: StoredFrame) -> bool:
        """Makes the messages of a frame the buffer; whether there are any."""
        messages = assemble(frame, self._origin(frame.position), self._selection, self._filter)
        self._frame_count += 1
        if messages and (self._from is not None or self._after is not None):
            messages = self._skip(frame, messages)
        header = frame.view.header
        if header.indices:
            self._frame_event = (frame.position, header.indices - 1)
        self._frame_tick = header.promise
        until = self._options.until_time_tick
        if until is not None and header.promise >= until:
            messages = self._cut(frame, messages, until)
        self._buffer = messages
        self._next = 0
        self._messages += len(messages)
        return bool(messages)

    def _cut(self, frame: StoredFrame, messages: list[ImmutableMessage], until: int) -> list[ImmutableMessage]:
        """Ends the read within this frame: what is above `until` is neither handed over nor passed."""
        self._over = True
        self._frames.clear()
        self._page_event, self._page_promise = None, 0
        messages = [message for message in messages if message.time_tick <= until]
        if frame.view.header.promise > until:
            self._frame_event = (frame.position, messages[-1]._index) if messages else None
            self._frame_tick = until
        return messages

    def _skip(self, frame: StoredFrame, messages: list[ImmutableMessage]) -> list[ImmutableMessage]:
        """Drops the events before the start of the read, which can only be in its first frames."""
        position = frame.position
        if self._from is not None:
            if position == self._from[0]:
                first = self._from[1]
                messages = [message for message in messages if message._index >= first]
            if position >= self._from[0]:
                self._from = None
        if self._after is not None:
            if position == self._after[0]:
                last = self._after[1]
                messages = [message for message in messages if _first_index(message) > last]
            if position >= self._after[0]:
                self._after = None
        return messages

    # -- what was handed over

    def _pass_buffer(self) -> None:
        """The buffer was handed over whole: so was its frame, and with the last frame the page."""
        self._buffer = []
        self._next = 0
        if self._frame_event is not None and self._frame_event > (self._event or (-1, -1)):
            self._event = self._frame_event
        self._tick = max(self._tick, self._frame_tick)
        if not self._frames:
            if self._page_event is not None and self._page_event > (self._event or (-1, -1)):
                self._event = self._page_event
            self._tick = max(self._tick, self._page_promise)
        if self._tick_waiters:
            self._wake_tick_waiters()

    def _pass_tick(self, promise: int) -> None:
        """At the tail: everything up to the promise was handed over."""
        if promise > self._tick:
            self._tick = promise
        if self._tick_waiters:
            self._wake_tick_waiters()

    def _tell_tick(self, promise: int) -> None:
        self._told_tick = promise
        event = self._event
        self._buffer = [
            TimeTickMessage(
                self._origin(event[0] if event else 0),
                event[1] if event else 0,
                promise,
                "",
                b"",
                int(MessageType.TIME_TICK),
                has_event=event is not None,
            )
        ]
        self._next = 0

    def _handed(self) -> tuple[tuple[int, int] | None, int]:
        """The newest event handed over or passed, and the tick up to which everything was handed over."""
        buffer, following = self._buffer, self._next
        if following < len(buffer):
            before = buffer[following].time_tick - 1
            if following == 0:
                return self._event, max(self._tick, before)
            last = buffer[following - 1]
            return (last._origin.position, last._index), max(self._tick, before)
        event, tick = self._event, self._tick
        if self._frame_event is not None and self._frame_event > (event or (-1, -1)):
            event = self._frame_event
        return event, max(tick, self._frame_tick)

    def _wake_tick_waiters(self) -> None:
        tick = self._handed()[1]
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

    def _let_go(self) -> None:
        """What is still in the buffer will neither be handed over nor count as passed."""
        self._event, self._tick = self._handed()
        self._frames.clear()
        self._buffer, self._next = [], 0
        self._frame_event = self._page_event = None
        self._frame_tick = self._page_promise = 0

    def _origin(self, position: int) -> Origin:
        log = self._pchannel.log
        return Origin(self._pchannel.channel, log.incarnation, position, self._pchannel.form)

    def _refuse_handler(self) -> None:
        if self._handler is not None and not (self._actor is not None and self._actor.inside):
            raise InvalidArgumentError(
                "this scanner was given a handler and runs by itself: wait for it with done() or wait_for(), or read without a handler"
            )


def _first_index(message: ImmutableMessage) -> int:
    return message._first_index if isinstance(message, ImmutableTxnMessage) else message._index
