"""ReadOnlyPChannel: a pchannel that another process writes, as the scanners of this process see it.

While a scanner waits at the tail, one task asks the log how far it reaches and moves the tail: every millisecond while the log grows,
less often, down to every 20 ms, while it does not. New frames are read once, into the window of recent frames that all tailing
scanners share, so a hundred scanners cost about one read. A scanner that catches up reads the log itself.

ThreadedLog is the log that it reads: the blocking log of a backend, in threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, Final, TypeVar

from actors import Clock
from wal.errors import ClosedError, UnavailableError, WALError, closed_log, defect
from wal.read.pchannel import ShownLog, ShownPChannel, Tail
from wal.read.truncated import log_went_back, shrinkage
from wal.runtime.tasks import end_tasks, keep_task, keep_waiting
from wal.runtime.threads import in_thread
from wal.storage.base import FramePage, LogSnapshot
from wal.storage.read_only import ReadOnlyPChannelLog

_T = TypeVar("_T")
LOOK_MIN_S: Final = 0.001
LOOK_MAX_S: Final = 0.020
LOOK_SLOWER: Final = 1.5
"""The factor by which the time between two looks grows while the log does not grow."""
WRITER_S: Final = 0.5
"""How long a reader waits for a promised tick before it looks again whether there is a writer that can make it."""
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""If more than this came at once, it is not read into the window: the scanners at the tail catch up by themselves."""
_PAGE_BYTES: Final = 1024 * 1024


class ReadOnlyPChannel(ShownPChannel):
    """A pchannel over a log that was just opened. `start` it, and `close` it with the error for its readers."""

    log: ThreadedLog
    tail: WatchedTail

    def __init__(
        self,
        log: ThreadedLog,
        *,
        form: int,
        clock: Clock,
        awaited: Callable[[], None],
        has_writer: Callable[[], bool | None] = lambda: None,
    ) -> None:
        """`awaited` is called whenever a reader begins to wait at the tail. `has_writer` returns whether a process has the log open for
        writing, None where that is not known; it may block."""
        shown = log.shown
        super().__init__(log, form=form, promised_tick=shown.promised_tick, newest=shown.newest)
        self.tail = WatchedTail(self._begun_to_wait, shown)
        self._clock = clock
        self._awaited = awaited
        self._has_writer = has_writer
        self._wanted = asyncio.Event()
        self._moving = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._certain = False
        """Whether the newest event shown to readers is certainly the newest."""

    def start(self) -> None:
        """Starts the task that moves the tail."""
        self._watching = keep_waiting(self._watch(), f"watch {self.channel}")

    async def close(self, cause: WALError) -> None:
        """Ends the readers, then releases the log."""
        self.tail.fail(cause)
        await end_tasks(self._watching)
        await self.log.close()

    def advance_for(self, tick: int) -> bool:
        """Returns False: promised ticks are the writer's, and come with its `time_tick_interval_s`."""
        return False

    async def wait_promised(self, tick: int) -> None:
        tail = self.tail
        while tail.promised_tick < tick:
            if tail.failure is not None:
                raise tail.failure
            if await in_thread(self._has_writer) is False:
                await self.catch_up()  # the last writes before its writer ended
                if tail.promised_tick < tick:
                    raise UnavailableError(
                        f"pchannel {self.channel} ends at tick {tail.promised_tick}, and another one at {tick}, because the last writer of "
                        "the log was killed, and only a writer can tell that nothing comes between: open the log for writing once, which "
                        "recovers it, or read names"
                    )
                return
            waiter = tail.waiter(ticks=True)
            try:
                await asyncio.wait((waiter,), timeout=WRITER_S)
            finally:
                waiter.cancel()

    async def catch_up(self) -> None:
        """Shows readers everything that is durable now, with certainly the newest event. Raises CorruptionError or TruncatedError."""
        await self.log.renew()
        await self._move(certainly=True)

    # -- looking

    async def _watch(self) -> None:
        """Looks periodically while a scanner waits."""
        delay_s = LOOK_MIN_S
        try:
            while True:
                if not self.tail.is_awaited():
                    self._wanted.clear()
                    await self._wanted.wait()
                    delay_s = LOOK_MIN_S
                if await self._move(certainly=False):
                    delay_s = LOOK_MIN_S
                    await self._clock.sleep(delay_s)
                else:
                    await self._rest(delay_s)
                    delay_s = min(delay_s * LOOK_SLOWER, LOOK_MAX_S)
        except WALError as error:  # the log was recreated, its directory was removed, or a server does not answer
            self.tail.fail(error)
        except Exception as error:
            self.tail.fail(defect(f"looking after pchannel {self.channel} failed", error))

    async def _rest(self, delay_s: float) -> None:
        """Waits for this delay, or until another scanner begins to wait at the tail, which may know less than the last look."""
        self._wanted.clear()
        timer = self._clock.call_later(delay_s, self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            timer.cancel()

    async def _move(self, *, certainly: bool) -> bool:
        """Moves the tail to the log's end; returns whether there was new data. With `certainly` the newest event is known afterwards."""
        async with self._moving:
            snapshot = await self.log.refresh()
            start, end = self.tail.durable_end, snapshot.durable_end
            if end <= start and (self._certain or not certainly):
                self.show_snapshot(snapshot)
                return False
            shared = self._certain and self.tail.is_awaited() and end - start <= FETCH_BYTES_MAX
            newest = await self._fetch(start, end) if shared else None
            if newest is None:
                self._certain = False
                self.recent.restart(end)
                try:
                    snapshot = await self.log.reach()
                except WALError as error:
                    # A scanner that reads there gets the same error, with more detail.
                    if certainly or isinstance(error, ClosedError):
                        raise
                else:
                    newest, self._certain = snapshot.newest, True
                    self.recent.restart(snapshot.durable_end)
            self.show_snapshot(snapshot, newest)
            return True

    async def _fetch(self, start: int, end: int) -> tuple[int, int] | None:
        """Reads these frames into the window. Returns the newest event, None if a frame cannot be read or the frames have no event."""
        newest = self.tail.newest
        try:
            while start < end:
                page = await self.log.read_to(end, start, names=None, bytes_max=_PAGE_BYTES)
                for frame in page.frames:
                    self.recent.add_stored(frame)
                newest = page.last_event or newest
                start = page.next_position
        except ClosedError:
            raise
        except WALError:
            return None
        return newest

    def _begun_to_wait(self) -> None:
        self._wanted.set()
        self._awaited()


class ThreadedLog(ShownLog):
    """A ReadOnlyPChannelLog for an event loop: calls that wait run in the threads of `pool`, which its owner closes.

    The log advances by itself. Readers see only what `show` was called with; `durable_end` is the end of that.
    """

    def __init__(self, log: ReadOnlyPChannelLog, pool: concurrent.futures.ThreadPoolExecutor, shown: LogSnapshot) -> None:
        self.pchannel: str = log.pchannel
        self.incarnation: int = log.incarnation
        self.shown: LogSnapshot = shown
        self.known: LogSnapshot = shown
        """The log as the last `refresh` or `reach` found it."""
        self._log = log
        self._pool = pool
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    @property
    def earliest(self) -> tuple[int, int]:
        return self.shown.earliest if self._closed else self._log.earliest

    @property
    def local_earliest(self) -> tuple[int, int]:
        return self.shown.earliest if self._closed else self._log.local_earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return None if self._closed else self._log.last_truncated

    @property
    def truncated_tick(self) -> int | None:
        return None if self._closed else self._log.truncated_tick

    def bytes_between(self, start: int, end: int) -> int:
        return self._log.bytes_between(start, end)

    async def refresh(self) -> LogSnapshot:
        """Returns the log as it is now; `newest` may be older than its end.

        Raises ClosedError if another log was created in its place, LogWentBackError if an older copy of it was.
        """
        before = self.known
        snapshot = await self._in_thread(self._log.refresh) if self._log.refresh_waits else self._log.refresh()
        return self._known(before, snapshot)

    async def renew(self) -> None:
        """Makes sure that the next `refresh` finds everything that is durable now: a server's answer may be reused for a while."""
        if self._log.refresh_waits:
            await self.reach()

    async def reach(self) -> LogSnapshot:
        """Returns the log as it is now, with certainly the newest event."""
        before = self.known
        return self._known(before, await self._in_thread(self._log.reach))

    def _known(self, before: LogSnapshot, snapshot: LogSnapshot) -> LogSnapshot:
        """Takes an answer to a question that was asked when `before` was known."""
        if (what := shrinkage(before, snapshot)) is not None:
            raise log_went_back(self.pchannel, what, None)
        self.known = snapshot
        return snapshot

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        shown = self.shown.durable_end
        return await self.read_to(shown if end is None else min(end, shown), start, names=names, bytes_max=bytes_max)

    async def read_to(self, end: int, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Reads like `read`, up to an end that is durable but perhaps not shown yet."""
        return await self._in_thread(lambda: self._log.page(start, end, names, bytes_max))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._log.refresh_waits:  # ends calls that wait for a server; it asks the server too, so not on the loop
                await in_thread(self._log.close)
            if calls := list(self._calls):
                await asyncio.wait([asyncio.wrap_future(call) for call in calls])
            await in_thread(self._log.close)

    def abandon(self) -> None:
        """Releases the log once the event loop has ended and nothing runs in the pool any more. Idempotent."""
        self._closed = True
        self._log.close()

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Runs a call in the pool. If the caller is cancelled, the call still finishes and its result is dropped."""
        if self._closed:
            raise closed_log(f"of pchannel {self.pchannel!r}")
        return await asyncio.wrap_future(keep_task(self._calls, self._pool.submit(call)))


class WatchedTail(Tail):
    """A tail that calls `awaited` when a scanner begins to wait at it."""

    __slots__ = ("_awaited",)

    def __init__(self, awaited: Callable[[], None], snapshot: LogSnapshot) -> None:
        super().__init__(durable_end=snapshot.durable_end, promised_tick=snapshot.promised_tick, newest=snapshot.newest)
        self._awaited = awaited

    def waiter(self, *, ticks: bool) -> asyncio.Future[None]:
        waiter = super().waiter(ticks=ticks)
        self._awaited()
        return waiter
