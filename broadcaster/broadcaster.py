"""Broadcaster: the actor that runs the broadcasts of a log, one turn after the other.

Owns the turns: calls come through its inbox, the outcomes of background jobs wake it. A cancelled caller does not affect a broadcast that
has begun. After a crash at any point `started` finds the unfinished broadcasts and finishes them; no copy is appended twice. A save that
fails permanently fails the broadcaster: it takes no more calls, and the next opening recovers. `lifecycle.py` has the steps of a broadcast.

None of its turns awaits anything, so any other call on the loop runs between two turns. Therefore an append that finds the inbox empty, and
the outcome of a background job, get a turn at once, instead of waiting until the actor's task wakes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from actors import Actor, ActorError, ActorFailedError, ActorStoppedError, Clock, Timer
from broadcaster.admission import BroadcasterLimits
from broadcaster.background import BackgroundJobs
from broadcaster.calls import (
    AbortCall,
    AckCall,
    AppendCall,
    TasksCall,
    WatchCall,
    WithdrawCall,
    closed_early,
    not_abortable,
    refuse,
    settle,
)
from broadcaster.lifecycle import BroadcastLifecycle
from broadcaster.message import BroadcasterStatistics, BroadcastState, BroadcastTask
from broadcaster.operator import AppendOperator
from broadcaster.records import read_records, rebuild
from broadcaster.running import Running
from broadcaster.task import TICK_LOGICAL_BITS
from wal.errors import ClosedError, InvalidArgumentError
from wal.runtime.user_code import described
from wal.storage.kv import KVBase

COLLECT_INTERVAL_S: Final = 300.0


class Broadcaster(Actor):
    """The actor of one log's broadcasts. `broadcaster.broadcast` creates it, spawns it and sends it calls."""

    def __init__(self, kv: KVBase, operator: AppendOperator, *, clock: Clock, limits: BroadcasterLimits) -> None:
        self.operator = operator
        self.limits = limits
        self._kv = kv
        self._clock = clock
        self._jobs = BackgroundJobs(self._wake)
        self._lifecycle = BroadcastLifecycle(kv, operator, clock, limits, self._jobs, turn=self._turn, tell=self._tell)
        self._woken = self._taking = False
        self._failed: Exception | None = None
        self._collecting: Timer | None = None

    def statistics(self) -> BroadcasterStatistics:
        """Returns the current counts, and those since it started."""
        lifecycle, tombstones = self._lifecycle, self._lifecycle.finished.tombstones
        states, oldest = lifecycle.table.states, lifecycle.table.oldest
        return BroadcasterStatistics(
            tasks=len(lifecycle),
            waiting=lifecycle.admission.waiting,
            frames=lifecycle.writer.frames,
            bytes_held=lifecycle.admission.bytes_held,
            tombstones=len(tombstones),
            done_marks=tombstones.listed,
            appended=lifecycle.appended,
            finished=lifecycle.finished.count,
            saves=lifecycle.saver.saves,
            pending=states[BroadcastState.PENDING] + len(lifecycle.single_frames),
            waiting_acks=states[BroadcastState.WAIT_ACK],
            stuck=states[BroadcastState.STUCK],
            aborting=states[BroadcastState.ABORTING],
            oldest_s=self._age_s(oldest) if oldest else 0.0,
        )

    # -- the actor

    async def started(self) -> None:
        """Resumes the broadcasts that an earlier opening left unfinished."""
        operator, lifecycle = self.operator, self._lifecycle
        operator.on_forgotten(self._on_forgotten)
        operator.on_dropped(self._on_dropped)
        stored = read_records(*await self._kv.load_with_prefix(""))
        recovered = rebuild(stored, await operator.copies(), located=operator.located)
        for broadcast_id, (mark, pchannels) in recovered.done.items():
            lifecycle.finished.resume_marked(broadcast_id, mark, pchannels)
        lifecycle.saver.remove(recovered.garbage)
        # A drop just before that opening ended may have been the last ack.
        waiting = [task.broadcast_id for task, _ in recovered.tasks if task.state is BroadcastState.WAIT_ACK]
        dropped = await operator.dropped(waiting) if waiting else {}
        for task, content in recovered.tasks:
            task.ack_rest(dropped.get(task.broadcast_id, ()))
            # A broadcast on several pchannels that has lost its record is complete in no single log: it gets the records of a recorded
            # broadcast.
            recorded = content is not None or len(task.pchannels) > 1
            if task.finished:
                lifecycle.finished.resume(task, recorded=recorded)
            else:
                lifecycle.resume(task, content, recorded=recorded)
        self._collect()
        lifecycle.end_turn()
        self._taking = True

    def append_nowait(self, call: AppendCall) -> bool:
        """Handles a call now, in its own turn; returns False if the call has to go through the inbox, after the calls that wait there."""
        if not self._taking or self.ref.pending:
            return False
        self._turn(self._lifecycle.append, call)
        if self._failed is not None:  # the actor failed in this turn; `poisoned` may not have got the call
            refuse(call.reply, self._end_of(self._failed))
        return True

    async def receive(self, batch: list[Any]) -> None:
        for call in batch:
            if isinstance(call, AckCall):
                self._ack(call)
            elif isinstance(call, AppendCall):
                self._lifecycle.append(call)
            elif isinstance(call, WatchCall):
                self._watch(call)
            elif isinstance(call, AbortCall):
                self._abort(call)
            elif isinstance(call, TasksCall):
                if not call.reply.done():
                    self._lifecycle.single_frames.become_running()
                    call.reply.set_result([self._describe(running) for running in self._lifecycle.table])
            else:
                raise TypeError(f"a broadcaster takes no {type(call).__name__}")
        self._lifecycle.end_turn()

    async def receive_control(self, message: Any) -> None:
        if isinstance(message, WithdrawCall):
            self._withdraw(message.call)
        else:
            message()
        self._lifecycle.end_turn()

    def end_waiting(self, error: Callable[[], Exception]) -> None:
        """Answers the calls that wait for their keys with an error, and from now on every call that would have to wait. Call it
        inside a turn.
        """
        self._lifecycle.admission.end_waiting(error)

    async def stopped(self) -> None:
        """Begins no more broadcasts, and waits for the appends and saves under way; the rest is left to the next opening."""
        self._close()
        self._lifecycle.end_turn()
        while self._jobs:
            await self._jobs.wait()
            self._take_outcomes()
            self._lifecycle.end_turn()
        self._lifecycle.admission.fail(lambda: ClosedError("the log was closed while this broadcast waited for its resource keys"))
        for running in self._lifecycle.table:
            task = running.task
            running.callers.refuse_append(closed_early(task, intent=running.recorded or not task.traceless))
            running.callers.refuse_all(ClosedError(f"the log was closed while broadcast {task.broadcast_id} was under way"))

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._close()
        self._jobs.cancel()
        self._lifecycle.admission.fail(lambda: self._end_of(cause))
        for running in self._lifecycle.table:
            error: Exception = self._end_of(cause)
            if isinstance(error, ActorStoppedError):  # a save or a frame under way may have been carried out
                error = closed_early(running.task, intent=running.recorded or not running.task.traceless)
            running.callers.refuse_append(error)

    # -- calls

    def _ack(self, call: AckCall) -> None:
        running = self._find(call.broadcast_id)
        if running is None:
            settle(call.reply)  # the broadcast has finished, or this log never had it
            return
        try:
            self._lifecycle.ack(running, call.vchannel, call.reply)
        except InvalidArgumentError as error:
            refuse(call.reply, error)

    def _watch(self, call: WatchCall) -> None:
        if call.reply.done():
            return  # its caller was cancelled before this turn
        lifecycle = self._lifecycle
        lifecycle.single_frames.become_running()
        for running in lifecycle.table.of_owners(lifecycle.admission.holders(call.key)):
            if call.everywhere or not running.acks.durable:
                running.callers.watchers(call).append(call)
                call.owners.add(running.owner)
        if not call.owners:
            settle(call.reply)

    def _abort(self, call: AbortCall) -> None:
        running = self._find(call.broadcast_id)
        ended = running.task if running is not None else self._lifecycle.finished.tombstones.get(call.broadcast_id)
        if running is not None and not running.task.finished:
            self._lifecycle.abort(running, call.reason, call.reply)
        elif ended is None:
            refuse(call.reply, not_abortable(call.broadcast_id, "is not known here"))
        elif ended.state is not BroadcastState.ABORTED:
            refuse(call.reply, not_abortable(call.broadcast_id, f"is over already ({ended.state.name})"))
        elif running is not None:
            running.callers.aborts.append(call.reply)
        else:
            settle(call.reply)

    def _withdraw(self, call: AppendCall | WatchCall) -> None:
        call.reply.cancel()
        table = self._lifecycle.table
        if isinstance(call, WatchCall):
            for running in table.of_owners(call.owners):
                running.callers.watchers(call).remove(call)
        elif not self._lifecycle.admission.withdraw(call):
            holding = table.of_owner(call.owner)
            if holding is not None and holding.callers.append is call:
                holding.callers.append = None
                holding.callers.outcomes = []

    def _find(self, broadcast_id: int) -> Running | None:
        """Returns the broadcast with this id if it is running, or None."""
        running = self._lifecycle.table.get(broadcast_id)
        if running is None:
            self._lifecycle.single_frames.become_running()
            running = self._lifecycle.table.get(broadcast_id)
        return running

    def _describe(self, running: Running) -> BroadcastTask:
        task = running.task
        error = task.last_error or self._lifecycle.saver.error
        return BroadcastTask(
            task.broadcast_id,
            task.state,
            task.header.resource_keys,
            task.missing_appends,
            task.missing_acks,
            self._age_s(task.broadcast_id),
            None if error is None else described(error),
        )

    def _age_s(self, broadcast_id: int) -> float:
        """Returns the seconds since a broadcast began: its id is a tick."""
        return max(0.0, self._clock.wall() - (broadcast_id >> TICK_LOGICAL_BITS) / 1000)

    # -- what the operator reports

    def _on_dropped(self, vchannel: str) -> None:
        self._tell(partial(self._lifecycle.vchannel_dropped, vchannel))

    def _on_forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        self._tell(partial(self._lifecycle.finished.forgotten, pchannel, tuple(broadcast_ids)))

    # -- turns

    def _collect(self) -> None:
        """Removes old tombstones, now and periodically."""
        self._lifecycle.finished.make_room()
        self._collecting = self._clock.call_later(COLLECT_INTERVAL_S, self._tell, self._collect)

    def _wake(self) -> None:
        """Handles the outcomes of background jobs in a turn now; if no turn is possible, puts one message for all of them in the inbox."""
        if self._taking:
            self._turn(self._take_outcomes)
        elif not self._woken:
            self._woken = True
            self._tell(self._take_outcomes)

    def _take_outcomes(self) -> None:
        self._woken = False
        for then, result, error in self._jobs.take():
            then(result, error)

    def _turn(self, act: Callable[..., object], *args: Any) -> None:
        """Runs a turn outside the actor's task, between two turns of it. A failure in this turn fails the actor."""
        try:
            act(*args)
            self._lifecycle.end_turn()
        except Exception as cause:
            self._taking, self._failed = False, cause
            self._tell(partial(_fail, cause))

    def _end_of(self, cause: BaseException) -> ActorError:
        """Returns the error for callers that did not come through the inbox."""
        return cause if isinstance(cause, ActorStoppedError) else ActorFailedError(self.ref.name, cause)

    def _tell(self, message: Any) -> None:
        try:
            self.ref.tell_control(message)
        except ActorError:
            pass  # the actor has ended; the next one recovers the rest

    def _close(self) -> None:
        self._taking = False
        self._lifecycle.close()
        if self._collecting is not None:
            self._collecting.cancel()


def _fail(cause: Exception) -> None:
    raise cause
