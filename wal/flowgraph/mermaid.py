"""The statistics of a flow graph as a Mermaid flowchart. Pure."""

from __future__ import annotations

from typing import Final

from wal.flowgraph.statistics import EdgeStatistics, FlowGraphStatistics, NodeStatistics

__all__ = ["to_mermaid"]

_ESCAPED: Final = str.maketrans({char: f"#{ord(char)};" for char in '#"&<>`\\'} | {"\n": " ", "\r": " "})
"""Mermaid writes a character by its number between `#` and `;`. These end a text, or mean something in one."""


def to_mermaid(statistics: FlowGraphStatistics) -> str:
    """Returns a flowchart with the figures of each node and each edge."""
    ids = {node.name: f"n{number}" for number, node in enumerate(statistics.nodes)}
    lines = ["flowchart LR"]
    lines += [f'    {ids[node.name]}["{_node(node)}"]' for node in statistics.nodes]
    lines += [f'    {ids[edge.source]} -->|"{_edge(edge)}"| {ids[edge.target]}' for edge in statistics.edges]
    return "\n".join(lines) + "\n"


def _node(node: NodeStatistics) -> str:
    parts = [
        node.name.translate(_ESCAPED),
        f"tick {_tick(node.tick)}, {node.active} active, {node.completed} completed",
        f"working {node.working_s:.3f} s, blocked {node.blocked_s:.3f} s",
    ]
    if node.ended:
        parts.append("ended")
    elif node.waits_for:
        parts.append(f"waits for {', '.join(name.translate(_ESCAPED) for name in node.waits_for)}")
    return "<br/>".join(parts)


def _edge(edge: EdgeStatistics) -> str:
    return f"{edge.pending} of {edge.capacity} pending, tick {_tick(edge.tick)}"


def _tick(tick: int | None) -> str:
    return "none" if tick is None else str(tick)
