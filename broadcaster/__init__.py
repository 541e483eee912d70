"""The broadcaster: sends one message to many vchannels, and keeps its resource keys until every vchannel has acknowledged it.

`Broadcast` has the calls; each is a message to the `Broadcaster` actor, which owns all state and uses the log through its `AppendOperator`
only. Admission lets a broadcast begin when the lock table gives it its keys. Its `Task`, a pure table, decides which copies are written
next. The lifecycle writes them, saves each step in the KV before it counts, and answers the callers. After a crash the broadcasts are
rebuilt from the records in the KV and the copies in the logs, and completed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from broadcaster.message import (
    BroadcastAppendResult,
    BroadcasterStatistics,
    BroadcastMessage,
    BroadcastState,
    BroadcastTask,
    Content,
    CopiesInLog,
)

if TYPE_CHECKING:
    from broadcaster.admission import BroadcasterLimits
    from broadcaster.broadcast import Broadcast
    from broadcaster.operator import AppendOperator

__distribution__ = "wal-runtime"  # `wal.runtime.installation` reads it: other packages have this name too

__all__ = [
    "AppendOperator",
    "Broadcast",
    "BroadcastAppendResult",
    "BroadcastMessage",
    "BroadcastState",
    "BroadcastTask",
    "BroadcasterLimits",
    "BroadcasterStatistics",
    "Content",
    "CopiesInLog",
]

_LATER: Final = {"AppendOperator": "operator", "Broadcast": "broadcast", "BroadcasterLimits": "admission"}
"""The names that only an opened log needs, each with its file."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports a name when it is first used (PEP 562): until a log is opened, the public calls need only the messages."""
        if name not in _LATER:
            raise AttributeError(f"module 'broadcaster' (of wal-runtime) has no attribute {name!r}")
        return getattr(import_module(f"broadcaster.{_LATER[name]}"), name)
