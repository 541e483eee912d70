"""HandlerPool: the tasks of a consumer that run its handler, and the outcome of each attempt.

Owns `concurrency` tasks. Each takes bodies that may run from the table, calls the handler, waits for it, and settles the attempt in the
table. The session commits the ended attempts. A handler that never suspends runs without a turn of the event loop, so the task yields after
TURN_S.

An attempt ends by returning, by Retry, Reject or another exception, by its time-out, or by a release when the consumer ends and cancels it.
A cancellation from inside the handler (it awaited something that was cancelled, or it cancelled its own task) counts as any other
exception, and so does a BaseException. Only SystemExit and KeyboardInterrupt, which request the end of the process, end the consumer with
an error. A task that a handler has cancelled is replaced, since each of its awaits might be cancelled once more.

A sync handler runs in a thread, which cannot be stopped. After its time-out, or after a release, its outputs are rejected, and its lane
stays blocked until it returns. An async handler that continues after its cancellation blocks its lane in the same way.

After `trip_after` messages in a row that are out of attempts, or undecodable, the pool starts nothing more and reports the last one, so
that a broken handler does not turn a backlog into dead letters. A handled message begins the count again, and so does a `Reject`.

Without a dead letter, a lane never passes a message that is out of attempts: the pool releases the message, starts nothing more, and
reports the error that ends the consumer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from wal.consumers.delivery import Delivery, DeliveryState, Outputs, Reject, Retry
from wal.consumers.handed_work import HandedWork
from wal.consumers.handler_counts import FAST_S, HandlerCounts
from wal.consumers.options import ConsumerOptions
from wal.consumers.outputs import OutputRouter
from wal.consumers.plan import RELEASED, Dead, Failed, Outcome, Rejected, Released
from wal.consumers.table import Deliveries
from wal.errors import HandlerFailedError, InvalidTransactionStateError, PayloadError, caused
from wal.message import Message
from wal.runtime.user_code import called, check_ran, described, shown

CHUNK: Final = 64
"""The number of bodies that a task handles before it checks the time since its last yield."""
TURN_S: Final = 0.0005
"""The time that a task whose handlers never suspend runs before it yields to other tasks."""
CANCEL_S: Final = 1.0
"""The minimum time that the end of the consumer waits for a cancelled handler."""
_ENDED: Final = int(DeliveryState.ENDED)


class _Ended:
    """The owner of a delivery between two attempts: code that still holds it from the first attempt cannot add to the second."""

    def __init__(self, fence: int) -> None:
        self.fence = fence

    def add_output(self, message: Message, outputs: Outputs | None, *, is_letter: bool = False, due_ms: int | None = None) -> Outputs:
        raise InvalidTransactionStateError("this attempt at the message has ended: what it adds now would be lost")

    def extend(self, delivery: Delivery, seconds: float) -> None:
        raise InvalidTransactionStateError("this attempt at the message has ended: it has no time left to extend")

    def has_ended(self, delivery: Delivery) -> bool:
        return True


class _HandlerWorker:
    """One task and the bodies that it took. Invariant: settled <= ended; the handlers of the first `ended` bodies have returned, and the
    first `settled` are settled in the table.
    """

    __slots__ = ("deadline", "ended", "expired", "is_left", "is_timed", "settled", "task", "thread", "timer", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.work: list[Delivery] = []
        self.ended: int = 0
        self.settled: int = 0
        self.deadline: float | None = None
        self.expired: bool = False
        self.is_left: bool = False
        """Whether the task ends, and another one replaces it."""
        self.is_timed: bool = False
        """Whether the calls of its next bodies are measured one by one, since together they took longer than FAST_S."""
        self.timer: asyncio.TimerHandle | None = None
        self.thread: asyncio.Future[Any] | None = None
        """The call that a thread still makes for a released attempt: until it returns, `work` belongs to it."""


class HandlerPool:
    """The handlers of one claim of a cursor.

    `report` is called when there is something to commit, and again when there is much of it; `starved` when a task has nothing to start;
    `fail` gets the error that ends the consumer; `trip` gets the error of a message, and the consumer pauses.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        table: Deliveries | HandedWork,
        router: OutputRouter,
        fence: int,
        counts: HandlerCounts,
        *,
        report: Callable[[], None],
        starved: Callable[[], None],
        fail: Callable[[BaseException], None],
        trip: Callable[[HandlerFailedError], None],
    ) -> None:
        self.fence: int = fence
        self.running: int = 0
        """The bodies that handlers have, or get next in the same task."""
        self.unsaved: bool = False
        """Whether attempts have failed, or were rejected or released, since the session set it to False."""
        self._options = options
        self._table: Deliveries | HandedWork = table
        self.has_ended: Callable[[Delivery], bool] = table.has_ended
        self._router = router
        self._counts = counts
        self.gather_max: int = options.plan.page // 2
        """The number of ended bodies that triggers a commit at once."""
        self.has_outputs: bool = False
        """Whether a handler has added an output."""
        self.dead: deque[Dead] = deque()
        """The bodies that are out of attempts or rejected, and not in a commit yet."""
        self._report = report
        self._starved = starved
        self._fail = fail
        self._trip = trip
        self._loop = asyncio.get_running_loop()
        self._host = asyncio.current_task()
        """The task of the consumer, which is cancelled together with the handlers when the loop ends."""
        self._idle: deque[asyncio.Future[None]] = deque()
        self._starts = True
        self._ending = False
        self._refusing = _Ended(fence)
        self._cause: BaseException | None = None
        """The exception of the last failed attempt."""
        self.exhausted: HandlerFailedError | None = None
        """The error of the last message that is out of attempts or undecodable, as `trip` gets it."""
        self._workers_of: dict[Delivery, _HandlerWorker] = {}
        """The worker that runs each delivery, if attempts have a time-out."""
        name, concurrency = options.cursor.name, options.plan.concurrency
        self._threads = None if options.is_async else concurrent.futures.ThreadPoolExecutor(concurrency, thread_name_prefix=f"wal-{name}")
        alone = concurrency == 1 and options.is_async and options.batch is None
        self._size = CHUNK if alone or (options.batch is None and isinstance(table, HandedWork)) else options.plan.batch
        self._is_plain = options.is_async and options.payloads is None and options.timeout_s is None
        self._workers = [_HandlerWorker() for _ in range(concurrency)]
        for number, worker in enumerate(self._workers):
            self._begin(worker, f"handler {number} of consumer {name}")

    def _begin(self, worker: _HandlerWorker, name: str) -> None:
        """Starts a worker's task."""
        worker.is_left = False
        worker.task = self._loop.create_task(self._run(worker), name=name)
        worker.task.add_done_callback(partial(self._task_ended, worker))

    def _task_ended(self, worker: _HandlerWorker, task: asyncio.Task[None]) -> None:
        """Continues in another task if a handler has cancelled this one; an internal error ends the consumer."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        elif not self._is_released:
            self._begin(worker, task.get_name())

    @property
    def _is_released(self) -> bool:
        """Whether a cancellation comes from the end of the consumer or of its loop, and not from inside a handler."""
        return self._ending or (self._host is not None and self._host.cancelling() > 0)

    # -- for the session

    @property
    def is_starved(self) -> bool:
        """Whether a task waits for bodies that may run."""
        return bool(self._idle) and not self._table.startable

    def wake(self) -> None:
        """Wakes a task for each startable unit of work."""
        if self._idle and self._starts:
            self._wake(self._table.startable)

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            if not (waiter := self._idle.popleft()).done():  # otherwise its task was cancelled just now
                waiter.set_result(None)
                count -= 1

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Returns whether handlers run in this task."""
        return any(worker.task is task for worker in self._workers)

    def flush(self) -> None:
        """Settles the returned bodies of tasks that took several."""
        for worker in self._workers:
            if worker.ended > worker.settled:
                self._settle_ended(worker)

    def pause(self, *, paused: bool) -> None:
        """Starts no more handlers, or starts them again."""
        self._starts = not paused and not self._ending
        self.wake()

    async def drain(self, timeout_s: float) -> list[asyncio.Future[Any]]:
        """Starts no more handlers, waits for running ones, and cancels the rest after `timeout_s`.

        Returns the calls that continue: threads, and coroutines that ignore their cancellation. Their bodies stay with them until they
        return.
        """
        self._starts, self._ending = False, True
        self._wake(len(self._idle))
        _, late = await asyncio.wait([worker.task for worker in self._workers], timeout=timeout_s)
        for task in late:
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=max(timeout_s, CANCEL_S))
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        for worker in self._workers:
            if worker.timer is not None:
                worker.timer.cancel()
        return [*late, *(worker.thread for worker in self._workers if worker.thread is not None)]

    def release_threads(self) -> None:
        """Releases the bodies of threads that returned after the end."""
        for worker in self._workers:
            if worker.thread is not None:
                worker.thread = None
                self._release(worker)

    # -- for deliveries, see `Handling`

    def add_output(self, message: Message, outputs: Outputs | None, *, is_letter: bool = False, due_ms: int | None = None) -> Outputs:
        self.has_outputs = True
        return self._router.add(message, outputs, is_letter=is_letter, due_ms=due_ms)

    def extend(self, delivery: Delivery, seconds: float) -> None:
        if (worker := self._workers_of.get(delivery)) is not None:
            worker.deadline = self._loop.time() + seconds
            self._loop.call_soon_threadsafe(self._watch, worker)

    # -- running

    async def _run(self, worker: _HandlerWorker) -> None:
        """Runs the handler on the bodies that may run, until the end."""
        task = asyncio.current_task()
        assert task is not None
        worker.task, cancelling = task, task.cancelling
        table, size, options, turns = self._table, self._size, self._options, 0
        handler, router, refusing = options.handler, self._router, self._refusing
        counts, monotonic = self._counts, time.monotonic
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
                began_s = monotonic()
                try:
                    if isinstance(returned := await handler(delivery), BaseException):  # as an item of a batch's list does
                        raise returned
                    delivery._owner = refusing
                    if router.unlocated and delivery._outputs is not None and (unknown := router.unknown(delivery._outputs)):
                        await router.locate(unknown)
                except BaseException as error:
                    counts.add_time(monotonic() - began_s)
                    self._settle(work, [self._outcome_of(worker, error)])
                else:
                    if (took_s := monotonic() - began_s) <= FAST_S:
                        counts.times[0] += 1
                        counts.handler_s += took_s
                    else:
                        counts.add_time(took_s)
                    self._end(work)
            else:
                worker.work, worker.ended, worker.settled = work, 0, 0
                try:
                    await (self._run_each(worker) if options.batch is None else self._run_batch(worker))
                except GeneratorExit as error:  # of a future that the handler awaited: it has closed the coroutines in between
                    self._settle_closed(worker, self._outcome_of(worker, error))
            if cancelling() or worker.is_left:
                return
            turns += len(work)
            if turns >= CHUNK:
                turns = 0
                if time.monotonic() >= until_s:
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + TURN_S

    def _end(self, work: Sequence[Delivery]) -> None:
        """Records that these bodies are handled."""
        table, count = self._table, len(work)
        before = table.ended_count
        self.running -= count
        self._counts.handled += count
        self._counts.exhausted = 0
        table.end(work)
        if not before or before < self.gather_max <= before + count:
            self._report()
        if self._idle:
            self.wake()

    async def _run_each(self, worker: _HandlerWorker) -> None:
        options, router, index = self._options, self._router, 0
        handler, is_plain, refusing, cancelling = options.handler, self._is_plain, self._refusing, worker.task.cancelling
        outcome: Outcome
        work, counts, monotonic, is_timed = worker.work, self._counts, time.monotonic, worker.is_timed
        began_s = last_s = monotonic()
        attempts, attempts_s = 0, 0.0  # those of `_attempt`, which measures each
        while index < len(work) and self._starts and not cancelling() and not worker.is_left:
            delivery = work[index]
            if is_plain and delivery._owner is self:  # the usual case, without another coroutine
                try:
                    if isinstance(returned := await handler(delivery), BaseException):  # as an item of a batch's list does
                        raise returned
                    delivery._owner = refusing
                    if router.unlocated and delivery._outputs is not None and (unknown := router.unknown(delivery._outputs)):
                        await router.locate(unknown)
                    index += 1
                    worker.ended = index
                    if is_timed:
                        now_s = monotonic()
                        counts.add_time(now_s - last_s)
                        last_s = now_s
                    continue
                except BaseException as error:
                    if is_timed:
                        counts.add_time(monotonic() - last_s)
                    outcome = self._outcome_of(worker, error)
            else:
                attempt_s = monotonic()
                outcome = (await self._attempt(worker, [delivery]))[0]
                attempts, attempts_s = attempts + 1, attempts_s + monotonic() - attempt_s
                self._counts.retried += delivery.attempt > 1
            if worker.thread is not None:
                return
            index += 1
            if outcome is None:
                worker.ended = index
                last_s = monotonic()
                continue
            self._settle_ended(worker)
            lane = delivery._lane
            stops = isinstance(outcome, Failed) and options.plan.blocks and delivery.attempt < options.plan.attempts
            outcome = self._settle(work[index - 1 : index], [outcome])[0]
            worker.ended = worker.settled = index
            if lane is not None and (stops or outcome is RELEASED):  # its lane was released with it
                self._drop(worker, [later for later in work[index:] if later._lane == lane])
                work = worker.work
            last_s = monotonic()
        took_s, calls = monotonic() - began_s - attempts_s, index - attempts
        if not is_timed and calls:
            counts.add_times(took_s, calls)
        worker.is_timed = took_s > FAST_S
        self._release(worker)

    def _settle_closed(self, worker: _HandlerWorker, outcome: Outcome) -> None:
        """Settles the bodies of a task: the running attempt has this outcome."""
        self._settle_ended(worker)
        if rest := worker.work[worker.settled :]:
            count = 1 if self._options.batch is None else len(rest)
            worker.settled = worker.ended = len(worker.work)
            self._settle(rest, [*[outcome] * count, *[RELEASED] * (len(rest) - count)])

    def _drop(self, worker: _HandlerWorker, taken_back: list[Delivery]) -> None:
        if taken_back:
            dropped = set(taken_back)
            worker.work = [delivery for delivery in worker.work if delivery not in dropped]
            self.running -= len(dropped)

    def _release(self, worker: _HandlerWorker) -> None:
        """Releases the unsettled bodies of the task."""
        self._settle_closed(worker, RELEASED)

    async def _run_batch(self, worker: _HandlerWorker) -> None:
        work, router = worker.work, self._router
        outcomes: list[Outcome] | None
        if self._is_plain and (self._table.is_regular or all(delivery._owner is self for delivery in work)):  # first attempts at payloads
            began_s = time.monotonic()
            try:
                try:
                    result = await self._options.handler(work.copy())
                finally:
                    self._counts.add_time(time.monotonic() - began_s)
                self._refuse(work)
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

    async def _attempt(self, worker: _HandlerWorker, work: Sequence[Delivery]) -> list[Outcome]:
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
                    outcomes[index] = Rejected(str(error), undecodable=True)
                    continue
                except BaseException as error:
                    outcomes[index] = self._outcome_of(worker, error)
                    continue
            views[index] = view
        if not views:
            return outcomes
        batch = list(views.values())
        results: list[Outcome]
        try:
            if options.timeout_s is not None:
                self._begin_time(worker, batch, options.timeout_s)
            began_s = time.monotonic()
            try:
                result = await self._call(worker, batch, batch.copy() if options.batch is not None else batch[0])
            finally:
                self._counts.add_time(time.monotonic() - began_s)
                worker.deadline = None
                self._refuse(batch)
            if options.batch is None and isinstance(result, BaseException):
                raise result
            results = [None] if options.batch is None else self._results_of(result, len(batch))
            for view in batch:
                if view._outputs is not None and (unknown := self._router.unknown(view._outputs)):
                    await self._router.locate(unknown)
        except BaseException as error:
            results = [self._outcome_of(worker, error)] * len(batch)
        if worker.expired:
            results = [self._timed_out(worker)] * len(batch)
        for view in batch:
            self._workers_of.pop(view, None)
        for (index, view), result in zip(views.items(), results, strict=True):
            outcomes[index] = result
            if view is not work[index]:
                work[index]._outputs = view._outputs
        return outcomes

    def _refuse(self, deliveries: Sequence[Delivery]) -> None:
        """Rejects further outputs of these deliveries, whose handler has returned."""
        for delivery in deliveries:
            delivery._owner = self._refusing

    def _view(self, delivery: Delivery) -> Delivery:
        """Returns the delivery for a further attempt: code that holds the delivery of an earlier attempt cannot add to this one."""
        return Delivery(
            delivery.message, self, delivery._lane, delivery._event, delivery.attempt, delivery._state, _number=delivery._number
        )

    async def _call(self, worker: _HandlerWorker, deliveries: Sequence[Delivery], argument: Any) -> Any:
        handler = self._options.handler
        if self._threads is None:
            return await handler(argument)
        context = contextvars.copy_context()
        call = self._loop.run_in_executor(self._threads, partial(context.run, called, handler, argument))
        try:
            result = await asyncio.shield(call)
        except asyncio.CancelledError:
            if call.done() and not call.cancelled():
                raise
            self._refuse(deliveries)
            worker.deadline = None
            worker.thread = call
            if not self._is_released:
                await asyncio.wait((call,))
                worker.thread = None
            raise
        check_ran(result)
        return await result if inspect.isawaitable(result) else result

    def _results_of(self, results: Any, count: int) -> list[Outcome]:
        """Returns the outcomes that a handler of batches returned."""
        if results is None:
            return [None] * count
        if not isinstance(results, list | tuple) or len(results) != count:
            result_text = f"{len(results)} results" if isinstance(results, list | tuple) else shown(results)
            raise TypeError(
                f"a handler of batches returns None, or a list with a result for each of its {count} deliveries, not {result_text}"
            )
        outcomes: list[Outcome] = []
        for result in results:
            if result is not None and not isinstance(result, Exception):
                raise TypeError(f"the result of a delivery is None, Retry, Reject or another exception, not {shown(result)}")
            outcomes.append(None if result is None else self._failure(result))
        return outcomes

    def _outcome_of(self, worker: _HandlerWorker, error: BaseException) -> Outcome:
        """Returns the outcome of an attempt that raised."""
        if isinstance(error, asyncio.CancelledError):
            if worker.expired or self._is_released:  # the handler got its time-out or its release as this error
                return RELEASED
            self._cause = error
            return Failed("CancelledError: the handler awaited something that was cancelled, or cancelled its own task")
        if isinstance(error, GeneratorExit):
            if self._loop.is_closed():  # the coroutine is destroyed, and must not await anything more
                raise error
            worker.is_left = True
        return self._failure(error)

    def _failure(self, error: BaseException) -> Outcome:
        self._cause = error
        try:
            if isinstance(error, Retry):
                return Failed(str(error), Retry(error.delay_s).delay_s)
            if isinstance(error, Reject):
                return Rejected(Reject(error.reason).reason)
        except BaseException as broken:  # of a subclass that does not keep its constructor's arguments
            return Failed(f"{described(error)} ({described(broken)})")
        return Failed(described(error), ends=isinstance(error, SystemExit | KeyboardInterrupt))

    # -- time-outs

    def _begin_time(self, worker: _HandlerWorker, deliveries: Sequence[Delivery], timeout_s: float) -> None:
        for view in deliveries:
            self._workers_of[view] = worker
        worker.deadline = self._loop.time() + timeout_s
        if worker.timer is None:
            self._watch(worker)

    def _watch(self, worker: _HandlerWorker) -> None:
        """Schedules the cancellation of the task at its deadline."""
        if worker.deadline is not None:
            if worker.timer is not None:
                worker.timer.cancel()
            worker.timer = self._loop.call_at(worker.deadline, self._expire, worker)

    def _expire(self, worker: _HandlerWorker) -> None:
        worker.timer = None
        if worker.deadline is None:
            return
        if self._loop.time() < worker.deadline:
            self._watch(worker)
            return
        worker.deadline, worker.expired = None, True
        worker.task.cancel()

    def _timed_out(self, worker: _HandlerWorker) -> Outcome:
        worker.expired = False
        worker.task.uncancel()
        self._cause = TimeoutError("the attempt took too long")
        return Failed(f"TimeoutError: the attempt took longer than timeout_s={self._options.timeout_s}")

    # -- outcomes

    def _settle_ended(self, worker: _HandlerWorker) -> None:
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
            is_last = isinstance(outcome, Rejected) or delivery.attempt >= options.plan.attempts
            if (is_last and options.dead_letter is None) or (isinstance(outcome, Failed) and outcome.ends):
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
        if options.trip_after:
            self._count_exhausted(work, outcomes)
        self.unsaved = True
        self._report()
        if self._idle:
            self.wake()
        return outcomes

    def _count_exhausted(self, work: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        """Counts messages in a row that are out of attempts, or undecodable, and stops starting handlers at `trip_after`."""
        counts, options = self._counts, self._options
        for delivery, outcome in zip(work, outcomes, strict=True):
            if delivery._state != _ENDED:  # released, or tried again
                continue
            if outcome is None or (isinstance(outcome, Rejected) and not outcome.undecodable):
                counts.exhausted = 0
                continue
            assert not isinstance(outcome, Released)
            counts.exhausted += 1
            self.exhausted = self._tripped(delivery, outcome.reason)
            if counts.exhausted == options.trip_after:
                self._starts = False
                self._trip(self.exhausted)

    def _tripped(self, delivery: Delivery, reason: str) -> HandlerFailedError:
        """Returns the error of a consumer that pauses at a message."""
        message, count = delivery.message, self._options.trip_after
        return caused(
            HandlerFailedError(
                f"consumer {self._options.cursor.name!r} has tripped at message {message.message_id} of {message.vchannel!r}: "
                f"{count} message{'s' * (count > 1)} in a row became dead letters (trip_after={count}), the last one for {reason}; later "
                "messages wait: mend the handler and start the consumer again, or call resume(), then redrive the dead letters",
                message=message,
                attempts=delivery.attempt,
            ),
            self._cause,
        )

    def failed(self, delivery: Delivery, attempts: int, reason: str, cause: BaseException | None = None) -> HandlerFailedError:
        """Returns the error of a consumer without a dead letter, for a message that is out of attempts."""
        message = delivery.message
        remedy = ", or name a vchannel with dead_letter=" if self._options.dead_letter is None else ""
        return caused(
            HandlerFailedError(
                f"consumer {self._options.cursor.name!r} has ended at message {message.message_id} of {message.vchannel!r} after "
                f"{attempts} attempt{'s' * (attempts > 1)}: {reason}; nothing was skipped: mend the handler and start the consumer again"
                f"{remedy}",
                message=message,
                attempts=attempts,
            ),
            cause,
        )
