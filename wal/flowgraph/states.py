"""FlowGraphStates: where a graph began, and how many ticks its nodes work on and have completed."""

from __future__ import annotations

import msgspec

__all__ = ["FlowGraphStates"]


class FlowGraphStates(msgspec.Struct, kw_only=True):
    """The states of one graph, which every node is given before the start. The graph changes them; nodes only read them."""

    start_tick: int = 0
    """The lowest tick that the graph takes from an input node."""
    num_active_tasks: dict[str, int] = {}
    """By node, the ticks that it works on now."""
    num_completed_tasks: dict[str, int] = {}
    """By node, the ticks that it has worked on and whose results were handed on."""
