"""Group: actors that never wait and that share one inbox, one order and one turn.

Owns the inbox and the turn that drains it. The first message schedules the turn by a single `loop.call_soon`: no task, no coroutine and no
lock per message. Guarantees: messages are handled in the order of the calls of `tell`, across all members. A member that raises is poisoned
alone. A message sent during a turn waits for the next. A group never waits and never restarts a member, and it passes every unhandled
message on (to `poisoned`, or to the caller of `leave`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Self

from actors.clock import Clock, SystemClock, Timer
from actors.errors import ActorFailedError, ActorStoppedError, InboxFullError, WrongLoopError
from actors.statistics import GroupStatistics, MemberStatistics, failure_text


class HomeLoop:
    """The loop that ran when this object was created; `owner` names what belongs to it in error messages."""

    __slots__ = ("loop", "owner")

    def __init__(self, owner: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.owner = owner

    def check(self) -> None:
        """Raises WrongLoopError unless this loop runs in this thread now (about 0.1 µs)."""
        try:
            if asyncio.get_running_loop() is self.loop:
                return
        except RuntimeError:
            pass  # no loop runs here, which is as wrong as another loop
        raise WrongLoopError(
            f"{self.owner} belongs to another event loop: call it there, or hand the call over with loop.call_soon_threadsafe(...)"
        )


class GroupInbox:
    """The two lanes of a group's inbox, with the messages of all members in order.

    Owns the data lane, the control lane, and the part of both that a running turn has yet to deliver. The data lane is stored as runs: a
    list of members beside a list of batches, so that another message to the same member is one append, and a turn is one call for each run.
    Guarantees: the order never changes; no message is lost between the lanes and a turn. Pure: no loop, no clock, no failures.

    `Group` inherits from it instead of owning one: `tell` is the hottest call of the project and would pay for the indirection.

    When a member may no longer be called (a pause, a leave, a failure), `_return_rest` ends a running turn early: the turn's iterators run
    dry, and the next turn continues from there.
    """

    __slots__ = ("_batches", "_control", "_control_turn", "_data_turn", "_inbox_max", "_last", "_name", "_pending", "_run", "_to")

    def __init__(self, name: str, inbox_max: int) -> None:
        if inbox_max < 1:
            raise ValueError(f"inbox_max is {inbox_max}: a group needs room for at least 1 message")
        self._name = name
        self._inbox_max = inbox_max
        self._to: list[Member] = []
        self._batches: list[list[Any]] = []  # _batches[i] is for the member _to[i]
        self._last: Member | None = None  # the member of _run, to which its next message is added; None if that opens a new run
        self._run: list[Any] = []
        self._pending = 0  # messages in _batches
        self._control: list[tuple[Member, Any]] = []
        self._data_turn: Iterator[tuple[Member, list[Any]]] = iter(())
        self._control_turn: Iterator[tuple[Member, Any]] = iter(())

    @property
    def pending(self) -> int:
        """The number of data messages that wait; inside a turn, the number that waits for the next one."""
        return self._pending

    def _take_control(self) -> Iterator[tuple[Member, Any]]:
        """Returns the current control lane for delivery; later messages wait for the next turn."""
        control, self._control = self._control, []
        self._control_turn = turn = iter(control)
        return turn

    def _take_data(self) -> Iterator[tuple[Member, list[Any]]]:
        """Returns the current data lane as runs for delivery."""
        to, batches = self._to, self._batches
        self._to, self._batches, self._last, self._pending = [], [], None, 0
        self._data_turn = turn = zip(to, batches)  # noqa: B905 - equal by construction; strict costs per run
        return turn

    def _return_rest(self) -> None:
        """Puts the messages that the running turn has not delivered back at the front of the lanes, which ends its loops."""
        if control := list(self._control_turn):
            self._control[:0] = control
        if data := list(self._data_turn):
            self._to[:0] = [member for member, _ in data]
            self._batches[:0] = [batch for _, batch in data]
            self._pending += sum(len(batch) for _, batch in data)

    def _take_out(self, member: Member) -> list[Any]:
        """Removes and returns all unhandled messages of the member: control first, then data in order."""
        self._return_rest()
        self._last = None
        removed = [message for to, message in self._control if to is member]
        if removed:
            self._control = [entry for entry in self._control if entry[0] is not member]
        if member in self._to:
            remaining = []
            for to, batch in self._runs():
                if to is member:
                    removed += batch
                    self._pending -= len(batch)
                else:
                    remaining.append((to, batch))
            self._to = [to for to, _ in remaining]
            self._batches = [batch for _, batch in remaining]
        return removed

    def _waiting(self) -> dict[Member, int]:
        """Returns the number of waiting messages of each member that has any; walks the lanes."""
        waiting: dict[Member, int] = {}
        for member, batch in self._runs():
            waiting[member] = waiting.get(member, 0) + len(batch)
        for member, _ in self._control:
            waiting[member] = waiting.get(member, 0) + 1
        return waiting

    def _runs(self) -> Iterable[tuple[Member, list[Any]]]:
        return zip(self._to, self._batches, strict=True)


log = logging.getLogger("actors")

RUNS_A_TURN: Final = 4096
"""The most runs of messages that a turn delivers, so that it ends within some 20 ms however many messages wait, for example in a pause."""


class Group(GroupInbox):
    """A group of members with one ordered inbox. `ActorSystem.group` creates it, inside the event loop that it belongs to.

    `inbox_max` bounds the messages that wait; messages of a running turn are not counted, so memory is bounded by twice that. The control
    lane is for answers and timers, which the number of requests bounds; it has no bound of its own. `on_turn_end` is called once at the end
    of each turn that handled a message; there the group sends one list to the next actor. If it raises, the whole group fails: all its
    members are poisoned with that cause.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Clock | None = None,
        inbox_max: int = 65_536,
        on_turn_end: Callable[[], object] | None = None,
        stop_timeout_s: float = 10.0,
        forget: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(name, inbox_max)
        self._home = HomeLoop(f"group {name!r}")
        self._clock: Clock = clock or SystemClock()
        self.on_turn_end = on_turn_end
        """May be set until the first message."""
        self._stop_timeout_s = stop_timeout_s
        self._forget = forget
        self._members: dict[str, Member] = {}
        self._in_turn = False
        self._scheduled = False  # a turn is scheduled or running
        self._pauses = 0
        self._closing = False
        self._deadline: Timer | None = None
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None
        self._handled = 0
        self._turns = 0
        self._progressed_at = self._clock.monotonic()

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._name

    @property
    def paused(self) -> bool:
        """Adds one message to the inbox.

        Raises InboxFullError over the bound, ActorFailedError if the member failed, and ActorStoppedError if it is not in this group or the
        group is stopping (messages between members in a turn are still accepted then). Raises WrongLoopError if this call would have to
        schedule the turn from another loop.
        """
        return self._pauses > 0

    @property
    def failure(self) -> BaseException | None:
        """The exception that `on_turn_end` raised, or None. Each member has its own: `Member.failure`."""
        return self._failure

    def tell(self, member: Member, message: Any) -> None:
        """Adds one message to the inbox.

        Raises InboxFullError over the bound, ActorFailedError if the member failed, ActorStoppedError if it is not in this group or
        the group is stopping (messages between members in a turn are still accepted then), and WrongLoopError if this call would have to
        schedule the turn from another loop.
        """
        if self._pending >= self._inbox_max:
            self._check(member)
            raise InboxFullError(
                f"the inbox of group {self._name!r} holds {self._pending} of at most {self._inbox_max} messages: wait until it has drained"
            )
        if member is self._last:
            self._run.append(message)
        else:
            if member._group is not self or self._closing:
                self._check(member)
            if not self._scheduled:
                self._arrange()
            self._last = member
            self._run = run = [message]
            self._to.append(member)
            self._batches.append(run)
        self._pending += 1

    def tell_control(self, member: Member, message: Any) -> None:
        """Adds one message to the control lane: the next turn handles it before all data, even if the group is paused or stopping."""
        if member._group is not self:
            self._check(member)
        if not self._scheduled:
            self._arrange(control=True)
        self._control.append((member, message))

    def join(self, member: Member, *, name: str) -> None:
        """Adds a member. A member is in at most one group; its name is unique in the group."""
        if not isinstance(member, Member):
            raise TypeError(f"a group takes members, not {type(member).__name__}: subclass actors.Member")
        self._home.check()
        if self._closing:
            raise self._refusal(member)
        if member._group is not None:
            raise ValueError(f"member {member._name!r} is in group {member._group.name!r}: leave() that one first")
        if member._failure is not None:
            raise ActorFailedError(member._name, member._failure)
        if name in self._members:
            raise ValueError(f"group {self._name!r} has a member {name!r}: choose another name, or let that one leave()")
        member._name = name
        member._group = self
        self._members[name] = member

    def leave(self, member: Member) -> list[Any]:
        """Removes a member, calls its `stopped`, and returns its unhandled messages (control first).

        For a member that failed, this only frees the name.
        """
        self._home.check()
        if self._members.get(member._name) is not member:
            raise ActorStoppedError(f"{member._name or member!r} is not in group {self._name!r}")
        del self._members[member._name]
        if member._failure is not None:
            return []
        waiting = self._take_out(member)
        member._dismiss(self._name)
        return waiting

    def pause(self) -> None:
        """Stops delivery of the data lane; a running turn stops after its current batch. Pauses are counted."""
        self._pauses += 1
        self._return_rest()

    def resume(self) -> None:
        """Undoes one `pause`; after the last one, delivery of the data lane continues."""
        if not self._pauses:
            raise RuntimeError(f"group {self._name!r} is not paused: each resume() belongs to one pause()")
        if self._pauses == 1 and self._batches and not self._scheduled:
            self._home.check()
            self._schedule()
        self._pauses -= 1

    async def stop(self) -> None:
        """Stops accepting data from outside, drains both lanes, and dismisses the members in reverse order of joining.

        After `stop_timeout_s` the group is cut off instead: members with unhandled messages are poisoned with an
        ActorStoppedError. There may be any number of callers; cancelling one does not abort the stop.
        """
        self.stop_nowait()
        await self._ended.wait()

    def stop_nowait(self) -> None:
        """Begins the stop that `stop` waits for."""
        if self._ended.is_set():
            self._forgotten()
            return
        self._home.check()
        if self._closing:
            return
        self._closing = True
        self._last = None
        if not self._scheduled and not self._batches:
            self._end()
        else:
            self._deadline = self._clock.call_later(self._stop_timeout_s, self.cut_off)

    def cut_off(self) -> None:
        """Ends the group now, even with unhandled messages. Idempotent; for the owner of the group."""
        if self._ended.is_set():
            return
        self._return_rest()
        if self._pending or self._control:
            log.warning("group %r was cut off with %d messages waiting", self._name, self._pending + len(self._control))
        self._end()

    def stalled(self, stall_s: float) -> bool:
        """Returns whether a message waits and no message was handled for longer than `stall_s` (usually because of a long pause)."""
        return bool(self._pending or self._control) and self._clock.monotonic() - self._progressed_at > stall_s

    def statistics(self) -> GroupStatistics:
        """Returns the current counts; walks the inbox."""
        waiting = self._waiting()
        return GroupStatistics(
            name=self._name,
            pending=self._pending + len(self._control),
            handled=self._handled,
            turns=self._turns,
            failure=failure_text(self._failure),
            paused=self.paused,
            members=tuple(member._statistics(name, waiting.get(member, 0)) for name, member in self._members.items()),
        )

    def _turn(self) -> None:
        if self._ended.is_set():
            return
        self._in_turn = True
        try:
            if self._hand_out():
                self._turns += 1
                if self.on_turn_end is not None:
                    try:
                        self.on_turn_end()
                    except BaseException as cause:
                        self._fail(cause)
        finally:
            self._return_rest()  # messages remain here only if a signal's exception struck between two calls
            self._in_turn = False
            self._scheduled = False
            self._progressed_at = self._clock.monotonic()
            if self._closing:
                self._last = None  # a message from outside must not join a run that was opened in the turn
            if self._control or (self._batches and not self._pauses):
                self._schedule()
            elif self._closing and not self._batches:
                self._end()

    def _hand_out(self) -> bool:
        """Delivers the current control lane and then the current data lane; returns whether there was a message."""
        if not self._control and (self._pauses or not self._batches):
            return False
        # Both are taken before the first call, so that the messages of the control lane's handlers wait for the next turn as well.
        control, data = self._take_control(), self._take_data() if not self._pauses else ()
        for member, message in control:
            try:
                member.receive_control(message)
            except BaseException as cause:
                self._poison(member, cause, [message])
            else:
                member._handled += 1
                member._turns += 1
                self._handled += 1
        handled = runs = 0
        for member, batch in data:
            size = len(batch)  # before the call: the member may change the list
            try:
                member.receive(batch)
            except BaseException as cause:
                self._handled += handled
                handled = 0
                self._poison(member, cause, batch)
            else:
                member._handled += size
                member._turns += 1
                handled += size
                runs += 1
                if runs == RUNS_A_TURN:
                    break  # the rest is returned, and the next turn continues with it
        self._handled += handled
        return True

    def _poison(self, member: Member, cause: BaseException, in_hand: list[Any]) -> None:
        unhandled = in_hand + self._take_out(member)
        member._failure = cause
        log.error("member %r of group %r failed", member._name, self._name, exc_info=cause)
        member._poison(self._name, cause, unhandled)
        if isinstance(cause, KeyboardInterrupt | SystemExit):
            raise cause

    def _fail(self, cause: BaseException) -> None:
        """Fails the group itself: no member may continue, since the group can no longer pass results on."""
        self._failure = cause
        log.error("group %r failed at the end of a turn", self._name, exc_info=cause)
        for member in list(self._members.values()):
            if member._failure is None:
                unhandled = self._take_out(member)
                member._failure = cause
                member._poison(self._name, cause, unhandled)
        self._closing = True
        if isinstance(cause, KeyboardInterrupt | SystemExit):
            raise cause

    def _end(self) -> None:
        if self._ended.is_set():
            return
        self._ended.set()
        self._closing = True
        if self._deadline is not None:
            self._deadline.cancel()
        for member in reversed(list(self._members.values())):
            if member._failure is not None:
                continue
            if waiting := self._take_out(member):
                member._poison(self._name, self._refusal(member), waiting)
            else:
                member._dismiss(self._name)
        if self._failure is None:
            self._forgotten()

    def _forgotten(self) -> None:
        if self._forget is not None:
            self._forget(self._name)
            self._forget = None

    def _arrange(self, *, control: bool = False) -> None:
        """Schedules a turn before a message is added, if none is scheduled."""
        self._home.check()
        if not self._batches and not self._control:
            self._progressed_at = self._clock.monotonic()
        if control or not self._pauses:
            self._schedule()

    def _schedule(self) -> None:
        self._home.loop.call_soon(self._turn)
        self._scheduled = True

    def _check(self, member: Member) -> None:
        """Raises an error if the member cannot receive a message."""
        if member._group is not self or (self._closing and not self._in_turn):
            raise self._refusal(member)

    def _refusal(self, member: Member) -> Exception:
        if member._failure is not None:
            return ActorFailedError(member._name, member._failure)
        if self._closing:
            return ActorStoppedError(f"group {self._name!r} is stopping or has stopped: {member._name!r} takes no messages")
        return ActorStoppedError(f"{member._name or member!r} is not in group {self._name!r}: join() it first")


class Member:
    """The base class of members, which never wait: subclass it and pass an instance to `Group.join`. Its last call is `stopped` or
    `poisoned`.

    A member owns its state, failure and counters; it has no task, inbox or lock. Only the group calls its methods, one after the other, on
    the group's event loop. A member never blocks and never awaits: work that has to wait belongs in an `Actor`, or answers on the control
    lane with a callback.
    """

    __slots__ = ("_failure", "_group", "_handled", "_name", "_turns")

    _failure: BaseException | None
    _group: Group | None
    _handled: int
    _name: str
    _turns: int

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        # Here and not in __init__: a subclass may forget to call super().__init__(), and tell() must not pay for a check.
        self = super().__new__(cls)
        self._failure = None
        self._group = None
        self._handled = 0
        self._name = ""
        self._turns = 0
        return self

    @property
    def name(self) -> str:
        """The name in its group; empty before `join`."""
        return self._name

    @property
    def failure(self) -> BaseException | None:
        """The exception with which the member failed, or None."""
        return self._failure

    def receive(self, batch: list[Any]) -> None:
        """Handles consecutive messages to this member, in the order of the calls. The member may keep or change the list.

        An exception poisons this member; the other members continue.
        """
        raise TypeError(f"{type(self).__name__} takes no data: implement receive()")

    def receive_control(self, message: Any) -> None:
        """Handles one message of the control lane, which precedes the data and which a pause does not stop."""
        raise TypeError(f"{type(self).__name__} takes no control messages: implement receive_control()")

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Called once when the member failed (or a slow stop cut it off), to fail whatever depends on the unhandled messages.

        `unhandled` has the failing batch (as the member left the list) or control message, then all messages that still waited for it,
        control first. The member may have handled a part of the batch; the group has no record of that.
        """

    def stopped(self) -> None:
        """Called once when the member leaves its group or the group stops, after its last message."""

    def _dismiss(self, group: str) -> None:
        """Ends its membership in order."""
        self._group = None
        try:
            self.stopped()
        except Exception:
            log.exception("stopped() of member %r of group %r raised", self._name, group)

    def _poison(self, group: str, cause: BaseException, unhandled: list[Any]) -> None:
        """Ends its membership with an error."""
        self._group = None
        try:
            self.poisoned(cause, unhandled)
        except Exception:
            log.exception("poisoned() of member %r of group %r raised", self._name, group)

    def _statistics(self, name: str, pending: int) -> MemberStatistics:
        return MemberStatistics(name=name, pending=pending, handled=self._handled, turns=self._turns, failure=failure_text(self._failure))
