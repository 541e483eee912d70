"""Ready-made nodes of a flow graph: sources and sinks over logs and message streams, and functions.

The nodes exchange `BatchMsg`s, each with the messages of one tick. A `ScannerNode` cuts a log into ticks. A `WalSinkNode` writes each tick
into a log exactly once, also when a graph that was killed replays it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wal.streams.flowgraph.nodes.function_node import BatchMsg, FunctionNode
from wal.streams.flowgraph.nodes.scanner_node import ScannerNode
from wal.streams.flowgraph.nodes.wal_sink_node import WalSinkNode, WalSinkStatistics

if TYPE_CHECKING:
    from wal.streams.flowgraph.nodes.stream_nodes import MsgStreamNode, ProduceNode

__all__ = ["BatchMsg", "FunctionNode", "MsgStreamNode", "ProduceNode", "ScannerNode", "WalSinkNode", "WalSinkStatistics"]

_NEED_PROTOBUF = {"MsgStreamNode": "wal.streams.flowgraph.nodes.stream_nodes", "ProduceNode": "wal.streams.flowgraph.nodes.stream_nodes"}


def __getattr__(name: str) -> Any:
    """Imports the nodes over message streams at their first use: a graph over logs alone needs no protobuf."""
    if name in _NEED_PROTOBUF:
        return getattr(import_module(_NEED_PROTOBUF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
