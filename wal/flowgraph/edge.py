"""Edge: carries the messages of one node to another, and bounds them.

Owns the credits of the edge: `capacity`, the `max_queue_length` of the node that takes, less the messages that wait there. A credit goes
back when that node takes the message for `operate`. Every edge has credits of its own: if the in-edges of a join shared them, the faster
one would use them all, and the join would wait for the slower one for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from wal.flowgraph.inputs import InputAligner
from wal.flowgraph.msg import Msg

__all__ = ["Edge"]


class Edge:
    """The edge from node `source` to node `target`, whose `inputs` know it by `index`. `wake_source` and `wake_target` wake these nodes."""

    __slots__ = ("_index", "_inputs", "_wake_source", "_wake_target", "_wanted", "capacity", "source", "target", "tick")

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
        self._wake_source = wake_source
        self._wake_target = wake_target
        self._wanted = False

    @property
    def pending(self) -> int:
        """The number of messages that wait."""
        return self._inputs.pending(self._index)

    @property
    def full(self) -> bool:
        """Whether there is no room for a message."""
        return self._inputs.pending(self._index) >= self.capacity

    def want_room(self) -> None:
        """Asks for a wake-up of the source when the target takes the next message."""
        self._wanted = True

    def put(self, msg: Msg) -> None:
        """Adds a message; there must be room."""
        self.tick = msg.time_tick
        self._inputs.put(self._index, msg)
        self._wake_target()

    def taken(self) -> None:
        """Says that the target may have taken a message."""
        if self._wanted and not self.full:
            self._wanted = False
            self._wake_source()

    def end(self) -> None:
        """Says that no more messages come."""
        self._inputs.end(self._index)
        self._wake_target()
