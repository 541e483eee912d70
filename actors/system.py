"""ActorSystem: starts actors and groups, and stops them in reverse order.

Owns every task of its actors, in one anyio task group that a host task of the system enters and leaves, so that `start` and `stop` may be
called from different tasks of the loop. Guarantees: the failure of an actor does not affect the others; after `stop` no task and no timer
of the system is left. It never restarts an actor, and never runs on two loops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from actors.actor import Actor, ActorRef
from actors.clock import Clock, SystemClock
from actors.errors import ActorStoppedError
from actors.group import Group, HomeLoop
from actors.statistics import SystemStatistics

log = logging.getLogger("actors")


class ActorSystem:
    """A system of actors that runs once: `async with ActorSystem("wal") as system`, or `await start()` and `await stop()`.

    `stop_timeout_s` is how long each actor and group may take to drain and stop before it is cut off, measured by `clock`; a stop takes at
    most this time for each of them. `stall_s`: see `SystemStatistics.stalled`.
    """

    def __init__(self, name: str, *, clock: Clock | None = None, stop_timeout_s: float = 10.0, stall_s: float = 5.0) -> None:
        for what, value in (("stop_timeout_s", stop_timeout_s), ("stall_s", stall_s)):
            if not value >= 0:
                raise ValueError(f"{what} is {value}: it must be at least 0 s")
        self._name = name
        self._clock: Clock = clock or SystemClock()
        self._stop_timeout_s = stop_timeout_s
        self._stall_s = stall_s
        self._home: HomeLoop | None = None
        self._host: asyncio.Task[None] | None = None
        self._tasks: TaskGroup | None = None
        self._owned: dict[str, ActorRef | Group] = {}
        self._running = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def name(self) -> str:
        """The name of the system."""
        return self._name

    @property
    def clock(self) -> Clock:
        """The clock of everything in this system."""
        return self._clock

    async def start(self) -> None:
        """Starts the system on the running loop, unless it is running. A cancelled start stops the system again."""
        if self._home is not None:
            self._home.check()
        if self._stopping.is_set():
            raise ActorStoppedError(f"system {self._name!r} was stopped and runs only once: create a new one")
        if self._host is None:
            self._home = HomeLoop(f"system {self._name!r}")
            self._host = self._home.loop.create_task(self._run(), name=f"{self._name}: host")
            self._host.add_done_callback(self._host_ended)
        try:
            await self._running.wait()
        except BaseException:
            self._stopping.set()
            raise
        if self._tasks is None:
            raise ActorStoppedError(f"system {self._name!r} was cancelled before it ran")

    async def stop(self) -> None:
        """Stops all actors and groups in reverse order of starting, and drains each before it stops the next.

        Idempotent. All callers wait for the end; cancelling one does not abort the stop. Raises RuntimeError in the task of one of the
        system's own actors, which would wait for itself: call `stop_nowait` there.
        """
        self.stop_nowait()
        if self._host is None:
            return
        current = asyncio.current_task()
        if any(isinstance(owned, ActorRef) and owned.task is current for owned in self._owned.values()):
            raise RuntimeError(f"an actor of system {self._name!r} cannot wait for its end: call stop_nowait() and return")
        await self._stopped.wait()

    def stop_nowait(self) -> None:
        """Begins the stop that `stop` waits for."""
        if self._home is not None:
            self._home.check()
        self._stopping.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        with anyio.CancelScope(shield=True):  # a cancelled scope of anyio would leave the actors running
            await self.stop()

    def spawn(self, actor: Actor, *, name: str, inbox_max: int = 1_024) -> ActorRef:
        """Starts an actor in a task of its own; `await ref.wait_started()` waits until its `started` has returned.

        The name is in use until the actor has stopped, or, if it failed, until its `stop` is called.
        """
        if not isinstance(actor, Actor):
            raise TypeError(f"a system spawns actors, not {type(actor).__name__}: subclass actors.Actor")
        home, tasks = self._begin(name)
        if hasattr(actor, "ref"):
            raise ValueError(f"actor {actor.ref.name!r} was spawned before: create a new one")
        ref = ActorRef(
            actor, name=name, inbox_max=inbox_max, home=home, clock=self._clock, stop_timeout_s=self._stop_timeout_s, forget=self._forget
        )
        actor.ref = ref
        self._owned[name] = ref
        tasks.start_soon(ref.launch, name=f"{self._name}: {name}")
        return ref

    def group(self, name: str, *, inbox_max: int = 65_536, on_turn_end: Callable[[], object] | None = None) -> Group:
        """Creates a group. Its name is in use until it has stopped."""
        self._begin(name)
        group = Group(
            name, clock=self._clock, inbox_max=inbox_max, on_turn_end=on_turn_end, stop_timeout_s=self._stop_timeout_s, forget=self._forget
        )
        self._owned[name] = group
        return group

    def statistics(self) -> SystemStatistics:
        """Returns the current counts; walks the inboxes of all groups."""
        if self._home is not None:
            self._home.check()
        owned = self._owned.values()
        return SystemStatistics(
            name=self._name,
            actors=tuple(ref.statistics() for ref in owned if isinstance(ref, ActorRef)),
            groups=tuple(group.statistics() for group in owned if isinstance(group, Group)),
            stalled=tuple(entry.name for entry in owned if entry.stalled(self._stall_s)),
        )

    async def _run(self) -> None:
        """Runs as the host task, the only place that enters and leaves the task group."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._running.set()
                await self._stopping.wait()
                for owned in reversed(list(self._owned.values())):
                    await owned.stop()
        finally:
            # No actor remains after a stop. If the loop cancelled this task, the actors that could not be drained are cut off.
            self._stopping.set()
            for owned in reversed(list(self._owned.values())):
                owned.cut_off()

    def _host_ended(self, host: asyncio.Task[None]) -> None:
        """Ends the system, in a callback of the host task: a task that is cancelled before its first step runs no line of `_run`."""
        self._stopping.set()
        self._running.set()
        self._stopped.set()
        if not host.cancelled() and (error := host.exception()) is not None:
            log.error("the host of system %r failed", self._name, exc_info=error)

    def _begin(self, name: str) -> tuple[HomeLoop, TaskGroup]:
        if self._home is None or self._tasks is None:
            raise ActorStoppedError(f"system {self._name!r} is not running: await start() first")
        self._home.check()
        if self._stopping.is_set():
            raise ActorStoppedError(f"system {self._name!r} is stopping or has stopped: it starts no more actors")
        if name in self._owned:
            raise ValueError(f"system {self._name!r} has a {name!r} already: choose another name, or stop that one first")
        return self._home, self._tasks

    def _forget(self, name: str) -> None:
        self._owned.pop(name, None)
