"""The statistics of a flow graph: frozen structs, created on request."""

from __future__ import annotations

import msgspec

__all__ = ["EdgeStatistics", "FlowGraphStatistics", "NodeStatistics"]


class NodeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one node does, and how much it has done."""

    name: str
    tick: int | None
    """The last tick whose results were handed on; None before the first."""
    active: int
    """The ticks that it works on."""
    completed: int
    """The ticks that it has worked on and whose results were handed on. Ticks at which all inputs skip are not counted."""
    working_s: float
    """The seconds that its calls of `operate` took, from call to result, all added up: two calls at once count twice."""
    blocked_s: float
    """The seconds for which a result waited for room on an out-edge."""
    waits_for: tuple[str, ...]
    """The nodes that it waits for: those after it whose queues are full, or those before it whose next tick it needs.

    While it works, what `operate` waits for, if the node says so (`BaseNode.waits_for`). Empty when it has ended.
    """
    ended: bool
    """Whether it takes nothing more."""


class EdgeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What is on the way from one node to another."""

    source: str
    target: str
    pending: int
    """The messages that wait for the target."""
    capacity: int
    """The highest value of `pending`: the `max_queue_length` of the target."""
    tick: int | None
    """The tick of the last message that the source handed on; None before the first."""


class FlowGraphStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes in the order of `add_node`, and all edges in the order of the nodes they come from."""

    nodes: tuple[NodeStatistics, ...]
    edges: tuple[EdgeStatistics, ...]
