"""Committer: the actor that tells one input node what has passed every sink.

It knows the ticks that the node has given, and the sinks that the node leads to. It guarantees one call of `commit` at a time, with
ascending ticks; while one runs, the ticks that pass are collected for the next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from actors import Actor, ActorStoppedError
from wal.flowgraph.context import NodeContext
from wal.flowgraph.errors import NodeFailedError

__all__ = ["Committer"]


class Committer(Actor):
    """Calls `commit` for the input node of `context`, which leads to these sinks."""

    def __init__(
        self,
        context: NodeContext,
        sinks: Sequence[NodeContext],
        commit: Callable[[int], Awaitable[None]],
        failed: Callable[[NodeFailedError], None],
    ) -> None:
        self._context = context
        self._sinks = sinks
        self._commit = commit
        self._failed = failed
        self._tick: int | None = None
        self._told = False
        self._over = False

    def look(self) -> None:
        """Has the ticks committed that have passed every sink since the last look."""
        given = self._context.given
        if not given or self._over:
            return
        ticks = [sink.recorded for sink in self._sinks]
        passed = min((tick for tick in ticks if tick is not None), default=None)
        if passed is None or None in ticks or given[0] > passed:
            return
        while given and given[0] <= passed:
            self._tick = given.popleft()
        if not self._told:
            self._told = True
            self.ref.tell(None)

    async def receive(self, batch: list[Any]) -> None:
        self._told = False
        tick = self._tick
        if tick is None or self._over:
            return
        try:
            committing = self._commit(tick)
            if not isinstance(committing, Awaitable):
                raise TypeError("commit() must be a coroutine function: async def commit(self, tick)")
            await committing
        except Exception as cause:
            self._fail(cause)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        if isinstance(cause, ActorStoppedError):
            cause = TimeoutError(
                "commit() was cancelled, as it did not end within drain_timeout_s after the flow graph"
            )
        self._fail(cause)

    def _fail(self, cause: BaseException) -> None:
        if not self._over:
            self._over = True
            self._failed(NodeFailedError(self._context.node_name, self._tick, cause))
