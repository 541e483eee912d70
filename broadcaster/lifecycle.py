"""BroadcastLifecycle: the steps of a broadcast, from begin through progress to finish.

How it works. Each broadcast is a `Task` (pure: events in, next steps out). The lifecycle carries the steps out, always in this order:

1. the keys, in memory (`LockTable`): a broadcast that gets them may begin, others wait their turn (the admission decides);
2. the pchannels of its vchannels are looked up;
3. the intent is durable: a record if several pchannels are involved, else the one frame with all copies is its own intent;
4. the copies, one frame for each pchannel, by the `AppendOperator`; a frame that failed is appended again after a backoff, and the log
   answers with a copy that it already has;
5. the acks, as vchannels report them, saved in one batch with others;
6. one operation of the KV marks it done and removes all its other records. Only then are the keys free.

Owns the running broadcasts and all their saves. A caller is answered when the state that it waits for is durable. The lifecycle never
waits. The task decides what is written next, and the admission which broadcast may begin.

What can go wrong: the KV refuses a save: it is repeated, and no later state is reported before it is durable. A pchannel is away or full:
its lane of the task waits, the others continue. A vchannel refuses for good: the task is STUCK, keeps its keys, and is listed. A crash at
any point: the next start lists records and copies, and continues from the durable state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from actors import Clock
from broadcaster import records
from broadcaster.admission import Admission, BroadcasterLimits
from broadcaster.background import BackgroundJobs
from broadcaster.calls import AppendCall, aborted, delayed, held_twice, refuse, settle, stuck, unsaved, unsettled
from broadcaster.finished import FinishedBroadcasts, needs_mark
from broadcaster.message import BroadcastAppendResult, BroadcastState, Content
from broadcaster.operator import AppendOperator
from broadcaster.running import Callers, Running, RunningTable
from broadcaster.saver import Saver
from broadcaster.single_frame import CopyWriter, SingleFrame, SingleFrames
from broadcaster.task import TICK_LOGICAL_BITS, Task
from wal.errors import InvalidArgumentError, WALError
from wal.message import BroadcastHeader, CopyOutcomes, encode_properties
from wal.storage.kv import KVBase

ASK_AGAIN_S: Final = 1.0
SINGLE_FRAMES_A_COLLECTION: Final = 64
"""After this many finished broadcasts without a done mark, the tombstones over the bounds are removed."""


class BroadcastLifecycle:
    """The broadcasts of one broadcaster. `turn(act, …)` runs `act` in a turn of the actor, `tell(act)` in a turn that may come later.

    `appended` counts the broadcasts whose copies are all durable. Once `closing`, no broadcast begins.
    """

    def __init__(
        self,
        kv: KVBase,
        operator: AppendOperator,
        clock: Clock,
        limits: BroadcasterLimits,
        jobs: BackgroundJobs,
        *,
        turn: Callable[..., object],
        tell: Callable[[Any], object],
    ) -> None:
        self.table = RunningTable()
        self.admission = Admission(limits, begin=self._begin, holder=self.holder)
        self.saver = Saver(kv, jobs, clock, delayed=self._save_delayed)
        self.writer = CopyWriter(operator, jobs, clock, touch=self.table.touch, tell=tell)
        self.finished = FinishedBroadcasts(operator, self.saver, clock, limits)
        self.single_frames = SingleFrames(operator, self.writer, jobs, turn=turn, finished=self._finish_single_frame, began=self.table.add)
        self.appended = 0
        self.closing = False
        self._operator = operator
        self._jobs = jobs
        self._clock = clock
        self._tell = tell
        self._to_ask: dict[int, Running] = {}
        """Broadcasts that may wait for the ack of a vchannel that was dropped."""

    def __len__(self) -> int:
        """Returns the number of running broadcasts."""
        return len(self.table) + len(self.single_frames)

    def holder(self, owner: int) -> int:
        """Returns the id of the broadcast of this owner; there must be one."""
        return self.single_frames.id_of(owner) or self.table.of_owners((owner,))[0].task.broadcast_id

    def close(self) -> None:
        """Begins no more broadcasts and writes no more frames; the saves and frames under way continue."""
        self.closing = True
        self.single_frames.close()
        self.writer.close()
        self.saver.close()

    # -- begin

    def append(self, call: AppendCall) -> None:
        """Begins a broadcast, queues it until it gets its keys, or refuses it."""
        self.admission.append(call, running=len(self), done_marks=self.finished.tombstones.listed)

    def resume(self, task: Task, content: Content | None, *, recorded: bool) -> None:
        """Resumes a broadcast that an earlier opening left unfinished, with its keys; `recorded`: the KV may have its record."""
        content = None if task.complete else content
        size = 0 if content is None else len(content.payload) + len(content.properties)
        owner, conflict = self.admission.resume(task.header.resource_keys, size)
        if conflict is not None:
            raise held_twice(conflict, self.holder(conflict.holder), task.broadcast_id)
        running = Running(task, owner, content, size=size, recorded=recorded, saved_appends=task.appended)
        running.acks.durable = bool(task.acked)
        running.dropped = task.header.needs_ack  # a vchannel may have been dropped just before that opening ended
        self.table.add(running)
        self.table.touch(running)

    def _begin(self, call: AppendCall) -> None:
        """Begins a broadcast whose call has its keys."""
        message, broadcast_id = call.message, call.broadcast_id
        if call.waited:
            try:
                broadcast_id = self._operator.allocate_id()
            except WALError as error:
                # A call that waited for its keys must not lose them because no id is available now: its first id is just as unique.
                if not error.retryable:
                    self.admission.bytes_held -= call.size
                    refuse(call.reply, error)
                    self.admission.release(call.owner)
                    return
        header = BroadcastHeader(broadcast_id, tuple(message.vchannels), tuple(message.resource_keys), message.needs_ack)
        properties = encode_properties(message.properties) if message.properties else b""
        content = Content(message.payload, int(message.message_type), properties)
        places = self._operator.places_nowait(header.vchannels)
        if places is not None and self.single_frames.begin(call, header, content, places):
            return
        callers = Callers(None if call.withdrawn else call)
        running = Running(Task(header), call.owner, content, size=call.size, callers=callers)
        self.table.add(running)
        if places is None:
            self._jobs.run(self._operator.places(header.vchannels), partial(self._placed, running))
        else:
            self._place(running, places)

    def _placed(self, running: Running, places: Mapping[str, Sequence[str]] | None, error: BaseException | None) -> None:
        """Continues once the pchannels of the vchannels are known, unless the broadcast was aborted or the close began meanwhile."""
        if running.task.reason is not None or self.closing:
            return
        if places is not None:
            self._place(running, places)
        elif isinstance(error, Exception):
            self._withdraw(running, error)
        else:
            raise error or RuntimeError("an operator answered with no places")

    def _place(self, running: Running, places: Mapping[str, Sequence[str]]) -> None:
        task, content = running.task, running.content
        task.place(places)
        running.recorded = len(places) > 1
        if running.recorded and content is not None:
            task.saving()
            self.saver.save(
                {records.task_key(task.broadcast_id): records.encode_task(task.header, content, places)},
                then=partial(self._intent_saved, running),
                refused=partial(self._intent_refused, running),
            )
        self.table.touch(running)

    def _intent_saved(self, running: Running) -> None:
        running.task.saved()
        self.table.touch(running)

    def _intent_refused(self, running: Running, error: Exception) -> None:
        """Withdraws a broadcast whose record the metadata has no room for, or refuses: no part of it is stored."""
        if running.task.reason is not None:
            self._intent_saved(running)  # it was aborted meanwhile, and ends as aborted
            return
        running.recorded = False
        self._withdraw(running, unsaved(running.task.header, error) if isinstance(error, InvalidArgumentError) else error)

    def _withdraw(self, running: Running, error: Exception) -> None:
        running.task.withdraw()
        running.callers.refuse_append(error)
        self.table.touch(running)

    # -- progress

    def ack(self, running: Running, vchannel: str, reply: asyncio.Future[None]) -> None:
        """Acknowledges a vchannel and replies when the ack is durable. Raises InvalidArgumentError if it is not in the broadcast."""
        acks = running.acks
        acks.add(running.task.ack(vchannel))
        if acks.unsaved or acks.saving or running.finishing:
            running.callers.acks.append(reply)
            self.table.touch(running)
        else:
            settle(reply)

    def abort(self, running: Running, reason: str, reply: asyncio.Future[None]) -> None:
        """Aborts a broadcast; the reply comes when it has finished."""
        task = running.task
        running.callers.aborts.append(reply)
        if not task.finished and task.abort(reason):
            self.writer.forget(task)
            self.saver.save({records.abort_key(task.broadcast_id): records.encode_abort(reason)}, then=partial(self._intent_saved, running))
            self.table.touch(running)

    def vchannel_dropped(self, vchannel: str) -> None:
        """Arranges a search, at the end of the turn, for copies whose vchannel was dropped: no consumer can acknowledge them."""
        for running in self.table:
            header = running.task.header
            if header.needs_ack and vchannel in header.vchannels:
                running.dropped = True
                self.table.touch(running)

    def end_turn(self) -> None:
        """Advances every broadcast that was touched in this turn, and starts its writes and saves."""
        while (touched := self.table.take_touched()) or self._to_ask:
            for running in touched:
                self._progress(running)
            if self._to_ask:
                self._ask_dropped()
        self.writer.flush()
        self.saver.flush()

    def _progress(self, running: Running) -> None:
        """Starts the saves and writes that the task's state requires, and answers the callers that waited for that state."""
        task, callers = running.task, running.callers
        if running.finishing:
            return
        if task.complete and running.content is not None:
            self._drop_content(running)
            self.appended += 1
        if task.header.needs_ack and task.state in (BroadcastState.WAIT_ACK, BroadcastState.DONE):
            callers.answer_append(task.header)
        elif task.state is BroadcastState.STUCK:
            callers.refuse_append(stuck(task))
        elif task.delayed:
            callers.refuse_append(delayed(task))
        if task.finished:
            self._finish(running)
            return
        if running.dropped and task.state is BroadcastState.WAIT_ACK:
            running.dropped = False
            self._to_ask[task.broadcast_id] = running
        self._save_acks(running)
        if running.recorded and task.appended != running.saved_appends:
            running.saved_appends = task.appended
            self.saver.save({records.progress_key(task.broadcast_id): records.encode_progress(task.appended)})
        self.writer.write(running)

    def _save_acks(self, running: Running) -> None:
        acks, callers = running.acks, running.callers
        if acks.unsaved:
            chunks, acks.unsaved = acks.unsaved, set()
            replies, callers.acks = callers.acks, []
            acks.saving += 1
            saves = records.encode_acks(running.task.broadcast_id, running.task.acked, chunks)
            self.saver.save(saves, then=partial(self._acks_saved, running, replies))
        elif callers.acks:
            # These acks repeat ones that are being saved: an empty save after those completes only when they are durable.
            replies, callers.acks = callers.acks, []
            self.saver.save({}, then=partial(settle, *replies))

    def _acks_saved(self, running: Running, replies: list[asyncio.Future[None]]) -> None:
        running.acks.saving -= 1
        running.acks.durable = True
        settle(*replies)
        running.callers.answer_watchers(running.callers.watch_once, running.owner)

    def _ask_dropped(self) -> None:
        """Asks which vchannels had their copy and were dropped."""
        asked, self._to_ask = self._to_ask, {}
        self._jobs.run(self._operator.dropped(tuple(asked)), partial(self._ack_dropped, asked))

    def _ack_dropped(self, asked: dict[int, Running], dropped: Mapping[int, Collection[str]], error: BaseException | None) -> None:
        """Counts the drop of a vchannel that had its copy as the ack of that copy."""
        if error is not None:
            if not isinstance(error, WALError):
                raise error
            self._clock.call_later(ASK_AGAIN_S, partial(self._tell, partial(self._ask_again, frozenset(asked))))
            return
        for broadcast_id, vchannels in dropped.items():
            running = asked[broadcast_id]
            if running.task.state is BroadcastState.WAIT_ACK and not running.finishing:
                for vchannel in vchannels:
                    running.acks.add(running.task.ack(vchannel))
                self.table.touch(running)

    def _ask_again(self, asked: frozenset[int]) -> None:
        """Asks again for the still running broadcasts of these: the pchannels could not answer."""
        for running in self.table:
            if running.task.broadcast_id in asked:
                running.dropped = True
                self.table.touch(running)

    def _save_delayed(self, error: WALError) -> None:
        """Answers the callers that wait for the end of a broadcast: its save has to be retried, perhaps for long."""
        for running in self.table:
            if running.finishing:
                running.callers.refuse_append(unsettled(running.task, error))

    # -- finish

    def _finish(self, running: Running) -> None:
        """Saves the end of a broadcast in one operation, or in none if the log alone shows it."""
        task = running.task
        running.finishing = True
        if task.state is BroadcastState.WITHDRAWN:
            if running.recorded:
                removals = records.finished_keys(task.broadcast_id, recorded=True, acked=0, aborted=False)
                self.saver.save({}, removals, then=partial(self._ended, running))
            else:
                self._ended(running)
        elif needs_mark(task, recorded=running.recorded):
            at_ms, acks = self.finished.now_ms(), running.acks
            mark = partial(self.finished.mark, task, at_ms, recorded=running.recorded)
            if task.state is BroadcastState.DONE and task.header.needs_ack and not acks.unsaved and not acks.saving:
                # Acks came before the answer about the last copy. All are durable, and their callers may have returned: the broadcast has
                # ended. A crash before the mark is saved does not change that, since the recovery finds the copies and the acks.
                mark(then=partial(self._operator.forget, task.broadcast_id, task.touched()))
                self._ended(running, marked_at_ms=at_ms, forget=False)
            else:
                mark(then=partial(self._ended, running, marked_at_ms=at_ms))
        else:
            self._ended(running)

    def _ended(self, running: Running, *, marked_at_ms: int | None = None, forget: bool = True) -> None:
        """Frees the keys of a broadcast whose end is durable, and answers all callers that wait for it.

        With `forget` a recovery no longer needs to find its copies.
        """
        task, callers = running.task, running.callers
        self.table.remove(running)
        if running.content is not None:
            self._drop_content(running)
        self.writer.forget(task)
        if task.state is BroadcastState.WITHDRAWN:
            self.finished.count += 1
        else:
            touched = task.touched()
            at_ms = self.finished.now_ms() if marked_at_ms is None else marked_at_ms
            self.finished.add(task.broadcast_id, task.state, at_ms, None if marked_at_ms is None else touched)
            if touched and forget:
                self._operator.forget(task.broadcast_id, touched)
        self.admission.release(running.owner)
        if task.state is BroadcastState.DONE:
            callers.answer_append(task.header)
        elif task.state is BroadcastState.ABORTED:
            callers.refuse_append(aborted(task))
        elif task.last_error is not None:
            callers.refuse_append(task.last_error)
        callers.settle_all(running.owner)
        self.finished.make_room()

    def _finish_single_frame(self, frame: SingleFrame, outcomes: CopyOutcomes) -> None:
        """Finishes a single-frame broadcast whose copies are all durable."""
        call, header = frame.call, frame.header
        self.admission.bytes_held -= call.size
        self.appended += 1
        # The broadcast began and ended in the same moment; its id has the time.
        self.finished.add(header.broadcast_id, BroadcastState.DONE, header.broadcast_id >> TICK_LOGICAL_BITS, None)
        self._operator.forget(header.broadcast_id, frame.places)
        self.admission.release(call.owner)
        if not call.reply.done():
            result = BroadcastAppendResult.of(header.broadcast_id, header.vchannels, ((header.vchannels, outcomes),))
            call.reply.set_result(result)
        if not self.finished.count % SINGLE_FRAMES_A_COLLECTION:
            self.finished.make_room()

    def _drop_content(self, running: Running) -> None:
        running.content = None
        self.admission.bytes_held -= running.size
