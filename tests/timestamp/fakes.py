"""A clock that moves only on request, and a KV that fails on request: no part of the oracle is faked."""

from __future__ import annotations

import asyncio
import enum
import heapq
import itertools
from collections.abc import Callable

from wal.errors import StorageError
from wal.storage.kv import KVBase, KVBatch, KVStatistics, Watch
from wal.timestamp import ScheduledCall


class FakeTimer:
    def __init__(self, callback: Callable[..., object], args: tuple[object, ...]) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Monotonic time moves by `advance`, wall time with it; `step` moves wall time alone, in either direction."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self._monotonic = 0.0
        self._ahead = wall
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._numbers = itertools.count()

    def wall(self) -> float:
        return self._ahead + self._monotonic

    def monotonic(self) -> float:
        return self._monotonic

    def call_later(self, delay_s: float, callback: Callable[..., object], /, *args: object) -> ScheduledCall:
        timer = FakeTimer(callback, args)
        heapq.heappush(self._timers, (self._monotonic + delay_s, next(self._numbers), timer))
        return timer

    def step(self, seconds: float) -> None:
        self._ahead += seconds

    async def advance(self, seconds: float) -> None:
        """Lets time pass, timer by timer; each started task runs until it waits."""
        until = self._monotonic + seconds
        while self._timers and self._timers[0][0] <= until:
            self._monotonic, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback(*timer.args)
            await settle()
        self._monotonic = until


async def settle() -> None:
    """Lets every ready task run; tasks here wait for other tasks only."""
    for _ in range(20):
        await asyncio.sleep(0)


class Fault(enum.Enum):
    NONE = "none"
    REFUSED = "refused"  # nothing is done, and the caller gets an error
    ANSWER_LOST = "answer lost"  # it is done, and the caller gets an error


class FailingKV(KVBase):
    """A KV with faults over another one. `hold()` withholds answers until `release()`."""

    def __init__(self, inner: KVBase) -> None:
        super().__init__()
        self.inner = inner
        self.on_commit = Fault.NONE
        self.on_load = Fault.NONE
        self.commits = 0
        self._gate = asyncio.Event()
        self._gate.set()

    def hold(self) -> None:
        self._gate.clear()

    def release(self) -> None:
        self._gate.set()

    async def close(self) -> None:
        self._closed = True

    def statistics(self) -> KVStatistics:
        return self.inner.statistics()

    async def _load(self, keys: list[str]) -> list[str | None]:
        await self._gate.wait()
        if self.on_load is not Fault.NONE:
            raise StorageError("injected: the load failed")
        return await self.inner._load(keys)

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        return await self.inner._scan(prefix)

    async def _commit(self, batch: KVBatch) -> str | None:
        await self._gate.wait()
        self.commits += 1
        if self.on_commit is Fault.REFUSED:
            raise StorageError("injected: the save failed")
        differs = await self.inner._commit(batch)
        if self.on_commit is Fault.ANSWER_LOST:
            raise StorageError("injected: the answer was lost", outcome_unknown=True)
        return differs

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        return await self.inner._watch(subject, is_prefix=is_prefix, root_length=root_length, buffer_max=buffer_max)
