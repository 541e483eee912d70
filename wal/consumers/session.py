"""ConsumerSession: one claim of a cursor, from its saved state to its release.

Owns the scanner, the table, the handlers, and the one commit in flight. The reader takes messages into the table while there is room. The
committer writes a frame whenever attempts have ended or bodies may be handed out:

    finish ended bodies --> hand out --> save the table --> home.commit(outputs, position, state) --> recorded: handed-out bodies may run

So a hand-out is in the log before its handler runs, and an output on the cursor's home pchannel is in the log if and only if its input is
finished. An output on another pchannel is appended before, by a key (`outputs.py`). While a commit is in flight, handlers continue, and the
next commit gathers the attempts that end.

Failures: another consumer, a seek or a deletion takes the cursor (SessionLostError: the consumer restarts); a message is out of attempts
without a dead letter; the log fails. The first error ends the session. The end releases unfinished bodies, which uses up no attempt, and
saves the table, so that the next consumer continues from here. If this cannot be written, the end counts as the death of a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from wal.consumers.delivery import Delivery, DeliveryState, log_position, merged_position
from wal.consumers.lifecycle import GATHER_S, ConsumerCounts, HandlesBodies, SessionLifecycle
from wal.consumers.options import ConsumerOptions, only_vchannel
from wal.consumers.outputs import EarlyOutput, is_for
from wal.consumers.state import NO_STATE, SavedState, decode_state, encode_state
from wal.consumers.table import Deliveries
from wal.errors import HandlerFailedError, SessionLostError
from wal.message import ImmutableMessage, Message
from wal.read.assembly import PlainMessages
from wal.read.cursors.cursor import Cursor
from wal.read.cursors.service import Cursors, CursorUse
from wal.read.options import ReadOptions
from wal.read.scanner import Scanner
from wal.requests.broadcasts import AckBroadcast
from wal.runtime.tasks import end_tasks, retrieve, unless
from wal.runtime.user_code import shown

if TYPE_CHECKING:
    from wal.engine import CursorHome, WritableEngine
    from wal.requests.cursors import CursorClaim

PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""The maximum size of a consumer's unfinished bodies in memory, beside those of one event."""
READ_MAX: Final = 1024
"""The maximum number of messages that are taken at once."""
MOVED_BYTES: Final = 1024 * 1024
"""The bytes of log without messages for it after which an idle consumer saves its position."""
CHECK_S: Final = 1.0
"""The interval at which an idle consumer checks that it still has the cursor."""
_DONE: Final = int(DeliveryState.DONE)


class _Commit(msgspec.Struct):
    """The bodies that one commit finishes, with outputs in it and outputs before it: the first `ended` handled bodies, and those of dead
    letters.
    """

    ended: int = 0
    dead: list[Delivery] = []
    bodies: list[Message] = []
    early: list[EarlyOutput] = []
    copies: list[ImmutableMessage] = []

    @property
    def count(self) -> int:
        """The number of bodies that the commit finishes."""
        return self.ended + len(self.dead)

    def add(self, bodies: list[Message], early: list[EarlyOutput]) -> None:
        self.bodies += bodies
        self.early += early


class _LoadedCursor(CursorUse):
    """The cursor of the scanner; `loaded` is its saved state."""

    loaded: Cursor | None = None

    async def load(self, *, pchannel: str) -> Cursor | None:
        self.loaded = await super().load(pchannel=pchannel)
        return self.loaded


class ConsumerSession(SessionLifecycle):
    """One claim of a cursor; `run` returns after `stop`, or at the end of a read that does not follow."""

    acks_copies: bool = True
    """Whether the session acknowledges copies of broadcasts that it has finished."""

    def __init__(
        self,
        options: ConsumerOptions,
        engine: WritableEngine,
        home: CursorHome,
        claim: CursorClaim,
        counts: ConsumerCounts,
        *,
        tripped: Callable[[HandlerFailedError], None],
        follow: bool = True,
        before: int = 0,
    ) -> None:
        """`before` is the number of the claim that this process had before this one, and lost; 0 without one."""
        super().__init__(options, engine, home.pchannel, counts, claim.fence, tripped=tripped)
        self.table: Deliveries
        self.scanner: Scanner
        self.committed: int = 0
        """The number of this session's bodies that the saved position has passed."""
        self._home = home
        self._claim = claim
        self._goes_on = claim.fence == before + 1
        self._cursor = _LoadedCursor(options.cursor.name, options.vchannels, self._cursors)
        self._read = ReadOptions.of(options.vchannels, follow=follow)
        self._only_vchannel = only_vchannel(options.vchannels) if options.plan.order == "vchannel" else None
        self._copies = False
        """Whether the session has read copies of broadcasts."""
        self._unseen = False
        """Whether the session has read messages that were redriven for other cursors."""
        self._saved: Cursor
        """The position that was last committed, at first where the read began."""
        self._places: tuple[int, ...]
        """Where the read was then."""
        self._stored: object = None
        """The order of the saved position; None without a saved one."""
        self._compared = asyncio.Event()
        """Unset while a seek in this process may have moved the cursor away."""
        self._compared.set()
        self._waiters: list[tuple[int, asyncio.Future[bool]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._at_end = False
        self._passing: asyncio.Task[None] | None = None
        """Waits until a read with a pattern has passed what the saved state covers."""
        self._handed = 0
        """The number of handed-out bodies in the last commit."""
        self._gather_s = GATHER_S
        self._checked = self._loop.time()

    async def _cursors(self) -> Cursors:
        return self._engine.cursors

    # -- for the consumer

    def _trip(self, error: HandlerFailedError) -> None:
        super()._trip(error)
        self._end_waiters()

    def cursor_moved(self) -> None:
        """Makes the session check at once that it still has the cursor."""
        self._checked = float("-inf")
        self._compared.clear()
        self._look()

    def figures(self) -> Mapping[str, Any]:
        """Returns the fields of `ConsumerInfo` that are of this claim."""
        table = self.table
        first = table.first
        return {
            "fence": self.fence,
            "in_hand": self.pool.running,
            "pending": table.pending,
            "lag_messages": table.unfinished,
            "lag_bytes": self.lag_bytes(),
            "lag_s": self.lag_s(),
            "held_by": "" if first is None else _held_by(first, table.first_state),
        }

    def lag_bytes(self) -> int:
        """Returns the bytes of the log after the position."""
        read = self.scanner._loop
        return read.bytes_after(self._reached()) if self.table.pending else read.lag_bytes

    def lag_s(self) -> float:
        """Returns the age of the first unfinished message, in seconds."""
        first = self.table.first
        return 0.0 if first is None else max(0.0, time.time() - first.message.append_time.timestamp())

    async def caught_up(self, tick: int) -> bool:
        """Returns True when everything at or below this tick is finished durably, False if the session ends or trips before."""
        while not self.has_begun:
            if self._over:
                return False
            await self._begun.wait()
        await self.scanner.wait_for(tick)
        await self._compared.wait()
        if self._over:
            return False
        if self.committed >= self.table.taken:
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        entry = (self.table.taken, waiter)
        self._waiters.append(entry)
        self._due.set()
        try:
            return await waiter
        finally:
            if entry in self._waiters:
                self._waiters.remove(entry)

    # -- beginning

    async def _begin(self) -> bool:
        attach = self._engine.attach if self._read.pattern is None else self._engine.attach_matching
        self.scanner = Scanner(self._read, attach=attach, cursor=self._cursor)
        try:
            has_begun = await unless(self._stop, self._begin_read()) is not None  # a pchannel may be away
        except asyncio.CancelledError:
            await self.scanner.close()  # the beginning goes on without its caller
            raise
        if not has_begun:
            await self.scanner.close()
        return has_begun

    async def _begin_read(self) -> Literal[True]:
        options = self.options
        await self.scanner.__aenter__()
        read = self.scanner._loop
        state = decode_state(self._claim.state)
        if self._cursor.loaded is None and self._claim.position is not None:  # it was saved for vchannels that were dropped since
            state = NO_STATE
        elif self._goes_on:  # no death: the process lost the claim while messages were handed out
            state = state.released()
        self.table = Deliveries(
            options.plan,
            state,
            incarnation=read.anchor.incarnation,
            now=self._loop.time(),
            wall=time.time(),
            lane=self._only_vchannel,
            shared=options.lease_s is not None,
            position_of=log_position if self._read.pattern is None else merged_position,
        )
        self._saved, self._places = read.cursor_after(options.cursor, None), read.places
        self._stored = None if self._cursor.loaded is None else self._cursor.loaded.order
        if options.dead_letter is not None:
            await self._router.locate([options.dead_letter])
        self._set_begun(self._handlers())
        if (known_end := self.table.known_end) is not None and self._read.pattern is not None:
            self._passing = self._loop.create_task(self._pass_known(known_end[0][0]), name=f"beginning of consumer {options.cursor.name}")
            self._passing.add_done_callback(retrieve)  # the reader raises the same error
        return True

    def _tasks(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        return ("reader", self._run_reader), ("committer", self._run_committer)

    def _handlers(self) -> HandlesBodies:
        return self._handler_pool(self.table)

    def _report(self) -> None:
        self._due.set()
        if self.table.ended_count >= self.pool.gather_max:
            self._urgent.set()

    # -- reading

    async def _run_reader(self) -> None:
        """Takes messages into the table while there is room."""
        scanner, table = self.scanner, self.table
        while True:
            while self._paused or not self._has_room():
                self._moved.clear()
                await self._moved.wait()
            messages = await scanner._page()
            if not messages:
                self._at_end = True
                self._due.set()
                self._urgent.set()
                return
            count, size = self._fitting(messages)
            if not count:
                self._moved.clear()
                await self._moved.wait()
                continue
            if messages.__class__ is PlainMessages and count == len(messages) and self._only_vchannel is not None:
                scanner._hand_over(count)
                scanner._loop.fetch_ahead()
                table.take_page(messages, self.pool)
            else:
                deliveries = self._deliveries(messages[:count])  # if it raises, no delivery is taken
                scanner._hand_over(count)
                scanner._loop.fetch_ahead()
                self._take(deliveries, size)
            if table.condemned:
                self._condemn()
            self._due.set()
            if self.pool.is_starved:
                self._urgent.set()
                if not self._handed:  # all handlers are idle: these are handed out while the next ones are read
                    await asyncio.sleep(0)

    async def _pass_known(self, tick: int) -> None:
        """Ends the use of the saved state once the read has passed this tick: its last bodies may have been dropped with their vchannel.

        A dropped vchannel ends a consumer of names, which therefore gets every body that its state covers.
        """
        await self.scanner.wait_for(tick)
        self.table.end_known()
        self._due.set()
        self._urgent.set()

    def _has_room(self) -> bool:
        table = self.table
        if not table.pending:
            return True
        return table.hungry and table.room > 0 and table.bytes < PENDING_BYTES_MAX

    def _fitting(self, messages: Sequence[ImmutableMessage]) -> tuple[int, int]:
        """Returns the number of these messages that fit now, and their bytes; one always fits while nothing is pending."""
        pending, room, room_bytes, size, count = self.table.pending, self.table.room, PENDING_BYTES_MAX - self.table.bytes, 0, 0
        if messages.__class__ is PlainMessages and len(messages) <= room and messages.payload_bytes <= room_bytes:
            return len(messages), messages.payload_bytes
        for message in messages[:READ_MAX]:
            is_plain = message.__class__ is ImmutableMessage
            room -= 1 if is_plain else len(message.bodies())
            if (room < 0 or size >= room_bytes) and (count or pending):
                break
            size += len(message.payload) if is_plain else sum([len(body.payload) for body in message.bodies()])
            count += 1
        return count, size

    def _deliveries(self, messages: Sequence[ImmutableMessage]) -> list[Delivery]:
        """Returns the deliveries of these messages, body by body. Messages redriven for other cursors are DONE."""
        pool, options = self.pool, self.options
        by_key, by_vchannel, name = options.key is not None, options.plan.order == "vchannel", options.cursor.name
        deliveries: list[Delivery] = []
        for message in messages:
            if message.broadcast is not None:
                self._copies = self.acks_copies
            if message.__class__ is ImmutableMessage and not message._properties:
                lane: Hashable = message.vchannel if by_vchannel else self._key_of(message) if by_key else None
                deliveries.append(Delivery(message, pool, lane))
                continue
            bodies = message.bodies()
            for index, body in enumerate(bodies):
                event = None if body is message else (message if index == len(bodies) - 1 else False)
                if body._properties and not is_for(body, name):
                    self._unseen = True
                    deliveries.append(Delivery(body, pool, None, event, _state=_DONE))
                    continue
                lane = body.vchannel if by_vchannel else self._key_of(body) if by_key else None
                deliveries.append(Delivery(body, pool, lane, event))
        return deliveries

    def _take(self, deliveries: list[Delivery], size: int) -> None:
        """Takes these deliveries, whose payloads have `size` bytes, into the table."""
        table = self.table
        if not self._unseen:
            table.take(deliveries, size)
            return
        for is_done, group in groupby(deliveries, lambda delivery: delivery._state == _DONE):
            if is_done:
                table.skip(list(group))
            else:
                table.take(list(group))

    def _condemn(self) -> None:
        """Makes dead letters of the bodies that the table has condemned for the deaths of processes."""
        condemned, self.table.condemned = self.table.condemned, []
        if self.options.dead_letter is not None:
            self.pool.dead.extend(condemned)
            return
        for dead in condemned:
            self.table.start_over(dead.delivery)
        self.fail(self.pool.failed(condemned[0].delivery, condemned[0].attempts, condemned[0].reason))

    # -- committing

    async def _run_committer(self) -> None:
        """Commits, one frame after the other, until the session ends."""
        try:
            while not self._stopping:
                await self._due.wait()
                if not self.pool.is_starved:
                    self._urgent.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._urgent.wait(), self._gather_s)
                self._due.clear()
                self._urgent.clear()
                if self._stopping:
                    return
                if not await self._commit(final=False):
                    self._moved.set()
                    if self._at_end and not self.table.pending:
                        self._stop.set()
                    await self._check_cursor()
        except BaseException:
            self._broken = True
            raise

    async def _commit(self, *, final: bool) -> bool:
        """Commits ended attempts, and the next hand-out unless the consumer pauses or ends; returns False if nothing has changed."""
        table, pool = self.table, self.pool
        pool.flush()
        table.wake(self._loop.time())
        next_commit = self._next_commit()
        if next_commit.early:
            await self._router.append(next_commit.early)
        for copy in next_commit.copies:  # before the commit: after it, a crash would leave them unacknowledged
            await self._engine.submit(AckBroadcast.of(copy))
        table.finish_ended(next_commit.ended)
        if next_commit.dead:
            table.finish(next_commit.dead)
        if next_commit.count:
            self._moved.set()
        if final or self._paused:
            table.recall()
        else:
            table.hand_out()
        reached, places, handed = self._reached(), self.scanner._loop.places, table.handed
        self._set_timer()
        # Bodies also finish without an attempt: those that were redriven for another cursor, and those that were handled before, once an
        # unfinished body before them has left with its vchannel.
        awaited = bool(self._waiters) and table.finished > self.committed
        is_due = awaited or pool.unsaved or handed != self._handed or self._is_far(reached, is_final=final)
        if not next_commit.count and not is_due:
            return False
        pool.unsaved = False
        began = self._loop.time()
        state = encode_state(self._state(began))
        commit = self._home.commit(next_commit.bodies, position=reached, state=state, fence=self.fence)
        self._gather_s = max(GATHER_S, 4 * (self._loop.time() - began))
        await commit
        self._saved, self._places, self._handed, self._stored = reached, places, handed, reached.order
        self._note(next_commit)
        table.recorded()
        pool.wake()
        self._moved.set()
        self._due.set()
        return True

    def _state(self, now: float) -> SavedState:
        """Returns the state to commit."""
        return self.table.save(now=now, wall=time.time())

    async def _check_cursor(self) -> None:
        """Ends the session if another consumer, a seek or a deletion has moved the cursor while this one had nothing to commit."""
        now = self._loop.time()
        if now < self._checked + CHECK_S:
            return
        self._checked = now
        saved = await self._engine.cursors.load(self.options.cursor, pchannel=self.scanner._loop.anchor.pchannel)
        if (None if saved is None else saved.order) != self._stored:
            raise SessionLostError(f"{self.options.cursor} was moved by another consumer, a seek or a deletion")
        if self._checked == now:
            self._compared.set()

    def _next_commit(self) -> _Commit:
        """Takes the contents of the next commit from the pool, within the limits of a transaction."""
        commit, router, table, room = _Commit(), self._router, self.table, self._router.room()
        ended: Sequence[Delivery] = table.ended if self.pool.has_outputs or self._copies else ()
        commit.ended = table.ended_count
        for number, delivery in enumerate(ended):
            if (outputs := delivery._outputs) is not None:
                if not room.take(len(outputs.messages), outputs.size):
                    commit.ended = number
                    return commit
                if router.is_split:
                    commit.add(*router.split(delivery, outputs))
                else:
                    commit.bodies += outputs.messages
            if self._copies and delivery.message.broadcast is not None:
                commit.copies.append(delivery.message)
        for delivery, letter in self._next_letters(room):
            commit.add(*router.split(delivery, letter))
            if delivery.message.broadcast is not None:
                commit.copies.append(delivery.message)
            commit.dead.append(delivery)
        return commit

    def _note(self, commit: _Commit) -> None:
        """Updates the state after a commit has become durable."""
        counts = self.counts
        counts.commits += 1
        counts.dead_lettered += len(commit.dead)
        self.committed = self.table.finished
        if commit.count:
            counts.progress_s = self._loop.time()
        for entry in self._waiters[:]:
            if self.committed >= entry[0] and not entry[1].done():
                entry[1].set_result(True)

    def _reached(self) -> Cursor:
        """Returns the position after the last body that is finished together with all before it."""
        read, key = self.scanner._loop, self.options.cursor
        if not self.table.pending:
            return read.cursor_after(key, None)
        if (mark := self.table.mark) is None:
            return self._saved
        reached = read.cursor_after(key, mark)
        return self._saved if reached.order < self._saved.order else reached  # it was saved further on, while nothing was unfinished

    def _is_far(self, reached: Cursor, *, is_final: bool) -> bool:
        """Returns whether the position is worth a commit of its own: far after the saved one, or at the end (`is_final`) after it."""
        if reached.order <= self._saved.order:
            return False
        return is_final or self.scanner._loop.bytes_since(self._places) >= MOVED_BYTES

    def _set_timer(self) -> None:
        """Schedules the committer's next check: at the end of the next pause, and periodically."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._stopping:
            later = self._loop.time() + CHECK_S
            due = self.table.next_due
            self._timer = self._loop.call_at(later if due is None else min(due, later), self._look)

    def _look(self) -> None:
        self._timer = None
        super()._look()

    # -- ending

    async def _save(self) -> bool:
        return await self._commit(final=True)

    async def _release(self) -> None:
        await self._home.release(self.fence)

    def _set_over(self) -> None:
        super()._set_over()
        self._compared.set()

    async def _end(self, tasks: Sequence[asyncio.Task[None]], drain_s: float) -> None:
        await end_tasks(self._passing)
        await super()._end(tasks, drain_s)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._end_waiters()
        await self.scanner.close()

    def _end_waiters(self) -> None:
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(False)


def _held_by(first: Delivery, state: DeliveryState) -> str:
    """Returns the message that holds the position, and the reason."""
    key = f" with key {shown(first._lane)}" if first._lane is not None and first._lane != first.vchannel else ""
    text = f"message {first.message.message_id} of {first.vchannel!r}{key}, attempt {first.attempt}"
    match state:
        case DeliveryState.RESTING:
            return f"{text}, rests after a failed attempt"
        case DeliveryState.RUNNING | DeliveryState.CHOSEN | DeliveryState.HANDED:
            return f"{text}, is with its handler, or next"
        case DeliveryState.ENDED:
            return f"{text}, is being committed"
        case _:
            return f"{text}, waits for a handler"
