"""The time-ticked flow graph: nodes that work on the messages of one tick after the other, and edges that carry them.

`wal.flowgraph.nodes` has ready-made nodes; nothing else here knows logs or message streams.

Files:

* committer:   the actor that tells an input node what has passed every sink
* context:     the actor of a node: takes ticks, has the node operate on them, hands the results on
* edge:        what carries the messages of one node to another, and bounds them
* errors:      the error of a graph that has failed
* graph:       TimeTickedFlowGraph, the calls
* inputs:      brings the messages of the in-edges together by tick. Pure
* mermaid:     the statistics as a flowchart. Pure
* msg:         a message of one tick, and the message that says that a tick has none
* node:        what a graph must know of a node, and a base class of nodes
* routing:     the way of results to the out-edges. Pure
* states:      where a graph began, and the counts of its nodes
* statistics:  what every node and every edge does
* wiring:      checks which edges there are. Pure
* work:        one tick that a node works on
* worker:      the actor that awaits the calls of a node that wait
"""

from wal.flowgraph.graph import TimeTickedFlowGraph
from wal.flowgraph.node import (
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
