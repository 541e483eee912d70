"""Beginning: a broadcast from its keys to the durable intent, and those that an earlier life began.

Promises: nothing is made or written for a broadcast that does not hold its keys. Where its vchannels lie is asked then, and may have to
be waited for; meanwhile it is under way like any other, and can be aborted. The intent of one on several pchannels is a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from broadcaster.admission import Admission
from broadcaster.answers import held_twice, unsaved
from broadcaster.calls import AppendCall, Running, refuse, refuse_caller
from broadcaster.content import Content
from broadcaster.errands import Errands
from broadcaster.operator import AppendOperator
from broadcaster.prompt import Prompts
from broadcaster.records import encode_task, task_key
from broadcaster.saver import Saver
from broadcaster.table import Table
from broadcaster.task import Task
from wal.errors import InvalidArgumentError, WALError
from wal.message import BroadcastHeader, encode_properties

__all__ = ["Beginning"]


class Beginning:
    """Of one broadcaster. `saved(running)` is called when an intent is durable; once `closed`, nothing is begun any more."""

    operator: AppendOperator

    def __init__(
        self,
        table: Table,
        admission: Admission,
        prompts: Prompts,
        saver: Saver,
        errands: Errands,
        *,
        saved: Callable[[Running], object],
        holder: Callable[[int], int],
    ) -> None:
        self._table = table
        self._admission = admission
        self._prompts = prompts
        self._saver = saver
        self._errands = errands
        self._saved = saved
        self._holder = holder
        self.closed = False

    def begin(self, call: AppendCall) -> None:
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
        self._table.add(running)
        if places is None:
            self._errands.run(self.operator.places(header.vchannels), partial(self._placed, running))
        else:
            self._place(running, places)

    def _placed(
        self, running: Running, places: Mapping[str, Sequence[str]] | None, error: BaseException | None
    ) -> None:
        """Where its vchannels lie; what was aborted meanwhile, or begins too late before the close, has no use for it."""
        task = running.task
        if task.reason is not None or self.closed:
            return
        if places is not None:
            self._place(running, places)
        elif isinstance(error, Exception):
            task.withdraw()
            refuse_caller(running, error)
            self._table.touch(running)
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
                then=partial(self._saved, running),
                refused=partial(self._refused, running),
            )
        self._table.touch(running)

    def _refused(self, running: Running, error: Exception) -> None:
        """The metadata has no room for its record, or does not take one so large: nothing of it is anywhere."""
        task = running.task
        if task.reason is not None:
            self._saved(running)  # it was aborted meanwhile, and ends so
            return
        running.spans = False
        task.withdraw()
        refuse_caller(running, unsaved(task.header, error) if isinstance(error, InvalidArgumentError) else error)
        self._table.touch(running)

    def resume(self, task: Task, content: Content | None) -> None:
        """Takes up a broadcast that an earlier opening left unfinished, with its keys."""
        content = None if task.complete else content
        size = 0 if content is None else len(content.payload) + len(content.properties)
        owner, conflict = self._admission.resume(task.header.resource_keys, size)
        if conflict is not None:
            raise held_twice(conflict, self._holder(conflict.holder), task.broadcast_id)
        running = Running(task, owner, content, size=size)
        running.spans = len(task.pchannels) > 1
        running.acked_once = bool(task.acked)
        running.progress_saved = task.appended
        running.dropped = task.header.needs_ack  # it may have happened just before the end of that life
        self._table.add(running)
        self._table.touch(running)
