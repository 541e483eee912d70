"""Broadcaster: the actor that takes a broadcast from its keys to its last ack.

Owns: the table of what is under way, every append and save of it (errands, so that no turn waits), and its callers' calls; how a broadcast
begins, goes on and ends is for `beginning`, `course` and `ending`. Promises: keys in memory, then the places of the vchannels, then the
intent (a record when several pchannels are involved, else the frame itself), then the copies, the acks, and one operation of the KV that
marks the broadcast done and removes the rest; only then the keys are free. A cancelled caller changes nothing of a broadcast that began.
After a crash at any of these points `started` finds the rest and finishes it; no copy is appended twice. A save that fails for good fails
the broadcaster: it takes nothing any more, and the next opening recovers.

No turn of it waits, so whatever runs on the loop runs between two of them. An append that finds the inbox empty, and the outcome of an
errand, have a turn of their own at once, instead of waiting until the actor's task is woken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from actors import Actor, ActorError, ActorFailedError, ActorStoppedError, Clock, Timer
from broadcaster.admission import Admission
from broadcaster.answers import left, not_abortable, unsettled
from broadcaster.beginning import Beginning
from broadcaster.calls import (
    AbortCall,
    AckCall,
    AppendCall,
    Running,
    TasksCall,
    WatchCall,
    Withdraw,
    refuse,
    refuse_caller,
    settle,
)
from broadcaster.course import Course
from broadcaster.ending import Ending
from broadcaster.errands import Errands
from broadcaster.limits import BroadcasterLimits, BroadcasterStatistics
from broadcaster.message import BroadcastTask
from broadcaster.operator import AppendOperator
from broadcaster.prompt import Prompts
from broadcaster.records import CHUNK_BITS, abort_key, encode_abort, read_records
from broadcaster.recovery import rebuild
from broadcaster.registry import AppendOperatorType, Registry
from broadcaster.saver import Saver
from broadcaster.state import BroadcastState
from broadcaster.table import Table
from broadcaster.task import TICK_LOGICAL_BITS
from broadcaster.tombstones import Tombstone
from broadcaster.writer import Writer
from wal.errors import ClosedError, InvalidArgumentError, WALError
from wal.kv import KVBase

__all__ = ["Broadcaster"]

COLLECT_INTERVAL_S: Final = 300.0


class Broadcaster(Actor):
    """See the module. Made, spawned and asked by `broadcaster.broadcast`."""

    def __init__(self, kv: KVBase, registry: Registry, *, clock: Clock, limits: BroadcasterLimits) -> None:
        self._kv = kv
        self._registry = registry
        self._clock = clock
        self.limits = limits
        self.operator: AppendOperator
        self._table = Table()
        self._errands = Errands(self._wake)
        self._saver = Saver(kv, self._errands, clock, delayed=self._on_delayed)
        self._writer = Writer(self._errands, clock, touch=self._table.touch, tell=self._tell)
        self._admission = Admission(limits, begin=self._begin, holder=self._holder)
        self._ending = Ending(self._table, self._admission, self._writer, self._saver, clock, limits)
        self._course = Course(self._table, self._admission, self._writer, self._saver, self._ending)
        self._prompts = Prompts(
            self._writer, self._errands, wake=self._turn, over=self._ending.prompt_over, began=self._table.add
        )
        self._beginning = Beginning(
            self._table,
            self._admission,
            self._prompts,
            self._saver,
            self._errands,
            saved=self._course.intent_saved,
            holder=self._holder,
        )
        self._woken = self._taking = False
        self._failed: Exception | None = None
        self._collecting: Timer | None = None

    def statistics(self) -> BroadcasterStatistics:
        """Counts of this moment, and since it started."""
        return BroadcasterStatistics(
            tasks=len(self._table) + len(self._prompts),
            waiting=self._admission.waiting,
            frames=self._writer.frames,
            bytes_held=self._admission.bytes_held,
            tombstones=len(self._ending.tombstones),
            done_marks=self._ending.tombstones.listed,
            appended=self._ending.appended,
            finished=self._ending.finished,
            saves=self._saver.saves,
        )

    # -- the actor

    async def started(self) -> None:
        """Takes up what an earlier life left."""
        self.operator = await self._registry.operator(AppendOperatorType.STREAMING)
        for part in (self._writer, self._beginning, self._ending, self._course):
            part.operator = self.operator
        self.operator.on_forgotten(self._on_forgotten)
        self.operator.on_dropped(self._on_dropped)
        stored = read_records(*await self._kv.load_with_prefix(""))
        recovered = rebuild(stored, await self.operator.copies())
        for broadcast_id, (mark, pchannels) in recovered.done.items():
            self._ending.tombstones.add(broadcast_id, Tombstone(mark.state, mark.at_ms, True), pchannels)
            if pchannels:
                self.operator.forget(broadcast_id, pchannels)
        self._saver.remove(recovered.garbage)
        # A drop just before the end of that life may have been the last ack.
        waiting = [task.broadcast_id for task, _ in recovered.tasks if task.state is BroadcastState.WAIT_ACK]
        dropped = self.operator.dropped(waiting) if waiting else {}
        for task, content in recovered.tasks:
            task.ack_rest(dropped.get(task.broadcast_id, ()))
            if task.finished:
                self._ending.recovered(task)
            else:
                self._beginning.resume(task, content)
        self._collect()
        self._course.end_turn()
        self._taking = True

    def append_nowait(self, call: AppendCall) -> bool:
        """Takes a call in a turn of its own, now; False when others came before it, or nothing is taken: it is to be told then."""
        if not self._taking or self.ref.pending:
            return False
        self._turn(self._append, call)
        if self._failed is not None:  # in this call, of which `poisoned` may not know
            refuse(call.reply, self._end_of(self._failed))
        return True

    async def receive(self, batch: list[Any]) -> None:
        for call in batch:
            if isinstance(call, AckCall):
                self._ack(call)
            elif isinstance(call, AppendCall):
                self._append(call)
            elif isinstance(call, WatchCall):
                self._watch(call)
            elif isinstance(call, AbortCall):
                self._abort(call)
            elif isinstance(call, TasksCall):
                if not call.reply.done():
                    self._prompts.become_running()
                    call.reply.set_result([self._describe(running) for running in self._table])
            else:
                raise TypeError(f"a broadcaster takes no {type(call).__name__}")
        self._course.end_turn()

    async def receive_control(self, message: Any) -> None:
        if isinstance(message, Withdraw):
            self._withdraw(message.call)
        else:
            message()
        self._course.end_turn()

    async def stopped(self) -> None:
        """Begins nothing more, and waits for the appends and saves under way; the rest is for the next opening."""
        self._close()
        self._course.end_turn()
        while self._errands:
            await self._errands.wait()
            self._outcomes()
            self._course.end_turn()
        self._admission.close()
        for running in self._table:
            self._leave(running)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._close()
        self._errands.cancel()
        self._admission.fail(lambda: self._end_of(cause))
        for running in self._table:
            if running.caller is not None:
                refuse(running.caller.reply, self._end_of(cause))

    # -- calls

    def _append(self, call: AppendCall) -> None:
        running = len(self._table) + len(self._prompts)
        self._admission.append(call, running=running, done_marks=self._ending.tombstones.listed)

    def _ack(self, call: AckCall) -> None:
        if (running := self._table.get(call.broadcast_id)) is None:
            self._prompts.become_running()
            running = self._table.get(call.broadcast_id)
        if running is None:
            settle(call.reply)  # it is over, or this log never had it
            return
        try:
            news = running.task.ack(call.vchannel)
        except InvalidArgumentError as error:
            refuse(call.reply, error)
            return
        if news is not None:
            running.acks_unsaved.add(news // CHUNK_BITS)
        if running.acks_unsaved or running.acks_saving or running.finishing:
            running.ack_replies.append(call.reply)
            self._table.touch(running)
        else:
            settle(call.reply)

    def _watch(self, call: WatchCall) -> None:
        if call.reply.done():
            return  # its caller was cancelled before this turn
        self._prompts.become_running()
        for owner in self._admission.holders(call.key):
            running = self._table.of_owner(owner)
            if call.everywhere or not running.acked_once:
                (running.watchers_all if call.everywhere else running.watchers_once).append(call)
                call.owners.add(owner)
        if not call.owners:
            settle(call.reply)

    def _begin(self, call: AppendCall) -> None:
        self._beginning.begin(call)

    def _abort(self, call: AbortCall) -> None:
        self._prompts.become_running()
        running = self._table.get(call.broadcast_id)
        if running is None:
            tombstone = self._ending.tombstones.get(call.broadcast_id)
            if tombstone is not None and tombstone.state is BroadcastState.ABORTED:
                settle(call.reply)
                return
            why = "is not known here" if tombstone is None else f"is over already ({tombstone.state.name})"
            refuse(call.reply, not_abortable(call.broadcast_id, why))
            return
        if running.task.finished and running.task.state is not BroadcastState.ABORTED:
            refuse(call.reply, not_abortable(call.broadcast_id, f"is over already ({running.task.state.name})"))
            return
        running.abort_replies.append(call.reply)
        if not running.task.finished and running.task.abort(call.reason):
            self._writer.forget(running.task)
            self._saver.save(
                {abort_key(call.broadcast_id): encode_abort(call.reason)},
                then=partial(self._course.intent_saved, running),
            )
            self._table.touch(running)

    def _withdraw(self, call: AppendCall | WatchCall) -> None:
        call.reply.cancel()
        if isinstance(call, WatchCall):
            for owner in call.owners:
                running = self._table.of_owner(owner)
                (running.watchers_all if call.everywhere else running.watchers_once).remove(call)
            return
        if not self._admission.withdraw(call):
            holding = self._table.find_owner(call.owner)
            if holding is not None and holding.caller is call:
                holding.caller = None
                holding.outcomes = []

    def _describe(self, running: Running) -> BroadcastTask:
        task = running.task
        error = task.last_error or self._saver.error
        return BroadcastTask(
            task.broadcast_id,
            task.state,
            task.header.resource_keys,
            task.missing_appends,
            task.missing_acks,
            max(0.0, self._clock.wall() - (task.broadcast_id >> TICK_LOGICAL_BITS) / 1000),
            None if error is None else f"{type(error).__name__}: {error}",
        )

    def _holder(self, owner: int) -> int:
        return self._prompts.id_of(owner) or self._table.of_owner(owner).task.broadcast_id

    # -- what the operator says

    def _on_dropped(self, vchannel: str) -> None:
        self._tell(partial(self._course.dropped, vchannel))

    def _on_forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        self._tell(partial(self._ending.forgotten, pchannel, tuple(broadcast_ids)))

    def _on_delayed(self, error: WALError) -> None:
        """The save under way has to be tried again, perhaps for long: callers that wait for the end of a broadcast are told."""
        for running in self._table:
            if running.finishing:
                refuse_caller(running, unsettled(running.task, error))

    def _collect(self) -> None:
        self._ending.make_room()
        self._collecting = self._clock.call_later(COLLECT_INTERVAL_S, self._tell, self._collect)

    # -- the shell

    def _wake(self) -> None:
        """Outcomes of errands wait: they have their turn, or one message for all of them while none can be had."""
        if self._taking:
            self._turn(self._outcomes)
        elif not self._woken:
            self._woken = True
            self._tell(self._outcomes)

    def _outcomes(self) -> None:
        self._woken = False
        for then, result, error in self._errands.take():
            then(result, error)

    def _turn(self, act: Callable[..., object], *args: Any) -> None:
        """A turn outside of the actor's task, which is between two of its own. A failure in it is the actor's."""
        try:
            act(*args)
            self._course.end_turn()
        except Exception as cause:
            self._taking, self._failed = False, cause
            self._tell(partial(_fail, cause))

    def _end_of(self, cause: BaseException) -> ActorError:
        """What those are told who did not ask by the inbox."""
        return cause if isinstance(cause, ActorStoppedError) else ActorFailedError(self.ref.name, cause)

    def _tell(self, message: Any) -> None:
        try:
            self.ref.tell_control(message)
        except ActorError:
            pass  # it has ended; what it did not get to is recovered by the next one

    def _leave(self, running: Running) -> None:
        """The log closes before this broadcast is over."""
        task = running.task
        refuse_caller(running, left(task, intent=running.spans or not task.traceless))
        closed = ClosedError(f"the log was closed while broadcast {task.broadcast_id} was under way")
        for reply in (*running.ack_replies, *running.abort_replies):
            refuse(reply, closed)
        for call in (*running.watchers_once, *running.watchers_all):
            refuse(call.reply, closed)

    def _close(self) -> None:
        self._taking, self._beginning.closed = False, True
        self._prompts.close()
        self._writer.close()
        self._saver.close()
        if self._collecting is not None:
            self._collecting.cancel()


def _fail(cause: Exception) -> None:
    raise cause
