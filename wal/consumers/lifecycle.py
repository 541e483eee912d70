"""SessionLifecycle: how one use of a cursor begins, pauses and ends, for both kinds of sessions of a consumer.

    begin --> its tasks run <--> paused --> no new handlers --> handlers drain --> the rest is saved --> released

The first of the tasks takes bodies, and the second one saves what has ended. The first error of any of them ends the session. A sync
handler whose thread still runs after the drain keeps its body, and the session keeps the cursor, until the thread returns (`lingering`).
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from wal.consumers.delivery import Delivery, Handling, Outputs
from wal.consumers.handed_work import HandedWork
from wal.consumers.handler_counts import HandlerCounts
from wal.consumers.handlers import HandlerPool
from wal.consumers.options import ConsumerOptions
from wal.consumers.outputs import OutputRoom, OutputRouter
from wal.consumers.plan import Dead
from wal.consumers.table import Deliveries
from wal.errors import HandlerFailedError, InvalidArgumentError, UnknownError
from wal.message import ImmutableMessage
from wal.runtime.tasks import end_tasks
from wal.runtime.user_code import described, shown
from wal.write.checks import LETTER_BYTES

if TYPE_CHECKING:
    from wal.engine import WritableEngine

GATHER_S: Final = 0.002
"""The time that a commit gathers while no handler waits for it, unless half a page has ended."""
COMMIT_S: Final = 30.0
"""The time that the end of a consumer waits for a commit."""
_log: Final = logging.getLogger("wal.consumers")


class ConsumerCounts(HandlerCounts):
    """Counts of a consumer over all its claims. `progress_s` is the loop's time at which a message was last finished."""

    dead_lettered: int = 0
    commits: int = 0
    progress_s: float | None = None


class HandlesBodies(Handling, Protocol):
    """The handlers of a session: those of this process (`HandlerPool`), or the members of a shared cursor."""

    unsaved: bool
    has_outputs: bool
    gather_max: int
    dead: deque[Dead]
    exhausted: HandlerFailedError | None

    @property
    def running(self) -> int: ...

    @property
    def is_starved(self) -> bool: ...

    def wake(self) -> None: ...

    def flush(self) -> None: ...

    def pause(self, *, paused: bool) -> None: ...

    def runs(self, task: asyncio.Task[Any] | None) -> bool: ...

    async def drain(self, timeout_s: float) -> list[asyncio.Future[Any]]: ...

    def release_threads(self) -> None: ...

    def failed(self, delivery: Delivery, attempts: int, reason: str) -> BaseException: ...


class SessionLifecycle(abc.ABC):
    """One use of a cursor; `run` returns after `stop`. Subclasses have the tasks, and save."""

    def __init__(
        self,
        options: ConsumerOptions,
        engine: WritableEngine,
        home: str,
        counts: ConsumerCounts,
        fence: int,
        *,
        tripped: Callable[[HandlerFailedError], None],
    ) -> None:
        """`home` is the pchannel of the cursor's home. `tripped` gets the error of the last message, when too many in a row became dead
        letters.
        """
        self.options: ConsumerOptions = options
        self.counts: ConsumerCounts = counts
        self.fence: int = fence
        """The number of the claim; 0 before there is one."""
        self.pool: HandlesBodies
        self.lingering: asyncio.Task[None] | None = None
        """The task that waits for the threads of sync handlers; None if no thread still runs."""
        self._engine = engine
        self._router = OutputRouter(engine, options.cursor, home, options.dead_letter)
        self._loop = asyncio.get_running_loop()
        self._tripped = tripped
        self._due = asyncio.Event()
        self._urgent = asyncio.Event()
        self._moved = asyncio.Event()
        self._stop = asyncio.Event()
        self._begun = asyncio.Event()
        """Set when the session has begun, or has failed to begin."""
        self._paused = False
        self._stopping = False
        self._over = False
        self._broken = False
        """Whether the last state cannot be saved, so the session has to leave it to the next one."""
        self._error: BaseException | None = None

    # -- for the consumer

    async def run(self, drain_s: Callable[[], float]) -> None:
        """Runs until `stop` or an error, which it raises. `drain_s` returns the seconds that its end may take."""
        try:
            has_begun = await self._begin()
        except BaseException:
            self._set_over()
            await asyncio.shield(asyncio.ensure_future(self._leave()))
            raise
        if not has_begun:
            self._set_over()
            await asyncio.shield(asyncio.ensure_future(self._leave()))
            if self._error is not None:
                raise self._error
            return
        name = self.options.cursor.name
        tasks = [self._loop.create_task(work(), name=f"{what} of consumer {name}") for what, work in self._tasks()]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            await self._stop.wait()
        finally:
            await asyncio.shield(asyncio.ensure_future(self._end(tasks, drain_s())))
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Ends the session: from now on no handler starts."""
        self._stop.set()
        if self.has_begun:
            self.pool.pause(paused=True)

    def fail(self, error: BaseException) -> None:
        """Ends the session with an error; the first one stays."""
        if self._error is None:
            self._error = error
        self.stop()

    def pause(self, *, paused: bool) -> None:
        """Stops starting handlers and taking bodies, or resumes both."""
        self._paused = paused
        if self.has_begun and not self._stop.is_set():
            self.pool.pause(paused=paused)
        self._due.set()
        self._urgent.set()
        self._moved.set()

    @property
    def has_begun(self) -> bool:
        """Whether the session has handlers."""
        return hasattr(self, "pool")

    # -- for subclasses

    @abc.abstractmethod
    async def _begin(self) -> bool:
        """Makes the session ready, and ends with `_set_begun`; returns False if it is stopped before."""

    @abc.abstractmethod
    def _tasks(self) -> Sequence[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """Returns the names and functions of the tasks: that which takes bodies, that which saves, and others."""

    @abc.abstractmethod
    async def _save(self) -> bool:
        """Saves what has ended, and releases what no handler has; returns False if nothing has changed."""

    @abc.abstractmethod
    async def _release(self) -> None:
        """Releases the cursor."""

    async def _close(self) -> None:
        """Ends what else the session has, after its release."""
        return

    def _handler_pool(self, table: Deliveries | HandedWork) -> HandlerPool:
        return HandlerPool(
            self.options,
            table,
            self._router,
            self.fence,
            self.counts,
            report=self._report,
            starved=self._starved,
            fail=self.fail,
            trip=self._trip,
        )

    def _set_begun(self, pool: HandlesBodies) -> None:
        self.pool = pool
        pool.pause(paused=self._paused or self._stop.is_set())
        self._begun.set()

    @abc.abstractmethod
    def _report(self) -> None: ...

    def _starved(self) -> None:
        self._urgent.set()

    def _trip(self, error: HandlerFailedError) -> None:
        self._tripped(error)

    def _next_letters(self, room: OutputRoom) -> Iterator[tuple[Delivery, Outputs]]:
        """Takes the next dead letters while a commit has room for them, each after the delivery that it is for."""
        dead, now = self.pool.dead, datetime.now(UTC)
        while dead and room.take(1, dead[0].delivery.message.estimate_size() + LETTER_BYTES):
            delivery = dead[0].delivery
            key = b"" if self.options.key is None else self._key_of(delivery.message)
            letter = self._router.dead_letter(dead[0], key, now)
            dead.popleft()
            yield delivery, Outputs([letter])

    def _key_of(self, message: ImmutableMessage) -> str | bytes:
        key_function = self.options.key
        assert key_function is not None
        try:
            key = key_function(message)
        except BaseException as error:
            raise InvalidArgumentError(
                f"the key function of consumer {self.options.cursor.name!r} failed at message {message.message_id} of "
                f"{message.vchannel!r}: {described(error)}; nothing was skipped: return a key for every message"
            ) from error
        if key.__class__ is str or key.__class__ is bytes:
            return key
        if isinstance(key, str):  # a plain str, since a subclass may override hashing, comparison or repr
            return str.__str__(key)
        if isinstance(key, bytes):
            return bytes.__getitem__(key, slice(None))
        raise InvalidArgumentError(
            f"the key function of consumer {self.options.cursor.name!r} returned {shown(key)} for message {message.message_id} of "
            f"{message.vchannel!r}: return a str or bytes for every message"
        )

    def _look(self) -> None:
        self._due.set()
        self._urgent.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if not self._stopping:  # by a key function, or by the end of the loop, in which no caller waits for this error
                self.fail(UnknownError(f"the {task.get_name()} was cancelled: start the consumer again"))
        elif (error := task.exception()) is not None:
            self.fail(error)

    # -- ending

    def _set_over(self) -> None:
        self._over = True
        self._begun.set()

    async def _end(self, tasks: Sequence[asyncio.Task[None]], drain_s: float) -> None:
        """Releases unfinished bodies, saves the rest, and releases the cursor."""
        self._stopping = True
        taker, saver, *others = tasks
        await end_tasks(taker)
        threads = await self.pool.drain(0.0 if self._broken else drain_s)
        self._look()
        _, late = await asyncio.wait((saver,), timeout=COMMIT_S)
        if late:
            await end_tasks(saver)
        if saver.cancelled() or saver.exception() is not None:
            self._broken = True
        if not self._broken:
            await self._save_rest()
        if threads:
            self.lingering = self._loop.create_task(self._linger(threads, others), name=f"threads of consumer {self.options.cursor.name}")
        else:
            await end_tasks(*others)
            await self._leave()
        self._set_over()
        await self._close()

    async def _save_rest(self) -> None:
        """Saves until nothing has changed. If that cannot be written, the end counts as a death."""
        try:
            async with asyncio.timeout(COMMIT_S):
                while await self._save():
                    pass
        except Exception as error:
            self._broken = True
            _log.warning(
                "consumer %r could not save its end, so messages that it had are delivered again: %s", self.options.cursor.name, error
            )

    async def _linger(self, threads: Sequence[asyncio.Future[Any]], others: Sequence[asyncio.Task[None]]) -> None:
        """Holds the cursor until these calls have returned."""
        try:
            await asyncio.wait(threads)
            self.pool.release_threads()
            if not self._broken:
                await self._save_rest()
        finally:
            await end_tasks(*others)
        await self._leave()

    async def _leave(self) -> None:
        """Releases the cursor. If that fails, its lease runs out."""
        try:
            async with asyncio.timeout(COMMIT_S):
                await self._release()
        except Exception as error:
            _log.info("consumer %r could not release its cursor: %s", self.options.cursor.name, error)
