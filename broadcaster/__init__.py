"""The broadcaster: one message to many vchannels, with resource keys that are held until every one of them acknowledged it."""

import wal  # noqa: F401 - first, so that whichever of the two packages is imported first finds the other one whole

# isort: split
from broadcaster.broadcast import Broadcast
from broadcaster.content import Content, CopiesInLog
from broadcaster.limits import BroadcasterLimits, BroadcasterStatistics
from broadcaster.message import BroadcastMessage, BroadcastTask
from broadcaster.operator import AppendOperator
from broadcaster.registry import AppendOperatorType, Registry
from broadcaster.results import BroadcastAppendResult
from broadcaster.state import BroadcastState

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
