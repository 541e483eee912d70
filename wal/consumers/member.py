"""MemberSession: one membership of a consumer in a shared cursor, from joining its home to leaving it.

The home has the table (`wal/node/shared_members.py`). Here are only the bodies that it has handed out to this member (`handed_work.py`), on
which the same handlers run as in a consumer that has its cursor alone. Three tasks ask the home: one takes work while there is room, one
settles what has ended, with its outputs, and one shows that the member lives. An output on another pchannel than the home is appended
before, by a key (`outputs.py`), and a dead letter is an output of its message.

Room: a member asks for as many bodies as it handles in `AHEAD_S`, beside the bodies of its handlers. So fast handlers do not wait for the
network, and a slow member has little that others could handle.

Failures: the home has removed the member, or has ended (SessionLostError: the consumer joins again); its messages are handed out again, and
its later settlements are refused. A message is out of attempts without a dead letter: that ends this consumer, and releases the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from wal.consumers.delivery import Delivery, Outputs
from wal.consumers.handed_work import HandedWork
from wal.consumers.lifecycle import GATHER_S, ConsumerCounts, SessionLifecycle
from wal.consumers.options import ConsumerOptions, PropertyKey
from wal.consumers.outputs import EarlyOutput
from wal.consumers.plan import DIED, Dead
from wal.errors import HandlerFailedError, ResourceAcquiredError, SessionLostError, UnavailableError
from wal.message import ImmutableMessage, Message
from wal.requests.broadcasts import AckBroadcast
from wal.requests.work import JoinCursor, KeepMember, LeaveCursor, SettleWork, SharedWork, TakeWork, WorkTerms, WorkUnit

if TYPE_CHECKING:
    from wal.engine import WritableEngine
    from wal.requests.request import Answer, Request

AHEAD_S: Final = 0.1
"""The time that a member's handlers need for the bodies that it has beside those which they handle."""
AHEAD_MAX: Final = 512
"""The most such bodies."""
SIZE_MAX: Final = 64
"""The most bodies of one lane that a member takes at once."""
WAIT_S: Final = 1.0
"""The longest time for which a request waits at the home."""
POLL_S: Final = 0.5
"""The pause between two attempts to join a cursor that a consumer has alone."""
_log: Final = logging.getLogger("wal.consumers")


class MemberSession(SessionLifecycle):
    """One membership; `run` returns after `stop`."""

    def __init__(
        self,
        options: ConsumerOptions,
        engine: WritableEngine,
        home: str,
        counts: ConsumerCounts,
        *,
        tripped: Callable[[HandlerFailedError], None],
        resumed: Callable[[], None],
        trip: str,
    ) -> None:
        """`home` and `tripped` have the meaning of `SessionLifecycle`. `resumed` is called when another member has ended a trip. `trip` is
        the error of the trip that the consumer has from its last membership.
        """
        assert options.lease_s is not None
        super().__init__(options, engine, home, counts, 0, tripped=tripped)
        merges = options.batch is not None or options.plan.concurrency == 1
        self._work = HandedWork(options.plan.attempts, blocks=options.plan.blocks, merges=merges)
        self._home = home
        self._member = secrets.token_bytes(16)
        self._lease_s = options.lease_s
        self._wait_ms = round(min(WAIT_S, options.lease_s / 3) * 1000)
        self._shown = SharedWork(())
        self._after = 0
        self._settlements = 0
        self._ahead = 0
        self._taken_s = 0.0
        self._handled_then = 0
        self._trip_number = 0
        """The number of the last trip of all members that has arrived."""
        self._is_tripped = False
        self._trip_before = trip
        """The error of the trip that the next home of the cursor gets from this member, until it is resumed."""
        self._row: HandlerFailedError | None = None
        """The error with which the handlers here alone have reached `trip_after` since the last settlement."""
        self._resumed = resumed
        self._resuming = asyncio.Event()
        plan = options.plan
        key = options.key.name if isinstance(options.key, PropertyKey) else None
        self._terms = WorkTerms(plan.order, key, plan.attempts, plan.backoff_s, plan.blocks, options.dead_letter, options.trip_after)

    # -- for the consumer

    def fail(self, error: BaseException) -> None:
        """Ends the membership with an error; the first one stays. After the loss of the membership the home refuses all settlements."""
        super().fail(error)
        self._broken = self._broken or isinstance(self._error, SessionLostError)

    def pause(self, *, paused: bool) -> None:
        """Stops starting handlers and taking work, or resumes both. Messages that no handler has are released."""
        if paused and self.has_begun and not self._stop.is_set():
            self._work.recall()
        super().pause(paused=paused)
        self._trip_before = self._trip_before if paused else ""
        if self._is_tripped and not paused:
            self._is_tripped = False
            self._resuming.set()

    def cursor_moved(self) -> None:
        """Does nothing: the home checks the cursor."""

    async def caught_up(self, tick: int) -> bool:
        """Returns True when everything at or below this tick is finished durably, False if the session ends or trips before."""
        trip = self._trip_number
        while not self._over and self._trip_number == trip:
            if not self.has_begun:
                await self._begun.wait()
                continue
            try:
                work = await self._submit(KeepMember(self.options.cursor, self._home, self._member, self._wait_ms, tick, self._trip_number))
            except (SessionLostError, UnavailableError):
                await asyncio.sleep(POLL_S / 10)
                continue
            self._show(work)
            if work.is_caught_up:
                return True
        return False

    def figures(self) -> Mapping[str, Any]:
        """Returns the fields of `ConsumerInfo` that are of this membership, and of the cursor as of the last second."""
        work = self._shown
        return {
            "fence": self.fence,
            "in_hand": self.pool.running,
            "pending": work.pending,
            "lag_messages": work.lag_messages,
            "lag_bytes": work.lag_bytes,
            "lag_s": work.lag_s,
            "held_by": work.held_by,
            "members": work.members,
        }

    # -- the home

    async def _submit(self, request: Request[Answer]) -> Answer:
        """Asks the home. Raises SessionLostError if the consumer is not a member any more."""
        try:
            return await self._engine.submit(request)
        except ResourceAcquiredError as error:
            raise SessionLostError(str(error)) from error

    async def _begin(self) -> bool:
        """Joins; returns False if the consumer is closed before."""
        plan = self.options.plan
        lease_ms = round(self._lease_s * 1000)
        request = JoinCursor(self.options.cursor, self._home, self._member, self._terms, plan.concurrency, plan.batch, lease_ms, _process())
        while not self._stop.is_set():
            try:
                self.fence = await self._engine.submit(msgspec.structs.replace(request, tripped=self._trip_before))
                break
            except ResourceAcquiredError:
                if self.options.exclusive == "error":
                    raise
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), POLL_S)
        else:
            return False
        if self.options.dead_letter is not None:
            await self._router.locate([self.options.dead_letter])
        self._set_begun(self._handler_pool(self._work))
        return True

    def _tasks(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        return ("taker", self._run_taker), ("settler", self._run_settler), ("keeper", self._run_keeper), ("resumer", self._run_resumer)

    def _trip(self, error: HandlerFailedError) -> None:
        self._row = error  # the home counts it, and makes all members trip

    def _report(self) -> None:
        self._due.set()
        self._moved.set()
        if self._work.ended_count >= AHEAD_MAX // 2:
            self._urgent.set()

    def _starved(self) -> None:
        super()._starved()
        self._moved.set()

    async def _run_keeper(self) -> None:
        """Always has a request at the home: the home notices the end of this process by the end of the request."""
        while True:
            await self._keep(self._wait_ms)

    async def _run_resumer(self) -> None:
        """Ends a trip at the home, for all members, when the consumer is resumed."""
        while True:
            await self._resuming.wait()
            self._resuming.clear()
            await self._keep(0, resumes=True)

    async def _keep(self, wait_ms: int, *, resumes: bool = False) -> None:
        request = KeepMember(self.options.cursor, self._home, self._member, wait_ms, trip=self._trip_number, resumes=resumes)
        self._show(await self._submit(request))

    def _show(self, work: SharedWork) -> None:
        """Takes what the home shows: the members trip and resume together."""
        self._shown = work
        if work.trip > self._trip_number:
            self._trip_number = work.trip
            if work.tripped:
                self._is_tripped = True
                own = self.pool.exhausted
                self._tripped(own if own is not None and str(own) == work.tripped else HandlerFailedError(work.tripped))
        elif self._is_tripped and not work.tripped:
            self._is_tripped = False
            self._resumed()

    # -- taking

    async def _run_taker(self) -> None:
        """Takes work while there is room."""
        plan, key = self.options.plan, self.options.cursor
        size = plan.batch if self.options.batch is not None else SIZE_MAX
        while True:
            while (room := self._room()) <= 0:
                self._moved.clear()
                await self._moved.wait()
            units = await self._submit(TakeWork(key, self._home, self._member, self._after, room, size, self._wait_ms))
            self._taken_s, self._handled_then = self._loop.time(), self.counts.handled
            for unit in units:
                self._add(unit)
            if units:
                if self._paused:
                    self._work.recall()
                    self._look()
                self.pool.wake()

    def _room(self) -> int:
        """Returns how many bodies to ask for now."""
        if self._paused or self._stop.is_set():
            return 0
        plan, now = self.options.plan, self._loop.time()
        if (handled := self.counts.handled - self._handled_then) and now > self._taken_s:
            self._ahead = min(AHEAD_MAX, round(handled * AHEAD_S / (now - self._taken_s)))
        most = plan.concurrency * plan.batch + self._ahead
        room = most - self._work.in_hand
        return room if 2 * room >= most or not self._work.startable else 0

    def _add(self, unit: WorkUnit) -> None:
        self._after = unit.first + len(unit.messages) - 1
        work: list[Delivery] = []
        for number, message, attempt in zip(range(unit.first, self._after + 1), unit.messages, unit.attempts, strict=True):
            self.counts.retried += attempt > 1
            delivery = Delivery(message, self.pool, self._lane_of(message), None, attempt, _number=number)
            if attempt <= self.options.plan.attempts:
                work.append(delivery)
                continue
            dead = Dead(delivery, attempt - 1, DIED)
            if self.options.dead_letter is not None:
                self.pool.dead.append(dead)
            else:
                self._work.restarted.append(number)
                self.fail(self.pool.failed(delivery, dead.attempts, dead.reason))
            self._look()
        if work:
            self._work.add(work)

    def _lane_of(self, message: ImmutableMessage) -> Hashable:
        order, key = self.options.plan.order, self.options.key
        return message.vchannel if order == "vchannel" else key(message) if key is not None else None

    # -- settling

    async def _run_settler(self) -> None:
        """Settles what has ended, one request after the other, until the end."""
        while not self._stop.is_set():
            await self._due.wait()
            if not self.pool.is_starved:
                self._urgent.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), GATHER_S)
            self._due.clear()
            self._urgent.clear()
            while not self._stop.is_set() and await self._settle():
                pass

    async def _settle(self) -> bool:
        """Settles what has ended; returns False if nothing has."""
        pool, work = self.pool, self._work
        pool.flush()
        handled, outputs, dead = self._next_settlement()
        early: list[EarlyOutput] = []
        here: list[Message] = []
        output_counts: list[int] = []
        for delivery, own in zip(handled, outputs, strict=True):
            at_home, before = ([], []) if own is None else self._router.split(delivery, own)
            here += at_home
            early += before
            output_counts.append(len(at_home))
        failed, released, restarted = tuple(work.failed), tuple(work.released), tuple(work.restarted)
        work.failed, work.released, work.restarted = [], [], []
        if not (handled or failed or released or restarted):
            return False
        if early:
            await self._router.append(early)
        for delivery in handled:  # before the settlement: after it, a crash would leave them unacknowledged
            if delivery.message.broadcast is not None:
                await self._engine.submit(AckBroadcast.of(delivery.message))
        self._settlements += 1
        exhausted, text = self._next_exhausted(len(handled))
        settlement = SettleWork(
            self.options.cursor,
            self._home,
            self._member,
            self._settlements,
            tuple([delivery._number for delivery in handled]),
            tuple(here),
            tuple(output_counts) if here else (),
            dead,
            failed,
            released,
            restarted,
            exhausted,
            text,
        )
        accepted = await self._submit(settlement)
        if accepted < len(handled):
            _log.warning(
                "consumer %r had lost %d messages that it has handled: they are handled again",
                self.options.cursor.name,
                len(handled) - accepted,
            )
        self.counts.commits += 1
        self.counts.dead_lettered += dead
        if handled:
            self.counts.progress_s = self._loop.time()
        self._moved.set()
        return True

    def _next_exhausted(self, count: int) -> tuple[int, str]:
        """Returns how many of the next `count` messages, in a row at their end, are out of attempts, and the error of the last one."""
        counts, error = self.counts, self._row or self.pool.exhausted
        exhausted = min(counts.exhausted, count) if self._row is None else self.options.trip_after
        self._row = None
        counts.exhausted = max(0, counts.exhausted - exhausted)
        return exhausted, str(error) if exhausted else ""

    def _next_settlement(self) -> tuple[list[Delivery], list[Outputs | None], int]:
        """Takes the handled bodies and dead letters of the next settlement, within the limits of a transaction, with their outputs."""
        ended, room = self._work.ended, self._router.room()
        handled: list[Delivery] = []
        outputs: list[Outputs | None] = []
        while ended:
            own = ended[0]._outputs
            if own is not None and not room.take(len(own.messages), own.size):
                return handled, outputs, 0
            outputs.append(own)
            handled.append(ended.popleft())
        count = len(handled)
        for delivery, letter in self._next_letters(room):
            handled.append(delivery)
            outputs.append(letter)
        return handled, outputs, len(handled) - count

    # -- ending

    async def _save(self) -> bool:
        self._work.recall()
        return await self._settle()

    async def _release(self) -> None:
        if self.fence:
            await self._engine.submit(LeaveCursor(self.options.cursor, self._home, self._member))


def _process() -> str:
    """Returns the name of this process for people: its host and pid."""
    return f"{os.uname().nodename[:64]}:{os.getpid()}"
