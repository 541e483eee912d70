"""Writer: the frames of all broadcasts on their way to the log.

Owns: the frames that wait, those under way (at most FRAMES_MAX), the backoffs, and the tale of each outcome to its task. Never
decides what is to be written: that is the task's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from actors import Clock, Timer
from broadcaster.calls import Running
from broadcaster.errands import Errands
from broadcaster.operator import AppendOperator
from broadcaster.task import Step, StepKind, Task
from wal.errors import WALError

if TYPE_CHECKING:
    from wal.message import AppendResult

__all__ = ["FRAMES_MAX", "Writer"]

FRAMES_MAX: Final = 1024
"""Frames under way at once; the others wait for their turn."""


class Writer:
    """`touch(running)` is called when an outcome is known or a backoff is over; `tell` makes a turn of the actor's of a call."""

    def __init__(
        self,
        errands: Errands,
        clock: Clock,
        *,
        touch: Callable[[Running], object],
        tell: Callable[[Callable[[], object]], object],
    ) -> None:
        self.operator: AppendOperator
        self.frames = 0
        """Under way."""
        self._errands = errands
        self._clock = clock
        self._touch = touch
        self._tell = tell
        self._ready: deque[tuple[Running, Step]] = deque()
        self._timers: dict[tuple[int, str], Timer] = {}
        self._closing = False

    def write(self, running: Running) -> None:
        """Takes over what the task has to write."""
        if not self._closing:
            self._ready.extend((running, step) for step in running.task.steps())

    def flush(self) -> None:
        """Starts frames as far as the bound allows."""
        while self._ready and self.frames < FRAMES_MAX:
            running, step = self._ready.popleft()
            self.frames += 1
            work = self._append_nowait(running, step) or self._append(running, step)
            self._errands.run(work, partial(self.appended, running, step))

    def forget(self, task: Task) -> None:
        """Ends the backoffs of a task."""
        for pchannel in task.pchannels:
            if (timer := self._timers.pop((task.broadcast_id, pchannel), None)) is not None:
                timer.cancel()

    def close(self) -> None:
        """Begins nothing more."""
        self._closing = True
        for running, step in self._ready:
            running.task.put_back(step)
        self._ready.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _append_nowait(self, running: Running, step: Step) -> asyncio.Future[Sequence[AppendResult | WALError]] | None:
        """The same as `_append` without a task, where nothing has to be waited for before the log has it."""
        content = running.content
        if content is None or step.kind is not StepKind.COPIES:
            return None
        return self.operator.append_copies_nowait(step.pchannel, step.vchannels, content, running.task.header)

    async def _append(self, running: Running, step: Step) -> Sequence[AppendResult | WALError]:
        task = running.task
        if step.kind is StepKind.ABORTS:
            return await self.operator.append_aborts(step.pchannel, step.vchannels, task.header, task.reason or "")
        content = running.content
        if content is None:
            content = await self.operator.content(task.touched()[0], task.broadcast_id)
        return await self.operator.append_copies(step.pchannel, step.vchannels, content, task.header)

    def appended(
        self,
        running: Running,
        step: Step,
        outcomes: Sequence[AppendResult | WALError] | None,
        error: BaseException | None,
    ) -> None:
        """The outcome of a frame."""
        self.frames -= 1
        task = running.task
        if isinstance(error, WALError):
            delay_s = task.failed(step, error)
        elif error is not None or outcomes is None:
            raise error or RuntimeError("an append answered with nothing")
        else:
            refusals: dict[str, WALError] = {}
            if not getattr(outcomes, "all_in", False):
                refusals = {
                    vchannel: outcome
                    for vchannel, outcome in zip(step.vchannels, outcomes, strict=True)
                    if isinstance(outcome, WALError)
                }
            if step.kind is StepKind.COPIES and running.caller is not None:
                running.outcomes.append((step.vchannels, outcomes))
            delay_s = task.took(step, refusals)
        if delay_s is not None and not self._closing:
            key = (task.broadcast_id, step.pchannel)
            self._timers[key] = self._clock.call_later(delay_s, self._due, running, step.pchannel)
        self._touch(running)

    def _due(self, running: Running, pchannel: str) -> None:
        """A timer: the backoff is over."""
        if self._timers.pop((running.task.broadcast_id, pchannel), None) is not None:
            self._tell(partial(self._retry, running, pchannel))

    def _retry(self, running: Running, pchannel: str) -> None:
        running.task.retry(pchannel)
        self._touch(running)
