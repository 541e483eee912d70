"""Writer: the frames of all broadcasts on their way to the log.

Owns the waiting frames, those under way (at most FRAMES_MAX), the backoffs, and the report of each outcome to its task. It never decides
what is written: the task does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from actors import Clock, Timer
from broadcaster.background import BackgroundJobs
from broadcaster.operator import AppendOperator
from broadcaster.running import Running
from broadcaster.task import Step, StepKind, Task
from wal.errors import WALError
from wal.message import CopyOutcomes

__all__ = ["FRAMES_MAX", "Writer"]

FRAMES_MAX: Final = 1024
"""The most frames that are under way at once; the others wait for their turn."""


class Writer:
    """Calls `touch(running)` when an outcome is known or a backoff has ended; `tell` puts a call in the actor's inbox."""

    def __init__(
        self,
        operator: AppendOperator,
        jobs: BackgroundJobs,
        clock: Clock,
        *,
        touch: Callable[[Running], object],
        tell: Callable[[Callable[[], object]], object],
    ) -> None:
        self.frames = 0
        """Frames under way."""
        self._operator = operator
        self._jobs = jobs
        self._clock = clock
        self._touch = touch
        self._tell = tell
        self._ready: deque[tuple[Running, Step]] = deque()
        self._timers: dict[tuple[int, str], Timer] = {}
        self._closing = False

    def write(self, running: Running) -> None:
        """Queues the frames that the task has to write."""
        if not self._closing:
            self._ready.extend((running, step) for step in running.task.steps())

    def flush(self) -> None:
        """Starts as many frames as the bound allows."""
        while self._ready and self.frames < FRAMES_MAX:
            running, step = self._ready.popleft()
            self.frames += 1
            work = self._append_nowait(running, step) or self._append(running, step)
            self._jobs.run(work, partial(self.appended, running, step))

    def forget(self, task: Task) -> None:
        """Ends the backoffs of a task."""
        for pchannel in task.pchannels:
            if (timer := self._timers.pop((task.broadcast_id, pchannel), None)) is not None:
                timer.cancel()

    def close(self) -> None:
        """Stops starting frames; the waiting ones go back to their tasks."""
        self._closing = True
        for running, step in self._ready:
            running.task.put_back(step)
        self._ready.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def appended(
        self, running: Running, step: Step, outcomes: CopyOutcomes | None, error: BaseException | None
    ) -> None:
        """Reports the outcome of a frame to its task, and arranges a retry if the task asks for one."""
        self.frames -= 1
        task = running.task
        if isinstance(error, WALError):
            delay_s = task.failed(step, error)
        elif error is not None or outcomes is None:
            raise error or RuntimeError("an append answered with nothing")
        else:
            refusals: dict[str, WALError] = {}
            if not outcomes.all_in:
                refusals = {
                    vchannel: outcome
                    for vchannel, outcome in zip(step.vchannels, outcomes, strict=True)
                    if isinstance(outcome, WALError)
                }
            if step.kind is StepKind.COPIES and running.callers.append is not None:
                running.callers.outcomes.append((step.vchannels, outcomes))
            delay_s = task.took(step, refusals)
        if delay_s is not None and not self._closing:
            key = (task.broadcast_id, step.pchannel)
            self._timers[key] = self._clock.call_later(delay_s, self._due, running, step.pchannel)
        self._touch(running)

    def _append_nowait(self, running: Running, step: Step) -> asyncio.Future[CopyOutcomes] | None:
        """Does what `_append` does, without a task, if nothing has to be awaited before the log has the copies."""
        content, header = running.content, running.task.header
        if content is None or step.kind is not StepKind.COPIES:
            return None
        future: asyncio.Future[CopyOutcomes] = asyncio.get_running_loop().create_future()
        taken = self._operator.append_copies_nowait(step.pchannel, step.vchannels, content, header, future)
        return future if taken else None

    async def _append(self, running: Running, step: Step) -> CopyOutcomes:
        task = running.task
        if step.kind is StepKind.ABORTS:
            return await self._operator.append_aborts(step.pchannel, step.vchannels, task.header, task.reason or "")
        content = running.content
        if content is None:
            content = await self._operator.content(task.touched()[0], task.broadcast_id)
        return await self._operator.append_copies(step.pchannel, step.vchannels, content, task.header)

    def _due(self, running: Running, pchannel: str) -> None:
        """Ends a backoff, when its timer fires."""
        if self._timers.pop((running.task.broadcast_id, pchannel), None) is not None:
            self._tell(partial(self._retry, running, pchannel))

    def _retry(self, running: Running, pchannel: str) -> None:
        running.task.retry(pchannel)
        self._touch(running)
