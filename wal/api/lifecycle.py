"""Lifecycle: the state of a log (open or not), and how it is opened and closed.

    (created) --begin--> OPENING --> OPEN --close--> CLOSED        OPENING --fails--> FAILED: every call raises the cause

Owns the state above, and the check that a call comes from the event loop and the process that the log belongs to. A call from another
loop, or from a forked child, is refused before it touches anything; but once that loop has ended, `close` on any other loop releases what
the log holds. All callers that wait for the opening share it; cancelling one of them does not stop it. A log that was opened with
read_only=True is `readable`, and never `ready` for the writing half of the API.

Every object that a caller can use (the accesser, scanners, transactions) holds the Lifecycle, and the engine does not. So the Lifecycle is
garbage-collected with the last of these objects, and then releases an engine that is still open.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from wal.errors import ClosedError, InvalidArgumentError, UnavailableError, WouldBlockError, closed_log
from wal.runtime.threads import in_thread

if TYPE_CHECKING:
    from wal.consumers.consumer import ConsumerRegistry
    from wal.engine import ReadableEngine, WritableEngine


def opening_failed(location: object, error: OSError) -> Exception:
    """Returns the error for an opening that this error ended: a typed error without a free file descriptor."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return error
    return UnavailableError(
        f"the log at {location} cannot be opened without a free file descriptor ({error.strerror}): close some files, or raise the limit "
        "of the process (ulimit -n), and open it again"
    )


class Lifecycle:
    """`engine` is the open log if it can be written, None in every other state; `loop` and `thread` are those it belongs to.

    A call from `thread` while `is_running()` comes from the log's loop: this check is cheaper than asking which loop is running.
    """

    def __init__(self, location: str, make_engine: Callable[[], Awaitable[ReadableEngine]], *, read_only: bool = False) -> None:
        self.location = location
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int = 0
        self.is_running: Callable[[], bool] = lambda: False
        self.engine: WritableEngine | None = None
        self.forked = False
        self.consumers: ConsumerRegistry | None = None
        """The running consumers, None before the first one: they end before the log is closed."""
        self._make = make_engine
        self._made: ReadableEngine | None = None
        self._read_only = read_only
        self._readable: ReadableEngine | None = None
        self._opening: asyncio.Task[ReadableEngine] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._failure: BaseException | None = None
        _all.add(self)

    @property
    def state(self) -> str:
        """Returns the state of the log in a word or two, from any thread."""
        if self._closed:
            return "closed"
        if self._failure is not None:
            return "failed"
        if self._readable is not None:
            return "open, read-only" if self._read_only else "open"
        return "not opened yet" if self._opening is None else "opening"

    def begin(self) -> None:
        """Starts opening the log on the running loop. Without it, the first call that needs the log starts the opening."""
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.is_running = self.loop.is_running  # bound once: `get_running_loop` costs a system call in Python 3.11
        self._opening = asyncio.ensure_future(self._open())
        self._opening.add_done_callback(self._opened)

    async def ready(self) -> WritableEngine:
        """Returns the engine to write with, after waiting for the opening. Raises the error of the opening; ClosedError after `close`."""
        self.check_writable()
        if self.engine is None:
            await self.readable()
        return self.ready_nowait()

    def ready_nowait(self) -> WritableEngine:
        """Returns the engine to write with; WouldBlockError while the log is being opened."""
        self.check_writable()
        self._check()
        if self.engine is None:
            raise _still_opening()
        return self.engine

    async def readable(self) -> ReadableEngine:
        """Returns the engine, whether it can be written or only read; otherwise like `ready`."""
        self._check()
        if self._readable is None:
            if self._opening is None:
                self.begin()
            assert self._opening is not None
            await asyncio.shield(self._opening)
        return self.readable_nowait()

    def readable_nowait(self) -> ReadableEngine:
        """Returns the engine without waiting, whether it can be written or only read; otherwise like `ready_nowait`."""
        self._check()
        if self._readable is None:
            raise _still_opening()
        return self._readable

    def check_writable(self) -> None:
        """Raises InvalidArgumentError if the log was opened with read_only=True."""
        if self._read_only:
            self._check_open()
            raise InvalidArgumentError(
                f"the log at {self.location} was opened with read_only=True, which gives the reading half of the API only: open it "
                "without, in the one process that writes"
            )

    async def close(self) -> None:
        """Closes the log, after its opening if that is under way. Idempotent; all callers wait, and cancelling one does not stop it.

        Once the event loop of the log has ended, the call releases what the log holds, on any other loop.
        """
        if self.loop is not None and self.loop.is_closed():
            self._closed = True
            self.engine = self._readable = None
            if self._made is not None:
                await in_thread(self._made.abandon)
            return
        self._check_place()
        if self._closing is None:
            self._closed = True
            self._failure = None
            if self._opening is None:
                return
            self._closing = asyncio.ensure_future(self._close(self._opening))
        await asyncio.shield(self._closing)

    async def _open(self) -> ReadableEngine:
        try:
            engine = await self._make()
            await released(engine.place)
            self._made = engine
            await engine.open()
        except OSError as error:
            if (failure := opening_failed(self.location, error)) is error:
                raise
            raise failure from error
        return engine

    def _opened(self, opening: asyncio.Task[ReadableEngine]) -> None:
        if opening.cancelled():
            self._failure = ClosedError("opening the log was cancelled: open it again")
        elif (failure := opening.exception()) is not None:
            self._failure = failure
        elif not self._closed:
            self._readable = opened = opening.result()
            self.engine = opened.writable

    async def _close(self, opening: asyncio.Task[ReadableEngine]) -> None:
        self.engine = self._readable = None
        if self._read_only or (self._made is not None and self._made.is_waiting):
            opening.cancel()  # it may be waiting for the first writer, or for the lock of another one, for up to wait_s
        await asyncio.wait((opening,))
        if self.consumers is not None:
            await self.consumers.close()
        if not opening.cancelled() and opening.exception() is None:  # a failed opening has cleaned up after itself
            await opening.result().close()

    def _check(self) -> None:
        self._check_open()
        self._check_place()
        if self._failure is not None:
            raise self._failure

    def _check_open(self) -> None:
        if self._closed and not self.forked:
            raise closed_log(f"at {self.location}")

    def _check_place(self) -> None:
        if self.forked:
            raise InvalidArgumentError(
                f"the log at {self.location} was opened before this process was forked: open it in the child instead"
            )
        loop = asyncio._get_running_loop()
        if loop is self.loop and loop is not None:
            return
        if self.loop is not None and self.loop.is_closed():
            raise InvalidArgumentError(
                f"the log at {self.location} was opened in an event loop that has ended: await its close(), which can be done here, and "
                "open it again in this one"
            )
        if loop is None:
            raise InvalidArgumentError(
                f"the log at {self.location} is used in an event loop, and this thread runs none: call it there "
                "(loop.call_soon_threadsafe), or use bridge.blocking"
            )
        if self.loop is not None:
            raise InvalidArgumentError(
                f"the log at {self.location} was opened in another event loop: use it there, or close it and open it in this one"
            )

    def __del__(self) -> None:
        engine, loop = self._made, self.loop
        if engine is not None and loop is not None and not engine.released:
            Release(engine, loop).begin()
            warnings.warn(
                f"the log at {self.location} was garbage-collected while it was open: `await log.close()`, or open it with `async with` "
                "(without an event loop: close(), or `with`)",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )


def _still_opening() -> WouldBlockError:
    return WouldBlockError("the log is being opened: await a call first, for example raw_append")


_all: Final[weakref.WeakSet[Lifecycle]] = weakref.WeakSet()


def _after_fork() -> None:
    for lifecycle in _all:
        lifecycle.forked = True
        lifecycle.loop = None
        lifecycle.engine = lifecycle._readable = lifecycle._made = None


os.register_at_fork(after_in_child=_after_fork)


_log: Final = logging.getLogger("wal")


class Release:
    """How a log is released that was garbage-collected without being closed.

    While the log's event loop exists, the log is closed there, as by `close()`. Once that loop has ended, a thread releases the log's
    files, threads and locks, and the next opening recovers as after a crash. An opening of the same location in this process waits for the
    release. The garbage collector may begin a release at any point in any thread, so `begin` takes no lock and waits for nothing.

    The release of one engine that no caller holds any more; `loop` is the event loop that it belongs to.
    """

    def __init__(self, engine: ReadableEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._engine = engine
        self._over: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._abandoned = False
        self._pid = os.getpid()

    def begin(self) -> None:
        """Begins the release. The finalizer of the object that held the engine calls this."""
        if sys.is_finalizing():  # the process ends, and releases everything it holds
            return
        _pending.append(weakref.ref(self))
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(self._close)
                return
            except RuntimeError:  # it was closed just now
                pass
        self._abandon()

    async def over(self) -> None:
        """Returns when the log is released; at once if its loop is not running, since waiting would never end."""
        if self._abandoned or self.loop.is_running():
            await asyncio.shield(asyncio.wrap_future(self._over))

    @property
    def is_over(self) -> bool:
        """Returns whether the log is released."""
        return self._over.done()

    @property
    def place(self) -> str:
        """Returns where the log is."""
        return self._engine.place

    def _close(self) -> None:
        """Closes the log, on its loop."""
        closing = self.loop.create_task(self._engine.close(), name="close a log that was garbage-collected unclosed")
        closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Task[None]) -> None:
        if not closing.cancelled() and (failure := closing.exception()) is not None:
            _log.warning("closing the log at %s, which was garbage-collected unclosed, failed: %s", self.place, failure)
        if self._engine.released:
            self._over.set_result(None)
        else:
            self._abandon()

    def _abandon(self) -> None:
        if not self._abandoned:
            self._abandoned = True
            try:
                threading.Thread(target=self._run, name="wal-release", daemon=True).start()
            except RuntimeError:  # the process ends
                self._over.set_result(None)

    def _run(self) -> None:
        try:
            self._engine.abandon()
        finally:
            self._over.set_result(None)

    def __del__(self) -> None:
        # The loop was closed before it could close the log.
        if not self._over.done() and not sys.is_finalizing() and self._pid == os.getpid():
            self._abandon()


async def released(place: str) -> None:
    """Returns when every log at this location that was garbage-collected unclosed is released."""
    for reference in _pending[:]:
        release = reference()
        if release is None or release.is_over:
            with contextlib.suppress(ValueError):  # another opening has removed it
                _pending.remove(reference)
        elif await in_thread(_is_same, release.place, place):
            await release.over()


async def all_released(loop: asyncio.AbstractEventLoop) -> None:
    """Returns when every log of this loop, which must be the running loop, that was garbage-collected unclosed is released."""
    for release in [reference() for reference in _pending[:]]:
        if release is not None and release.loop is loop:
            await release.over()


def _is_same(place: str, other: str) -> bool:
    return os.path.realpath(place) == os.path.realpath(other)


_pending: Final[list[weakref.ref[Release]]] = []
"""Changed only by `append` and `remove`, which a garbage collection cannot interrupt halfway."""

# A forked child has copies of the parent's pending releases; running them would release the parent's own locks.
os.register_at_fork(after_in_child=_pending.clear)
