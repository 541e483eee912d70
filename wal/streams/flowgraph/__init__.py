"""The time-ticked flow graph: nodes that work on the messages of one tick after the other, and edges that carry them.

A `TimeTickedFlowGraph` checks the wiring, and runs an actor for each node. The actor takes a tick when all of its in-edges have it, has the
node operate on it, and sends the results on in order. A full edge makes its source wait. When a tick has passed every sink, the graph
commits it at its input node. `wal.streams.flowgraph.nodes` has ready-made nodes; the other files are independent of logs and message
streams.
"""

from wal.streams.flowgraph.graph import TimeTickedFlowGraph
from wal.streams.flowgraph.node import (
    BaseNode,
    EdgeStatistics,
    FlowGraphStates,
    FlowGraphStatistics,
    Msg,
    Node,
    NodeFailedError,
    NodeStatistics,
    Outputs,
    SkipTickMsg,
)

__all__ = [
    "BaseNode",
    "EdgeStatistics",
    "FlowGraphStates",
    "FlowGraphStatistics",
    "Msg",
    "Node",
    "NodeFailedError",
    "NodeStatistics",
    "Outputs",
    "SkipTickMsg",
    "TimeTickedFlowGraph",
]
