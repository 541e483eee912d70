"""Edge: carries the messages of one node to another, and bounds them.

Owns the credits of the edge: `capacity`, the `max_queue_length` of the node that takes, less the messages that wait there. A credit goes
back when that node takes the message for `operate`. Every edge has credits of its own: if the in-edges of a join shared them, the faster
one would use them all, and the join would wait for the slower one for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from wal.flowgraph.inputs import InputAligner
from wal.flowgraph.msg import Msg

__all__ = ["Edge"]


class Edge:
    """The edge from node `source` to node `target`, whose `inputs` know it by `index`. `wake_source` and `wake_target` wake these nodes."""

    __slots__ = (
        "_index", "_inputs", "_queue", "_wake_source", "_wake_target", "_wanted", "capacity", "source", "target", "tick",
    )  # fmt: skip

    def __init__(
        self,
        source: str,
        target: str,
        *,
        capacity: int,
        inputs: InputAligner,
        index: int,
        wake_source: Callable[[], None],
        wake_target: Callable[[], None],
    ) -> None:
        self.source: str = source
        self.target: str = target
        self.capacity: int = capacity
        self.tick: int | None = None
        """The tick of the last message; None before the first."""
        self._inputs = inputs
        self._index = index
        self._queue: deque[Msg] = inputs.queues[index]
        self._wake_source = wake_source
        self._wake_target = wake_target
        self._wanted = False

    def __repr__(self) -> str:
        return repr(self.target)

    @property
    def pending(self) -> int:
        """The number of messages that wait."""
        return len(self._queue)

    def has_room(self) -> bool:
        """Returns whether there is a credit; if not, the source is woken when there is one."""
        if len(self._queue) < self.capacity:
            return True
        self._wanted = True
        return False

    def put(self, tick: int, msg: Msg) -> None:
        """Adds a message; there must be room."""
        self.tick = tick
        self._queue.append(msg)
        self._wake_target()

    def taken(self) -> None:
        """Says that the target may have taken a message."""
        if self._wanted and len(self._queue) < self.capacity:
            self._wanted = False
            self._wake_source()

    def end(self) -> None:
        """Says that no more messages come."""
        self._inputs.end(self._index)
        self._wake_target()
