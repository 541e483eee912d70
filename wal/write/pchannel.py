"""The PChannel actor: one pchannel in one term, which all vchannels on it share, and its end after the loss of a lease, disk or connection.

Owns the common part of its vchannels: the frame pipeline, ticks and the promised tick, open transactions, idempotency keys, the copies of
broadcasts, the messages that wait for their delivery time, and the start, failure and end of the pchannel. It is the member of the group
that receives timer turns and ticks. `VChannel` decides about the operations on one vchannel, `FramePipeline` turns submissions into frames.

    opening --start--> open --drain--> closing --finish--> closed
                        |
                        +--fail--> failed, for good: every later operation gets the same cause

`fail` is the one place where a pchannel is lost. A frame in flight has an unknown outcome, unless the backend answered. Submissions that
were not handed over were certainly not written. Readers end with the error, and no tick is promised any more. Causes:

* **a lease** (`wal/read/lease.py`): checked before every answer, so a process that was stopped answers nothing afterwards;
* **a disk**, or any other storage: a failed write comes from `FramePipeline._settled`, a log that failed by itself from `log.failed`. A
  full disk does not fail the pchannel: the backend refuses the frame, and the log continues when there is room;
* **another writer**: the backend finds a higher term and answers ChannelFencedError;
* **the metadata**, when no tick can be saved at the end, and a defect in this code (`poisoned`).

A lost **connection** of a client does not reach the pchannel: its requests are written, and the client asks again on a new one, or gives an
UnknownOutcomeError to its caller (`wal/client/producer.py`). A change that the client has abandoned meanwhile is refused
(`wal/serve/fence.py`). A lost connection of the backend to Pulsar is repaired by its writer (`wal/storage/pulsar/repair.py`), or ends as a
failed storage.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any

from actors import ActorError, Group, Member
from wal.errors import ClosedError, ConflictError, InvalidRequestSeqError, UnavailableError, WALError, defect
from wal.frame import Compressor, EncodedFrame, FrameDraft, RunName
from wal.message import MessageID, Origin
from wal.read.figures import PChannelStatistics
from wal.read.last_events import LastEvents
from wal.read.lease import OWN, Lease
from wal.read.pchannel import ReadablePChannel
from wal.storage.base import REFUSALS, PChannelLog
from wal.timestamp.timestamp import LOGICAL_BITS
from wal.write.checkpointer import Checkpointer
from wal.write.copy_writes import CopyWrites
from wal.write.cursor_writes import CursorWrites
from wal.write.idempotency.scopes import Claim
from wal.write.in_flight import InFlight
from wal.write.keyed_writes import KeyedWrites, is_abandoned, withdrawn
from wal.write.operations import Answers, Atomic, Begin, Expected, KeyedAppend, VChannelMember, closed_at_barrier, fail_future, with_outcome
from wal.write.pipeline import FramePipeline
from wal.write.recovery import RecoveryState
from wal.write.schedule_writes import ScheduleWrites
from wal.write.submissions import TxnSubmission
from wal.write.ticks import BarrierHeap, Holder, PromisedTick, TickOracle, TickSupply
from wal.write.txn_table import TxnClock, TxnLimits, TxnTable, whole_ms


class PChannel(ReadablePChannel, Member):
    """One pchannel in one term. All its methods run on the loop, most of them in a turn of the group."""

    log: PChannelLog
    actor_group: Group
    """The group of actors that the pchannel shares with its vchannels: one inbox, one order, one turn."""

    def __init__(
        self,
        log: PChannelLog,
        *,
        form: int,
        group: Group,
        oracle: TickOracle,
        request_ticks: Callable[[PChannel], None],
        in_flight: InFlight,
        limits: TxnLimits,
        keepalive: float,
        interval_s: float,
        monotonic: Callable[[], float],
        due_ms: Callable[[], int],
        state: RecoveryState,
        lease: Lease = OWN,
        compressor: Compressor | None = None,
    ) -> None:
        """`request_ticks` makes the oracle save a new limit and answers with `ticks_extended` on the control lane.

        `due_ms` returns the wall time up to which scheduled messages are due, in milliseconds.
        """
        self.promised: PromisedTick = PromisedTick(log.state.promised_tick)
        super().__init__(log, form=form, promised_tick=self.promised.tick, newest=log.state.newest, lease=lease)

        def origin(position: int) -> Origin:
            return Origin(log.pchannel, log.incarnation, position, form)

        self.actor_group = group
        self.keepalive: float = whole_ms(keepalive)
        self.in_flight = in_flight
        self.ticks: TickSupply = TickSupply(oracle, request=lambda: request_ticks(self), fenced=self.fail)
        self.frames: FramePipeline = FramePipeline(
            log,
            owner=self,
            ticks=self.ticks,
            promised=self.promised,
            in_flight=in_flight,
            lasts=state.lasts,
            origin=origin,
            monotonic=monotonic,
            lease=lease,
            compressor=compressor,
        )
        self.lasts: LastEvents = state.lasts
        self.table: TxnTable = TxnTable(limits)
        self.checkpointer: Checkpointer | None = None
        """Advances the position where recovery begins; set once the pchannel has started."""
        self.keyed: KeyedWrites = KeyedWrites(
            state.keys,
            origin=origin,
            now_ms=lambda: oracle.last >> LOGICAL_BITS,
            alive=lambda: self.fault is None,
            withdraw=self._withdraw,
            channel=self.channel,
            schedule=state.schedule,
        )
        self.schedule: ScheduleWrites = ScheduleWrites(
            state.schedule, self.frames, self.ticks, self.keyed, in_flight=in_flight, due_ms=due_ms, mark=self._mark_scheduled
        )
        self.opening_s: float = 0.0
        """The seconds that its opening took, and the number of events after the last checkpoint that it replayed."""
        self.replayed_events = 0
        self.endings = 0
        """The number of its vchannels that have ended, for any reason."""
        self.copies: CopyWrites = CopyWrites(
            state.copies, group, self.frames, self.ticks, in_flight=in_flight, origin=origin, endings=lambda: self.endings
        )
        self._barriers: BarrierHeap[tuple[VChannelMember, Any]] = BarrierHeap()
        self.cursors: CursorWrites = CursorWrites(state.cursors, group, self.frames, self.ticks, in_flight, self._barriers)
        self.vchannels: dict[str, VChannelMember] = {}
        log.failed = self._log_failed
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._txn_clock = TxnClock(monotonic=monotonic(), interval_s=interval_s)
        self._drained: asyncio.Future[None] | None = None
        self._closing = False

    @property
    def fault(self) -> WALError | None:
        """The reason why the pchannel writes nothing any more, or None; final."""
        return self.frames.fault

    def holds_lease(self) -> bool:
        """Returns whether this process may still answer for the pchannel; if not, the pchannel has failed, now at the latest."""
        if not self.lease.alive:
            self.lose()
        return self.lease.alive

    def lose(self) -> WALError:
        error = super().lose()
        self.fail(error)
        return error

    # -- calls of the vchannels in their turn

    def passed(self, barrier: int, vchannel: VChannelMember, operation: Any) -> bool:
        """Returns whether everything up to this tick is in the log, advancing the promised tick if need be.

        Otherwise it keeps the operation until then; at close it fails with ClosedError (it was never sent). Once the pchannel has failed it
        fails at once, since no tick is promised any more.
        """
        if barrier <= self.promised.tick or barrier <= self.advance_promised():
            return True
        if self.fault is not None or self._closing:
            vchannel.refuse([operation], self.fault or closed_at_barrier())
        else:
            self._barriers.wait(barrier, (vchannel, operation))
        return False

    def txn_now(self) -> float:
        """Returns the time by which transactions expire."""
        flights = self.frames.flights
        return self._txn_clock.at(self._monotonic(), unsynced_since=flights[0].since if flights else None)

    def fail_transactions(self, name: RunName, reason: Callable[[int], WALError], *, spanned: bool = False) -> None:
        """Ends every transaction on this vchannel that is in no frame yet: open ones, and commits that wait for their barrier.

        With `spanned` it ends only transactions that would span an event of this turn: a whole transaction comes after it.
        """

        def ended(waiting: tuple[Holder, Any]) -> bool:
            operation = waiting[1]
            # A whole transaction has no event before its commit, so it spans nothing.
            return isinstance(operation, TxnSubmission) and name in operation.names and not (spanned and operation.whole)

        self.table.fail(name, reason)
        for holder, commit in (*self._barriers.take_out(ended), *self.cursors.take_out(ended)):
            holder.refuse([commit], reason(commit.context.txn_id))

    def dropped(self, vchannel: VChannelMember) -> None:
        """Ends the readers of a vchannel that was dropped in this turn."""
        if self.vchannels.get(vchannel.channel) is vchannel:
            del self.vchannels[vchannel.channel]
        self.schedule.table.drop(vchannel.run_name)
        assert vchannel.closed is not None
        for reader in list(self.readers):
            reader.ended_by(vchannel.channel, vchannel.closed())

    # -- last events

    def last_event(self, name: RunName) -> MessageID | None:
        """Returns the id of the last durable event of this vchannel, or None without one."""
        event = self.lasts.get(name)
        return None if event is None else self.origin(event[0]).message_id(event[1])

    def pending_event(self, expected: Expected) -> int:
        """Returns the serial up to which one of these vchannels has, or may have, events in flight; 0 without any."""
        frames = self.frames
        newest = max(vchannel.newest for vchannel, _ in expected)
        copies = max(frames.pending_copies(vchannel.run_name) for vchannel, _ in expected)
        delivered = max(self.schedule.pending(vchannel.run_name) for vchannel, _ in expected)
        return max(newest if newest and frames.is_pending(newest) else 0, copies, delivered)

    def conflict(self, expected: Expected) -> ConflictError | None:
        """Returns the error for the first vchannel whose last durable event differs from the expected one, or None."""
        for vchannel, event in expected:
            last = self.last_event(vchannel.run_name)
            if last != event and (event is None or not self.log.lineage.is_now(event, last)):
                return ConflictError.of(vchannel.channel, event, last)
        return None

    def fail_conflicting(self, expected: Expected, callers: Iterable[Answers[Any]]) -> None:
        """Fails the callers of an operation that conflicted with an event in flight, whose outcome is known now."""
        error: WALError | None = self.conflict(expected) or self.fault
        if error is None:
            error = UnavailableError(
                f"nothing was written: an earlier append to vchannel {expected[0][0].channel!r}, which was in flight, would have been the "
                "last event instead of the expected one, but it was not written either; append again"
            )
        for caller in callers:
            fail_future(caller, error)

    def forget(self, name: RunName) -> None:
        """Forgets the keys, the scheduled messages and the last event of a vchannel that was dropped, and whose record is gone."""
        self.keyed.table.drop(name)
        self.schedule.table.drop(name)
        self.frames.when_settled(self.frames.newest, lambda: self.lasts.drop(name))

    # -- turns

    def receive(self, batch: list[Any]) -> None:
        """Withdraws the appends of these callers, which no longer wait, if the appends wait for their barriers."""
        if self.ticks.held:  # the appends may be among the held operations
            self.ticks.hold(self, batch)
            return
        callers = frozenset(batch)
        for vchannel, operation in self._barriers.take_out(lambda waiting: is_abandoned(waiting[1], callers)):
            vchannel.refuse([operation], withdrawn())

    def refuse(self, operations: list[Any], error: BaseException) -> None:
        """Withdraws nothing: waiting operations have failed for the same reason."""

    def receive_control(self, message: Any) -> None:
        """Runs a callable between two turns."""
        message()

    def turn_ended(self) -> None:
        """Writes everything that was submitted in this turn as a frame, unless enough frames are in flight."""
        self.frames.pump()
        if self._drained is not None:
            self.frame_settled()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Fails the pchannel for a defect in its own code."""
        self.fail(defect(f"pchannel {self.channel} failed and takes nothing any more until the log is reopened", cause))

    def timer_turn(self) -> None:
        """Runs every `time_tick_interval_s`: expires transactions, advances the promised tick, and delivers messages that are due."""
        now = self._txn_clock.advance(self._monotonic(), unsynced_since=self.frames.unsynced_since)
        self.table.expire(now)
        if self.keyed.moved:
            self.keyed.warn_of_cut(now)
        if not self._closing:
            self.frames.write_due_tick()
        self.advance_promised()
        if self.schedule.table.next_due_ms < inf and not self._closing and self.ticks.take() is not None:
            self.schedule.deliver()

    def advance_for(self, tick: int) -> bool:
        """Promises this tick for a reader that waits for it, and returns whether that is possible now.

        A tick above all allocated ones is left to the timer: fresh ticks follow the clock and do not reach it early.
        """
        return tick <= self.ticks.oracle.last and self.advance_promised() >= tick

    def advance_promised(self) -> int:
        """Advances the promised tick as far as possible and returns it; readers, the control page and barriers see it."""
        if self.fault is None and not self._closing and self.holds_lease():
            before = self.promised.tick
            if self.promised.advance(self.ticks.take) != before:
                self.log.promise(self.promised.tick, self.ticks.oracle.limit)
                self.tail.tick_moved(self.promised.tick)
                self._release_barriers()
        return self.promised.tick

    def ticks_extended(self, error: WALError | None) -> None:
        """Continues the operations that wait for ticks, since the oracle saved a new limit. After an error they fail, and a later call asks
        again.
        """
        for holder, operation in self.ticks.take_held():
            if error is not None and isinstance(operation, Begin | Atomic):
                holder.refuse([operation], error)
            else:
                holder.receive([operation])
        if error is None:
            self.frames.pump()
        else:
            self.frames.fail_waiting(with_outcome(error, unknown=False))
            self.frame_settled()

    # -- answers of the pipeline

    def frame_durable(self, frame: EncodedFrame) -> None:
        """Releases the barriers that a durable frame passed, and begins a checkpoint if one is due."""
        if self.checkpointer is not None:
            self.checkpointer.moved = True
        if frame.header.compatible:  # keyed events
            self.keyed.moved = True
            if self.checkpointer is not None:
                self.checkpointer.look()  # bounds the number of events to replay
        self._release_barriers()

    def frame_settled(self) -> None:
        """Ends a `drain` when it has nothing left to wait for."""
        # After a failure the pchannel writes nothing any more, so a drain does not wait for idleness.
        if self._drained is not None and not self._drained.done() and (self.fault or self._idle()):
            self._drained.set_result(None)

    def fail(self, error: WALError, *, answered: bool = False) -> None:
        """Ends the pchannel for good: callers get this error, readers end with it.

        Submissions that were not handed over are certainly not written. Frames in flight may have been, unless the backend `answered` with
        this error.
        """
        if self.fault is not None:
            return
        unsent = with_outcome(error, unknown=False)
        self.frames.stop(unsent, in_flight=error if answered else with_outcome(error, unknown=True))
        for vchannel, operation in self._barriers.drain():
            vchannel.refuse([operation], unsent)
        self.cursors.stop(unsent)
        self.schedule.refuse_unmarked(unsent)
        self.ticks.stop(unsent)
        self.tail.fail(error)
        self.frame_settled()

    # -- start and end

    async def start(self) -> None:
        """Writes the first frame of the term; when it returns, this handle owns the pchannel, see `FramePipeline.begin_term`."""
        while (tick := self.ticks.take()) is None:
            if self.fault is not None:
                raise self.fault
            waiter = self.tail.waiter(ticks=True)
            await asyncio.wait((waiter,), timeout=self._interval_s)
            waiter.cancel()
        await self.frames.begin_term(tick)

    async def drain(self) -> None:
        """Refuses the operations that wait for a barrier, then waits until all accepted ones are durable or failed."""
        self._closing = True
        for vchannel, operation in self._barriers.drain():
            vchannel.refuse([operation], closed_at_barrier())
        self.schedule.refuse_unmarked(ClosedError("the log was closed before the message was scheduled; nothing was written"))
        if not self._idle():
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def finish(self, tick: int, cause: WALError) -> None:
        """After `drain`: writes the closing TimeTick frame, ends the readers with `cause`, and closes the log."""
        try:
            if self.fault is None and self.holds_lease():
                if not self.frames.owes_start:
                    # Without room for the frame, only the control page has the promised tick.
                    with contextlib.suppress(*REFUSALS):
                        await self.frames.write_alone(FrameDraft(), tick)
                self.promised.advance(lambda: tick)
                self.log.promise(self.promised.tick, self.ticks.oracle.limit)
        finally:
            self.tail.fail(self.fault or cause)
            if self.fault is None:
                self.frames.stop(cause, in_flight=cause)
            await self.log.close()

    def statistics(self) -> PChannelStatistics:
        """Returns a snapshot of its counts."""
        frames, table, checkpointer = self.frames, self.table, self.checkpointer
        frame_events, append_s, sync_s = frames.histograms()
        since = frames.unsynced_since
        extents = [] if self.fault is not None else self.log.extents()
        failure = "" if self.fault is None else f"{type(self.fault).__name__}: {self.fault}"
        if frames.owes_start and not failure:
            failure = "it was opened on a full disk, and takes no append until there is room"
        return self._counts(
            term=self.log.term,
            frames=frames.frames,
            bytes=frames.bytes,
            events=frames.events,
            waiting=frames.waiting,
            frames_in_flight=frames.frames_in_flight,
            bytes_in_flight=frames.bytes_in_flight,
            open_transactions=len(self.table),
            open_transaction_bytes=self.table.size,
            expired_transactions=self.table.expired,
            barriers=len(self._barriers),
            idempotency_keys=len(self.keyed.table),
            idempotency_reach_s=self.keyed.reach_s(),
            promise=self.promised.tick,
            unsynced_s=0.0 if since is None else max(self._monotonic() - since, 0.0),
            frame_events=frame_events,
            append_s=append_s,
            sync_s=sync_s,
            duplicates=self.keyed.duplicates,
            committed_transactions=frames.committed,
            rolled_back_transactions=table.rolled_back,
            failed_transactions=table.failed + frames.failed_txns,
            refused_transactions=table.refused,
            segments=len(extents),
            log_bytes=sum(extent.size for extent in extents),
            checkpoint_age_s=0.0 if checkpointer is None else checkpointer.age_s,
            checkpoint_failures=0 if checkpointer is None else checkpointer.ledger.failures,
            opening_s=self.opening_s,
            replayed_events=self.replayed_events,
            write_path=self.log.write_path[0],
            write_path_reason=self.log.write_path[1],
            scheduled=len(self.schedule.table),
            scheduled_bytes=self.schedule.table.bytes,
            delivered=self.schedule.delivered_messages,
            failure=failure,
        )

    # -- privates

    def _release_barriers(self) -> None:
        if not self._barriers:
            return
        smallest = self._barriers.smallest
        if smallest is not None and smallest > self.promised.tick and not self.promised.in_flight:
            self.promised.advance(self.ticks.take)
        released = self._barriers.release(self.promised.tick)
        for vchannel, operation in released:
            vchannel.released(operation)
        if released:
            self.frames.pump()

    def _mark_scheduled(self, settled: Callable[[WALError | None], None]) -> None:
        """Makes a checkpoint record that there are scheduled messages; calls back in a turn, or after the end of the pchannel."""

        def answered(error: WALError | None) -> None:
            try:
                self.actor_group.tell_control(self, partial(settled, error))
            except ActorError:
                settled(self.fault or ClosedError("the log was closed before the message was scheduled; nothing was written"))

        assert self.checkpointer is not None, "it takes operations once it has started"
        self.schedule.table.used = True
        self.schedule.table.changes += 1
        self.checkpointer.mark(answered)

    def _withdraw(self, claims: frozenset[Claim]) -> None:
        """Fails the operations with these claims that were not handed over yet: an earlier append of their producer failed."""
        error = InvalidRequestSeqError("an earlier sequence failed")
        self.frames.withdraw(claims, error)
        for vchannel, operation in self._barriers.take_out(
            lambda waiting: isinstance(waiting[1], TxnSubmission | KeyedAppend) and waiting[1].claim in claims
        ):
            vchannel.refuse([operation], error)

    def _log_failed(self, error: WALError) -> None:
        """Handles a failure of the log itself. Frames in flight get the error in a moment, each with its own outcome."""
        if not self.frames.frames_in_flight:
            self.fail(error)

    def _idle(self) -> bool:
        return not (self.frames.busy or self.ticks.held or self.actor_group.pending)
