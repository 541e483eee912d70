"""CursorService: the cursors of an open log, for callers on its loop.

Owns the few threads in which the blocking calls of the store run, and the calls in progress: a call whose caller was cancelled is still
finished, in order, and `close` waits for all. It never accesses a file on the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from wal.errors import ClosedError, NotLocalError
from wal.message import Origin
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey
from wal.read.cursors.status import CursorStatus, LogView, cursor_status, resumable, shown
from wal.read.cursors.store import LOCK_TIMEOUT_S, CursorStore, DamagedCursor

_T = TypeVar("_T")
_THREADS: Final = 4
_log: Final = logging.getLogger("wal.cursors")


class Cursors(Protocol):
    """The cursors of a log, as its callers and scanners use them; each engine has them."""

    async def load(self, key: CursorKey, *, pchannel: str) -> Cursor | None:
        """Returns the cursor to resume from on this pchannel, None when nothing is saved; see `resumable` for its errors."""

    async def save(self, cursor: Cursor, *, earliest: Callable[[], tuple[int, int]], since_s: float) -> object:
        """Stores a reader's position durably, with the time of the save as `saved_at`. `earliest` returns the earliest event of the log as
        this process knows it; `since_s` is when the caller began to wait, in monotonic time.

        Raises TruncatedError if the log no longer has the events that the reader needs, or the cursor is stale; WouldBlockError if others
        hold the cursors' lock for too long; NoSpaceError or StorageError if the position could not be stored.
        """

    async def infos(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels, without those of dropped vchannels."""

    async def delete(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes the cursor of this name and set, or all of this name; a missing cursor is fine."""


class CursorHomes(Protocol):
    """The cursors that move with transactions and are kept in the logs of their homes, for the process that writes these."""

    def __contains__(self, key: object) -> bool:
        """Returns whether the cursor has a home."""

    async def load(self, key: CursorKey) -> Cursor | None:
        """Returns the cursor as its home has it. Raises UnavailableError if the home cannot be asked."""

    async def save(self, cursor: Cursor, *, forward_only: bool = False) -> bool:
        """Saves a cursor at its home, and ends its consumer, if there is one; see `CursorStore.save`."""

    async def delete(self, keys: Iterable[CursorKey]) -> None:
        """Deletes these cursors at their homes, with their copies."""

    def current(self, cursors: Iterable[Cursor | DamagedCursor]) -> list[Cursor | DamagedCursor]:
        """Returns these stored cursors, each copy replaced by what its home has."""

    async def mark_stale(self, key: CursorKey, why: str) -> Cursor | None:
        """Marks a cursor as stale at its home; durable on return. Returns its copy, which is still to be stored.

        None if it was saved, deleted or marked meanwhile, or its home is not here.
        """

    def left_behind(self, copy: Cursor) -> Cursor | None:
        """Returns what is saved where there is a copy of a cursor and no home of it: the log was restored to an earlier time."""

    def homed_keys(self) -> list[CursorKey]:
        """Returns the cursors that have a home."""

    def incarnations(self, key: CursorKey) -> tuple[int | None, ...]:
        """Returns the incarnations of the vchannels that the cursor was saved for, as far as its home is here."""


class CursorService:
    """The `Cursors` of a log whose store blocks: its calls run in threads.

    `view` returns, on the loop, the logs with which cursors are compared; `wall` returns the wall time in seconds.
    """

    def __init__(
        self,
        store: CursorStore,
        *,
        view: Callable[[], LogView],
        wall: Callable[[], float],
        catch_up: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.store = store
        self.view = view
        self.wall = wall
        self._catch_up = catch_up
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="wal-cursors")
        self._holder = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="wal-cursors-held")
        self._running: set[concurrent.futures.Future[Any]] = set()
        self.homes: CursorHomes | None = None
        """The cursors that move with transactions, in the process that writes the log."""
        self._closed = False
        self._holding = False  # whether a thread took the store's lock for a caller of `held`
        self.judge: Callable[[], Awaitable[None]] | None = None
        """Called before cursors are read: in the writer's process it marks those over a bound, in another process it refreshes the logs."""

    async def load(self, key: CursorKey, *, pchannel: str) -> Cursor | None:
        """Returns the cursor to resume from on this pchannel; see `Cursors.load`."""
        if self.judge is not None:
            await self.judge()
        if self.homes is not None and key in self.homes:
            cursor = await self.homes.load(key)
        else:
            cursor = await self.run(lambda: self.store.load(key))
            if self.homes is not None and cursor is not None and cursor.home:
                cursor = self.homes.left_behind(cursor)
        return resumable(cursor, await self.view_for((cursor,)), pchannel=pchannel)

    async def view_for(self, cursors: Iterable[Cursor | DamagedCursor | None]) -> LogView:
        """Returns what to compare these cursors with. What is known of vchannels is brought up to date before one counts as dropped."""
        view = self.view()
        if self._catch_up is not None and any(
            isinstance(cursor, Cursor) and cursor_status(cursor, view) is CursorStatus.DROPPED for cursor in cursors
        ):
            await self._catch_up()
            view = self.view()
        return view

    async def infos(self, *, pchannel: str | None = None) -> list[CursorInfo]:
        """Returns all cursors, or those on one pchannel, by name and vchannels, without those of dropped vchannels.

        A damaged cursor is logged as a warning, and `retention` names it.
        """
        if self.judge is not None:
            await self.judge()
        cursors = await self.run(self.store.load_all)
        if self.homes is not None:
            cursors = self.homes.current(cursors)
        view = await self.view_for(cursors)
        sound: list[Cursor] = []
        for cursor in cursors:
            if isinstance(cursor, DamagedCursor):
                _log.warning("a cursor cannot be shown: %s", cursor.error)
            elif pchannel in (None, cursor.pchannel):
                sound.append(cursor)
        infos = await self.run(lambda: [shown(cursor, view, now_s=self.wall()) for cursor in sound])
        return [info for info in infos if info is not None]

    async def save(
        self,
        cursor: Cursor,
        *,
        earliest: Callable[[], tuple[int, int]],
        since_s: float,
        forward_only: bool = False,
        check_homed: Callable[[], None] | None = None,
    ) -> bool:
        """Stores a reader's position; see `Cursors.save` and `CursorStore.save`.

        `check_homed` is called before a cursor is moved that consumers or transactions move, and raises what refuses that.
        """
        saved, homes = msgspec.structs.replace(cursor, saved_at=self.wall()), self.homes
        check_homed = check_homed or _nothing
        if homes is not None and cursor.key in homes:
            check_homed()
            return await homes.save(saved, forward_only=forward_only)
        try:
            return await self.run(lambda: self.store.save(saved, earliest=earliest, since_s=since_s, forward_only=forward_only))
        except NotLocalError:
            if homes is None:
                raise
            check_homed()
            return await homes.save(saved, forward_only=forward_only)  # it has got a home meanwhile

    async def delete(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes cursors; see `Cursors.delete`. Raises NotLocalError for one whose home only another process can change."""
        if self.homes is not None:
            await self.homes.delete([key for key in self.homes.homed_keys() if key.name == name and vchannels in (None, key.vchannels)])
        else:
            for cursor in await self.run(self.store.load_all):
                if isinstance(cursor, Cursor) and cursor.home and cursor.key.name == name and vchannels in (None, cursor.key.vchannels):
                    raise NotLocalError(
                        f"{cursor.key} moves with transactions and is kept in the log of pchannel {cursor.home}: delete it in the process "
                        "that writes that log, or through a server of it"
                    )
        await self.run(lambda: self.store.delete_named(name, vchannels))

    async def drop(self, vchannel: str, incarnation: int) -> None:
        """Deletes the cursors of this incarnation of a vchannel, including those of sets that contain it."""

        def keep(cursor: Cursor) -> bool:
            saved = dict(zip(cursor.key.vchannels, cursor.incarnations, strict=True))
            return vchannel not in saved or (saved[vchannel] or 0) > incarnation

        def drop() -> None:
            if self.store.load_all():
                self.store.delete(keep)

        if (homes := self.homes) is not None:
            dropped: list[CursorKey] = []
            for key in homes.homed_keys():
                if vchannel in key.vchannels:
                    saved = homes.incarnations(key)[key.vchannels.index(vchannel)]
                    if (saved or 0) <= incarnation:
                        dropped.append(key)
            await homes.delete(dropped)
        await self.run(drop)

    @contextlib.asynccontextmanager
    async def held(self, timeout_s: float = LOCK_TIMEOUT_S) -> AsyncIterator[list[Cursor | DamagedCursor]]:
        """Yields all cursors, with the store's lock held until the end of the block. Raises WouldBlockError if others hold it for too
        long."""

        def take() -> list[Cursor | DamagedCursor]:
            self.store.acquire(timeout_s)
            self._holding = True
            try:
                return self.store.load_all()
            except BaseException:
                self._release()
                raise

        taking = self._submit(take)
        try:
            cursors = await asyncio.shield(asyncio.wrap_future(taking))
        except asyncio.CancelledError:
            taking.add_done_callback(self._let_go)
            raise
        try:
            yield cursors
        finally:
            self._release()

    async def run(self, call: Callable[[], _T]) -> _T:
        """Runs a call in a thread; if the caller is cancelled, the call finishes and its result is dropped."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(call)))

    async def run_held(self, call: Callable[[], _T]) -> _T:
        """Runs a call as `run` does, for a caller inside `held`: in a separate thread, because calls that wait for the lock may occupy all
        others."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(call, pool=self._holder)))

    async def close(self) -> None:
        """Refuses further calls and waits for those in progress. Idempotent."""
        self._closed = True
        running = [asyncio.wrap_future(call) for call in list(self._running)]
        if running:
            await asyncio.wait(running)
        self._pool.shutdown(wait=False)
        self._holder.shutdown(wait=False)

    def abandon(self) -> None:
        """Releases the threads and the lock on the cursors after the event loop has ended. Blocks until the calls in progress are done."""
        self._closed = True
        self._pool.shutdown(wait=True)
        self._holder.shutdown(wait=True)
        self._release()  # a task that was never resumed may hold it

    def _submit(
        self, call: Callable[[], _T], *, pool: concurrent.futures.ThreadPoolExecutor | None = None
    ) -> concurrent.futures.Future[_T]:
        if self._closed:
            raise ClosedError("the log was closed: open it again to go on")
        running = (pool or self._pool).submit(call)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running

    def _let_go(self, taken: concurrent.futures.Future[list[Cursor | DamagedCursor]]) -> None:
        if not taken.cancelled() and taken.exception() is None:
            self._release()

    def _release(self) -> None:
        if self._holding:
            self._holding = False
            self.store.release()


class CursorUse:
    """One scanner's use of a cursor. Its saves reach the store in the order of the calls, including cancelled ones."""

    def __init__(self, name: str, vchannels: tuple[str, ...], cursors: Callable[[], Awaitable[Cursors]]) -> None:
        """`cursors` returns the cursors of the log, once it is open."""
        self.key: CursorKey = CursorKey.of(name, vchannels)
        self._cursors = cursors
        self._saving: asyncio.Future[None] | None = None

    async def load(self, *, pchannel: str) -> Cursor | None:
        """Returns the saved cursor; see `Cursors.load`."""
        return await (await self._cursors()).load(self.key, pchannel=pchannel)

    async def save(
        self,
        incarnations: Mapping[str, int | None],
        at: Origin,
        *,
        start: tuple[int, int],
        event: tuple[int, int] | None,
        time_tick: int,
        earliest: Callable[[], tuple[int, int]],
    ) -> None:
        """Stores the reader's position, after the saves before this one; see `Cursors.save`."""
        read = tuple([incarnations[name] for name in self.key.vchannels])
        cursor = Cursor(self.key, read, at.pchannel, at.incarnation, start, event, time_tick, 0.0, at.form)
        cursors = await self._cursors()
        before = self._saving
        # The time counts from the call: when many saves wait for a thread, and for a lock that is not released, none waits longer than the
        # first.
        since_s = time.monotonic()

        async def save() -> None:
            if before is not None and not before.done():
                await asyncio.wait((before,))
            await cursors.save(cursor, earliest=earliest, since_s=since_s)

        self._saving = asyncio.ensure_future(save())
        self._saving.add_done_callback(_seen)
        await asyncio.shield(self._saving)


def _nothing() -> None: ...


def _seen(saving: asyncio.Future[None]) -> None:
    """Ignores the error of a save whose caller was cancelled."""
    if not saving.cancelled():
        saving.exception()
