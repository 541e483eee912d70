"""The actor runtime; it knows nothing of logs."""

from actors.actor import Actor, ActorRef
from actors.clock import Clock, SystemClock, Timer, VirtualClock
from actors.errors import ActorError, ActorFailedError, ActorStoppedError, InboxFullError, WrongLoopError
from actors.group import Group
from actors.member import Member
from actors.statistics import ActorStatistics, GroupStatistics, MemberStatistics, SystemStatistics
from actors.system import ActorSystem

__distribution__ = "wal-runtime"  # `wal.siblings` looks for it: there are other packages of this name

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
