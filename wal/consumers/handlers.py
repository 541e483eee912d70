"""HandlerPool: the tasks of a consumer that run its handler, and what becomes of each attempt.

Owns `concurrency` tasks. Each takes bodies that may run from the table, calls the handler, waits for it, and settles the attempt in the
table; what ended is handed to the session, which commits it. A handler that never suspends runs without a turn of the event loop, so
after TURN_S the task yields.

An attempt ends by returning, by Retry, Reject or another exception, by its time-out, or by a release: the consumer ends and cancels it. A
cancellation that comes from inside the handler (it awaited something that was cancelled) is an exception like others. A sync handler runs
in a thread, which cannot be stopped: after its time-out, or after a release, what it adds is refused, and its lane stays with it until it
returns.

Without a dead letter, no lane ever leaves behind a message that is out of attempts: the pool releases it, starts nothing more, and reports
the error that ends the consumer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from wal.consumers.delivery import Delivery, DeliveryState, Outputs, Reject, Retry
from wal.consumers.options import ConsumerOptions
from wal.consumers.outputs import OutputRouter
from wal.consumers.plan import RELEASED, Dead, Failed, Outcome, Rejected, Released
from wal.consumers.table import Deliveries
from wal.errors import HandlerFailedError, InvalidTransactionStateError, PayloadError
from wal.message import Message

CHUNK: Final = 64
"""The bodies that are handled one after the other before a task looks how long it has not yielded."""
TURN_S: Final = 0.0005
"""How long a task whose handlers never suspend goes on before other tasks get their turn of the loop."""
_ENDED: Final = int(DeliveryState.ENDED)


class HandlerCounts(msgspec.Struct):
    """Counts of attempts: `failed` raised or timed out; `retried` were not the first at their message."""

    handled: int = 0
    failed: int = 0
    retried: int = 0


class _Ended:
    """The owner of a delivery between two attempts: whoever still holds it from the first one adds nothing to the second."""

    def __init__(self, fence: int) -> None:
        self.fence = fence

    def add_output(self, message: Message, outputs: Outputs | None, *, is_letter: bool = False) -> Outputs:
        raise InvalidTransactionStateError("this attempt at the message has ended: what it adds now would be lost")

    def extend(self, delivery: Delivery, seconds: float) -> None:
        raise InvalidTransactionStateError("this attempt at the message has ended: it has no time left to extend")

    def has_ended(self, delivery: Delivery) -> bool:
        return True


class _Worker:
    """One task and the bodies that it took. The handlers of `ended` of them have returned, and `settled` are settled in the table."""

    __slots__ = ("deadline", "ended", "expired", "settled", "task", "thread", "timer", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.work: list[Delivery] = []
        self.ended: int = 0
        self.settled: int = 0
        self.deadline: float | None = None
        self.expired: bool = False
        self.timer: asyncio.TimerHandle | None = None
        self.thread: asyncio.Future[Any] | None = None
        """The call that a thread still makes for an attempt that was released: until it returns, `work` belongs to it."""


class HandlerPool:
    """The handlers of one claim of a cursor.

    `report` is called when there is something to commit, and again when there is much of it; `starved` when a task has nothing to start;
    `fail` gets the error that ends the consumer.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        table: Deliveries,
        router: OutputRouter,
        fence: int,
        counts: HandlerCounts,
        *,
        report: Callable[[], None],
        starved: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.fence: int = fence
        self.running: int = 0
        """The bodies that handlers have, or get next in the same task."""
        self.unsaved: bool = False
        """Whether attempts have ended in another way than by being handled since the session set it to False."""
        self._options = options
        self._table = table
        self.has_ended: Callable[[Delivery], bool] = table.has_ended
        self._router = router
        self._counts = counts
        self.gather_max: int = options.plan.page // 2
        """The bodies that have ended with which a commit is asked for at once."""
        self.has_outputs: bool = False
        """Whether a handler has added an output."""
        self.dead: deque[Dead] = deque()
        """What is tried no more, and not in a commit yet."""
        self._report = report
        self._starved = starved
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._starts = True
        self._ending = False
        self._refusing = _Ended(fence)
        self._cause: BaseException | None = None
        """The exception of the last failed attempt."""
        self._workers_of: dict[Delivery, _Worker] = {}
        """Who runs a delivery, if attempts have a time-out."""
        name, concurrency = options.cursor.name, options.plan.concurrency
        self._threads = None if options.is_async else concurrent.futures.ThreadPoolExecutor(concurrency, thread_name_prefix=f"wal-{name}")
        alone = concurrency == 1 and options.is_async and options.batch is None
        self._size = CHUNK if alone else options.plan.batch
        self._is_plain = options.is_async and options.payloads is None and options.timeout_s is None
        self._workers = [_Worker() for _ in range(concurrency)]
        for number, worker in enumerate(self._workers):
            worker.task = self._loop.create_task(self._run(worker), name=f"handler {number} of consumer {name}")

    # -- for the session

    @property
    def is_starved(self) -> bool:
        """Whether a task waits for bodies that may run."""
        return bool(self._idle) and not self._table.startable

    def wake(self) -> None:
        """Wakes as many tasks as have something to start."""
        idle = self._idle
        for _ in range(min(len(idle), self._table.startable) if self._starts else 0):
            idle.popleft().set_result(None)

    def flush(self) -> None:
        """Settles what has returned in a task that took several bodies."""
        for worker in self._workers:
            if worker.ended > worker.settled:
                self._settle_ended(worker)

    def pause(self, *, paused: bool) -> None:
        """Starts no more handlers, or starts them again."""
        self._starts = not paused and not self._ending
        self.wake()

    async def drain(self, timeout_s: float) -> list[asyncio.Future[Any]]:
        """Starts no more handlers, waits for those that run, and after `timeout_s` releases those that still do.

        Returns the calls that threads still make; the bodies of these are not released.
        """
        self._starts, self._ending = False, True
        while self._idle:
            self._idle.popleft().set_result(None)
        tasks = [worker.task for worker in self._workers]
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        for worker in self._workers:
            if worker.timer is not None:
                worker.timer.cancel()
            if not worker.task.cancelled() and (error := worker.task.exception()) is not None:
                self._fail(error)
        return [worker.thread for worker in self._workers if worker.thread is not None]

    def release_threads(self) -> None:
        """Releases the bodies of threads that returned after the end."""
        for worker in self._workers:
            if worker.thread is not None:
                worker.thread = None
                self._release(worker)

    # -- for deliveries, see `Handling`

    def add_output(self, message: Message, outputs: Outputs | None, *, is_letter: bool = False) -> Outputs:
        self.has_outputs = True
        return self._router.add(message, outputs, is_letter=is_letter)

    def extend(self, delivery: Delivery, seconds: float) -> None:
        if (worker := self._workers_of.get(delivery)) is not None:
            worker.deadline = self._loop.time() + seconds
            self._loop.call_soon_threadsafe(self._watch, worker)

    # -- running

    async def _run(self, worker: _Worker) -> None:
        """Runs the handler on what may run, until the end."""
        table, size, options, turns = self._table, self._size, self._options, 0
        handler, router = options.handler, self._router
        by_one = self._is_plain and size == 1 and options.batch is None
        until_s = time.monotonic() + TURN_S
        while not self._ending:
            work = table.start(size) if self._starts else []
            if not work:
                turns = 0
                waiter = self._loop.create_future()
                self._idle.append(waiter)
                self._starved()
                await waiter
                until_s = time.monotonic() + TURN_S
                continue
            self.running += len(work)
            if by_one and (delivery := work[0])._owner is self:  # the usual case, in few calls
                try:
                    await handler(delivery)
                    if router.unlocated and delivery._outputs is not None and (unknown := router.unknown(delivery._outputs)):
                        await router.locate(unknown)
                except BaseException as error:
                    self._settle(work, [self._outcome_of(worker, error)])
                else:
                    self._end(work)
            else:
                worker.work, worker.ended, worker.settled = work, 0, 0
                if options.batch is not None:
                    await self._run_batch(worker)
                else:
                    await self._run_each(worker)
            turns += len(work)
            if turns >= CHUNK:
                turns = 0
                if time.monotonic() >= until_s:
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + TURN_S

    def _end(self, work: Sequence[Delivery]) -> None:
        """Notes that these bodies are handled."""
        table, count = self._table, len(work)
        before = table.ended_count
        self.running -= count
        self._counts.handled += count
        table.end(work)
        if not before or before < self.gather_max <= before + count:
            self._report()
        if self._idle:
            self.wake()

    async def _run_each(self, worker: _Worker) -> None:
        options, router, index = self._options, self._router, 0
        handler, is_plain = options.handler, self._is_plain
        outcome: Outcome
        work = worker.work
        while index < len(work) and self._starts:
            delivery = work[index]
            if is_plain and delivery._owner is self:  # the usual case, without another coroutine
                try:
                    await handler(delivery)
                    if router.unlocated and delivery._outputs is not None and (unknown := router.unknown(delivery._outputs)):
                        await router.locate(unknown)
                    index += 1
                    worker.ended = index
                    continue
                except BaseException as error:
                    outcome = self._outcome_of(worker, error)
            else:
                outcome = (await self._attempt(worker, [delivery]))[0]
                self._counts.retried += delivery.attempt > 1
            if worker.thread is not None:
                return
            index += 1
            if outcome is None:
                worker.ended = index
                continue
            self._settle_ended(worker)
            lane = delivery._lane
            stops = isinstance(outcome, Failed) and options.plan.blocks and delivery.attempt < options.plan.attempts
            outcome = self._settle(work[index - 1 : index], [outcome])[0]
            worker.ended = worker.settled = index
            if lane is not None and (stops or outcome is RELEASED):  # its lane was taken back with it
                self._drop(worker, [later for later in work[index:] if later._lane == lane])
                work = worker.work
        self._settle_ended(worker)
        self._release(worker)

    def _drop(self, worker: _Worker, taken_back: list[Delivery]) -> None:
        if taken_back:
            dropped = set(taken_back)
            worker.work = [delivery for delivery in worker.work if delivery not in dropped]
            self.running -= len(dropped)

    def _release(self, worker: _Worker) -> None:
        """Releases what the task has and did not settle."""
        if rest := worker.work[worker.settled :]:
            worker.settled = worker.ended = len(worker.work)
            self._settle(rest, [RELEASED] * len(rest))

    async def _run_batch(self, worker: _Worker) -> None:
        work, router = worker.work, self._router
        outcomes: list[Outcome] | None
        if self._is_plain and (self._table.is_regular or all(delivery._owner is self for delivery in work)):  # first attempts at payloads
            try:
                result = await self._options.handler(work.copy())
                outcomes = None if result is None else self._results_of(result, len(work))
                for delivery in work if router.unlocated else ():
                    if delivery._outputs is not None and (unknown := router.unknown(delivery._outputs)):
                        await router.locate(unknown)
            except BaseException as error:
                outcomes = [self._outcome_of(worker, error)] * len(work)
        else:
            outcomes = await self._attempt(worker, work)
            if worker.thread is not None:
                return
            self._counts.retried += sum([delivery.attempt > 1 for delivery in work])
        worker.settled = worker.ended = len(work)
        if outcomes is None or all(outcome is None for outcome in outcomes):
            self._end(work)
        else:
            self._settle(work, outcomes)

    # -- one attempt

    async def _attempt(self, worker: _Worker, work: Sequence[Delivery]) -> list[Outcome]:
        """Calls the handler, for a batch or for one body, and returns an outcome for each."""
        options = self._options
        outcomes: list[Outcome] = [None] * len(work)
        views: dict[int, Delivery] = {}
        for index, delivery in enumerate(work):
            view = delivery if delivery._owner is self else self._view(delivery)
            if (payloads := options.payloads) is not None:
                try:
                    view._value = (payloads.decode(view.message),)
                except PayloadError as error:
                    self._cause = error
                    outcomes[index] = Rejected(str(error))
                    continue
            views[index] = view
        if not views:
            return outcomes
        given = list(views.values())
        results: list[Outcome]
        try:
            if options.timeout_s is not None:
                self._begin_time(worker, given, options.timeout_s)
            try:
                result = await self._call(worker, given if options.batch is not None else given[0])
            finally:
                worker.deadline = None
            results = [None] if options.batch is None else self._results_of(result, len(given))
            for view in given:
                if view._outputs is not None and (unknown := self._router.unknown(view._outputs)):
                    await self._router.locate(unknown)
        except BaseException as error:
            results = [self._outcome_of(worker, error)] * len(given)
        if worker.expired:
            results = [self._timed_out(worker)] * len(given)
        for view in given:
            self._workers_of.pop(view, None)
        for (index, view), result in zip(views.items(), results, strict=True):
            outcomes[index] = result
            if view is not work[index]:
                work[index]._outputs = view._outputs
                view._state = _ENDED
        return outcomes

    def _view(self, delivery: Delivery) -> Delivery:
        """Returns the delivery for a further attempt: whoever holds that of an earlier attempt adds nothing to this one."""
        return Delivery(delivery.message, self, delivery._lane, delivery._event, delivery.attempt, delivery._state)

    async def _call(self, worker: _Worker, argument: Any) -> Any:
        handler = self._options.handler
        if self._threads is None:
            return await handler(argument)
        call = self._loop.run_in_executor(self._threads, contextvars.copy_context().run, handler, argument)
        try:
            result = await asyncio.shield(call)
        except asyncio.CancelledError:
            if call.done() and not call.cancelled():
                raise
            for view in argument if isinstance(argument, list) else [argument]:
                view._owner = self._refusing
            worker.deadline = None
            worker.thread = call
            if worker.expired and not self._ending:
                await asyncio.wait((call,))
                worker.thread = None
            raise
        return await result if inspect.isawaitable(result) else result

    def _results_of(self, results: Any, count: int) -> list[Outcome]:
        """Returns the outcomes that a handler of batches returned."""
        if results is None:
            return [None] * count
        if not isinstance(results, list | tuple) or len(results) != count:
            found = f"{len(results)} results" if isinstance(results, list | tuple) else repr(results)[:80]
            raise TypeError(f"a handler of batches returns None, or a list with a result for each of its {count} deliveries, not {found}")
        outcomes: list[Outcome] = []
        for result in results:
            if result is not None and not isinstance(result, Exception):
                raise TypeError(f"the result of a delivery is None, Retry, Reject or another exception, not {result!r:.80}")
            outcomes.append(None if result is None else self._failure(result))
        return outcomes

    def _outcome_of(self, worker: _Worker, error: BaseException) -> Outcome:
        """Returns the outcome of an attempt that raised. Raises what ends the process."""
        if isinstance(error, asyncio.CancelledError):
            if worker.expired:
                return RELEASED  # its caller knows
            if worker.task.cancelling():
                return RELEASED
            self._cause = error
            return Failed("CancelledError: the handler awaited something that was cancelled")
        if isinstance(error, Exception):
            return self._failure(error)
        raise error

    def _failure(self, error: Exception) -> Outcome:
        self._cause = error
        if isinstance(error, Retry):
            return Failed(str(error), error.delay_s)
        if isinstance(error, Reject):
            return Rejected(error.reason)
        return Failed(f"{type(error).__name__}: {error}")

    # -- time-outs

    def _begin_time(self, worker: _Worker, given: Sequence[Delivery], timeout_s: float) -> None:
        for view in given:
            self._workers_of[view] = worker
        worker.deadline = self._loop.time() + timeout_s
        if worker.timer is None:
            self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        """Has the task cancelled at its deadline."""
        if worker.deadline is not None:
            if worker.timer is not None:
                worker.timer.cancel()
            worker.timer = self._loop.call_at(worker.deadline, self._expire, worker)

    def _expire(self, worker: _Worker) -> None:
        worker.timer = None
        if worker.deadline is None:
            return
        if self._loop.time() < worker.deadline:
            self._watch(worker)
            return
        worker.deadline, worker.expired = None, True
        worker.task.cancel()

    def _timed_out(self, worker: _Worker) -> Outcome:
        worker.expired = False
        worker.task.uncancel()
        self._cause = TimeoutError("the attempt took too long")
        return Failed(f"TimeoutError: the attempt took longer than timeout_s={self._options.timeout_s}")

    # -- outcomes

    def _settle_ended(self, worker: _Worker) -> None:
        """Settles the bodies whose handlers have returned."""
        if worker.ended == worker.settled:
            return
        ended = worker.work[worker.settled : worker.ended]
        worker.settled = worker.ended
        self._end(ended)

    def _settle(self, work: Sequence[Delivery], outcomes: list[Outcome]) -> list[Outcome]:
        """Settles attempts in the table, and returns the outcomes as they were settled."""
        table, counts, options = self._table, self._counts, self._options
        self.running -= len(work)
        for index, outcome in enumerate(outcomes):
            if outcome is None or isinstance(outcome, Released):
                continue
            delivery = work[index]
            if isinstance(outcome, Failed):
                counts.failed += 1
            if options.dead_letter is None and (isinstance(outcome, Rejected) or delivery.attempt >= options.plan.attempts):
                self._starts = False
                self._fail(self.failed(delivery, delivery.attempt, outcome.reason, self._cause))
                table.start_over(delivery)
                outcomes[index] = RELEASED
        ended, dead = table.settle(work, outcomes, self._loop.time())
        counts.handled += len(ended)
        if len(ended) < len(work):
            for delivery in work:
                if delivery._state != _ENDED:
                    delivery._owner, delivery._outputs = self._refusing, None
        self.dead.extend(dead)
        self.unsaved = True
        self._report()
        if self._idle:
            self.wake()
        return outcomes

    def failed(self, delivery: Delivery, attempts: int, reason: str, cause: BaseException | None = None) -> HandlerFailedError:
        """Returns the error of a consumer without a dead letter, for a message that is tried no more."""
        message = delivery.message
        error = HandlerFailedError(
            f"consumer {self._options.cursor.name!r} has ended at message {message.message_id} of {message.vchannel!r} after "
            f"{attempts} attempt{'s' * (attempts > 1)}: {reason}; nothing was skipped: mend the handler and start the consumer again, or "
            "name a vchannel with dead_letter=",
            message=message,
            attempts=attempts,
        )
        error.__cause__ = cause
        return error
