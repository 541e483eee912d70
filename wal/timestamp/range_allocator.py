"""RangeAllocator: many small requests served from few large ranges. The base of the allocators of ticks and of ids."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Self

import msgspec

from wal.errors import ClosedError, InnerError, InvalidArgumentError, WouldBlockError, caused
from wal.runtime.tasks import AsyncClosing, end_tasks
from wal.timestamp.clock import MonotonicClock
from wal.timestamp.timestamp import check_int

MERGED_MAX: Final = 10_000
"""The most requests that one refill serves."""
WAITING_MAX: Final = 65_536
"""Requests that may wait at once; above it a request raises WouldBlockError."""

_EMPTY: Final = range(0)


class AllocatorStatistics(msgspec.Struct, frozen=True):
    """Counters of an allocator since it was started. `cached`: ticks or ids in the current range. `waiting`: requests not answered yet.
    `refills` succeeded, `failures` did not."""

    cached: int
    waiting: int
    refills: int
    failures: int


class _RangeRequest:
    __slots__ = ("count", "fresh", "future")

    def __init__(self, count: int, *, fresh: bool, future: asyncio.Future[range]) -> None:
        self.count = count
        self.fresh = fresh  # only a refill that begins after this request may serve it
        self.future = future


class RangeAllocator(AsyncClosing):
    """Serves `_allocate(count)` from ranges that `refill(count)` fetches, each of at least `batch` numbers, one fetch after the other.

    Owns: the waiting requests, the current range and the one refill in progress. Guarantees: requests are served in order of arrival, each
    with a contiguous range above all earlier ones, and a cancelled or failed request does not affect the others. The numbers may be ticks
    or ids; a refill is any coroutine that returns a range.

    With `expire_s`, the rest of a range is discarded that long after its fetch began. A refill that raises fails only the requests for
    which it was made; the next request tries again.
    """

    def __init__(
        self,
        refill: Callable[[int], Awaitable[range]],
        *,
        batch: int,
        count_max: int,
        expire_s: float | None,
        clock: MonotonicClock,
        what: str,
    ) -> None:
        check_int("batch", batch, 1, count_max)
        if expire_s is not None and not expire_s >= 0:
            raise InvalidArgumentError(f"expire_s={expire_s} is negative: give 0 (never keep anything) or more")
        self._refill = refill
        self._batch = batch
        self._count_max = count_max
        self._expire_s = expire_s
        self._clock = clock
        self._what = what
        self._requests: deque[_RangeRequest] = deque()
        self._merged: list[_RangeRequest] = []  # the requests of the refill in progress; all are older than `_requests`
        self._cached = _EMPTY
        self._cached_at = -math.inf  # no range is cached
        self._end = 0  # above all fetched numbers
        self._task: asyncio.Task[None] | None = None
        self._started = False
        self._closed = False
        self._refills = 0
        self._failures = 0

    async def start(self) -> None:
        """Makes the allocator ready; the first call fetches. Idempotent; raises ClosedError after `close`."""
        self._check_open()
        self._started = True

    async def close(self) -> None:
        """Fails the calls that wait, and all later ones, with ClosedError, and stops the refill. Idempotent."""
        self._closed = True
        self._cached = _EMPTY
        _fail([*self._merged, *self._requests], self._closed_error())
        self._requests.clear()
        task = self._task
        await end_tasks(task)

    async def _allocate(self, count: int) -> range:
        """Returns a contiguous range of `count` above all earlier ranges."""
        check_int("count", count, 1, self._count_max)
        self._check_open()
        if not self._requests and not self._merged and self._has(count):
            return self._cut(count)
        return await self._wait(count, fresh=False)

    async def _refresh(self) -> None:
        """Discards the current range and fetches a new one."""
        self._check_open()
        self._cached = _EMPTY
        await self._wait(0, fresh=True)

    def statistics(self) -> AllocatorStatistics:
        waiting = len(self._merged) + len(self._requests)
        return AllocatorStatistics(cached=len(self._cached), waiting=waiting, refills=self._refills, failures=self._failures)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the {self._what} is closed: start a new one")

    def _has(self, count: int) -> bool:
        if self._expire_s is not None and self._clock.monotonic() - self._cached_at >= self._expire_s:
            self._cached = _EMPTY
        return len(self._cached) >= count

    def _cut(self, count: int) -> range:
        cut, self._cached = self._cached[:count], self._cached[count:]
        return cut

    async def _wait(self, count: int, *, fresh: bool) -> range:
        if not self._started:
            raise InvalidArgumentError(f"the {self._what} is not started: await start() first")
        if len(self._requests) >= WAITING_MAX:
            self._requests = deque(request for request in self._requests if not request.future.done())
            if len(self._requests) >= WAITING_MAX:
                raise WouldBlockError(f"{WAITING_MAX} requests wait for the {self._what}: await some of them first")
        request = _RangeRequest(count, fresh=fresh, future=asyncio.get_running_loop().create_future())
        self._requests.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._refill_while_asked(), name=f"{self._what}-refill")
        return await request.future

    async def _refill_while_asked(self) -> None:
        """Refills until no request waits; the only task."""
        try:
            while self._serve():
                self._merge()
                await self._fetch()
        except Exception as defect:  # no caller may wait for ever
            error = caused(InnerError(f"the {self._what} failed: {defect!r}; please report it"), defect)
            self._failures += 1
            _fail([*self._merged, *self._requests], error)
            self._requests.clear()
        finally:
            self._merged = []
            self._task = None

    def _serve(self) -> bool:
        """Answers the oldest requests from the current range while it lasts. Returns whether any still wait."""
        while self._requests:
            request = self._requests[0]
            if not request.future.done():
                if request.fresh or not self._has(request.count):
                    return True
                request.future.set_result(self._cut(request.count))
            self._requests.popleft()
        return False

    def _merge(self) -> None:
        """Moves the oldest requests that one refill can serve: up to MERGED_MAX of them and `count_max` in sum."""
        total = 0
        while self._requests and len(self._merged) < MERGED_MAX:
            request = self._requests[0]
            total += request.count
            if total > self._count_max:
                break
            self._merged.append(self._requests.popleft())

    async def _fetch(self) -> None:
        count = max(self._batch, sum(request.count for request in self._merged))
        began_at = self._clock.monotonic()
        try:
            fetched = await self._refill(count)
            self._check(fetched, count)
        except Exception as error:
            self._failures += 1
            _fail(self._merged, error)
            self._merged = []
            return
        self._refills += 1
        self._end = fetched.stop
        if self._expire_s is None and self._cached.stop == fetched.start:
            fetched = range(self._cached.start, fetched.stop)  # No number is in between and none expires, so none is wasted.
        self._cached, self._cached_at = fetched, began_at
        # The range was fetched for these requests, so they get their share however long the fetch took.
        for request in self._merged:
            if not request.future.done():
                request.future.set_result(self._cut(request.count))
        self._merged = []

    def _check(self, fetched: range, count: int) -> None:
        if len(fetched) != count or fetched.step != 1 or fetched.start < self._end:
            raise InnerError(
                f"the source of the {self._what} answered {fetched} to a request for {count} above {self._end - 1}: it must be "
                f"contiguous and increasing"
            )


def _fail(requests: Iterable[_RangeRequest], error: Exception) -> None:
    for request in requests:
        if not request.future.done():
            request.future.set_exception(error)
