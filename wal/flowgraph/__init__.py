"""The time-ticked flow graph: nodes that work on the messages of one tick after the other, and edges that carry them.

Files:

* errors:  the error of a graph that has failed
* msg:     a message of one tick, and the message that says that a tick has none
* node:    what a graph must know of a node, and a base class of nodes
* states:  where a graph began, and the counts of its nodes
"""

from wal.flowgraph.errors import NodeFailedError
from wal.flowgraph.msg import Msg, SkipTickMsg
from wal.flowgraph.node import BaseNode, Node, Outputs
from wal.flowgraph.states import FlowGraphStates

__all__ = ["BaseNode", "FlowGraphStates", "Msg", "Node", "NodeFailedError", "Outputs", "SkipTickMsg"]
