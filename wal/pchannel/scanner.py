"""Scanner: a reader of one or several vchannels of a pchannel, as its caller holds it.

Owns what callers see: entering and leaving, messages one by one or in pages, the position and its saving, and waiting for a tick. The
`ReadLoop` owns pages, waiting at the tail and the end of the read. Without a handler the consumer's own task drives the loop; with one
the scanner runs by itself once entered (`handler`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from wal.async_only import AsyncOnly
from wal.cursors import CursorUse
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage
from wal.pchannel.handler import Handler, HandlerActor
from wal.pchannel.read_loop import Attach, ReadLoop
from wal.reading import BodyTurns, ReadOptions, ReadPosition, named

__all__ = ["Scanner", "ScannerStatistics"]


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
        self,
        options: ReadOptions,
        *,
        attach: Attach,
        handler: Handler | None = None,
        cursor: CursorUse | None = None,
    ) -> None:
        self._loop = ReadLoop(options, attach=attach, cursor=cursor)
        self._progress = self._loop.progress
        self._turns = BodyTurns()
        self._handler = handler
        self._actor: HandlerActor | None = None

    @property
    def vchannels(self) -> tuple[str, ...]:
        """The vchannels that it reads."""
        return self._loop.vchannels

    # -- entering and ending

    async def __aenter__(self) -> Self:
        await self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
        if kind is None and self._actor is not None:
            self._actor.raise_untold()

    async def _enter(self) -> None:
        """Fixes where the read begins and ends, and starts the handler, on the first use."""
        spawn = await self._loop.enter()
        if spawn is not None and self._handler is not None:
            self._loop.handler_runs = True
            self._actor = HandlerActor(self, self._loop, self._handler)
            spawn(self._actor, f"scanner of {', '.join(self.vchannels)}").tell(None)

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
        if loop.entered == os.getpid() and not loop.ended and loop.pchannel.tail.failure is None:
            warnings.warn(
                f"the scanner of {named(self.vchannels)} was garbage-collected while it was open: read within `async with` (without "
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
            for message in self._progress.coming:
                if self._loop.tick_waiters:
                    self._loop.wake_tick_waiters()
                return message
            if not await self._has_messages():
                raise StopAsyncIteration

    async def batches(self, size_max: int = 1024) -> AsyncIterator[list[ImmutableMessage]]:
        """Yields pages of 1 to `size_max` messages. After a cancellation `batches` can be called again: it continues where it stopped."""
        if not isinstance(size_max, int) or isinstance(size_max, bool):
            raise TypeError(f"size_max must be an int, not {size_max!r}")
        if size_max < 1:
            raise InvalidArgumentError(f"size_max={size_max}: a page holds at least 1 message")
        while await self._has_messages():
            page = self.hand_over(size_max)
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
                    self.hand_over(1)
                if body is not None:
                    yield message, body

    async def page(self) -> list[ImmutableMessage]:
        """Returns the next messages, at least one; none at the end.

        For a caller that hands them over in another thread: they count as handed over when `hand_over` is called.
        """
        if not await self._has_messages():
            return []
        return self._progress.messages[self._progress.following :]

    def hand_over(self, count: int) -> list[ImmutableMessage]:
        """Counts the next `count` messages of the last `page`, or those that there are, as handed over, and returns them."""
        given = self._progress.hand_over(count)
        if self._loop.tick_waiters:
            self._loop.wake_tick_waiters()
        return given

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
        position: then call `delete_cursor` and start over.
        """
        loop = self._loop
        cursor = loop.check_cursor()
        if not loop.entered:
            await self._enter()
            if not loop.entered:  # the read ended before it began
                return
            loop.check_cursor()
        await loop.save(cursor, position)

    def use_cursor_of(self, other: Scanner) -> None:
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
        lag = 0
        if loop.entered and progress.at < loop.pchannel.tail.durable_end:
            log = loop.pchannel.log
            lag = log.bytes_between(progress.at, log.durable_end)
        return ScannerStatistics(progress.message_count, progress.frame_count, progress.page_count, lag, loop.ended)
