"""Work: one tick that a node works on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from wal.flowgraph.msg import Msg
from wal.flowgraph.node import Outputs

__all__ = ["Work"]


class Work:
    """One tick, from its call of `operate` until the results are handed on."""

    __slots__ = ("awaitable", "began", "done", "error", "limit", "outputs", "routed", "skipped", "stopped", "tick")

    def __init__(self, tick: int) -> None:
        self.tick: int = tick
        """The tick; of an input node the last one, until it has given the next."""
        self.began: float = 0.0
        self.awaitable: Awaitable[Outputs]
        """The call, if it waits."""
        self.limit: asyncio.Timeout | None = None
        """What stops the call of an input node that waits."""
        self.stopped: bool = False
        """Whether the call of an input node was stopped."""
        self.skipped: bool = False
        """Whether all inputs skip, so that there is no call."""
        self.done: bool = False
        self.outputs: Outputs = None
        self.error: BaseException | None = None
        self.routed: list[Msg] | None = None
        """The message for each out-edge."""
