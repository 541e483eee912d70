"""LoopThread: an event loop in a thread of its own, for calls from threads without a loop.

It owns the thread, its loop, and the calls under way. A call returns the coroutine's result, or raises its error; an interrupted caller
cancels its call. After the loop was stopped, a call raises ClosedError and nothing hangs, even in a forked child. The owner stops the
LoopThread. Otherwise the exit of the interpreter does, while the thread pools that closing a log needs still run. A LoopThread that is
garbage-collected without being stopped ends by itself: its loop has no reference to it.

The loop runs until it is stopped: a SystemExit or a KeyboardInterrupt in a task ends the task, and is raised where the task is awaited. In
the main thread it would end the process; here it could only end the log under its callers. If the loop ends all the same, calls raise
ClosedError, and `stop` still awaits `closing`, in another loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # its hook at exit must be registered before ours, see the end of the file
import contextlib
import importlib
import importlib.util
import logging
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from wal.errors import ClosedError, InvalidArgumentError
from wal.runtime.threads import pool_of

_P = ParamSpec("_P")
_T = TypeVar("_T")
_log: Final = logging.getLogger("wal")


class LoopThread:
    """A running loop; the constructor starts it."""

    def __init__(self, *, collected: Callable[[asyncio.AbstractEventLoop], Awaitable[None]] | None = None) -> None:
        """`collected` is awaited in the loop if the LoopThread was garbage-collected, before the loop ends, to finish its work."""
        self.closing: Callable[[], Awaitable[None]] | None = None
        """Awaited in the loop, once, before `stop` stops it; it may be set later."""
        self._pid = os.getpid()
        self._stopping = threading.Lock()
        self._stopped = False
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._running = running = _Running(self, collected)
        running.thread = threading.Thread(target=running.run, args=(started,), name="wal-loop", daemon=True)
        running.thread.start()
        try:
            started.result()
        except BaseException:
            self._stopped = True
            raise
        _all.add(running)

    @property
    def stopped(self) -> bool:
        """Whether the loop has ended: its thread runs no more code."""
        return self._stopped or self._running.has_ended

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
        running = self._running
        if running.thread is threading.current_thread():
            raise InvalidArgumentError("a blocking call in the thread of the log's own loop would wait for itself")
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        with running.idle:
            if self._stopped:
                raise ClosedError("the log is closed: open it again to continue")
            try:
                running.loop.call_soon_threadsafe(running.begin, future, partial(call, *args, **kwargs))
            except RuntimeError:  # the loop is closed
                raise ClosedError("the loop of the log has ended under it: close the log, and open it again to continue") from None
            running.calls.add(future)  # if the loop ends before it begins the call, the end of the thread cancels it
            future.add_done_callback(running.call_ended)
        return future

    def stop(self) -> None:
        """Awaits `closing` in the loop, waits for the calls under way, and ends loop and thread. Idempotent; several callers all wait.

        After an interrupt it can be called again and continues. In a forked child it does nothing.
        """
        if self._pid != os.getpid():
            return
        with self._stopping:
            if self._stopped:
                return
            running = self._running
            failure: Exception | None = None
            if self.closing is not None:
                try:
                    self._close(self.closing)
                except Exception as error:
                    failure = error
            with running.idle:
                while running.calls:
                    running.idle.wait()
                self._stopped = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                running.loop.call_soon_threadsafe(running.ends.set)
            running.thread.join()
            _all.discard(running)
            if failure is not None:
                raise failure

    def _close(self, closing: Callable[[], Awaitable[None]]) -> None:
        try:
            self.call(closing)
        except ClosedError:
            if not self._running.loop.is_closed():
                raise
            asyncio.run(_awaited(closing))

    def __del__(self) -> None:
        running = getattr(self, "_running", None)
        if running is None or self._stopped or self._pid != os.getpid():
            return
        self.closing = None  # no other reference to the log remains: its release begins before the loop ends
        running.end_soon()


class _Running:
    """The loop in its thread. It has no reference to its LoopThread, which can therefore be garbage-collected before it is stopped."""

    def __init__(self, owner: LoopThread, collected: Callable[[asyncio.AbstractEventLoop], Awaitable[None]] | None) -> None:
        self.owner = weakref.ref(owner)
        self.thread: threading.Thread
        self.loop: asyncio.AbstractEventLoop
        self.ends: asyncio.Event
        """Set in the loop to end it."""
        self.idle = threading.Condition(threading.RLock())  # a future that is cancelled in `start` is reported under the lock
        self.calls: set[concurrent.futures.Future[Any]] = set()
        self.has_ended = False
        """Whether the loop has ended. Read and set under the lock of `idle`, so that no call is added later."""
        self._collected = collected
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- calls

    def begin(self, future: concurrent.futures.Future[Any], call: Callable[[], Awaitable[Any]]) -> None:
        """Begins a call, in the loop."""
        if future.cancelled():
            return
        task = self.loop.create_task(_outcome(call))
        self._tasks.add(task)
        task.add_done_callback(partial(self._answer, future))
        future.add_done_callback(partial(self._cancel, task))

    def _answer(self, future: concurrent.futures.Future[Any], task: asyncio.Task[tuple[Any, BaseException | None]]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            future.cancel()
        if not future.set_running_or_notify_cancel():
            return
        result, error = task.result()
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _cancel(self, task: asyncio.Task[Any], future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled():
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(task.cancel)

    def call_ended(self, future: concurrent.futures.Future[Any]) -> None:
        """Records the end of a call, in any thread."""
        with self.idle:
            self.calls.discard(future)
            if not self.calls:
                self.idle.notify_all()

    # -- the thread

    def run(self, started: concurrent.futures.Future[None]) -> None:
        """Runs the loop until it ends."""
        try:
            with contextlib.ExitStack() as pools, asyncio.Runner(loop_factory=_loop_factory()) as runner:
                self.loop = loop = runner.get_loop()
                pools.enter_context(pool_of(loop))
                pool = pools.enter_context(concurrent.futures.ThreadPoolExecutor(thread_name_prefix="wal-loop"))
                loop.set_default_executor(pool)
                # A loop starts a thread to end its pool, which Python 3.12.0 and 3.12.1 refuse during the exit (cpython issue 113964).
                loop.shutdown_default_executor = _leave_pool  # type: ignore[method-assign]
                serving = loop.create_task(self._serve(started))
                serving.add_done_callback(lambda _: loop.stop())
                while not serving.done():
                    try:
                        loop.run_forever()
                    except (SystemExit, KeyboardInterrupt) as error:
                        _log.error("code in the loop of a log asked for the end of the process: the log goes on", exc_info=error)
                serving.result()
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            with self.idle:
                self.has_ended = True
                calls = list(self.calls)
            for call in calls:
                call.cancel()

    async def _serve(self, started: concurrent.futures.Future[None]) -> None:
        self.ends = asyncio.Event()
        started.set_result(None)
        await self.ends.wait()
        if self._tasks:  # calls of callers that were interrupted
            await asyncio.wait(self._tasks)

    # -- without an owner

    def end_soon(self) -> None:
        """Begins to end the loop. The garbage collector may call it at any point in any thread."""
        try:
            self.loop.call_soon_threadsafe(self._end_in_loop)
        except RuntimeError:  # it has ended
            _all.discard(self)

    def _end_in_loop(self) -> None:
        self._ending = self.loop.create_task(self._end(), name="end of a loop that was collected")

    async def _end(self) -> None:
        try:
            if self._collected is not None:
                await self._collected(self.loop)
        finally:
            _all.discard(self)
            self.ends.set()


async def _outcome(call: Callable[[], Awaitable[_T]]) -> tuple[_T | None, BaseException | None]:
    """Returns the result of the call, or its exception: a task that raised SystemExit would stop the loop."""
    try:
        return await call(), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error


async def _awaited(call: Callable[[], Awaitable[_T]]) -> _T:
    return await call()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns the factory of the loop, None for Python's own.

    Where gevent has made greenlets of threads, uvloop's loop would block the only thread; Python's own lets others run.
    """
    monkey = sys.modules.get("gevent.monkey")
    if (monkey is not None and monkey.is_module_patched("threading")) or importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


async def _leave_pool(_timeout: float | None = None) -> None:
    """Replaces the loop's end of its pool by nothing: the pool ends after the loop."""


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
        except Exception:  # at exit it has no caller
            pass


# Thread pools refuse new work from the moment the interpreter begins to exit, and closing a log needs some. `atexit` handlers run after
# that moment. This hook, which the pools use as well, runs in the opposite order of registration, and so before theirs.
_register: Callable[[Callable[[], Any]], Any] = threading._register_atexit  # type: ignore[attr-defined]
_register(_stop_all)
