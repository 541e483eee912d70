"""LoopThread: an event loop in a thread of its own, for calls from threads that have none.

It owns the thread, anyio's blocking portal in it, and the count of calls under way. A call returns what the coroutine returns, or raises
what it raises; an interrupted caller cancels its call. Once the loop is stopped, a call raises ClosedError and nothing hangs, even in a
forked child. Its owner stops it, or the exit of the interpreter does, while the thread pools that closing a log needs still run. A
LoopThread that is garbage-collected without being stopped ends by itself: its loop does not hold it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # its hook at exit must be registered before ours, see the end of the file
import contextlib
import importlib.util
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from wal.errors import ClosedError, InvalidArgumentError
from wal.threads import pool_of

_P = ParamSpec("_P")
_T = TypeVar("_T")


class LoopThread:
    """A running loop; the constructor starts it."""

    def __init__(self, *, collected: Callable[[asyncio.AbstractEventLoop], Awaitable[None]] | None = None) -> None:
        """`collected` is awaited in the loop if the LoopThread was garbage-collected, before the loop ends, to finish what runs there."""
        self.closing: Callable[[], Awaitable[None]] | None = None
        """Awaited in the loop, once, before `stop` stops it; it may be set later."""
        self._pid = os.getpid()
        self._stopping = threading.Lock()
        self._idle = threading.Condition()
        self._calls = 0
        self._stopped = False
        started: concurrent.futures.Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=_run, args=(started,), name="wal-loop", daemon=True)
        self._thread.start()
        self._portal, loop = started.result()
        self._running = _Running(self, loop, self._portal, self._thread, collected)
        _all.add(self._running)

    @property
    def stopped(self) -> bool:
        """Whether the loop has ended: nothing runs in its thread any more."""
        return self._stopped

    def call(self, call: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Awaits the coroutine in the loop and returns its result. An interrupted caller cancels it."""
        future = self.start(call, *args, **kwargs)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("the log was closed while this call was under way") from None
        except BaseException:
            future.cancel()
            raise

    def run(self, call: Callable[[], _T]) -> _T:
        """Makes a call that does not wait, but must run on the loop."""

        async def on_loop() -> _T:
            return call()

        return self.call(on_loop)

    def start(self, call: Callable[_P, Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs) -> concurrent.futures.Future[_T]:
        """Starts to await the coroutine in the loop; returns a future of its result, whose `cancel` cancels it."""
        if self._pid != os.getpid():
            raise InvalidArgumentError(
                "this log was opened before the process was forked, and its loop runs in the parent: open it in the child instead"
            )
        if self._thread is threading.current_thread():
            raise InvalidArgumentError("a blocking call in the thread of the log's own loop would wait for itself")
        with self._idle:
            if self._stopped:
                raise ClosedError("the log is closed: open it again to go on")
            self._calls += 1
        try:
            future = self._portal.start_task_soon(partial(call, *args, **kwargs))
        except BaseException:
            self._ended()
            raise
        future.add_done_callback(self._ended)
        return future

    def stop(self) -> None:
        """Awaits `closing` in the loop, waits for the calls under way, and ends loop and thread. Idempotent; several callers all wait.

        After an interrupt it can be called again and continues. In a forked child there is nothing to stop.
        """
        if self._pid != os.getpid():
            return
        with self._stopping:
            if self._stopped:
                return
            failure: Exception | None = None
            if self.closing is not None:
                try:
                    self.call(self.closing)
                except Exception as error:
                    failure = error
            with self._idle:
                while self._calls:
                    self._idle.wait()
                self._stopped = True
            self._portal.start_task_soon(self._portal.stop)
            self._thread.join()
            _all.discard(self._running)
            if failure is not None:
                raise failure

    def _ended(self, _: object = None) -> None:
        with self._idle:
            self._calls -= 1
            if not self._calls:
                self._idle.notify_all()

    def __del__(self) -> None:
        running = getattr(self, "_running", None)
        if running is None or self._stopped or self._pid != os.getpid():
            return
        self.closing = None  # nothing else may hold the log: then its release begins before the loop ends
        running.end_soon()


class _Running:
    """The loop in its thread. It does not hold its LoopThread, which can therefore be garbage-collected before it is stopped."""

    def __init__(
        self,
        owner: LoopThread,
        loop: asyncio.AbstractEventLoop,
        portal: BlockingPortal,
        thread: threading.Thread,
        collected: Callable[[asyncio.AbstractEventLoop], Awaitable[None]] | None,
    ) -> None:
        self.owner = weakref.ref(owner)
        self.thread = thread
        self._loop = loop
        self._portal = portal
        self._collected = collected
        self._ending: asyncio.Task[None] | None = None

    def end_soon(self) -> None:
        """Begins to end the loop. The garbage collector may call it at any point in any thread."""
        try:
            self._loop.call_soon_threadsafe(self._end_in_loop)
        except RuntimeError:  # it has ended
            _all.discard(self)

    def _end_in_loop(self) -> None:
        self._ending = self._loop.create_task(self._end(), name="end of a loop that was collected")

    async def _end(self) -> None:
        try:
            if self._collected is not None:
                await self._collected(self._loop)
        finally:
            _all.discard(self)
            await self._portal.stop()


def _run(started: concurrent.futures.Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]]) -> None:
    use_uvloop = importlib.util.find_spec("uvloop") is not None
    with contextlib.ExitStack() as pools:
        try:
            anyio.run(_serve, started, pools, backend_options={"use_uvloop": use_uvloop})
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)


async def _serve(started: concurrent.futures.Future[tuple[BlockingPortal, asyncio.AbstractEventLoop]], pools: contextlib.ExitStack) -> None:
    loop = asyncio.get_running_loop()
    pools.enter_context(pool_of(loop))
    pool = pools.enter_context(concurrent.futures.ThreadPoolExecutor(thread_name_prefix="wal-loop"))
    loop.set_default_executor(pool)
    # A loop starts a thread to end its pool, which Python 3.12.0 and 3.12.1 refuse during the exit (cpython issue 113964): `_run` ends it.
    loop.shutdown_default_executor = _leave_pool  # type: ignore[method-assign]
    async with BlockingPortal() as portal:
        started.set_result((portal, loop))
        await portal.sleep_until_stopped()


async def _leave_pool(_timeout: float | None = None) -> None:
    """Does what a loop is asked to do with its pool when it ends: nothing, the pool ends after the loop."""


_all: Final[set[_Running]] = set()
"""All running loops. The exit stops those whose owner still exists, and waits for the others."""


def _stop_all() -> None:
    for running in list(_all):
        owner = running.owner()
        try:
            if owner is None:
                running.thread.join()
            else:
                owner.stop()
        except Exception:  # at exit there is no caller to raise it to
            pass


# Thread pools refuse new work from the moment the interpreter begins to exit, and closing a log needs some. `atexit` handlers run after
# that moment. This hook, which the pools use as well, runs in the opposite order of registration, and so before theirs.
_register: Callable[[Callable[[], Any]], Any] = threading._register_atexit  # type: ignore[attr-defined]
_register(_stop_all)
