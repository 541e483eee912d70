"""The PChannel actor: group commit. It gives ticks, makes frames, and hands them to the backend.

Everything that the vchannels of its group submitted in a turn becomes one frame at the turn's end: ticks are given and the frame is
handed over in that same turn, so that the order of ids, of ticks and of delivery is one. Only so many frames are handed over at a time as
the backend says (two where one is synced while the next is made); the rest waits and makes the following frame larger. All callers of a
frame hear of it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from actors import Group, Member
from wal.backends import REFUSALS, PChannelLog
from wal.errors import (
    ClosedError,
    InvalidArgumentError,
    InvalidRequestSeqError,
    NoSpaceError,
    StorageError,
    UnknownError,
    WALError,
)
from wal.frame import EncodedFrame, FrameDraft, RunName, encode_frame
from wal.message import MessageID, Origin
from wal.pchannel.checkpointer import Checkpointer
from wal.pchannel.copy_writes import CopyWrites
from wal.pchannel.idempotency import Claim
from wal.pchannel.in_flight import InFlight
from wal.pchannel.keyed_writes import KeyedWrites
from wal.pchannel.operations import Append, Atomic, Begin, KeyedAppend
from wal.pchannel.promised_tick import BarrierHeap, PromiseLedger, TickFrames
from wal.pchannel.readable import ReadablePChannel
from wal.pchannel.recovery import RecoveryState
from wal.pchannel.submissions import (
    KeyedSubmission,
    KeyedTxnSubmission,
    PlainSubmission,
    Submission,
    TxnSubmission,
)
from wal.pchannel.txn_table import LeaseClock, TxnLimits, TxnTable, whole_ms

if TYPE_CHECKING:
    from wal.pchannel.vchannel import VChannel

__all__ = ["PChannel", "PChannelStatistics", "Ticks"]

GROUP_RECORDS: Final = 4096
"""A group commit is cut here, so that making a frame holds the loop for about a millisecond; and where the backend says."""
LOGICAL_BITS: Final = 18
"""Of a tick, below its milliseconds."""
_log: Final = logging.getLogger("wal.pchannel")


class Ticks(Protocol):
    """What the actor needs of the timestamp oracle."""

    def take(self, count: int) -> int | None:
        """The first of `count` contiguous ticks, or None when the saved limit is reached."""

    @property
    def limit(self) -> int:
        """The saved limit: no tick at or above it is given."""

    @property
    def last(self) -> int:
        """The largest tick given so far."""


class PChannelStatistics(msgspec.Struct, frozen=True):
    """Counts since opening. `frames` and `bytes` are durable ones; one frame is one sync."""

    name: str
    term: int
    frames: int
    bytes: int
    events: int
    waiting: int
    frames_in_flight: int
    bytes_in_flight: int
    open_transactions: int
    open_transaction_bytes: int
    expired_transactions: int
    barriers: int
    readers: int
    durable_end: int
    promise: int


class _Holder(Protocol):
    """Whose operations may have to wait for ticks."""

    def receive(self, batch: list[Any]) -> None: ...

    def refuse(self, operations: list[Any], error: BaseException) -> None: ...


class _Flight(msgspec.Struct, gc=False):
    """A frame that was handed over."""

    submissions: list[Submission]
    sequence: int
    first_tick: int
    last_tick: int
    indices: int
    frame: EncodedFrame
    since: float


class PChannel(ReadablePChannel, Member):
    """One pchannel in one term; `channel` is its name, `actor_group` the group that it shares with its vchannels.

    All its methods run on the loop, most of them in a turn of the group.
    """

    log: PChannelLog

    def __init__(
        self,
        log: PChannelLog,
        *,
        form: int,
        group: Group,
        ticks: Ticks,
        need_ticks: Callable[[PChannel], None],
        in_flight: InFlight,
        limits: TxnLimits,
        keepalive: float,
        interval_s: float,
        monotonic: Callable[[], float],
        state: RecoveryState,
    ) -> None:
        self.ledger: PromiseLedger = PromiseLedger(log.state.promised_tick)
        super().__init__(log, form=form, promised_tick=self.ledger.promise, newest=log.state.newest)
        self.actor_group = group
        self.limits = limits
        self.keepalive: float = whole_ms(keepalive)
        self.in_flight = in_flight
        self.table: TxnTable = TxnTable(limits)
        self.checkpointer: Checkpointer | None = None
        """Moves on where recovery begins; set once the pchannel has started."""
        self.keyed: KeyedWrites = KeyedWrites(
            state.keys,
            origin=lambda position: Origin(log.pchannel, log.incarnation, position, form),
            now_ms=lambda: ticks.last >> LOGICAL_BITS,
            alive=lambda: self.fault is None,
            withdraw=self._withdraw,
        )
        self.copies: CopyWrites = CopyWrites(self, state.copies)
        self.vchannels: dict[str, VChannel] = {}
        log.failed = self._log_failed
        self.endings = 0
        """How many of its vchannels have ended so far, for whatever reason."""
        self.fault: WALError | None = None
        """Why nothing is written any more; final."""
        self._ticks = ticks
        self._need_ticks = need_ticks
        self._starving = False
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._lease = LeaseClock(monotonic=monotonic(), interval_s=interval_s)
        self._barriers: BarrierHeap[tuple[VChannel, Any]] = BarrierHeap()
        self._waiting: deque[Submission] = deque()
        self._plain: PlainSubmission | None = None  # the last of those, while more may join it
        self.held: list[tuple[_Holder, Any]] = []
        """An operation that waits for ticks, and all that were called behind it, which must not overtake it."""
        self._prepared: tuple[FrameDraft, list[Submission]] | None = None
        self._flights: deque[_Flight] = deque()
        self._flights_max = log.frames_in_flight
        self._group_bytes = log.group_bytes
        self._tick_frames = TickFrames(monotonic()) if log.tick_frames else None
        self._sequence = 0
        self._owes_start = False
        """Whether the first frame of the term found no room: it is written before any other frame."""
        self._drained: asyncio.Future[None] | None = None
        self._closing = False
        self._frames = self._bytes = self._events = self._expired = 0

    # -- what vchannels ask in their turn

    def submit(self, submission: Submission) -> None:
        """Takes a submission for the next frame."""
        if self.fault is not None:
            self._fail(submission, self.fault)
        else:
            self._waiting.append(submission)
            self._plain = None

    def submit_plain(self, name: RunName, appends: list[Append]) -> None:
        """Takes plain appends for the next frame; those that follow each other share one submission."""
        plain = self._plain
        if plain is None:
            plain = PlainSubmission()
            plain.add(name, appends)
            self.submit(plain)
            if self.fault is None:
                self._plain = plain
        else:
            plain.add(name, appends)

    def passed(self, barrier: int) -> bool:
        """Whether everything up to this tick is in the log, advancing the promise if that is what it takes."""
        return barrier <= self.ledger.promise or barrier <= self.advance_promise()

    def set_aside(self, barrier: int, vchannel: VChannel, operation: Any) -> None:
        """Keeps an operation until the promise passes its barrier; at close it fails with ClosedError (it was never sent)."""
        if self._closing:
            vchannel.refuse([operation], _closed_at_barrier())
        else:
            self._barriers.wait(barrier, (vchannel, operation))

    def new_txn_id(self) -> int | None:
        """A transaction's id: a fresh tick, unique for good; None when the oracle has to save its limit first."""
        return self._take(1)

    def after_ticks(self, holder: _Holder, operation: Any) -> None:
        """Hands the operation to its vchannel (or whose it is) again once there are ticks."""
        self.held.append((holder, operation))
        self._starve()

    def lease_now(self) -> float:
        """The time that leases are judged by."""
        flights = self._flights
        return self._lease.at(self._monotonic(), unsynced_since=flights[0].since if flights else None)

    def fail_transactions(self, name: RunName, reason: Callable[[int], WALError]) -> None:
        """Ends every transaction on this vchannel that no frame holds yet: the open ones, and commits that wait for their barrier."""
        self.table.fail(name, reason)
        for vchannel, commit in self._barriers.take_out(
            lambda waiting: isinstance(waiting[1], TxnSubmission) and name in waiting[1].names
        ):
            vchannel.refuse([commit], reason(commit.context.txn_id))

    def dropped(self, vchannel: VChannel) -> None:
        """The vchannel ended in this turn: so do its readers."""
        if self.vchannels.get(vchannel.channel) is vchannel:
            del self.vchannels[vchannel.channel]
        assert vchannel.closed is not None
        for reader in list(self.readers):
            reader.ended_by(vchannel.channel, vchannel.closed())

    # -- turns

    def receive(self, batch: list[Any]) -> None:
        """The data lane holds nothing for the pchannel itself: submissions come from its vchannels at their turn."""
        raise AssertionError(f"pchannel {self.channel} takes no messages of its own, got {batch[0]!r}")

    def receive_control(self, message: Any) -> None:
        """The control lane: a callable to be run between two turns."""
        message()

    def turn_ended(self) -> None:
        """Everything submitted in this turn becomes a frame, unless enough are under way."""
        if self._waiting:
            self._pump()
        if self._drained is not None:
            self._check_drained()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """A defect in the group commit itself: nothing can be written any more."""
        error = UnknownError(
            f"pchannel {self.channel} failed and takes nothing any more until the log is reopened: {cause!r}; please report it"
        )
        error.__cause__ = cause
        self.fail(error)

    def timer_turn(self) -> None:
        """Every `time_tick_interval_s`: leases, the promise, and what waits for it."""
        now = self._lease.advance(self._monotonic(), unsynced_since=self._unsynced_since())
        self._expired += len(self.table.expire(now))
        if self._tick_frames is not None and self._tick_frames.is_due(self._monotonic()):
            self._write_tick()
        self.advance_promise()

    def _write_tick(self) -> None:
        """Writes a TimeTick frame, unless other frames are under way, which say as much."""
        idle = not self._flights and not self._waiting and not self._prepared
        if self.fault is None and not self._closing and not self._owes_start and idle:
            tick = self._fresh_tick()
            if tick is not None:
                self._hand_over(FrameDraft(), [], tick, promise=tick)

    def advance_for(self, tick: int) -> bool:
        """Promises this tick for a reader that waits for it, if that can be done now.

        A tick that was not given yet is left to the timer: fresh ticks would not reach it before its time has come.
        """
        return tick <= self._ticks.last and self.advance_promise() >= tick

    def advance_promise(self) -> int:
        """Promises as much as can be promised now, tells readers and the control page, releases barriers; returns the promise."""
        if self.fault is None and not self._closing:
            before = self.ledger.promise
            if self.ledger.advance(self._fresh_tick) != before:
                self.log.promise(self.ledger.promise, self._ticks.limit)
                self.tail.tick_moved(self.ledger.promise)
                self._release_barriers()
        return self.ledger.promise

    def ticks_extended(self, error: BaseException | None) -> None:
        """The oracle saved a new limit, or could not: then what waits for ticks fails, and a later call tries again."""
        self._starving = False
        waiting, self.held = self.held, []
        if error is None:
            for holder, operation in waiting:
                holder.receive([operation])
            self._pump()
            return
        for holder, operation in waiting:
            if isinstance(operation, Begin | Atomic):
                holder.refuse([operation], error)
            else:
                holder.receive([operation])
        self._fail_waiting(error)
        self._check_drained()

    # -- life

    async def start(self) -> None:
        """Writes the first frame of the term; when it returns, this handle owns the pchannel.

        Without room for that frame the pchannel starts all the same, so that what was read can be truncated: the frame then precedes
        the first one that finds room.
        """
        tick = await self._one_tick()
        try:
            await self._write_alone(self._term_start(), tick)
        except NoSpaceError as error:
            self._owes_start = True
            _log.warning(
                "pchannel %s was opened on a full disk and takes no append until there is room: %s", self.channel, error
            )

    async def drain(self) -> None:
        """Refuses what waits for a barrier, then waits until everything that was taken is durable or failed."""
        self._closing = True
        for vchannel, operation in self._barriers.drain():
            vchannel.refuse([operation], _closed_at_barrier())
        if self._busy():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def finish(self, tick: int, cause: WALError) -> None:
        """After `drain`: writes the closing TimeTick frame, ends the readers with `cause`, and closes the log."""
        try:
            if self.fault is None:
                if not self._owes_start:
                    # Without room for the frame the control page alone says what is promised.
                    with contextlib.suppress(*REFUSALS):
                        await self._write_alone(FrameDraft(), tick)
                self.ledger.advance(lambda: tick)
                self.log.promise(self.ledger.promise, self._ticks.limit)
        finally:
            self.tail.fail(self.fault or cause)
            if self.fault is None:
                self.fault = cause
            await self.log.close()

    def fail(self, error: WALError, *, answered: bool = False) -> None:
        """Nothing is written any more: everything under way and waiting fails with this error, readers end with it.

        What was not handed over is certainly not written. What is under way may be, unless the backend `answered` with this error.
        """
        if self.fault is not None:
            return
        self.fault = unsent = _with_outcome(error, unknown=False)
        under_way = error if answered else _with_outcome(error, unknown=True)
        while self._flights:
            flight = self._flights.popleft()
            for submission in flight.submissions:
                self._fail(submission, under_way)
        self._fail_waiting(unsent)
        for vchannel, operation in self._barriers.drain():
            vchannel.refuse([operation], unsent)
        for holder, operation in self.held:
            holder.refuse([operation], unsent)
        self.held = []
        self.tail.fail(error)
        self._check_drained()

    async def behind(self, message_id: MessageID) -> tuple[int, int] | None:
        """The place behind this event, where the log begins when it is truncated up to it; None when it is truncated already.

        A body stands for its transaction. An id above the durable end, or of no event, is an InvalidArgumentError.
        """
        position, index = message_id.position, message_id.index
        log = self.log
        if position >= self.tail.durable_end:
            raise InvalidArgumentError(
                f"message id {message_id} lies above the durable end {self.tail.durable_end} of pchannel {self.channel}: truncate up "
                "to a message that was appended"
            )
        if (position, index) < log.earliest:
            return None
        event = await self.event_of(message_id)
        if event is None:
            raise InvalidArgumentError(
                f"message id {message_id} names no event of pchannel {self.channel}: use an id that was read"
            )
        return (position, event.index + 1)

    def statistics(self) -> PChannelStatistics:
        """A snapshot of its counts."""
        return PChannelStatistics(
            name=self.channel,
            term=self.log.term,
            frames=self._frames,
            bytes=self._bytes,
            events=self._events,
            waiting=sum(submission.count for submission in self._waiting),
            frames_in_flight=len(self._flights),
            bytes_in_flight=sum(flight.frame.length for flight in self._flights),
            open_transactions=len(self.table),
            open_transaction_bytes=self.table.size,
            expired_transactions=self._expired,
            barriers=len(self._barriers),
            readers=len(self.readers),
            durable_end=self.tail.durable_end,
            promise=self.ledger.promise,
        )

    # -- frames

    def _pump(self) -> None:
        while len(self._flights) < self._flights_max and self.fault is None:
            if self._owes_start and (self._prepared is not None or self._waiting):
                if (tick := self._take(1)) is None:
                    self._starve()
                    return
                self._owes_start = False
                prepared = self._prepared
                self._hand_over(self._term_start(), [_TermStart(self._owe_start)], tick, promise=tick)
                self._prepared = prepared  # it is the next frame
                continue
            if self._prepared is None:
                if not self._waiting:
                    return
                # Kept until it is handed over: whatever fails before finds the callers there.
                draft, submissions = self._prepared = FrameDraft(), self._cut()
                for submission in submissions:
                    submission.draft(draft)
            else:
                draft, submissions = self._prepared
            first_tick = self._take(draft.indices or 1)
            if first_tick is None:
                self._starve()
                return
            # A frame without events (a producer was forgotten) promises a tick of its own.
            self._hand_over(draft, submissions, first_tick, promise=None if draft.indices else first_tick)

    def _cut(self) -> list[Submission]:
        """The submissions of the next frame, from the front of what waits."""
        waiting = self._waiting
        self._plain = None
        if len(waiting) == 1 and waiting[0].size <= self._group_bytes and waiting[0].count <= GROUP_RECORDS:
            return [waiting.popleft()]
        submissions: list[Submission] = []
        size, count = self._group_bytes, GROUP_RECORDS
        while waiting:
            submission = waiting[0]
            if submission.size > size or submission.count > count:
                if isinstance(submission, PlainSubmission) and (not submissions or (size > 0 and count > 0)):
                    front = submission.cut(size=size, count=count)
                    if front is not None and (not submissions or front.size <= size):
                        submissions.append(front)
                        break
                    if front is not None:
                        waiting.appendleft(front)
                        break
                if submissions:
                    break
            submissions.append(waiting.popleft())
            size -= submission.size
            count -= submission.count
        return submissions

    def _hand_over(
        self, draft: FrameDraft, submissions: list[Submission], first_tick: int, *, promise: int | None = None
    ) -> None:
        sequence = self._sequence
        frame = encode_frame(
            draft,
            incarnation=self.log.incarnation,
            term=self.log.term,
            sequence=sequence,
            first_tick=first_tick,
            promised_tick=promise,
        )
        self._prepared = None
        self._sequence = sequence + 1
        self.ledger.submitted(first_tick)
        self._flights.append(
            _Flight(
                submissions, sequence, first_tick, frame.header.promised_tick, draft.indices, frame, self._monotonic()
            )
        )
        self.log.append(frame, self._settled)

    def _settled(self, position: int, error: BaseException | None) -> None:
        """The backend's answer for the oldest frame under way."""
        if self.fault is not None:
            return
        try:
            if error is None:
                self._durable(position)
            else:
                self._failed(error)
        except Exception as defect:  # a defect here must reach every caller, not the loop's exception handler
            self.poisoned(defect, [])

    def _durable(self, position: int) -> None:
        flight = self._flights.popleft()
        promise = self.ledger.settled(flight.last_tick, durable=True)
        self._frames += 1
        self._bytes += flight.frame.length
        self._events += flight.indices
        if self._tick_frames is not None:
            self._tick_frames.written(self._monotonic(), data=flight.indices > 0)
        log = self.log
        origin = Origin(self.channel, log.incarnation, position, self.form)
        returned = 0
        for submission in flight.submissions:
            submission.resolve(origin, flight.first_tick)
            returned += submission.in_flight
        if returned:
            self.in_flight.release(returned)
        newest = (position, flight.indices - 1) if flight.indices else None
        self.recent.add(position, flight.frame)
        # Not the log's own durable end, which may lie behind a frame of which this actor has not heard yet.
        self.tail.data_moved(durable_end=position + 1, promised_tick=promise, newest=newest)
        if flight.frame.header.compatible and self.checkpointer is not None:
            self.checkpointer.look()  # keyed events: how many there are to replay has a bound
        self._release_barriers()
        self._pump()
        self._check_drained()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, REFUSALS):
            # Nothing was written, also of the frames behind it: their numbers are given again.
            flight = self._flights.popleft()
            self.ledger.settled(flight.last_tick, durable=False)
            self._sequence = min(self._sequence, flight.sequence)
            for submission in flight.submissions:
                self._fail(submission, error)
            self._pump()
            self._check_drained()
        elif isinstance(error, WALError):
            self.fail(error, answered=True)
        else:
            failure = StorageError(f"pchannel {self.channel}: the write failed: {error!r}", outcome_unknown=True)
            failure.__cause__ = error
            self.fail(failure, answered=True)

    def _log_failed(self, error: WALError) -> None:
        """The log failed by itself. Frames that are under way are answered with it in a moment, each with its own outcome."""
        if not self._flights:
            self.fail(error)

    def _fail(self, submission: Submission, error: BaseException) -> None:
        self.in_flight.release(submission.in_flight)
        submission.fail(error)

    def _fail_waiting(self, error: BaseException) -> None:
        """What was taken but not handed over: certainly not written."""
        if isinstance(error, WALError):
            error = _with_outcome(error, unknown=False)
        waiting = list(self._waiting)
        self._waiting.clear()
        self._plain = None
        if self._prepared is not None:
            waiting = self._prepared[1] + waiting
            self._prepared = None
        for submission in waiting:
            self._fail(submission, error)

    def _withdraw(self, claims: frozenset[Claim]) -> None:
        """Fails what was taken with these claims and not handed over yet: an earlier append of their producer failed."""
        error = InvalidRequestSeqError("an earlier sequence failed")

        def withdrawn(taken: object) -> bool:
            return isinstance(taken, KeyedSubmission | KeyedTxnSubmission | KeyedAppend) and taken.claim in claims

        if self._prepared is not None and any(map(withdrawn, self._prepared[1])):
            self._waiting.extendleft(reversed(self._prepared[1]))  # drafted with it: drafted again without
            self._prepared = None
        gone = [submission for submission in self._waiting if withdrawn(submission)]
        if gone:
            self._waiting = deque(submission for submission in self._waiting if not withdrawn(submission))
            for submission in gone:
                self._fail(submission, error)
        for vchannel, operation in self._barriers.take_out(lambda waiting: withdrawn(waiting[1])):
            vchannel.refuse([operation], error)

    def _term_start(self) -> FrameDraft:
        draft = FrameDraft()
        draft.term_start(
            previous_term=self.log.state.last_term, previous_last_sequence=max(self.log.state.last_sequence, 0)
        )
        return draft

    def _owe_start(self) -> None:
        self._owes_start = True

    async def _write_alone(self, draft: FrameDraft, tick: int) -> None:
        """Writes a frame of the log's own (no events) that promises `tick`, and waits for it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hand_over(draft, [_Alone(done)], tick, promise=tick)
        await done

    async def _one_tick(self) -> int:
        while (tick := self._take(1)) is None:
            if self.fault is not None:
                raise self.fault
            waiter = self.tail.waiter(ticks=True)
            self._starve()
            await asyncio.wait((waiter,), timeout=self._interval_s)
            waiter.cancel()
        return tick

    def _fresh_tick(self) -> int | None:
        tick = self._take(1)
        if tick is None:
            self._starve()
        return tick

    def _take(self, count: int) -> int | None:
        try:
            return self._ticks.take(count)
        except WALError as error:  # the oracle was taken over by another writer, so this one is fenced
            self.fail(error)
            return None

    def _starve(self) -> None:
        if not self._starving and self.fault is None:
            self._starving = True
            self._need_ticks(self)

    def _release_barriers(self) -> None:
        if not self._barriers:
            return
        smallest = self._barriers.smallest
        if smallest is not None and smallest > self.ledger.promise and not self.ledger.in_flight:
            self.ledger.advance(self._fresh_tick)
        released = self._barriers.release(self.ledger.promise)
        for vchannel, operation in released:
            vchannel.released(operation)
        if released:
            self._pump()

    def _unsynced_since(self) -> float | None:
        return self._flights[0].since if self._flights else None

    def _busy(self) -> bool:
        return bool(self._flights or self._waiting or self._prepared or self.held or self.actor_group.pending)

    def _check_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and (self.fault is not None or not self._busy()):
            self._drained.set_result(None)


class _Alone(Submission):
    """A frame that the log writes for itself."""

    __slots__ = ("_done",)

    def __init__(self, done: asyncio.Future[None]) -> None:
        self._done = done
        self.size = self.count = self.in_flight = 0

    def draft(self, draft: FrameDraft) -> None:
        raise AssertionError("a frame of the log's own is drafted by its writer")

    def resolve(self, origin: Origin, first_tick: int) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)


class _TermStart(Submission):
    """The first frame of a term that found no room when the term began. Nobody waits for it; `owed` is called when it fails."""

    __slots__ = ("_owed",)

    def __init__(self, owed: Callable[[], None]) -> None:
        self._owed = owed
        self.size = self.count = self.in_flight = 0

    def draft(self, draft: FrameDraft) -> None:
        raise AssertionError("the first frame of a term is drafted by its writer")

    def resolve(self, origin: Origin, first_tick: int) -> None:
        """It is in the log: the term has begun."""

    def fail(self, error: BaseException) -> None:
        self._owed()


def _with_outcome(error: WALError, *, unknown: bool) -> WALError:
    """The same error, for calls of which it is known, or not, whether they were written."""
    if error.outcome_unknown == unknown:
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    own.outcome_unknown = unknown
    return own


def _closed_at_barrier() -> ClosedError:
    return ClosedError("the log was closed while this append waited for its barrier; it was not written")
