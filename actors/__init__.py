"""The actor runtime; it knows nothing of logs.

Files:

* actor:        an actor that waits, and owns a task; its address
* clock:        the clock of the machine, and a virtual clock for tests
* errors:       the errors of actors
* group:        members that share one inbox, one order and one turn
* group_inbox:  the two lanes of a group's inbox
* home_loop:    the event loop that a system and everything in it belong to
* inbox:        the two lanes of the inbox of an actor that owns a task
* member:       an actor that never waits, and shares the turn of its group
* statistics:   the statistics of a system: frozen structs, created on request
* system:       starts actors and groups, and stops them in reverse order
"""

from actors.actor import Actor, ActorRef
from actors.clock import Clock, SystemClock, Timer, VirtualClock
from actors.errors import ActorError, ActorFailedError, ActorStoppedError, InboxFullError, WrongLoopError
from actors.group import Group
from actors.member import Member
from actors.statistics import ActorStatistics, GroupStatistics, MemberStatistics, SystemStatistics
from actors.system import ActorSystem

__distribution__ = "wal-runtime"  # `wal.installation` looks for it: there are other packages of this name

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
