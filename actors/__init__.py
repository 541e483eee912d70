"""The actor runtime, independent of logs.

An `ActorSystem` starts actors and groups, and stops them in reverse order. An actor that waits owns a task and an inbox; members that never
wait share the inbox, the order and the turn of their `Group`. An exception that an actor does not handle ends it, and later calls raise
that cause. A system runs on one event loop, with a `Clock` that tests replace by a virtual one.
"""

from actors.actor import Actor, ActorRef
from actors.clock import Clock, SystemClock, Timer, VirtualClock
from actors.errors import ActorError, ActorFailedError, ActorStoppedError, InboxFullError, WrongLoopError
from actors.group import Group, Member
from actors.statistics import ActorStatistics, GroupStatistics, MemberStatistics, SystemStatistics
from actors.system import ActorSystem

__distribution__ = "wal-runtime"  # `wal.runtime.installation` reads it: other packages have this name too

__all__ = [
    "Actor",
    "ActorError",
    "ActorFailedError",
    "ActorRef",
    "ActorStatistics",
    "ActorStoppedError",
    "ActorSystem",
    "Clock",
    "Group",
    "GroupStatistics",
    "InboxFullError",
    "Member",
    "MemberStatistics",
    "SystemClock",
    "SystemStatistics",
    "Timer",
    "VirtualClock",
    "WrongLoopError",
]
