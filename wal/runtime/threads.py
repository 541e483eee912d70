"""Threads for calls of the product that block: a pool for each event loop, beside the loop's own.

A loop has one default executor for everything in the process: calls of `asyncio.to_thread` by users, asyncio's look-ups of names, and the
calls of other libraries. Functions of users may wait for the log, so the log never waits for a thread of that executor: an append from each
of its threads would wait for ever. Hence no code of the product runs there, which `tests/api/opening/test_full_executor.py` checks.

Owns the pools. A pool ends when its loop is collected, or at the exit of the interpreter; a `LoopThread` ends that of its loop itself.
Logs, backends and services with much work keep pools of their own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import weakref
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_THREADS: Final = 16
"""Calls of the product end by themselves, except some that wait for a lock, a server or a full pipe; those leave threads for the others."""
_pools: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, concurrent.futures.ThreadPoolExecutor]] = weakref.WeakKeyDictionary()


def in_thread(call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
    """Begins a call in a thread, with the context of the caller, and returns the future of its outcome. Only on a running loop.

    Cancelling the future drops the outcome; a call that has begun continues.
    """
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(pool_of(loop), partial(contextvars.copy_context().run, call, *args, **kwargs))


def pool_of(loop: asyncio.AbstractEventLoop) -> concurrent.futures.ThreadPoolExecutor:
    """Returns the product's pool of this loop."""
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="calls-of-wal")
    return pool
