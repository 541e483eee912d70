"""ReadOnlyPChannel: a pchannel that another process writes, as the scanners of this one see it.

Owns: one task that looks at the log while somebody waits at the tail, every millisecond while things move and up to every 20 ms while they
do not, and moves the tail. The frames that came are read once, into the window that all tailing readers share, so that a hundred of
them cost about one read. With nobody at the tail it does nothing; a reader that catches up asks the log itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, Final, TypeVar

from actors import Clock
from wal.backends import FramePage, LogSnapshot, ReadableLog, ReadOnlyPChannelLog
from wal.errors import ClosedError, StorageError, UnknownError, WALError
from wal.message import MessageID
from wal.pchannel.readable import PChannelStatistics, ReadablePChannel
from wal.pchannel.tail import Tail

__all__ = ["ReadOnlyPChannel", "ThreadedLog"]

_T = TypeVar("_T")
LOOK_MIN_S: Final = 0.001
LOOK_MAX_S: Final = 0.020
LOOK_SLOWER: Final = 1.5
"""By how much the next look waits longer when nothing moved."""
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""More than this at once is not read for the window: whoever waited at the tail catches up by itself."""
_PAGE_BYTES: Final = 1024 * 1024
_NONE: Final = (-1, -1)


class ReadOnlyPChannel(ReadablePChannel):
    """Made with a log that was just opened; `start` it, and `close` it with the cause that its readers then end with.

    `awaited` is called whenever a reader begins to wait at the tail.
    """

    log: ThreadedLog

    def __init__(self, log: ThreadedLog, *, form: int, clock: Clock, awaited: Callable[[], None]) -> None:
        shown = log.shown
        super().__init__(log, form=form, promised_tick=shown.promised_tick, newest=shown.newest)
        self._tail: _WatchedTail = _WatchedTail(self._begun_to_wait, shown)
        self.tail: Tail = self._tail
        self._clock = clock
        self._awaited = awaited
        self._wanted = asyncio.Event()
        self._moving = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._certain = False
        """Whether the newest event that is shown is known to be that."""

    def start(self) -> None:
        """Begins to look after its readers."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name=f"observe {self.channel}")

    async def close(self, cause: WALError) -> None:
        """Ends the readers, then lets go of the log."""
        self.tail.fail(cause)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.log.close()

    def advance_for(self, tick: int) -> bool:
        """Never: ticks are the writer's, and come with its `time_tick_interval_s`."""
        return False

    async def catch_up(self) -> None:
        """Shows readers everything that is durable now; the newest event is certain then. CorruptionError, TruncatedError."""
        await self._move(certainly=True)

    async def first_event(self) -> MessageID | None:
        """As in the writer's process: what was shown last may lie wholly below what has been truncated since."""
        while True:
            await self.catch_up()
            first = await super().first_event()
            if first is not None or self.log.earliest[0] <= self.tail.durable_end:
                return first

    def statistics(self) -> PChannelStatistics:
        """A snapshot of its counts; those of writing are 0."""
        state = self.log.shown
        return PChannelStatistics(
            name=self.channel,
            term=state.term,
            frames=0,
            bytes=0,
            events=0,
            waiting=0,
            frames_in_flight=0,
            bytes_in_flight=0,
            open_transactions=0,
            open_transaction_bytes=0,
            expired_transactions=0,
            barriers=0,
            readers=len(self.readers),
            durable_end=self.tail.durable_end,
            promise=self.tail.promised_tick,
        )

    # -- looking

    async def _watch(self) -> None:
        """Looks again and again while somebody waits."""
        delay_s = LOOK_MIN_S
        try:
            while True:
                if not self._tail.is_awaited():
                    self._wanted.clear()
                    await self._wanted.wait()
                    delay_s = LOOK_MIN_S
                if await self._move(certainly=False):
                    delay_s = LOOK_MIN_S
                    await self._clock.sleep(delay_s)
                else:
                    await self._rest(delay_s)
                    delay_s = min(delay_s * LOOK_SLOWER, LOOK_MAX_S)
        except (ClosedError, StorageError) as error:  # the log was created again, or its directory was removed
            self.tail.fail(error)
        except Exception as defect:
            failure = UnknownError(f"looking after pchannel {self.channel} failed: {defect!r}; please report it")
            failure.__cause__ = defect
            self.tail.fail(failure)

    async def _rest(self, delay_s: float) -> None:
        """Waits, but not longer than until somebody else begins to wait at the tail: what that one saw may be older."""
        self._wanted.clear()
        timer = self._clock.call_later(delay_s, self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            timer.cancel()

    async def _move(self, *, certainly: bool) -> bool:
        """Moves the tail to where the log is now; whether there was new data. With `certainly` the newest event is known then."""
        async with self._moving:
            state = await self.log.refresh()
            start, end = self.tail.durable_end, state.durable_end
            if end <= start and (self._certain or not certainly):
                self._show(state, None)
                return False
            shared = self._certain and self._tail.is_awaited() and end - start <= FETCH_BYTES_MAX
            newest = await self._fetch(start, end) if shared else None
            if newest is None:
                self._certain = False
                self.recent.restart(end)
                try:
                    state = await self.log.reach()
                except WALError as error:
                    # Whoever reads there meets the same, and is told more of it.
                    if certainly or isinstance(error, ClosedError):
                        raise
                else:
                    newest, self._certain = state.newest, True
                    self.recent.restart(state.durable_end)
            self._show(state, newest)
            return True

    async def _fetch(self, start: int, end: int) -> tuple[int, int] | None:
        """Reads these frames into the window; the newest event known then, None if one cannot be read (or there is none)."""
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

    def _show(self, state: LogSnapshot, newest: tuple[int, int] | None) -> None:
        """Moves the tail to this moment, and tells those who wait at it."""
        tail = self.tail
        if state.durable_end < tail.durable_end:
            return  # shown already
        self.log.show(state)
        known = max(tail.newest or _NONE, state.newest or _NONE, newest or _NONE)
        if state.durable_end > tail.durable_end:
            promised_tick = max(tail.promised_tick, state.promised_tick)
            tail.data_moved(
                durable_end=state.durable_end, promised_tick=promised_tick, newest=None if known == _NONE else known
            )
        else:
            tail.newest = None if known == _NONE else known
            tail.tick_moved(state.promised_tick)

    def _begun_to_wait(self) -> None:
        self._wanted.set()
        self._awaited()


class ThreadedLog(ReadableLog):
    """A ReadOnlyPChannelLog for an event loop: calls that wait run in the threads of `pool`, which is its owner's.

    The log moves by itself. Readers see it as far as they are `shown` it, which `durable_end` goes by.
    """

    def __init__(
        self, log: ReadOnlyPChannelLog, pool: concurrent.futures.ThreadPoolExecutor, shown: LogSnapshot
    ) -> None:
        self.pchannel: str = log.pchannel
        self.incarnation: int = log.incarnation
        self.shown = shown
        self._log = log
        self._pool = pool
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    @property
    def durable_end(self) -> int:
        return self.shown.durable_end

    @property
    def earliest(self) -> tuple[int, int]:
        return self.shown.earliest if self._closed else self._log.earliest

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return None if self._closed else self._log.last_truncated

    def bytes_between(self, start: int, end: int) -> int:
        return self._log.bytes_between(start, end)

    def show(self, snapshot: LogSnapshot) -> None:
        """Shows readers the log as it is in this snapshot."""
        self.shown = snapshot

    def snapshot(self) -> LogSnapshot:
        """Returns the log as new as it is known without waiting."""
        return self.shown if self._log.refresh_waits else self._log.refresh()

    async def refresh(self) -> LogSnapshot:
        """Returns the log as it is now; `newest` may be older than its end. ClosedError if another log was created in its place."""
        return await self._in_thread(self._log.refresh) if self._log.refresh_waits else self._log.refresh()

    async def reach(self) -> LogSnapshot:
        """Returns the log as it is now, with the newest event for certain."""
        return await self._in_thread(self._log.reach)

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        return await self.read_to(self.shown.durable_end, start, names=names, bytes_max=bytes_max)

    async def read_to(self, end: int, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Reads as `read` does, up to an end that is durable and need not be shown yet."""
        return await self._in_thread(lambda: self._log.page(start, end, names, bytes_max))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if calls := list(self._calls):
                await asyncio.wait([asyncio.wrap_future(call) for call in calls])
            self._log.close()

    def abandon(self) -> None:
        """Lets go of the log once the event loop has ended and nothing runs in the pool any more. Idempotent."""
        self._closed = True
        self._log.close()

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Runs a call in the pool. If the caller is cancelled, the call still finishes and its result is dropped."""
        if self._closed:
            raise ClosedError(f"the log of pchannel {self.pchannel!r} is closed: open it again to go on")
        running = self._pool.submit(call)
        self._calls.add(running)
        running.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(running)


class _WatchedTail(Tail):
    """A tail that says when somebody waits at it."""

    __slots__ = ("_awaited",)

    def __init__(self, awaited: Callable[[], None], state: LogSnapshot) -> None:
        super().__init__(durable_end=state.durable_end, promised_tick=state.promised_tick, newest=state.newest)
        self._awaited = awaited

    def waiter(self, *, ticks: bool) -> asyncio.Future[None]:
        waiter = super().waiter(ticks=ticks)
        self._awaited()
        return waiter

    def is_awaited(self) -> bool:
        """Whether anybody waits."""
        return any(not waiter.done() for waiters in (self._data, self._ticks) for waiter in waiters)
