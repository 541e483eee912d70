"""The background tasks of an object: referenced while they run, and ended with the object.

A task without a reference may be collected while it runs, so its owner keeps one. An owner ends its tasks before it is closed itself.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, Protocol, Self, TypeVar

from wal.runtime.user_code import shielded

_F = TypeVar("_F", bound="_Future")
_T = TypeVar("_T")


class _Future(Protocol):
    def add_done_callback(self, fn: Any, /) -> Any: ...


def keep_task(tasks: set[_F], task: _F) -> _F:
    """Keeps a task, or another future, in this set until it ends; returns it."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def keep_waiting(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Starts a task that may wait for its owner alone, and references it until it ends.

    Otherwise a garbage collection that frees the owner in a cycle destroys the task too, before the owner can end it.
    """
    return keep_task(_waiting, asyncio.get_running_loop().create_task(work, name=name))


_waiting: Final[set[asyncio.Task[None]]] = set()


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels these tasks, and returns when every one has ended, however it ends."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    if ending:
        await asyncio.wait(ending)


async def unless(event: asyncio.Event, awaitable: Awaitable[_T]) -> _T | None:
    """Returns the result of an awaitable, or cancels it and returns None if the event is set before; raises as the awaitable does."""
    work, waiter = asyncio.ensure_future(awaitable), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((work, waiter), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))
            retrieve(work)
    return None if work.cancelled() and event.is_set() else work.result()


def retrieve(ended: asyncio.Future[Any]) -> None:
    """Marks the failure of a future as retrieved, in case its owner is gone: asyncio would report it otherwise."""
    if not ended.cancelled():
        ended.exception()


class AsyncClosing(abc.ABC):
    """A base of classes with `close()`, which the end of an `async with` calls."""

    __slots__ = ()

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the object. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with shielded():
            await self.close()
