"""Broadcaster: the actor that takes a broadcast from its keys to its last ack.

Owns: the tasks, who waits for them, and every append and save under way (errands, so that no turn waits). Promises:
keys in memory, then the places of the vchannels, then the intent (a record when several pchannels are involved, else the frame itself),
then the copies, the acks, and one operation of the KV that marks the broadcast done and removes the rest; only then the keys are free.
A cancelled caller changes nothing of a broadcast that began. After a crash at any of these points `started` finds the rest and finishes
it; no copy is appended twice. A save that fails for good fails the broadcaster: it takes nothing any more, and the next opening recovers.

No turn of it waits, so whatever runs on the loop runs between two of them. An append that finds the inbox empty, and the outcome of an
errand, have a turn of their own at once, instead of waiting until the actor's task is woken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from actors import Actor, ActorError, ActorFailedError, ActorStoppedError, Clock, Timer
from broadcaster.admission import Admission
from broadcaster.answers import aborted, held_twice, left, not_abortable, stuck
from broadcaster.calls import AbortCall, AckCall, AppendCall, Running, TasksCall, WatchCall, Withdraw, refuse, settle
from broadcaster.content import Content
from broadcaster.errands import Errands
from broadcaster.limits import BroadcasterLimits, BroadcasterStatistics
from broadcaster.message import BroadcastTask
from broadcaster.operator import AppendOperator
from broadcaster.prompt import Prompt, Prompts
from broadcaster.records import (
    CHUNK_BITS,
    abort_key,
    done_key,
    encode_abort,
    encode_acks,
    encode_done,
    encode_progress,
    encode_task,
    finished_keys,
    progress_key,
    read_records,
    task_key,
)
from broadcaster.recovery import rebuild
from broadcaster.registry import AppendOperatorType, Registry
from broadcaster.results import BroadcastAppendResult
from broadcaster.saver import Saver
from broadcaster.task import BroadcastState, Task
from broadcaster.tombstones import Tombstone, Tombstones
from broadcaster.writer import Writer
from wal.errors import ClosedError, InvalidArgumentError, WALError
from wal.kv import KVBase
from wal.message import BroadcastHeader, encode_properties

__all__ = ["Broadcaster"]

COLLECT_INTERVAL_S: Final = 300.0
PROMPTS_A_COLLECTION: Final = 64
"""Broadcasts that left no done mark: after so many those are let go that are over the bounds."""
TICK_LOGICAL_BITS: Final = 18
"""Of an id, which is a time tick: what lies above is milliseconds."""


class Broadcaster(Actor):
    """See the module. Made, spawned and asked by `broadcaster.broadcast`."""

    def __init__(self, kv: KVBase, registry: Registry, *, clock: Clock, limits: BroadcasterLimits) -> None:
        self._kv = kv
        self._registry = registry
        self._clock = clock
        self.limits = limits
        self.operator: AppendOperator
        self._admission = Admission(limits, begin=self._begin, holder=self._holder)
        self._running: dict[int, Running] = {}
        self._holding: dict[int, Running] = {}
        self._tombstones = Tombstones(
            count_max=limits.tombstones_max, age_max_ms=round(limits.tombstone_age_max_s * 1000)
        )
        self._hurried = False
        self._errands = Errands(self._wake)
        self._woken = False
        self._taking = self._closed = False
        self._failed: Exception | None = None
        self._saver = Saver(kv, self._errands, clock)
        self._writer = Writer(self._errands, clock, touch=self._touch, tell=self._tell)
        self._prompts = Prompts(
            self._writer, self._errands, wake=self._turn, over=self._prompt_over, began=self._took_over
        )
        self._dirty: dict[int, Running] = {}
        self._to_ask: dict[int, Running] = {}
        """Broadcasts that may wait for the ack of a vchannel that was dropped."""
        self._collecting: Timer | None = None
        self._appended = self._finished = 0

    def statistics(self) -> BroadcasterStatistics:
        """Counts of this moment, and since it started."""
        return BroadcasterStatistics(
            tasks=len(self._running) + len(self._prompts),
            waiting=self._admission.waiting,
            frames=self._writer.frames,
            bytes_held=self._admission.bytes_held,
            tombstones=len(self._tombstones),
            done_marks=self._tombstones.listed,
            appended=self._appended,
            finished=self._finished,
            saves=self._saver.saves,
        )

    # -- the actor

    async def started(self) -> None:
        """Takes up what an earlier life left."""
        self.operator = await self._registry.operator(AppendOperatorType.STREAMING)
        self._writer.operator = self.operator
        self.operator.on_forgotten(self._on_forgotten)
        self.operator.on_dropped(self._on_dropped)
        stored = read_records(*await self._kv.load_with_prefix(""))
        recovered = rebuild(stored, await self.operator.copies())
        for broadcast_id, (mark, pchannels) in recovered.done.items():
            self._tombstones.add(broadcast_id, Tombstone(mark.state, mark.at_ms, True), pchannels)
            if pchannels:
                self.operator.forget(broadcast_id, pchannels)
        self._saver.remove(recovered.garbage)
        for task, content in recovered.tasks:
            self._resume(task, content)
        self._collect()
        self._end_turn()
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
                    call.reply.set_result([self._describe(running) for running in self._running.values()])
            else:
                raise TypeError(f"a broadcaster takes no {type(call).__name__}")
        self._end_turn()

    async def receive_control(self, message: Any) -> None:
        if isinstance(message, Withdraw):
            self._withdraw(message.call)
        else:
            message()
        self._end_turn()

    async def stopped(self) -> None:
        """Begins nothing more, and waits for the appends and saves under way; the rest is for the next opening."""
        self._close()
        self._end_turn()
        while self._errands:
            await self._errands.wait()
            self._outcomes()
            self._end_turn()
        self._admission.close()
        for running in self._running.values():
            self._leave(running)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._close()
        self._errands.cancel()
        self._admission.fail(lambda: self._end_of(cause))
        for running in self._running.values():
            if running.caller is not None:
                refuse(running.caller.reply, self._end_of(cause))

    # -- calls

    def _append(self, call: AppendCall) -> None:
        running = len(self._running) + len(self._prompts)
        self._admission.append(call, running=running, done_marks=self._tombstones.listed)

    def _begin(self, call: AppendCall) -> None:
        """The call holds its keys."""
        message, broadcast_id = call.message, call.broadcast_id
        if call.waited:
            try:
                broadcast_id = self.operator.allocate_id()
            except WALError as error:
                # Who waited for his keys must not lose them for want of an id at that moment; one from before is as unique.
                if not error.retryable:
                    self._admission.bytes_held -= call.size
                    refuse(call.reply, error)
                    self._admission.release(call.owner)
                    return
        header = BroadcastHeader(
            broadcast_id, tuple(message.vchannels), tuple(message.resource_keys), message.needs_ack
        )
        properties = encode_properties(message.properties) if message.properties else b""
        content = Content(message.payload, int(message.message_type), properties)
        places = self.operator.places_nowait(header.vchannels)
        if places is not None and self._prompts.begin(call, header, content, places):
            return
        caller = None if call.withdrawn else call
        running = Running(Task(header), call.owner, content, size=call.size, caller=caller)
        self._took_over(running)
        if places is None:
            self._errands.run(self.operator.places(header.vchannels), partial(self._placed, running))
        else:
            self._place(running, places)

    def _placed(
        self, running: Running, places: Mapping[str, Sequence[str]] | None, error: BaseException | None
    ) -> None:
        """Where its vchannels lie; what was aborted meanwhile, or begins too late before the close, has no use for it."""
        task = running.task
        if task.reason is not None or self._closed:
            return
        if places is not None:
            self._place(running, places)
        elif isinstance(error, Exception):
            task.withdraw()
            self._refuse(running, error)
            self._touch(running)
        else:
            raise error or RuntimeError("an operator answered with no places")

    def _place(self, running: Running, places: Mapping[str, Sequence[str]]) -> None:
        task, content = running.task, running.content
        task.place(places)
        running.spans = len(places) > 1
        if running.spans and content is not None:
            task.saving()
            self._saver.save(
                {task_key(task.broadcast_id): encode_task(task.header, content, places)},
                then=partial(self._intent_saved, running),
            )
        self._touch(running)

    def _took_over(self, running: Running) -> None:
        self._running[running.task.broadcast_id] = self._holding[running.owner] = running

    def _prompt_over(self, prompt: Prompt, outcomes: Sequence[Any]) -> None:
        """All copies of a broadcast are in that nobody has to acknowledge, and that nobody has looked for."""
        call, header = prompt.call, prompt.header
        self._admission.bytes_held -= call.size
        self._appended += 1
        self._finished += 1
        at_ms = header.broadcast_id >> TICK_LOGICAL_BITS  # it began and ended in this very moment
        self._tombstones.add(header.broadcast_id, Tombstone(BroadcastState.DONE, at_ms, False), ())
        self.operator.forget(header.broadcast_id, prompt.places)
        self._admission.release(call.owner)
        if not call.reply.done():
            result = BroadcastAppendResult.of(header.broadcast_id, header.vchannels, ((header.vchannels, outcomes),))
            call.reply.set_result(result)
        if not self._finished % PROMPTS_A_COLLECTION:
            self._make_room()

    def _ack(self, call: AckCall) -> None:
        if (running := self._running.get(call.broadcast_id)) is None:
            self._prompts.become_running()
            running = self._running.get(call.broadcast_id)
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
            self._touch(running)
        else:
            settle(call.reply)

    def _watch(self, call: WatchCall) -> None:
        if call.reply.done():
            return  # its caller was cancelled before this turn
        self._prompts.become_running()
        for owner in self._admission.holders(call.key):
            running = self._holding[owner]
            if call.everywhere or not running.acked_once:
                (running.watchers_all if call.everywhere else running.watchers_once).append(call)
                call.owners.add(owner)
        if not call.owners:
            settle(call.reply)

    def _abort(self, call: AbortCall) -> None:
        self._prompts.become_running()
        running = self._running.get(call.broadcast_id)
        if running is None:
            tombstone = self._tombstones.get(call.broadcast_id)
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
                {abort_key(call.broadcast_id): encode_abort(call.reason)}, then=partial(self._intent_saved, running)
            )
            self._touch(running)

    def _withdraw(self, call: AppendCall | WatchCall) -> None:
        call.reply.cancel()
        if isinstance(call, WatchCall):
            for owner in call.owners:
                running = self._holding[owner]
                (running.watchers_all if call.everywhere else running.watchers_once).remove(call)
            return
        if not self._admission.withdraw(call):
            holding = self._holding.get(call.owner)
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

    # -- what follows from it, at the end of each turn

    def _touch(self, running: Running) -> None:
        self._dirty[running.task.broadcast_id] = running

    def _end_turn(self) -> None:
        while self._dirty or self._to_ask:
            dirty, self._dirty = self._dirty, {}
            for running in dirty.values():
                self._advance(running)
            if self._to_ask:
                self._ack_dropped()
        self._writer.flush()
        self._saver.flush()

    def _advance(self, running: Running) -> None:
        """Saves and writes what the task's state asks for, and answers who waited for that state."""
        task = running.task
        if running.finishing:
            return
        if task.complete and running.content is not None:
            running.content = None
            self._admission.bytes_held -= running.size
            self._appended += 1
        if task.header.needs_ack and task.state in (BroadcastState.WAIT_ACK, BroadcastState.DONE):
            self._answer(running)
        elif task.state is BroadcastState.STUCK:
            self._refuse(running, stuck(task))
        if task.finished:
            self._finish(running)
            return
        if running.dropped and task.state is BroadcastState.WAIT_ACK:
            running.dropped = False
            self._to_ask[task.broadcast_id] = running
        if running.acks_unsaved:
            chunks, running.acks_unsaved = running.acks_unsaved, set()
            replies, running.ack_replies = running.ack_replies, []
            running.acks_saving += 1
            self._saver.save(
                encode_acks(task.broadcast_id, task.acked, chunks), then=partial(self._acks_saved, running, replies)
            )
        elif running.ack_replies:
            # They repeat acks that are being saved: what is saved after those is durable after them.
            replies, running.ack_replies = running.ack_replies, []
            self._saver.save({}, then=partial(self._acks_repeated, replies))
        if running.spans and task.appended != running.progress_saved:
            running.progress_saved = task.appended
            self._saver.save({progress_key(task.broadcast_id): encode_progress(task.appended)})
        self._writer.write(running)

    def _ack_dropped(self) -> None:
        """Who was dropped has no consumer any more that could acknowledge: the drop is the ack of a copy that was in before."""
        asked, self._to_ask = self._to_ask, {}
        for broadcast_id, vchannels in self.operator.dropped(asked).items():
            running = asked[broadcast_id]
            for vchannel in vchannels:
                if (news := running.task.ack(vchannel)) is not None:
                    running.acks_unsaved.add(news // CHUNK_BITS)
            self._touch(running)

    def _finish(self, running: Running) -> None:
        """The one operation that ends it; or none, where the log by itself says enough."""
        task = running.task
        running.finishing = True
        if task.state is BroadcastState.WITHDRAWN:
            if running.spans:
                removals = finished_keys(task.broadcast_id, spans=True, acked=0, aborted=False)
                self._saver.save({}, removals, then=partial(self._ended, running))
            else:
                self._ended(running)
            return
        if task.state is BroadcastState.DONE and not running.spans and not task.header.needs_ack:
            self._ended(running)
            return
        at_ms = self._now_ms()
        removals = finished_keys(
            task.broadcast_id, spans=running.spans, acked=task.acked, aborted=task.reason is not None
        )
        saves = {done_key(task.broadcast_id): encode_done(task.state, at_ms)}
        self._saver.save(saves, removals, then=partial(self._ended, running, at_ms=at_ms))

    def _ended(self, running: Running, *, at_ms: int | None = None) -> None:
        """It is over for good: frees its keys and tells everybody."""
        task = running.task
        del self._running[task.broadcast_id], self._holding[running.owner]
        if running.content is not None:
            running.content = None
            self._admission.bytes_held -= running.size
        self._finished += 1
        self._writer.forget(task)
        if task.state is not BroadcastState.WITHDRAWN:
            touched = task.touched()
            tombstone = Tombstone(task.state, at_ms or self._now_ms(), at_ms is not None)
            self._tombstones.add(task.broadcast_id, tombstone, touched if at_ms is not None else ())
            if touched:
                self.operator.forget(task.broadcast_id, touched)
        self._admission.release(running.owner)
        if task.state is BroadcastState.DONE:
            self._answer(running)
        elif task.state is BroadcastState.ABORTED:
            self._refuse(running, aborted(task))
        elif task.last_error is not None:
            self._refuse(running, task.last_error)
        for reply in (*running.ack_replies, *running.abort_replies):
            settle(reply)
        self._tell_watchers(running.owner, running.watchers_once)
        self._tell_watchers(running.owner, running.watchers_all)
        self._make_room()

    def _answer(self, running: Running) -> None:
        caller, running.caller = running.caller, None
        if caller is not None and not caller.reply.done():
            header = running.task.header
            caller.reply.set_result(BroadcastAppendResult.of(header.broadcast_id, header.vchannels, running.outcomes))
        running.outcomes = []

    def _refuse(self, running: Running, error: Exception) -> None:
        caller, running.caller = running.caller, None
        running.outcomes = []
        if caller is not None:
            refuse(caller.reply, error)

    def _tell_watchers(self, owner: int, watchers: list[WatchCall]) -> None:
        for call in watchers:
            call.owners.discard(owner)
            if not call.owners:
                settle(call.reply)
        watchers.clear()

    def _holder(self, owner: int) -> int:
        return self._prompts.id_of(owner) or self._holding[owner].task.broadcast_id

    # -- saved

    def _intent_saved(self, running: Running) -> None:
        running.task.saved()
        self._touch(running)

    def _acks_saved(self, running: Running, replies: list[Any]) -> None:
        running.acks_saving -= 1
        running.acked_once = True
        self._acks_repeated(replies)
        self._tell_watchers(running.owner, running.watchers_once)

    def _acks_repeated(self, replies: list[Any]) -> None:
        for reply in replies:
            settle(reply)

    # -- recovery, and what is remembered

    def _resume(self, task: Task, content: Content | None) -> None:
        content = None if task.complete else content
        size = 0 if content is None else len(content.payload) + len(content.properties)
        needs_mark = len(task.pchannels) > 1 or task.header.needs_ack or task.state is not BroadcastState.DONE
        # Without a done mark the keys were free already: another may hold them.
        owner, conflict = self._admission.resume(task.header.resource_keys if needs_mark else (), size)
        if conflict is not None:
            raise held_twice(conflict, self._holder(conflict.holder), task.broadcast_id)
        running = Running(task, owner, content, size=size)
        running.spans = len(task.pchannels) > 1
        running.acked_once = bool(task.acked)
        running.progress_saved = task.appended
        running.dropped = task.header.needs_ack  # it may have happened just before the end of that life
        self._running[task.broadcast_id] = self._holding[running.owner] = running
        self._touch(running)

    def _on_dropped(self, vchannel: str) -> None:
        self._tell(partial(self._dropped, vchannel))

    def _dropped(self, vchannel: str) -> None:
        for running in self._running.values():
            header = running.task.header
            if header.needs_ack and vchannel in header.vchannels:
                running.dropped = True
                self._touch(running)

    def _on_forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        self._tell(partial(self._forgotten, pchannel, tuple(broadcast_ids)))

    def _forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        self._tombstones.forgotten(pchannel, broadcast_ids)
        self._hurried = False
        self._make_room()

    def _make_room(self) -> None:
        self._saver.remove([done_key(broadcast_id) for broadcast_id in self._tombstones.collect(self._now_ms())])
        crowded = self._tombstones.listed >= self.limits.done_marks_max // 2
        if crowded and not self._hurried:
            self.operator.request_checkpoint()
        self._hurried = crowded

    def _collect(self) -> None:
        self._make_room()
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
            self._end_turn()
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
        self._refuse(running, left(task, intent=running.spans or not task.traceless))
        closed = ClosedError(f"the log was closed while broadcast {task.broadcast_id} was under way")
        for reply in (*running.ack_replies, *running.abort_replies):
            refuse(reply, closed)
        for call in (*running.watchers_once, *running.watchers_all):
            refuse(call.reply, closed)

    def _close(self) -> None:
        self._taking, self._closed = False, True
        self._prompts.close()
        self._writer.close()
        self._saver.close()
        if self._collecting is not None:
            self._collecting.cancel()

    def _now_ms(self) -> int:
        return round(self._clock.wall() * 1000)


def _fail(cause: Exception) -> None:
    raise cause
