"""Ending: how broadcasts end, and what is remembered of those that are over.

Owns the tombstones. Promises: one operation of the KV marks a broadcast done and removes everything else of it, and only then its keys
are free; where the log by itself says enough there is no operation. A done mark goes when no log lists the copies any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from actors import Clock
from broadcaster.admission import Admission
from broadcaster.answers import aborted
from broadcaster.calls import Running, answer, refuse_caller, settle, tell_watchers
from broadcaster.limits import BroadcasterLimits
from broadcaster.operator import AppendOperator
from broadcaster.prompt import Prompt
from broadcaster.records import done_key, encode_done, finished_keys
from broadcaster.results import BroadcastAppendResult
from broadcaster.saver import Saver
from broadcaster.state import BroadcastState
from broadcaster.table import Table
from broadcaster.task import TICK_LOGICAL_BITS, Task
from broadcaster.tombstones import Tombstone, Tombstones
from broadcaster.writer import Writer

__all__ = ["Ending"]

PROMPTS_A_COLLECTION: Final = 64
"""Broadcasts that left no done mark: after so many those are let go that are over the bounds."""


class Ending:
    """Of one broadcaster. `appended` and `finished` count broadcasts whose copies are all in, and that are over."""

    operator: AppendOperator

    def __init__(
        self, table: Table, admission: Admission, writer: Writer, saver: Saver, clock: Clock, limits: BroadcasterLimits
    ) -> None:
        self._table = table
        self._admission = admission
        self._writer = writer
        self._saver = saver
        self._clock = clock
        self._limits = limits
        self._hurried = False
        self.tombstones = Tombstones(
            count_max=limits.tombstones_max, age_max_ms=round(limits.tombstone_age_max_s * 1000)
        )
        self.appended = self.finished = 0

    def finish(self, running: Running) -> None:
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
        if not _needs_mark(task, spans=running.spans):
            self._ended(running)
            return
        at_ms = self._now_ms()
        self._save_mark(task, at_ms, spans=running.spans, then=partial(self._ended, running, at_ms=at_ms))

    def recovered(self, task: Task) -> None:
        """Ends a broadcast that recovery found finished: all that finished it is durable, and only its done mark may be missing.

        It is over from the first call on: nobody is told that it is under way, and its keys are free. A crash before the mark is
        saved changes nothing of that, since the next recovery finds the same.
        """
        spans, touched, at_ms = len(task.pchannels) > 1, task.touched(), self._now_ms()
        marked = _needs_mark(task, spans=spans)
        self.finished += 1
        self.tombstones.add(task.broadcast_id, Tombstone(task.state, at_ms, marked), touched if marked else ())
        forget = partial(self.operator.forget, task.broadcast_id, touched)
        if marked:
            self._save_mark(task, at_ms, spans=spans, then=forget)
        else:
            forget()

    def _save_mark(self, task: Task, at_ms: int, *, spans: bool, then: Callable[[], object]) -> None:
        removals = finished_keys(task.broadcast_id, spans=spans, acked=task.acked, aborted=task.reason is not None)
        self._saver.save({done_key(task.broadcast_id): encode_done(task.state, at_ms)}, removals, then=then)

    def _ended(self, running: Running, *, at_ms: int | None = None) -> None:
        """It is over for good: frees its keys and tells everybody."""
        task = running.task
        self._table.remove(running)
        if running.content is not None:
            running.content = None
            self._admission.bytes_held -= running.size
        self.finished += 1
        self._writer.forget(task)
        if task.state is not BroadcastState.WITHDRAWN:
            touched = task.touched()
            tombstone = Tombstone(task.state, at_ms or self._now_ms(), at_ms is not None)
            self.tombstones.add(task.broadcast_id, tombstone, touched if at_ms is not None else ())
            if touched:
                self.operator.forget(task.broadcast_id, touched)
        self._admission.release(running.owner)
        if task.state is BroadcastState.DONE:
            answer(running)
        elif task.state is BroadcastState.ABORTED:
            refuse_caller(running, aborted(task))
        elif task.last_error is not None:
            refuse_caller(running, task.last_error)
        for reply in (*running.ack_replies, *running.abort_replies):
            settle(reply)
        tell_watchers(running, running.watchers_once)
        tell_watchers(running, running.watchers_all)
        self.make_room()

    def prompt_over(self, prompt: Prompt, outcomes: Sequence[Any]) -> None:
        """All copies of a broadcast are in that nobody has to acknowledge, and that nobody has looked for."""
        call, header = prompt.call, prompt.header
        self._admission.bytes_held -= call.size
        self.appended += 1
        self.finished += 1
        at_ms = header.broadcast_id >> TICK_LOGICAL_BITS  # it began and ended in this very moment
        self.tombstones.add(header.broadcast_id, Tombstone(BroadcastState.DONE, at_ms, False), ())
        self.operator.forget(header.broadcast_id, prompt.places)
        self._admission.release(call.owner)
        if not call.reply.done():
            result = BroadcastAppendResult.of(header.broadcast_id, header.vchannels, ((header.vchannels, outcomes),))
            call.reply.set_result(result)
        if not self.finished % PROMPTS_A_COLLECTION:
            self.make_room()

    def forgotten(self, pchannel: str, broadcast_ids: Collection[int]) -> None:
        self.tombstones.forgotten(pchannel, broadcast_ids)
        self._hurried = False
        self.make_room()

    def make_room(self) -> None:
        self._saver.remove([done_key(broadcast_id) for broadcast_id in self.tombstones.collect(self._now_ms())])
        crowded = self.tombstones.listed >= self._limits.done_marks_max // 2
        if crowded and not self._hurried:
            self.operator.request_checkpoint()
        self._hurried = crowded

    def _now_ms(self) -> int:
        return round(self._clock.wall() * 1000)


def _needs_mark(task: Task, *, spans: bool) -> bool:
    """Whether the log by itself does not say that this broadcast is over, and how."""
    return task.state is not BroadcastState.DONE or spans or task.header.needs_ack
