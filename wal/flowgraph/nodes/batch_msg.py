"""BatchMsg: the messages of one tick, on their way from one node to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from wal.flowgraph.msg import Msg, SkipTickMsg

__all__ = ["BatchMsg", "batch_of"]


class BatchMsg(msgspec.Struct, frozen=True):
    """The messages of one tick, in order; it may have none, and then it says how far the time has come.

    Nodes on several branches get the same sequence, so none changes it. `MsgStreamNode` sends `TsMsg`s, `ScannerNode` sends
    `ImmutableMessage`s, and a `FunctionNode` sends what its function returned.
    """

    time_tick: int
    messages: Sequence[Any]
    down_stream_node_idx: int = -1

    @property
    def skip_this_tick(self) -> bool:
        """Always False."""
        return False


def batch_of(msg: Msg, node: str) -> Sequence[Any]:
    """Returns the messages in what a node got on an in-edge, none for a SkipTickMsg. Raises TypeError for another kind of Msg."""
    if isinstance(msg, BatchMsg):
        return msg.messages
    if isinstance(msg, SkipTickMsg):
        return ()
    raise TypeError(
        f"node {node!r} takes BatchMsg, not {type(msg).__name__}: have the node before it send BatchMsg(tick, messages)"
    )
