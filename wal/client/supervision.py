"""Supervision: a client's tasks, the handling of their defects, and the end of a client whose server has another log.

Every task of the client's engine that outlives a call runs here. Tasks follow the assignments, the vchannels and the ends of the pchannels;
others are producers and single writes to a stream. The component that starts a task also cancels it. A defect is an exception that the work
of a task does not handle, or an unexpected cancellation: gRPC raises CancelledError for calls that have ended.

    running --defect--> logged --(kept, fewer than DEFECTS_MAX in DEFECTS_S)--> pause --> running
                        logged --(else)--> the client ends: `end` is called once, and every later call raises the UnknownError

A kept task may restart because its stream begins with the whole state of the server. A producer may not: its requests would meet
the same defect again, and their callers would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from wal.client.pauses import Pauses
from wal.errors import UnknownError, WALError, caused
from wal.runtime.tasks import keep_task

DEFECTS_MAX: Final = 5
"""A task with this many defects within `DEFECTS_S` seconds is not started again: its cause does not pass."""
DEFECTS_S: Final = 60.0
CANCEL_AGAIN_S: Final = 0.5
"""The pause before tasks that have not ended are cancelled again."""
_log: Final = logging.getLogger("wal.remote")


class Supervision:
    """The tasks of one client. `end` ends the client with an error; it is called at most once."""

    def __init__(self, end: Callable[[WALError], None]) -> None:
        self._end = end
        self._tasks: set[asyncio.Task[None]] = set()
        """The tasks that run: the loop itself holds a task weakly."""
        self.failure: WALError | None = None
        """The error that ended the client; the cause of an UnknownError is the defect."""
        self.closing: bool = False
        """Whether the log is being closed, which ends calls and the tasks that made them."""

    def start(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Starts a task; a defect in it ends the client."""
        return self._start(work, name, defects_max=1)

    def keep(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        """Starts a task that restarts after a defect; `DEFECTS_MAX` defects within `DEFECTS_S` end the client."""
        return self._start(work, name, defects_max=DEFECTS_MAX)

    async def begun(self, first: asyncio.Future[None], task: asyncio.Task[None], *, timeout_s: float) -> bool:
        """Waits until this task has settled `first`, and returns True; False after `timeout_s`.

        Raises the exception of `first`, and the error that ended the client.
        """
        await asyncio.wait([first, task], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.failure is not None:
            raise self.failure
        if first.done():
            first.result()
        return first.done()

    def end(self, failure: WALError) -> None:
        """Ends the client with this error, and its tasks. Only the first one counts."""
        if self.failure is None:
            self.failure = failure
            self._end(failure)
            # Not at once: a call of one of these tasks may be what ends the client, in the middle of gRPC's own code.
            asyncio.get_running_loop().call_soon(self._cancel_tasks)

    def _cancel_tasks(self) -> None:
        """Cancels the tasks, again and again until they have ended: a cancellation that meets gRPC's own work can be lost there."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            asyncio.get_running_loop().call_later(CANCEL_AGAIN_S, self._cancel_tasks)

    def _start(self, work: Callable[[], Awaitable[None]], name: str, *, defects_max: int) -> asyncio.Task[None]:
        return keep_task(self._tasks, asyncio.get_running_loop().create_task(self._run(work, name, defects_max), name=name))

    async def _run(self, work: Callable[[], Awaitable[None]], name: str, defects_max: int) -> None:
        task, loop, pauses = asyncio.current_task(), asyncio.get_running_loop(), Pauses()
        times: deque[float] = deque(maxlen=defects_max)
        assert task is not None
        while True:
            try:
                await work()
                return
            except (Exception, asyncio.CancelledError) as defect:
                if task.cancelling() or (self.closing and isinstance(defect, asyncio.CancelledError)):
                    raise
                times.append(loop.time())
                if len(times) == defects_max and times[-1] - times[0] < DEFECTS_S:
                    self._fail(name, defect)
                    return
                _log.error("a task of the client failed and is started anew (%s): %r", name, defect, exc_info=defect)
            await asyncio.sleep(pauses.next())

    def _fail(self, name: str, defect: BaseException) -> None:
        """Ends the client because of this defect."""
        _log.error("a task of the client failed, which ends the client (%s): %r", name, defect, exc_info=defect)
        failure = caused(
            UnknownError(
                f"the client has ended, because one of its tasks failed ({name}): {defect!r}; open the log again, and please report it"
            ),
            defect,
        )
        self.end(failure)
