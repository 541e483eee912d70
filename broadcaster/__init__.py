"""The broadcaster: sends one message to many vchannels, and holds its resource keys until every one of them acknowledged it.

Files:

* admission:      which broadcasts may begin, which wait for their keys, and the bounds
* arguments:      the checks of the callers' arguments (pure)
* background:     the jobs that the actor awaits outside its inbox
* broadcast:      the calls that a log offers to its users, starting and stopping
* broadcaster:    the actor: its turns, and the calls in its inbox
* calls:          the messages of the inbox, and the errors that callers get
* finished:       the tombstones and done marks of finished broadcasts
* lifecycle:      how a broadcast begins, makes progress and finishes
* lock_table:     which broadcasts hold which resource keys, and which wait for them (pure)
* message:        the data: arguments and results of callers, and the types that cross the seam to the log (pure)
* operator:       the seam to the log
* records:        the bytes in the KV (pure)
* recovery:       the broadcasts that a crash interrupted, from the KV and the logs (pure)
* running:        a running broadcast, the callers that wait for it, and the table of all running broadcasts
* saver:          the saves to the KV, one at a time
* single_frame:   the short path of a broadcast that one frame completes
* state:          the states of a broadcast and their transitions (pure)
* task:           which frames of a broadcast are to be written next (pure)
* writer:         the frames on their way to the log, and their backoffs
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

__distribution__ = "wal-runtime"  # `wal.installation` looks for it: there are other packages of this name

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
