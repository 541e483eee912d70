"""Scanner: a reader of one or several vchannels of a pchannel, as its caller holds it.

Owns what callers see: entering and leaving, messages one by one or in pages, the position and its saving, and waiting for a tick. The
`ReadLoop` owns pages, waiting at the tail and the end of the read. Without a handler the consumer's own task drives the loop; with one
the scanner runs by itself once entered (`handler`).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast, runtime_checkable

import msgspec

from actors import Actor
from wal.errors import ChannelNotExistError, ClosedError, InvalidArgumentError
from wal.message import ImmutableMessage, MessageID, MessageType
from wal.read.assembly import NO_MESSAGES, MessagePage
from wal.read.cursors.cursor import Cursor, CursorKey, SaveChain, after_unsaved
from wal.read.cursors.service import CursorUse
from wal.read.loop import Attach, Read, ReadLoop
from wal.read.merged import AttachMatching, MergedRead
from wal.read.options import ReadOptions, ReadPosition
from wal.read.progress import BodyTurns
from wal.runtime.async_only import AsyncOnly
from wal.runtime.user_code import check_ran, check_runs, shielded, shown


class ScannerStatistics(msgspec.Struct, frozen=True):
    """Counts since the scanner was entered. `lag_bytes` is the distance in bytes from its next page to the durable end."""

    messages: int
    frames: int
    pages: int
    lag_bytes: int
    ended: bool


class Scanner(AsyncOnly):
    """Messages in tick order, each once. Use it as `async with` and `async for`, or with a handler.

    The error that ends a scanner with a handler is logged, and raised when the block is left, unless `done()` returned or `error` was
    read before. Errors of the read itself (TruncatedError, CorruptionError, ClosedError, ChannelNotExistError when a vchannel is
    dropped) are raised by the call that drives the read, and kept in `error`.
    """

    _with_form = "'async with log.read(…) as scanner'"

    if not TYPE_CHECKING:

        def __iter__(self):
            raise TypeError("a Scanner is iterated in an event loop: write 'async for message in scanner'")

    def __init__(
        self, options: ReadOptions, *, attach: Attach | AttachMatching, handler: Handler | None = None, cursor: CursorUse | None = None
    ) -> None:
        self._loop: Read = read_of(options, attach, cursor)
        self._progress = self._loop.progress
        self._turns = BodyTurns()
        self._chains: dict[CursorKey, SaveChain] = {}
        self._turn = asyncio.Lock()
        """Held by a transaction that saves a position on all pchannels, from the check of the saves before it to its end."""
        self._handler = handler
        self._actor: HandlerActor | None = None

    def __repr__(self) -> str:
        loop, parts = self._loop, [self._loop.subject]
        if loop.cursor is not None:
            parts.append(f"cursor={loop.cursor.key.name!r}")
        if loop.error is not None:
            state = f"ended by {type(loop.error).__name__}"
        else:
            state = "ended" if loop.ended else "open" if loop.entered else "not entered yet"
        return f"Scanner({', '.join(parts)}, {state})"

    @property
    def vchannels(self) -> tuple[str, ...]:
        """The vchannels that it reads; none if it reads by a pattern."""
        return self._loop.vchannels

    # -- entering and ending

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with shielded():
            await self.close()
        if kind is None and self._actor is not None:
            self._actor.raise_untold()

    async def _enter(self) -> None:
        """Fixes where the read begins and ends, and starts the handler, on the first use."""
        spawn = await self._loop.enter()
        if spawn is not None and self._handler is not None:
            self._loop.handler_runs = True
            self._actor = HandlerActor(self, self._loop, self._handler)
            spawn(self._actor, f"scanner of {self._loop.subject}").tell(None)

    async def done(self) -> None:
        """Returns when the scanner has ended, for whatever reason, and its handler is closed. Never raises; `error` has the reason."""
        await self._loop.done()
        self._told(self._loop.error)

    @property
    def error(self) -> BaseException | None:
        """The reason why the scanner ended; None while it runs and after a clean end."""
        self._told(self._loop.error)
        return self._loop.error

    def _told(self, error: BaseException | None) -> None:
        """Notes that a caller got this error, so that leaving the block of a scanner with a handler does not raise it again."""
        if error is not None and self._actor is not None:
            self._actor.untold = None

    async def close(self) -> None:
        """Ends the scanner cleanly; a caller that waits for a message sees the end. Idempotent.

        A running handler may finish its message; if it takes longer than the actor system's stop timeout it is cancelled.
        """
        await self._loop.close()
        self._progress.let_go()
        if self._actor is not None:
            if self._actor.inside:
                self._actor.ref.stop_nowait()
            else:
                await self._actor.ref.stop()

    def __del__(self) -> None:
        loop = self._loop
        if not loop.ended:
            loop.abandon()
        if loop.entered == os.getpid() and not loop.ended and loop.failure is None:
            warnings.warn(
                f"the scanner of {loop.subject} was garbage-collected while it was open: read within `async with` (without "
                "an event loop: `with`), or close() it",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- messages

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ImmutableMessage:
        while True:
            for message in self._progress.coming or self._progress.open():
                if self._loop.tick_waiters:
                    self._loop.wake_tick_waiters()
                return message
            if not await self._has_messages():
                raise StopAsyncIteration

    async def batches(self, size_max: int = 1024) -> AsyncIterator[MessagePage]:
        """Yields pages of 1 to `size_max` messages: a page is a sequence of messages, and has `payloads`, `ticks` and `message_ids`.

        After a cancellation `batches` can be called again: it continues where it stopped.
        """
        check_size_max(size_max)
        while await self._has_messages():
            page = self._progress.page(size_max)
            self._hand_over(size_max)
            yield page
            del page  # not held while it waits

    async def bodies(self) -> AsyncIterator[tuple[ImmutableMessage, ImmutableMessage]]:
        """Yields each body with its message: `async for message, body in scanner.bodies()`. A plain message is its own only body.

        A message counts as handed over with its last body: `position` and `save` in the middle of a transaction are before it, so that
        a reader that resumes there gets all its bodies again. After a cancellation, or when the loop was left, `bodies` can be called
        again: it continues with the next body. A transaction without bodies yields nothing.
        """
        progress = self._progress
        while await self._has_messages():
            while (following := progress.following) < len(progress.messages):
                message = progress.messages[following]
                body, is_last = self._turns.next(message)
                if is_last:
                    self._hand_over(1)
                if body is not None:
                    yield message, body

    async def _page(self) -> MessagePage:
        """Returns the next messages, at least one; none at the end.

        For a caller that hands them over in another thread: they count as handed over when `_hand_over` is called.
        """
        return self._progress.page() if await self._has_messages() else NO_MESSAGES

    def _hand_over(self, count: int) -> None:
        """Counts the next `count` messages of the last `_page`, or all of its rest, as handed over."""
        self._progress.hand_over(count)
        if self._loop.tick_waiters:
            self._loop.wake_tick_waiters()

    async def _has_messages(self) -> bool:
        """Returns True once there are messages to hand over, False at the end."""
        self._refuse_handler()
        progress = self._progress
        if progress.following < len(progress.messages):
            return True
        if not self._loop.entered:
            await self._enter()
        return await self._loop.fill()

    def _refuse_handler(self) -> None:
        if self._handler is not None and not (self._actor is not None and self._actor.inside):
            raise InvalidArgumentError(
                "this scanner was given a handler and runs by itself: wait for it with done() or wait_for(), or read without a handler"
            )

    # -- progress

    @property
    def position(self) -> ReadPosition | None:
        """The position after what was handed over, including ranges that held nothing for this reader; None before anything."""
        return self._progress.position

    async def save(self, position: ReadPosition | None = None) -> None:
        """Stores a position under the name of its cursor; durable when it returns. Retention keeps what follows it from then on.

        None is the scanner's own `position`; before anything was handed over, where the read begins. A consumer that has handled less than
        it was handed gives an earlier one. Raises InvalidArgumentError without `cursor=…` or for a position of another log,
        ChannelNotExistError if a vchannel was dropped, TruncatedError if the cursor has become stale or the log was truncated past the
        position: then call `delete_cursor` and start over. InvalidRequestSeqError if a transaction that saves an earlier position of the
        scanner has failed, or is not committed yet.
        """
        loop = self._loop
        cursor = loop.check_cursor()
        if not loop.entered:
            await self._enter()
            if not loop.entered:  # the read ended before it began
                return
            loop.check_cursor()
        mark = loop.mark if position is None else None
        if mark is not None and (after := self._chain(cursor.key).before(mark)) is not None and await loop.is_before(cursor, after):
            raise after_unsaved(cursor.key)
        await loop.save(cursor, position)

    def _chain(self, key: CursorKey) -> SaveChain:
        """Returns the saves of this cursor that transactions make with positions of this scanner."""
        return self._chains.setdefault(key, SaveChain())

    def _cursor(self, name: str | None = None, position: ReadPosition | None = None) -> tuple[Cursor, Callable[[], Awaitable[None]] | None]:
        """Returns a position of this scanner (None: where it is now) as a cursor of this name (None: its own).

        With it comes what has to be done before the cursor is saved, if there is anything.
        """
        key = self._loop.check_cursor().key if name is None else CursorKey.of(name, self._loop.selected)
        return self._loop.cursor_at(key, position), None

    def _use_cursor_of(self, other: Scanner) -> None:
        """Has `save` store positions of this scanner under the cursor of another one of the same vchannels, in the order of all calls.

        For a caller that moves a cursor to where this read begins, in one step: a new reader of the cursor would begin at the cursor.
        """
        self._loop.cursor = other._loop.check_cursor()

    async def wait_for(self, time_tick: int) -> None:
        """Returns when everything at or below `time_tick` was handed over; raises the scanner's error if it ends before.

        Meanwhile the scanner has to be driven, by its handler or by another task that iterates.
        """
        if not isinstance(time_tick, int) or isinstance(time_tick, bool):
            raise TypeError(f"time_tick must be an int, not {time_tick!r}")
        if self._handler is not None and not self._loop.entered:
            await self._enter()
        try:
            await self._loop.wait_for(time_tick)
        except BaseException as error:
            self._told(error if error is self._loop.error else None)
            raise

    def statistics(self) -> ScannerStatistics:
        """Returns a snapshot of its counts."""
        loop, progress = self._loop, self._progress
        return ScannerStatistics(progress.message_count, *loop.counts, loop.lag_bytes, loop.ended)


def read_of(options: ReadOptions, attach: Attach | AttachMatching, cursor: CursorUse | None) -> Read:
    """Returns the read of a scanner with these options; `attach` is for names, or for the pattern that they have."""
    if options.pattern is None:
        return ReadLoop(options, attach=cast("Attach", attach), cursor=cursor)
    return MergedRead(options, attach=cast("AttachMatching", attach), cursor=cursor)


Ack = Callable[[ImmutableMessage], Awaitable[None]]


class AckingScanner(Scanner):
    """A scanner that acknowledges the copies of broadcasts once its consumer has finished with them.

    Owns: which copies were handed over and are not acknowledged. A consumer has finished with a message when its handler has returned, or
    when it asks for the next message (in a bulk read: for the next page), or saves its position after it. Nothing is acknowledged before
    that; an ack that was cancelled or failed is repeated before anything more is handed over. A consumer that ends without asking for more
    has not acknowledged the messages it got last: with its own `resume` or cursor they are redelivered.

    A `Scanner` with auto-ack; `ack` is the broadcaster's call.
    """

    def __init__(
        self,
        options: ReadOptions,
        *,
        attach: Attach | AttachMatching,
        ack: Ack,
        handler: Handler | None = None,
        cursor: CursorUse | None = None,
    ) -> None:
        super().__init__(options, attach=attach, handler=handler, cursor=cursor)
        self._ack = ack
        self._unacked: list[ImmutableMessage] = []

    async def __anext__(self) -> ImmutableMessage:
        if self._unacked:
            await self._settle()
        message = await super().__anext__()
        if message.broadcast is not None:
            self._given((message,))
        return message

    async def batches(self, size_max: int = 1024) -> AsyncIterator[MessagePage]:
        """Yields pages of 1 to `size_max` messages; the copies in a page are acknowledged when the next one is asked for."""
        await self._settle()
        async for page in super().batches(size_max):
            yield page
            await self._settle()

    async def bodies(self) -> AsyncIterator[tuple[ImmutableMessage, ImmutableMessage]]:
        """Yields bodies as a `Scanner` does; a copy is acknowledged when the next body is asked for."""
        await self._settle()
        async for pair in super().bodies():
            yield pair
            await self._settle()

    async def _page(self) -> MessagePage:
        await self._settle()
        return await super()._page()

    def _hand_over(self, count: int) -> None:
        self._given(self._progress.page(count))
        super()._hand_over(count)

    async def save(self, position: ReadPosition | None = None) -> None:
        """Saves as a `Scanner` does, after acknowledging what is before the position, since no reader would see it again.

        If nothing can be stored, it refuses before anything is acknowledged.
        """
        self._loop.check_cursor()
        await self._settle()
        await super().save(position)

    def _cursor(self, name: str | None = None, position: ReadPosition | None = None) -> tuple[Cursor, Callable[[], Awaitable[None]] | None]:
        """Returns a cursor; the copies handed over up to now have to be acknowledged before it is saved, as in `save`."""
        cursor, _ = super()._cursor(name, position)
        finished = list(self._unacked)

        async def settle() -> None:
            while self._unacked and any(self._unacked[0] is message for message in finished):
                message = self._unacked[0]
                await self._ack(message)
                if self._unacked and self._unacked[0] is message:
                    del self._unacked[0]

        return cursor, settle if finished else None

    async def _settle(self) -> None:
        """Acknowledges what was handed over: the consumer has finished with it."""
        unacked = self._unacked
        while unacked:
            message = unacked[0]
            await self._ack(message)
            if unacked and unacked[0] is message:  # else another task acknowledged it meanwhile
                del unacked[0]

    def _given(self, messages: Iterable[ImmutableMessage]) -> None:
        self._unacked.extend(
            message
            for message in messages
            if message.broadcast is not None and message.broadcast.needs_ack and message.message_type is not MessageType.ABORT_BROADCAST
        )


_log: Final = logging.getLogger("wal.scanner")


@runtime_checkable
class MessageHandler(Protocol):
    """A handler as an object: `handle` is called for each message (sync or async), `close` once when the scanner ends."""

    def handle(self, message: ImmutableMessage) -> Awaitable[None] | None:
        """Handles a message; an exception ends the scanner."""

    def close(self) -> Awaitable[None] | None:
        """Is called once, after the last message."""


Handler = Callable[[ImmutableMessage], Any] | MessageHandler


class HandlerActor(Actor):
    """Hands the messages of a scanner, which `loop` reads, to its handler.

    A scanner without a handler is driven by its consumer's own task; with one it owns a task, which is this actor's. No caller awaits that
    task, so the actor also reports errors: the error that ends it is logged with its traceback, and raised where the scanner's block is
    left unless a caller got it before.
    """

    def __init__(self, messages: AsyncIterable[ImmutableMessage], loop: Read, handler: Handler) -> None:
        self._messages = messages
        self._loop = loop
        self._handler = handler
        self._task: asyncio.Task[object] | None = None
        self._handling: MessageID | None = None
        self.untold: BaseException | None = None
        """The error that ended the scanner, until a caller gets it."""

    @property
    def inside(self) -> bool:
        """Whether the caller is the handler itself."""
        return self._task is not None and asyncio.current_task() is self._task

    async def receive(self, batch: list[Any]) -> None:
        """Runs until the scanner ends, then closes the handler; its only message starts it."""
        self._task = task = asyncio.current_task()
        assert task is not None
        loop, handler = self._loop, self._handler
        handle = handler.handle if isinstance(handler, MessageHandler) else handler
        try:
            async for message in self._messages:
                self._handling = message.message_id
                answer = handle(message)
                if answer is not None:
                    check_ran(answer)
                    if inspect.isawaitable(answer):
                        await answer
                self._handling = None
        except asyncio.CancelledError as error:
            if task.cancelling() and (self._handling is None or self.ref.is_cut_off):  # the scanner, or the whole log, is being closed
                loop.finish(loop.failure)
                raise
            self._ended_by(error)
        except BaseException as error:
            self._ended_by(error)
        finally:
            self.ref.stop_nowait()
            if isinstance(handler, MessageHandler):
                try:
                    answer = handler.close()
                    if inspect.isawaitable(answer):
                        await answer
                except BaseException as error:
                    if isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and self.ref.is_cut_off):
                        loop.completed()
                        raise
                    self._keep(error)
                    _log.error("the handler of %s failed when it was closed: %s", self._where(), shown(error, 1000), exc_info=error)
            loop.completed()

    def raise_untold(self) -> None:
        """Raises the error that ended the scanner, unless a caller got it before."""
        error, self.untold = self.untold, None
        if error is not None:
            raise error

    def _ended_by(self, error: BaseException) -> None:
        if isinstance(error, ClosedError) and isinstance(self._loop.failure, ClosedError):
            self._loop.finish(error)  # the caller itself closed the log
        elif self._handling is not None:
            self._keep(error)
            _log.error(
                "the handler of %s failed at message %s, and the scanner has ended: %s",
                self._where(),
                self._handling,
                shown(error, 1000),
                exc_info=error,
                extra={
                    "wal_event": "handler failed",
                    "wal_scanner": self._where(),
                    "wal_message_id": str(self._handling),
                    "wal_error": type(error).__name__,
                },
            )
        elif isinstance(error, ChannelNotExistError):
            self._loop.finish(error)  # the caller itself dropped the vchannel
        else:
            self._keep(error)
            _log.error("%s has ended, and its handler receives nothing more: %s", self._where(), error, exc_info=error)

    def _keep(self, error: BaseException) -> None:
        """Ends the scanner with this error, unless it ended with one before; even if it was being closed cleanly."""
        loop = self._loop
        loop.finish(error)
        if loop.error is None:
            loop.error = error
        if self.untold is None:
            self.untold = loop.error

    def _where(self) -> str:
        cursor = "no cursor" if self._loop.cursor is None else f"cursor {self._loop.cursor.key.name!r}"
        return f"the scanner of {self._loop.subject} ({cursor})"


def check_handler(handler: object) -> None:
    """Raises a TypeError unless the handler is a callable or has `handle` and `close`."""
    check_runs(handler.handle if isinstance(handler, MessageHandler) else handler)
    if handler is not None and not isinstance(handler, MessageHandler) and not callable(handler):
        raise TypeError(f"handler must be a callable, or an object with handle and close, not {type(handler).__name__}")


def check_size_max(size_max: object) -> None:
    """Raises TypeError or InvalidArgumentError for a number of messages that no page can have."""
    if not isinstance(size_max, int) or isinstance(size_max, bool):
        raise TypeError(f"size_max must be an int, not {size_max!r}")
    if size_max < 1:
        raise InvalidArgumentError(f"size_max={size_max}: a page holds at least 1 message")
