"""The actor runtime; it knows nothing of logs.

Files:

* clock: the machine's, and one for tests that stands still until told
* errors: What can go wrong between actors
* group: actors that never wait, in one order and one turn
* home_loop: the event loop that a system and everything in it belong to
* inbox: the two lanes of an actor that owns a task
* lanes: what waits for the members of a group, in order
* member: an actor that never waits, and shares the turn of its group
* statistics: What a system says about itself: frozen structs, made when asked for
* system: starts actors and groups, and stops them in reverse order
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
