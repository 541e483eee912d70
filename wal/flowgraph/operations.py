"""Operations: the calls of `operate` that wait, of all nodes of a graph.

Owns their tasks, and the threads of nodes that run in one. Every task ends before the graph does: by itself, or because it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from wal.flowgraph.msg import Msg
from wal.flowgraph.node import Outputs

__all__ = ["Operations", "Waiting"]

Waiting: TypeAlias = asyncio.Future[Outputs]


class Operations:
    """The operations that run in tasks or threads. `idle` is called when the last of them has ended."""

    def __init__(self, idle: Callable[[], None]) -> None:
        self._idle = idle
        self._executor: ThreadPoolExecutor | None = None
        self._running: set[Waiting] = set()

    @property
    def running(self) -> int:
        """The number of operations that have not ended."""
        return len(self._running)

    def __contains__(self, task: object) -> bool:
        return task in self._running

    def reserve_threads(self, count: int) -> None:
        """Says how many operations may run in threads at once."""
        if count:
            self._executor = ThreadPoolExecutor(count, thread_name_prefix="flow graph")

    def in_thread(self, operate: Callable[[list[Msg]], Outputs], msgs: list[Msg]) -> Waiting:
        """Runs a call in a thread."""
        assert self._executor is not None
        return asyncio.get_running_loop().run_in_executor(self._executor, operate, msgs)

    def start(self, result: Awaitable[Outputs], ended: Callable[[Waiting], None]) -> Waiting:
        """Awaits a result, in a task of its own if it is a coroutine, and then calls `ended`."""
        waiting: Waiting = asyncio.ensure_future(result)
        self._running.add(waiting)
        waiting.add_done_callback(ended)
        waiting.add_done_callback(self._end)
        return waiting

    async def close(self) -> None:
        """Cancels what still runs, and waits for its end. A thread cannot be cancelled: it goes on, and its result is dropped."""
        while self._running:
            for waiting in self._running:
                waiting.cancel()
            await asyncio.wait(self._running)
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def _end(self, waiting: Waiting) -> None:
        self._running.discard(waiting)
        if not self._running:
            self._idle()
