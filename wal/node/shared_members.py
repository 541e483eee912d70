"""SharedMembers: the members of one shared cursor at its home, and what each of them has.

Members in this process live and die with it. A member over the network is lost when its lease has ended, or when its connection has ended,
which cancels the `KeepMember` that it always has under way, and it does not come back within `GRACE_S`. Its messages are suspect then (see
`wal/consumers/table.py`), and its later reports are refused, since its hand-outs have left the list. Members with one
connection are one process, and those of clients without a session are another one (`UNNAMED`). Suspects are given only to a process that
has nothing else, so that its death shows which message it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from actors import Clock, Timer
from wal.consumers.delivery import Delivery, Outputs
from wal.consumers.lifecycle import ConsumerCounts
from wal.consumers.options import ConsumerOptions
from wal.consumers.plan import RELEASED, Dead, Failed, Outcome
from wal.consumers.table import Deliveries
from wal.errors import HandlerFailedError, InvalidArgumentError, ResourceAcquiredError
from wal.message import Message
from wal.read.cursors.cursor import CursorKey
from wal.requests.rights import calling_client, is_served
from wal.requests.work import CursorMember, JoinCursor, MemberRequest, SettleWork, TakeWork, WorkTerms, WorkUnit
from wal.write.txn_table import BODY_OVERHEAD

GRACE_S: Final = 1.0
"""The time that a member has to come back after its connection has ended."""
LOOK_S: Final = 0.1
"""The interval at which the leases of members are checked."""
RATE_S: Final = 5.0
"""The time over which the rate of a member is measured."""
UNNAMED: Final = "unnamed"
"""The client of all members over the network whose calls have no session: together they count as one process."""
_HAND_OUTS: Final = 32
"""The bits of a hand-out's number below those of the claim."""
_log: Final = logging.getLogger("wal.consumers")


def not_a_member(key: CursorKey) -> ResourceAcquiredError:
    """Returns the error of a consumer that has lost its messages, or whose home has ended: it joins again."""
    return ResourceAcquiredError(
        f"the consumer is not among the members that share {key} any more: what it had is handed out again, so join again", keys=(key.name,)
    )


class _Ask(msgspec.Struct):
    """A member that waits for work."""

    answer: asyncio.Future[tuple[WorkUnit, ...]]
    room: int
    size: int
    units: list[WorkUnit] = []


class _Member:
    """A member and its messages."""

    def __init__(self, request: JoinCursor, client: str, joined_at: datetime) -> None:
        self.process: str = request.process
        self.joined_at: datetime = joined_at
        self.id: bytes = request.member
        self.client: str = client
        self.concurrency: int = request.concurrency
        self.batch: int = request.batch
        self.lease_s: float = request.lease_ms / 1000
        self.until_s: float = 0.0
        """When its lease ends, in monotonic time; a member of this process has no lease."""
        self.polls: int = 0
        """Its `KeepMember` requests under way."""
        self.hand: dict[int, Delivery] = {}
        self.issued: int = 0
        """The number of its last hand-out."""
        self.answer: tuple[WorkUnit, ...] = ()
        """Its last work, which comes again if it did not arrive."""
        self.ask: _Ask | None = None
        self.settlements: int = 0
        self.settled: asyncio.Future[int] | None = None
        """The outcome of its last settlement."""
        self.handled: int = 0
        self.marks: deque[tuple[float, int]] = deque()
        """Times, and what it had handled then."""

    @property
    def domain(self) -> str:
        """The process of the member: all that it has is lost together."""
        return self.client

    def rate(self, now: float) -> float:
        while len(self.marks) > 1 and self.marks[0][0] < now - RATE_S:
            self.marks.popleft()
        if not self.marks:
            return 0.0
        at, handled = self.marks[0]
        return (self.handled - handled) / max(now - at, 0.001)


class SharedMembers:
    """The members of a shared cursor, in the place of the handlers of its session; see `wal.consumers.lifecycle.HandlesBodies`."""

    def __init__(
        self,
        options: ConsumerOptions,
        terms: WorkTerms,
        table: Deliveries,
        fence: int,
        clock: Clock,
        counts: ConsumerCounts,
        *,
        report: Callable[[], None],
        hurry: Callable[[], None],
        left: Callable[[], None],
    ) -> None:
        self.fence: int = fence
        self.unsaved: bool = False
        self.has_outputs: bool = False
        self.gather_max: int = options.plan.page // 2
        self.dead: deque[Dead] = deque()
        self.exhausted: HandlerFailedError | None = None
        self._options = options
        self._terms = terms
        self._table = table
        self._clock = clock
        self._counts = counts
        self._report = report
        self._hurry = hurry
        self._left = left
        self._members: dict[bytes, _Member] = {}
        self._number = fence << _HAND_OUTS
        self._suspected: set[str] = set()
        """The domains that have suspects, and get nothing else."""
        self._clearing: tuple[str, float] | None = None
        """The domain that gets nothing, so that it can get suspects, and until when."""
        self._ended = 0
        """The bodies that members have handled, …"""
        self._durable = 0
        """… and those of them that are finished durably."""
        self._waiters: deque[tuple[int, asyncio.Future[int], int]] = deque()
        self._timer: Timer | None = None
        self._looks_at_s = 0.0
        """When the leases are to be checked next."""
        self._over = False
        self.trip: int = 0
        """The number of trips, …"""
        self.tripped: str = ""
        """… and the error of the last one, until a member resumes."""
        self.tripped_at: datetime | None = None
        self._exhausted = 0
        """The settled messages in a row, of all members, that were out of attempts or undecodable."""
        self._trip_changed = asyncio.Event()

    # -- for the session

    @property
    def running(self) -> int:
        """The bodies that members have."""
        return sum(len(member.hand) for member in self._members.values())

    @property
    def is_starved(self) -> bool:
        """Whether a member waits, and nothing may run."""
        return not self._table.startable and any(member.ask is not None for member in self._members.values())

    def flush(self) -> None:
        """Nothing is left to flush: members settle what has ended."""

    def pause(self, *, paused: bool) -> None:
        """Serves waiting members, unless the session ends."""
        if not paused:
            self.wake()

    def runs(self, _task: asyncio.Task[Any] | None) -> bool:
        """No handler runs in this process."""
        return False

    async def drain(self, timeout_s: float) -> list[asyncio.Future[Any]]:
        """Releases what members have: they settle nothing any more."""
        self._over = True
        for member in self._members.values():
            self._release(member)
        return []

    def release_threads(self) -> None:
        """No thread runs here."""

    def failed(self, delivery: Delivery, attempts: int, reason: str) -> BaseException:
        """Returns the error of a session that cannot handle a message; no session of a shared cursor has it."""
        return ResourceAcquiredError(f"{delivery.message.message_id} after {attempts} attempts: {reason}")

    def add_output(self, message: Message, outputs: Outputs | None, *, is_letter: bool = False, due_ms: int | None = None) -> Outputs:
        """Adds an output to those of one message."""
        outputs = Outputs([]) if outputs is None else outputs
        outputs.messages.append(message)
        outputs.size += message.estimate_size() + BODY_OVERHEAD
        self.has_outputs = True
        return outputs

    def extend(self, delivery: Delivery, seconds: float) -> None:
        """Deadlines are with the members."""

    def has_ended(self, delivery: Delivery) -> bool:
        """Returns whether no member has the delivery any longer."""
        return self._table.has_ended(delivery)

    def committed(self, count: int) -> None:
        """Answers the settlements whose bodies are finished durably by now."""
        self._durable += count
        while self._waiters and self._waiters[0][0] <= self._durable:
            _, answer, accepted = self._waiters.popleft()
            if not answer.done():
                answer.set_result(accepted)

    def end(self) -> None:
        """Refuses everything from now on: the session has ended."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        lost = not_a_member(self._options.cursor)
        for member in self._members.values():
            if member.ask is not None and not member.ask.answer.done():
                member.ask.answer.set_exception(lost)
        self._members.clear()
        while self._waiters:
            _, answer, _ = self._waiters.popleft()
            if not answer.done():
                answer.set_exception(lost)
                answer.exception()

    # -- members

    def join(self, request: JoinCursor) -> int:
        """Adds a member, and returns the number of the claim."""
        if request.terms != self._terms:
            raise InvalidArgumentError(
                f"the members that share {request.key} have {self._terms}, and this consumer has {request.terms}: give all members the "
                "same options, or close the others before"
            )
        client = calling_client() or (UNNAMED if is_served() else "")
        member = self._members.get(request.member)
        if member is None:
            member = self._members[request.member] = _Member(request, client, self._now())
            member.marks.append((self._clock.monotonic(), 0))
            if request.tripped and not self.tripped:
                self._trip(request.tripped)
            self._fit()
        if client:
            self._table.apart = True
            self._renew(member)
            self._watch()
        return self.fence

    def of(self, request: MemberRequest[Any]) -> _Member:
        """Returns the member that sent a request, and renews its lease. Raises ResourceAcquiredError if it was lost."""
        member = self._members.get(request.member)
        if member is None or self._over:
            raise not_a_member(request.key)
        member.client = calling_client() or member.client
        self._renew(member)
        return member

    def leave(self, member_id: bytes) -> None:
        """Removes a member, and releases its messages."""
        member = self._members.pop(member_id, None)
        if member is not None:
            self._release(member)
            self._gone(member)

    def listed(self) -> tuple[CursorMember, ...]:
        """Returns the members, in the order in which they joined."""
        now = self._clock.monotonic()
        return tuple(
            CursorMember(
                member.id.hex()[:8],
                member.client,
                len(member.hand),
                member.handled,
                member.rate(now),
                member.process,
                member.joined_at,
                max(0.0, member.until_s - now) if member.client else None,
            )
            for member in self._members.values()
        )

    @contextlib.contextmanager
    def present(self, member: _Member) -> Iterator[None]:
        """A block that serves a request of a member which its connection would cancel."""
        member.polls += 1
        try:
            yield
        except asyncio.CancelledError:
            if member.polls == 1 and member.client:
                member.until_s = min(member.until_s, self._clock.monotonic() + GRACE_S)
            raise
        finally:
            member.polls -= 1

    def _renew(self, member: _Member) -> None:
        member.until_s = self._clock.monotonic() + member.lease_s

    def _watch(self) -> None:
        if self._timer is None and not self._over:
            self._looks_at_s = self._clock.monotonic() + LOOK_S
            self._timer = self._clock.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Removes the members whose leases have ended."""
        self._timer = None
        now = self._clock.monotonic()
        if (late_s := now - self._looks_at_s) > LOOK_S:  # this process was stopped, or busy: requests of members wait in its sockets
            for member in self._members.values():
                member.until_s += late_s
        lost = [member for member in self._members.values() if member.client and member.until_s <= now]
        for domain in {member.domain for member in lost}:
            members = [member for member in lost if member.domain == domain]
            work = [delivery for member in members for delivery in member.hand.values()]
            for member in members:
                del self._members[member.id]
                member.hand.clear()
                _log.warning(
                    "a member of %s at %s is lost, and what it had is handed out again",
                    self._options.cursor,
                    member.client,
                    extra={"wal_event": "member lost", "wal_cursor": self._options.cursor.name},
                )
            if work:
                self._table.lose(work, asyncio.get_running_loop().time())
                self._changed()
            for member in members:
                self._gone(member)
        if any(member.client for member in self._members.values()):
            self._watch()

    def _gone(self, member: _Member) -> None:
        """Takes note of a member that is not in the list any more."""
        if member.ask is not None and not member.ask.answer.done():
            member.ask.answer.set_exception(not_a_member(self._options.cursor))
        self._settle_domain(member.domain)
        if not self._members:
            self._left()
        else:
            self._fit()
            self.wake()

    def _fit(self) -> None:
        """Adapts the plan to the members that there are."""
        plan = self._table.plan
        concurrency = sum(member.concurrency for member in self._members.values())
        batch = max(member.batch for member in self._members.values())
        self._table.plan = msgspec.structs.replace(plan, concurrency=concurrency, batch=batch)
        self.gather_max = self._table.plan.page // 2

    def _release(self, member: _Member) -> None:
        """Releases what a member has, which counts no attempt."""
        work = list(member.hand.values())
        member.hand.clear()
        if work:
            self._table.settle(work, [RELEASED] * len(work), asyncio.get_running_loop().time())
            self._changed()

    def _changed(self) -> None:
        self.unsaved = True
        self._report()
        self._hurry()

    # -- handing out

    async def take(self, member: _Member, request: TakeWork) -> tuple[WorkUnit, ...]:
        """Returns the work that a member did not get, or new work as soon as there is any; empty when it has waited."""
        if request.after < member.issued:
            return tuple(unit for unit in member.answer if unit.first > request.after)
        if member.ask is not None and not member.ask.answer.done():  # of a request that was given up
            member.ask.answer.set_result(())
        ask = member.ask = _Ask(asyncio.get_running_loop().create_future(), request.room, request.size, [])
        self.wake()
        if not ask.answer.done():
            self._hurry()
            self._report()
        try:
            async with asyncio.timeout(request.wait_ms / 1000):
                return await ask.answer
        except TimeoutError:
            return ask.answer.result() if ask.answer.done() and not ask.answer.cancelled() else ()
        finally:
            if member.ask is ask:
                member.ask = None

    def wake(self) -> None:
        """Gives what may run to the members that wait, a unit to each in turn."""
        if self._over or self.tripped:
            return
        waiting = deque(member for member in self._members.values() if member.ask is not None and not member.ask.answer.done())
        served: dict[bytes, _Member] = {}
        while waiting and (self._table.startable or self._table.has_suspects):
            member = waiting.popleft()
            ask = member.ask
            assert ask is not None
            units = self._next(member, ask)
            for work in units:
                ask.room -= len(work)
                ask.units.append(self._unit(member, work))
            if units:
                served[member.id] = member
                if ask.room > 0:
                    waiting.append(member)
        for member in served.values():
            assert member.ask is not None
            member.answer = tuple(member.ask.units)
            member.ask.answer.set_result(member.answer)

    def _next(self, member: _Member, ask: _Ask) -> list[list[Delivery]]:
        """Returns units for a member, none if nothing is for it now."""
        table, domain = self._table, member.domain
        if domain in self._suspected:
            return []
        if table.has_suspects:
            if not any(other.hand for other in self._members.values() if other.domain == domain):
                if units := table.start_suspects(min(ask.room, member.concurrency * member.batch)):
                    self._clearing = None
                    self._suspected.add(domain)
                    ask.room = sum(map(len, units))
                    return units
            elif self._is_clearing(domain):
                return []
        size = min(ask.room, ask.size)
        work = table.start(size, one_lane=member.batch == 1)
        return [work] if work else []

    def _is_clearing(self, domain: str) -> bool:
        """Returns whether a process gets nothing, so that it can get suspects soon. Another one is chosen if that takes long."""
        now = self._clock.monotonic()
        if self._clearing is None or self._clearing[1] <= now:
            self._clearing = domain, now + GRACE_S
        return self._clearing[0] == domain

    def _unit(self, member: _Member, work: Sequence[Delivery]) -> WorkUnit:
        first = self._number + 1
        for delivery in work:
            self._number += 1
            member.hand[self._number] = delivery
        member.issued = self._number
        self._counts.retried += sum([delivery.attempt > 1 for delivery in work])
        return WorkUnit(first, tuple([delivery.message for delivery in work]), tuple([delivery.attempt for delivery in work]))

    # -- settling

    async def settle(self, member: _Member, request: SettleWork) -> int:
        """Settles hand-outs; returns when the commit with their outputs is durable."""
        if request.number <= member.settlements:
            if request.number < member.settlements or member.settled is None:
                raise InvalidArgumentError(
                    f"settlement {request.number} of the member came after {member.settlements}: number them in order"
                )
            return await asyncio.shield(member.settled)
        answer = member.settled = asyncio.get_running_loop().create_future()
        member.settlements = request.number
        accepted = self._settle(member, request)
        self._count_exhausted(request)
        member.handled += accepted
        dead = min(request.dead, accepted)
        self._counts.handled += accepted - dead
        self._counts.failed += dead
        self._counts.dead_lettered += dead
        now = self._clock.monotonic()
        if now - member.marks[-1][0] > RATE_S / 10:
            member.marks.append((now, member.handled))
        if self._ended <= self._durable:
            answer.set_result(accepted)
        else:
            self._waiters.append((self._ended, answer, accepted))
        return await asyncio.shield(answer)

    def _settle(self, member: _Member, request: SettleWork) -> int:
        hand, table, now = member.hand, self._table, asyncio.get_running_loop().time()
        handled: list[Delivery] = []
        outputs = iter(request.outputs)
        counts = request.output_counts or [0] * len(request.handled)
        for number, count in zip(request.handled, counts, strict=True):
            delivery = hand.pop(number, None)
            own = [next(outputs) for _ in range(count)]
            if delivery is None:
                continue
            delivery._outputs = None
            for message in own:
                delivery._outputs = self.add_output(message, delivery._outputs)
            handled.append(delivery)
        if handled:
            before = table.ended_count
            table.settle(handled, [None] * len(handled), now)
            self._ended += len(handled)
            if not before or before < self.gather_max <= before + len(handled):
                self._report()
        work: list[Delivery] = []
        outcomes: list[Outcome] = []
        for failed in request.failed:
            if (delivery := hand.pop(failed.number, None)) is not None:
                work.append(delivery)
                last = delivery.attempt >= self._terms.attempts  # its member would have written a dead letter
                outcomes.append(RELEASED if last else Failed("", failed.delay_s))
                self._counts.failed += 1
        for number in (*request.restarted, *request.released):
            if (delivery := hand.pop(number, None)) is not None:
                if number in request.restarted:
                    table.start_over(delivery)
                work.append(delivery)
                outcomes.append(RELEASED)
        if work:
            lanes = {
                delivery._lane
                for delivery, outcome in zip(work, outcomes, strict=True)
                if delivery._lane is not None and (outcome is RELEASED or self._terms.blocks)
            }
            table.settle(work, outcomes, now)
            if lanes:  # the rest of the lane was released with it
                for number, delivery in list(hand.items()):
                    if delivery._lane in lanes:
                        del hand[number]
            self._changed()
        self._settle_domain(member.domain)
        self.wake()
        return len(handled)

    # -- tripping

    async def next_trip(self, trip: int) -> bool:
        """Returns False when the members trip or resume, at once if this trip is not the last one."""
        if trip == self.trip or not self.tripped:
            await self._trip_changed.wait()
        return False

    def resume(self, trip: int) -> None:
        """Ends a trip, unless there was a later one."""
        if self.tripped and trip == self.trip:
            self.tripped, self.tripped_at = "", None
            self._exhausted = 0
            self._set_trip_changed()
            self.wake()

    def _count_exhausted(self, request: SettleWork) -> None:
        """Counts messages in a row that are out of attempts or undecodable, over all members, which trip together."""
        others = len(request.handled) > request.exhausted
        self._exhausted = request.exhausted if others else self._exhausted + request.exhausted
        if self._terms.trip_after and self._exhausted >= self._terms.trip_after and not self.tripped:
            self._trip(request.exhausted_text)

    def _trip(self, error: str) -> None:
        self.trip += 1
        self.tripped, self.tripped_at = error, self._now()
        self._set_trip_changed()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall(), UTC)

    def _set_trip_changed(self) -> None:
        self._trip_changed.set()
        self._trip_changed = asyncio.Event()

    def _settle_domain(self, domain: str) -> None:
        """Lets a process that has settled its suspects have anything again."""
        if domain in self._suspected and not any(member.hand for member in self._members.values() if member.domain == domain):
            self._suspected.discard(domain)
