"""BackgroundJobs: the work that an actor awaits outside its inbox, while its turns continue.

Owns the tasks or futures of its jobs until each has ended. Guarantees: every outcome is delivered once, on the loop and never inside `run`;
`cancel` ends all jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

Outcome = tuple[Callable[[Any, BaseException | None], object], Any, BaseException | None]
"""A function, and its arguments: a result and None, or None and an error."""


class BackgroundJobs:
    """The jobs of one actor. `wake` is called when outcomes wait to be taken."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._tasks: set[asyncio.Future[Any]] = set()
        self._outcomes: list[Outcome] = []
        self._cancelled = False

    def __len__(self) -> int:
        """Returns the number of jobs that are running or have an outcome that was not taken."""
        return len(self._tasks) + len(self._outcomes)

    def run(self, work: Coroutine[Any, Any, Any] | asyncio.Future[Any], then: Callable[[Any, BaseException | None], object]) -> None:
        """Starts a job, or adopts a future that another component completes; its outcome is delivered as `then(result, error)`."""
        task = work if isinstance(work, asyncio.Future) else asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, then))

    def take(self) -> list[Outcome]:
        """Returns and removes the outcomes so far, in the order of completion."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    async def wait(self) -> None:
        """Returns when there is an outcome to take, or no job is running."""
        while self._tasks and not self._outcomes:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets the callbacks of those tasks run

    def cancel(self) -> None:
        """Cancels all jobs; no outcome is delivered after that."""
        self._cancelled = True
        self._outcomes.clear()
        for task in self._tasks:
            task.cancel()

    def _ended(self, then: Callable[[Any, BaseException | None], object], task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        error: BaseException | None
        if task.cancelled():
            result, error = None, asyncio.CancelledError()
        else:
            error = task.exception()
            result = None if error is not None else task.result()
        if not self._cancelled:
            self._outcomes.append((then, result, error))
            self._wake()
