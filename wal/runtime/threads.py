"""Threads for calls of the product that block: a pool for each event loop, beside the loop's own.

A loop has one default executor for everything in the process: what users pass to `asyncio.to_thread`, the names that asyncio looks up, and
what other libraries do there. Functions of users may wait for the log, so the log never waits for a thread of theirs: an append from
each thread of the default executor would wait for ever. Hence nothing of the product runs there, which
`tests/api/opening/test_full_executor.py` checks.

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
"""Calls of the product end by themselves, but for some that wait for a lock, a server or a full pipe; they leave threads for the others."""
_pools: Final[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, concurrent.futures.ThreadPoolExecutor]] = weakref.WeakKeyDictionary()


def in_thread(call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
    """Begins a call in a thread, with the context of the caller, and returns the future of its outcome. Only on a running loop.

    Cancelling the future drops the outcome; a call that has begun goes on.
    """
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(pool_of(loop), partial(contextvars.copy_context().run, call, *args, **kwargs))


def pool_of(loop: asyncio.AbstractEventLoop) -> concurrent.futures.ThreadPoolExecutor:
    """Returns the product's pool of this loop."""
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="calls-of-wal")
    return pool
