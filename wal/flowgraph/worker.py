"""Worker: the actor that awaits the calls of `operate` that wait, one at a time.

A node has as many as its `max_parallelism`, created when they are needed. After a call the worker has the node continue, and awaits the
next call if there is one, without a detour over the inbox.
"""

from __future__ import annotations

import asyncio
from typing import Any

from actors import Actor
from wal.flowgraph.context import NodeContext
from wal.flowgraph.node import Outputs
from wal.flowgraph.work import Work

__all__ = ["Worker"]


class Worker(Actor):
    """Awaits the calls of the node of `context`."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._work: Work | None = None

    async def receive(self, batch: list[Any]) -> None:
        context = self._context
        while (work := context.next_call()) is not None:
            self._work = work
            try:
                outputs = await (self._input(work) if context.may_cancel else work.awaitable)
            except asyncio.CancelledError as cause:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the worker is cut off; else `operate` has awaited something that was cancelled
                context.finish(work, None, cause)
            except Exception as cause:
                context.finish(work, None, cause)
            else:
                context.finish(work, outputs, None)
            self._work = None
        context.rest(self.call)

    def call(self) -> None:
        """Wakes it."""
        self.ref.tell(None)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        if self._work is not None:
            self._context.finish(self._work, None, cause)
        self._context.poisoned(cause, [])

    async def _input(self, work: Work) -> Outputs:
        """Awaits a call of an input node, which may be stopped; it gives nothing then."""
        try:
            async with asyncio.timeout(0.0 if self._context.stopping else None) as limit:
                work.limit = limit
                return await work.awaitable
        except TimeoutError:
            if not limit.expired():
                raise
            work.stopped = True
            return None
        finally:
            work.limit = None
