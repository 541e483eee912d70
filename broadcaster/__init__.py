"""The broadcaster: one message to many vchannels, with resource keys that are held until every one of them acknowledged it.

Files:

* Pure: task, state (its edges), bitmap, lock_table (who holds a key), content, records (bytes in the KV), recovery,
  tombstones, changes; the actor: broadcaster, admission, beginning, course, ending, table (of what is under way),
  prompt (what one frame completes), writer, saver, calls, answers, errands; message, names, results, limits;
  broadcast (what callers have), operator (the seam to a log), registry
"""

from typing import TYPE_CHECKING, Any

from broadcaster.content import Content, CopiesInLog
from broadcaster.limits import BroadcasterLimits, BroadcasterStatistics
from broadcaster.message import BroadcastMessage, BroadcastTask
from broadcaster.operator import AppendOperator
from broadcaster.registry import AppendOperatorType, Registry
from broadcaster.results import BroadcastAppendResult
from broadcaster.state import BroadcastState

if TYPE_CHECKING:
    from broadcaster.broadcast import Broadcast

__distribution__ = "wal-runtime"  # `wal.installation` looks for it: there are other packages of this name

__all__ = [
    "AppendOperator",
    "AppendOperatorType",
    "Broadcast",
    "BroadcastAppendResult",
    "BroadcastMessage",
    "BroadcastState",
    "BroadcastTask",
    "BroadcasterLimits",
    "BroadcasterStatistics",
    "Content",
    "CopiesInLog",
    "Registry",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """`Broadcast`, imported now (PEP 562): of the rest the public calls need the messages alone, until a log is opened."""
        if name == "Broadcast":
            from broadcaster.broadcast import Broadcast

            return Broadcast
        raise AttributeError(f"module 'broadcaster' (of wal-runtime) has no attribute {name!r}")
