"""InputAligner: brings the messages of a node's in-edges together by tick. Pure.

Owns the messages that wait for a node. It guarantees that ticks are taken in ascending order, each once; that the messages of one tick are
taken together; and that nothing waits for an edge that has already shown a later tick or has ended. The order is that of the *smallest*
tick: aligning to the largest one would have to drop the inputs below it.
"""

from __future__ import annotations

from collections import deque

from wal.flowgraph.node import Msg, SkipTickMsg


class InputAligner:
    """The in-edges of one node, by index."""

    __slots__ = ("_open", "queues")

    def __init__(self, edges: int) -> None:
        self.queues: list[deque[Msg]] = [deque() for _ in range(edges)]
        """The messages that wait on each edge. Whoever adds one sees to it that ticks ascend."""
        self._open = [True] * edges

    @property
    def ended(self) -> bool:
        """Whether every edge has ended and nothing is left to take."""
        return not any(self._open) and not any(self.queues)

    @property
    def missing(self) -> list[int]:
        """The edges without which the next tick cannot be known: they have not ended, and no message waits on them."""
        return [edge for edge, queue in enumerate(self.queues) if not queue and self._open[edge]]

    def end(self, edge: int) -> None:
        """Says that no more messages come on this edge."""
        self._open[edge] = False

    def take(self) -> tuple[int, list[Msg]] | None:
        """Removes and returns the smallest tick and its messages, one for each edge, a SkipTickMsg where an edge has none.

        Returns None if the next tick is not known yet, or if there is none.
        """
        queues = self.queues
        if len(queues) == 1:
            if not queues[0]:
                return None
            msg = queues[0].popleft()
            return msg.time_tick, [msg]
        tick: int | None = None
        for edge, queue in enumerate(queues):
            if queue:
                first = queue[0].time_tick
                if tick is None or first < tick:
                    tick = first
            elif self._open[edge]:
                return None
        if tick is None:
            return None
        return tick, [queue.popleft() if queue and queue[0].time_tick == tick else SkipTickMsg(tick) for queue in queues]
