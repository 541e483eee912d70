"""Ready-made nodes of a flow graph: sources and sinks over logs and message streams, and functions.

Files:

* batch_msg:        the messages of one tick, on their way between two nodes
* function_node:    calls a function with the messages of each tick
* msg_stream_node:  an input node that consumes a time-ticked message stream
* produce_node:     a sink that produces each tick into a message stream
* scanner_node:     an input node that reads a log
* tick_cutter:      cuts the messages of a log into ticks. Pure
* wal_sink_node:    a sink that writes each tick to a log, exactly once
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wal.flowgraph.nodes.function_node import BatchMsg, FunctionNode
from wal.flowgraph.nodes.scanner_node import ScannerNode
from wal.flowgraph.nodes.wal_sink_node import WalSinkNode, WalSinkStatistics

if TYPE_CHECKING:
    from wal.flowgraph.nodes.stream_nodes import MsgStreamNode, ProduceNode

__all__ = [
    "BatchMsg",
    "FunctionNode",
    "MsgStreamNode",
    "ProduceNode",
    "ScannerNode",
    "WalSinkNode",
    "WalSinkStatistics",
]

_NEED_PROTOBUF = {
    "MsgStreamNode": "wal.flowgraph.nodes.stream_nodes",
    "ProduceNode": "wal.flowgraph.nodes.stream_nodes",
}


def __getattr__(name: str) -> Any:
    """Imports the nodes over message streams when they are first asked for: a graph over logs alone needs no protobuf."""
    if name in _NEED_PROTOBUF:
        return getattr(import_module(_NEED_PROTOBUF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
