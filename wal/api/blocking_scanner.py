"""The messages of a BlockingScanner: a scanner for blocking callers, as a context manager and a plain iterator.

TwinOfScanner owns the current page: messages come from the loop frame by frame, and are delivered in the caller's thread without a call to
the loop. Each message is delivered once, whichever threads take them, and an interrupted `next` loses none. Every call to the scanner on
the loop first reports what was delivered, so `position`, `save` and `close` are exact.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence, Sized
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from wal.api.blocking_calls import Twin
from wal.errors import ClosedError
from wal.message import ImmutableMessage
from wal.read.assembly import NO_MESSAGES, MessagePage
from wal.read.progress import BodyTurns
from wal.read.scanner import AckingScanner, Handler, Scanner, check_handler, check_size_max
from wal.runtime.loop_thread import LoopThread
from wal.runtime.user_code import called, check_ran, shown

_T = TypeVar("_T")
_R = TypeVar("_R")
_S = TypeVar("_S", bound=Sized)


@runtime_checkable
class BlockingMessageHandler(Protocol):
    """A handler as an object: `handle` for each message, `close` once when the scanner ends."""

    def handle(self, message: ImmutableMessage) -> None:
        """Handles a message; an exception ends the scanner."""

    def close(self) -> None:
        """Is called once, after the last message."""


BlockingHandler = Callable[[ImmutableMessage], Any] | BlockingMessageHandler


class TwinOfScanner(Twin):
    """The messages of a scanner in the threads of its callers, as an iterator."""

    _async: Scanner

    def __init__(self, scanner: Scanner, thread: LoopThread) -> None:
        super().__init__(scanner, thread)
        self._lock = threading.Lock()
        self._page: MessagePage = NO_MESSAGES
        self._at = 0
        self._delivered_count = 0  # messages delivered so far
        self._reported_count = 0  # delivered messages that were reported to the scanner; only its loop touches this
        self._fetching: concurrent.futures.Future[MessagePage] | None = None
        self._waiting = 0
        self._closed = False
        self._turns = BodyTurns()
        self._acking = scanner if isinstance(scanner, AckingScanner) else None
        self._owing = False  # whether a copy of a broadcast was delivered and is not acknowledged yet

    def __enter__(self) -> Self:
        self._thread.call(self._async.__aenter__)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._give_up()
        if not self._thread.stopped:
            self._thread.call(self._async.__aexit__, kind, error, traceback)

    # -- messages

    def __iter__(self) -> Iterator[ImmutableMessage]:
        return self

    def __next__(self) -> ImmutableMessage:
        messages = self._next(self._take_message)
        if messages is None:
            raise StopIteration
        return messages[0]

    def batches(self, size_max: int = 1024) -> Iterator[MessagePage]:
        """Returns an iterator of pages of 1 to `size_max` messages; see `Scanner.batches`."""
        check_size_max(size_max)
        return iter(lambda: self._next(lambda: self._take_page(size_max)), None)

    def bodies(self) -> Iterator[tuple[ImmutableMessage, ImmutableMessage]]:
        """Yields each body with its message, as `Scanner.bodies` does: a message counts as handed over with its last body."""
        while pairs := self._next(self._take_body):
            yield from pairs

    def wait_for(self, time_tick: int) -> None:
        """Returns when everything at or below `time_tick` was handed over. Another thread, or the handler, drives the scanner."""
        with self._lock:
            self._waiting += 1  # from now on every delivered message is reported to the loop
        try:
            self._call(lambda: self._async.wait_for(time_tick))
        finally:
            with self._lock:
                self._waiting -= 1

    # -- ending

    def done(self) -> None:
        """Returns when the scanner has ended, for any reason, and its handler is closed. Never raises; `error` is the reason."""
        if not self._thread.stopped:
            self._thread.call(self._async.done)

    def close(self) -> None:
        """Ends the scanner cleanly, from any thread; a thread that waits for a message sees the end. Idempotent."""
        self._give_up()
        if not self._thread.stopped:
            self._thread.call(self._async.close)

    def _give_up(self) -> None:
        """Drops the rest of the current page."""
        with self._lock:
            self._closed = True
            self._page, self._at = NO_MESSAGES, 0
        self._run(lambda: None)

    # -- the current page

    def _take_page(self, size_max: int) -> MessagePage:
        """Takes messages of the current page, under the lock."""
        page, at = self._page, self._at
        taken = page.part(at, at + size_max) if at or size_max < len(page) else page
        self._count(taken)
        return taken

    def _take_message(self) -> list[ImmutableMessage]:
        """Takes the next message of the current page, under the lock."""
        messages = self._page.build()[self._at : self._at + 1]
        self._count(messages)
        return messages

    def _count(self, taken: Sequence[ImmutableMessage]) -> None:
        self._at += len(taken)
        self._delivered_count += len(taken)
        if self._acking is not None and any(message.broadcast is not None for message in taken):
            self._owing = True

    def _take_body(self) -> list[tuple[ImmutableMessage, ImmutableMessage]]:
        """Takes the next body of the current page, under the lock; a message is taken with its last body."""
        while self._at < len(self._page):
            message = self._page[self._at]
            body, is_last = self._turns.next(message)
            if is_last:
                self._count((message,))
            if body is not None:
                return [(message, body)]
        return []

    def _next(self, take: Callable[[], _S]) -> _S | None:
        """Waits for a page from which `take` takes something, and returns that; None at the end."""
        if self._owing:
            self._acknowledge()
        while True:
            with self._lock:
                if taken := take():
                    break
                fetching = self._fetching
                if fetching is None:
                    if self._ended():
                        return None
                    # Kept until its page is taken over, so that an interrupted caller leaves the page to the next caller.
                    fetching = self._fetching = self._thread.start(self._fetch, self._delivered_count)
            try:
                concurrent.futures.wait((fetching,))
            finally:
                self._take_over(fetching)
            if fetching.cancelled():
                raise ClosedError("the log was closed while this read waited for a message")
            if not fetching.result():
                return None
        if self._waiting:
            self._run(lambda: None)
        return taken

    def _acknowledge(self) -> None:
        """Acknowledges what was delivered: a caller that asks for more has processed it."""
        with self._lock:
            delivered_count, self._owing = self._delivered_count, False
        try:
            self._thread.call(self._settle_acks, delivered_count)
        except BaseException:
            self._owing = True
            raise

    async def _settle_acks(self, delivered_count: int) -> None:
        assert self._acking is not None
        self._tell(delivered_count)
        await self._acking._settle()

    def _take_over(self, fetching: concurrent.futures.Future[MessagePage]) -> None:
        """Makes the fetched page the current one, once."""
        with self._lock:
            if self._fetching is fetching and fetching.done():
                self._fetching = None
                if not self._closed and not fetching.cancelled() and fetching.exception() is None:
                    self._page, self._at = fetching.result(), 0

    def _ended(self) -> bool:
        """Returns whether the scanner is known to have ended, without asking the loop; raises the error that ended it."""
        if not self._closed and not (self._thread.stopped and self._async.statistics().ended):
            return False
        if self._async.error is not None:
            raise self._async.error
        return True

    async def _fetch(self, delivered_count: int) -> MessagePage:
        self._tell(delivered_count)
        return await self._async._page()

    def _tell(self, delivered_count: int) -> None:
        """Reports to the scanner, in its loop, how many messages were delivered in all."""
        if delivered_count > self._reported_count:
            self._async._hand_over(delivered_count - self._reported_count)
            self._reported_count = delivered_count

    def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Reports to the scanner what was delivered, then awaits what `call` returns, on its loop."""
        self._run(lambda: None)
        return super()._call(call)

    def _run(self, call: Callable[[], _T]) -> _T:
        """Reports to the scanner what was delivered, then makes the call, on its loop."""
        with self._lock:
            delivered_count = self._delivered_count

        def after_report() -> _T:
            self._tell(delivered_count)
            return call()

        # Once the loop has ended, this thread may touch the scanner.
        return after_report() if self._thread.stopped else super()._run(after_report)


def settled(read: TwinOfScanner | _R) -> Scanner | _R:
    """Returns the scanner of a blocking one, to which it reports what was delivered; anything else as it is."""
    if not isinstance(read, TwinOfScanner):
        return read
    read._run(lambda: None)
    return read._async


def threaded(handler: BlockingHandler | None) -> Handler | None:
    """Returns a handler for the scanner in the loop that calls this handler in a thread. Raises TypeError if it has to be awaited."""
    if handler is None:
        return None
    check_handler(handler)
    handle = handler.handle if isinstance(handler, BlockingMessageHandler) else handler
    if inspect.iscoroutinefunction(handle):
        raise TypeError("a handler of a blocking scanner is a plain function: it is called in a thread, where it may block")
    return _InThread(handle, handler.close if isinstance(handler, BlockingMessageHandler) else None)


class _InThread:
    """A handler and its threads: handlers of other scanners, which may wait for it, keep none from it."""

    def __init__(self, handle: Callable[[ImmutableMessage], Any], close: Callable[[], Any] | None) -> None:
        self._handle = handle
        self._close = close
        # The second thread starts only if the scanner ends while the first one handles a message.
        self._threads = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="wal-handler")

    def _run(self, call: Callable[..., _T], *args: object) -> asyncio.Future[_T]:
        run = contextvars.copy_context().run
        return asyncio.get_running_loop().run_in_executor(self._threads, partial(run, called, call, *args))

    async def handle(self, message: ImmutableMessage) -> None:
        result = await self._run(self._handle, message)
        check_ran(result)
        if inspect.isawaitable(result):
            raise TypeError(f"the handler returned {shown(result)}, which nobody awaits here: give a plain function")

    async def close(self) -> None:
        try:
            if self._close is not None:
                await self._run(self._close)
        finally:
            self._threads.shutdown(wait=False)
