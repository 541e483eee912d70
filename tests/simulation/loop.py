"""SimulatedLoop: an event loop on a virtual clock, in which the callbacks of several simulated processes take turns.

How it works. Every callback belongs to the strand (a thread of a simulated process) in whose context it was scheduled, as asyncio passes
contexts on. Time moves only when nothing is left to do, to the next timer. A stopped strand runs nothing: its callbacks are kept, in their
order, until it continues: arrivals come before the timers then, as asyncio serves its sockets before the due timers. The callbacks of a
killed process are dropped, and its tasks are kept from being collected, so that none of its `finally` blocks runs.

Nothing here draws a number that the seed does not give, and tasks and futures hash to their number in the order of creation, so that a
set of them is iterated in the same order in every run. `trace` is a checksum of what ran when.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import heapq
import itertools
import random
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

WALL_START: Final = 1_700_000_000.0
"""The wall clock at the beginning of a run, in seconds since 1970."""
MONOTONIC_START: Final = 1_000.0


class Process:
    """A simulated process: a name, the strands in it, and its clock's error. `start` runs a coroutine in its main strand."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.dead: bool = False
        self.wall_ahead_s: float = 0.0
        """How far its wall clock is off."""
        self.strands: dict[str, Strand] = {}
        self.main: Strand = self.strand("main")
        self.kept: list[object] = []
        """What a killed process leaves: it is not collected before the run ends."""

    def strand(self, name: str) -> Strand:
        """Returns the strand of this name."""
        strand = self.strands.get(name)
        if strand is None:
            strand = self.strands[name] = Strand(self, name)
        return strand

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a coroutine as this process."""
        return self.loop.create_task(work, context=self.main.context.copy())

    def stop(self) -> None:
        """Stops the whole process, as SIGSTOP does."""
        for strand in self.strands.values():
            strand.stop()

    def go_on(self) -> None:
        """Continues a stopped process: its due callbacks run now."""
        for strand in self.strands.values():
            strand.go_on()

    def kill(self) -> None:
        """Ends the process in the middle of everything, as `kill -9` does."""
        self.dead = True
        for strand in self.strands.values():
            self.kept.extend(strand.held)
            strand.held.clear()

    @property
    def stopped(self) -> bool:
        """Whether its main strand is frozen."""
        return self.main.stopped


class Strand:
    """A thread of a simulated process, which freezes alone when its event loop hangs."""

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = name
        self.stopped: bool = process.strands["main"].stopped if process.strands else False
        self.held: list[asyncio.Handle] = []
        self.number = process.loop.next_number()
        self.context = contextvars.Context()
        self.context.run(STRAND.set, self)

    def stop(self) -> None:
        self.stopped = True

    def go_on(self) -> None:
        if self.stopped:
            self.stopped = False
            self.process.loop.put_back(sorted(self.held, key=lambda handle: not isinstance(handle, Arrival)))
            self.held = []


STRAND: contextvars.ContextVar[Strand | None] = contextvars.ContextVar("strand", default=None)
"""The strand to which what runs belongs; None for the simulation itself."""


def current_process() -> Process | None:
    """Returns the process whose code runs; None for the simulation itself."""
    strand = STRAND.get()
    return None if strand is None else strand.process


class Arrival(asyncio.TimerHandle):
    """A message that arrives at its time."""


class DeadlockError(Exception):
    """Nothing is left to do, and the run has not ended."""


class OutOfStepsError(Exception):
    """A run took more callbacks than it may."""


class SimulatedFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future that hashes to its number."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number


class SimulatedTask(asyncio.Task):  # type: ignore[type-arg]
    """A task that hashes to its number."""

    def __init__(self, work: Coroutine[Any, Any, Any], *, loop: SimulatedLoop, **options: Any) -> None:
        self._number = loop.next_number()
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of a run. `random` is its only source of chance."""

    def __init__(self, seed: int, *, steps_max: int | None = None) -> None:
        super().__init__()
        self.random: random.Random = random.Random(seed)
        self.disk_delay_s: Callable[[], float] = lambda: 0.0005
        """How long a call in a thread pool takes."""
        self.complaints: list[str] = []
        """What asyncio reported: exceptions in callbacks, and of tasks that nobody awaited."""
        self.steps: int = 0
        self.longest_step: tuple[float, str] = (0.0, "")
        """The most CPU time that one callback took, in seconds, and which; only if `measures`."""
        self.measures: bool = False
        self.trace: int = 0
        self._steps_max = steps_max
        self._now = MONOTONIC_START
        self._numbers = itertools.count(1)
        self._order = itertools.count()
        self._ready: deque[Any]
        self._timers: list[tuple[float, int, Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._tasks_max = 1024
        self._workers = _Workers(self)
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._complain)

    # -- the clock

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        """Returns the wall clock of the process whose code runs, in seconds since 1970."""
        process = current_process()
        return WALL_START + self._now - MONOTONIC_START + (0.0 if process is None else process.wall_ahead_s)

    # -- what asyncio asks of a loop

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError

    def _write_to_self(self) -> None:
        """Does nothing: the loop has no selector."""

    def next_number(self) -> int:
        """Returns the next number, for what has to have an order of its own."""
        return next(self._numbers)

    def create_future(self) -> SimulatedFuture:
        return SimulatedFuture(loop=self)

    def _make_task(self, _loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = SimulatedTask(work, loop=self, **options)
        self._tasks.append(task)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [each for each in self._tasks if not each.done()]
            self._tasks_max = max(1024, 2 * len(self._tasks))
        return task

    def call_at(  # type: ignore[override]  # a callback of any arguments
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._push(asyncio.TimerHandle(when, callback, args, self, context))

    def arrive_at(self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context) -> None:
        """Delivers a message to the strand of the context."""
        self._push(Arrival(when, callback, args, self, context))

    def _push(self, timer: Any) -> asyncio.TimerHandle:
        when = timer.when()
        heapq.heappush(self._timers, (when, next(self._order), timer))
        timer._scheduled = True
        made: asyncio.TimerHandle = timer
        return made

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is dropped when its time comes."""

    def put_back(self, handles: list[asyncio.Handle]) -> None:
        """Runs what a strand that stood still has missed."""
        self._ready.extend(handles)

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            while self._timers and self._timers[0][2]._cancelled:
                heapq.heappop(self._timers)
            if not self._timers:
                raise DeadlockError("nothing is left to do, and the run has not ended")
            self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            timer = heapq.heappop(self._timers)[2]
            timer._scheduled = False
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            strand: Strand | None = handle._context.get(STRAND)
            if strand is not None:
                if strand.process.dead:
                    strand.process.kept.append(handle)
                    continue
                if strand.stopped:
                    strand.held.append(handle)
                    continue
            self.steps += 1
            self.trace = zlib.crc32(b"%d %.9f" % (0 if strand is None else strand.number, self._now), self.trace)
            if self.measures:
                self._measured(handle)
            else:
                handle._run()
        if self._steps_max is not None and self.steps > self._steps_max:
            raise OutOfStepsError(f"the run took {self.steps} callbacks, and may take {self._steps_max}")

    def _measured(self, handle: asyncio.Handle) -> None:
        began = time.thread_time()
        handle._run()
        took = time.thread_time() - began
        if took > self.longest_step[0]:
            self.longest_step = took, repr(handle)

    def _complain(self, _loop: object, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        self.complaints.append(f"{context['message']}: {failure!r} in {context.get('future') or context.get('handle') or ''}")

    # -- threads

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Calls a function as a thread pool would: later, and while nothing else runs."""
        future = self.create_future()
        call = partial(func, *args)
        owner = getattr(func.args[0], "__self__", None) if isinstance(func, partial) and func.args else None
        if isinstance(owner, SimulatedThread) and func.args[0].__name__ == "stop":
            return self.create_task(owner.stopping())

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self.disk_delay_s(), run)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Does nothing: the loop has no pool."""


class SimulatedThread:
    """An event loop in a thread of its own (`wal.runtime.loop_thread.LoopThread`), as a strand of the process that makes it."""

    def __init__(self) -> None:
        process = current_process()
        assert process is not None, "only simulated processes have threads"
        loop = self._loop = process.loop
        self._strand = process.strand(f"thread {loop.next_number()}")
        self.closing: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.stopped: bool = False

    def start(self, call: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> concurrent.futures.Future[Any]:
        """Begins to await a coroutine in the strand."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        context = self._strand.context
        tasks: list[asyncio.Task[Any]] = []

        async def run() -> None:
            try:
                result = await call(*args)
            except asyncio.CancelledError:
                future.cancel()
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        def ended(_: object) -> None:
            if future.cancelled():
                self._loop.call_soon(lambda: [task.cancel() for task in tasks], context=context)

        self._loop.call_soon(lambda: tasks.append(self._loop.create_task(run(), context=context)), context=context)
        future.add_done_callback(ended)
        return future

    def stop(self) -> None:
        """Is never called: the executor of the simulation awaits `stopping` instead."""
        raise NotImplementedError

    async def stopping(self) -> None:
        """Ends what runs in the strand."""
        closing, self.closing = self.closing, None
        if closing is not None:
            await asyncio.wrap_future(self.start(closing))
        self.stopped = True


class _Workers:
    """Real threads for functions that wait for the loop. Threads never overlap: a worker runs, or the loop."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._turn = threading.Semaphore(0)
        self._local = threading.local()

    def run(
        self,
        call: Callable[[], Any],
        future: asyncio.Future[Any] | concurrent.futures.Future[Any],
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """Runs a function in a thread until it ends, or waits for the loop. `ended` is called at its end."""
        mine = threading.Semaphore(0)

        def body() -> None:
            self._local.turn = mine
            mine.acquire()
            try:
                result = call()
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)
            ended()
            self._turn.release()

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(body,), daemon=True).start()
        self._step(mine)

    def _step(self, turn: threading.Semaphore) -> None:
        turn.release()
        self._turn.acquire()

    def wait_for(self, future: concurrent.futures.Future[Any], timeout_s: float | None) -> None:
        """Called in a worker: gives the turn to the loop until the future is done, or for so long."""
        mine = self._local.turn
        done: list[bool] = []

        def go_on(_: object = None) -> None:
            if not done:
                done.append(True)
                self._step(mine)

        def ended(_: object) -> None:
            self._loop.call_soon(go_on, context=context)

        context = contextvars.copy_context()
        if timeout_s is not None:
            self._loop.call_later(timeout_s, go_on, context=context)
        future.add_done_callback(ended)
        self._turn.release()
        mine.acquire()

    def in_worker(self) -> bool:
        """Whether the calling thread is a worker."""
        return getattr(self._local, "turn", None) is not None


class WorkerFuture(concurrent.futures.Future):  # type: ignore[type-arg]
    """A future whose `result` gives the turn to the loop when a worker waits for it. It hashes to its number."""

    def __init__(self) -> None:
        super().__init__()
        self._number = _running[0].next_number()

    def __hash__(self) -> int:
        return self._number

    def result(self, timeout: float | None = None) -> Any:
        loop = _running[0]
        if not self.done() and loop._workers.in_worker():
            loop._workers.wait_for(self, timeout)
            timeout = 0
        return super().result(timeout)


_running: list[SimulatedLoop] = []


def running(loop: SimulatedLoop) -> None:
    """Makes this the loop of the run."""
    _running[:] = [loop]
