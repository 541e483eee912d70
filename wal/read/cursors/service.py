"""Cursors: the cursors of an open log, for callers on its loop, and a scanner's use of one.

`CursorService` serves them in a process beside the writer, whose calls block, so they run in threads; the writer's process has
`NodeCursors` (`wal/node/cursors.py`), and a client asks the servers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from wal.errors import closed_log
from wal.message import Origin
from wal.message.matching import Matching
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey
from wal.read.cursors.status import LogView, resumable, shown
from wal.read.cursors.store import DamagedCursor
from wal.runtime.tasks import keep_task

if TYPE_CHECKING:
    from wal.read.cursors.pinned import PinnedCursors

_T = TypeVar("_T")
_THREADS: Final = 4
_log: Final = logging.getLogger("wal.cursors")


class Cursors(Protocol):
    """The cursors of a log, as its callers and scanners use them; each engine has them."""

    async def load(self, key: CursorKey, *, pchannel: str) -> Cursor | None:
        """Returns the cursor to resume from on this pchannel, None when nothing is saved; see `resumable` for its errors."""

    async def save(self, cursor: Cursor) -> object:
        """Stores a reader's position durably, with the time of the save as `saved_at`.

        Raises TruncatedError if the log no longer has the events that the reader needs, or the cursor is stale; NoSpaceError or
        StorageError if the position could not be stored.
        """

    async def infos(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels, without those of dropped vchannels."""

    async def delete(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes the cursor of this name and set, or all of this name; a missing cursor is fine."""


class CursorService:
    """The cursors of a log that another process writes, or none. Owns the few threads in which the calls of the `store` run.

    A call whose caller was cancelled is still finished, and `close` waits for all. `refresh` brings up to date how far the logs reach, and
    `view` returns the logs with which cursors are compared; `wall` returns the wall time in seconds.
    """

    def __init__(
        self, store: PinnedCursors, *, view: Callable[[], LogView], refresh: Callable[[], Awaitable[None]], wall: Callable[[], float]
    ) -> None:
        self._store = store
        self._view = view
        self._refresh = refresh
        self._wall = wall
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="wal-cursors")
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._closed = False

    async def load(self, key: CursorKey, *, pchannel: str) -> Cursor | None:
        """Returns the cursor to resume from on this pchannel; see `Cursors.load`."""
        cursor = await self._run(lambda: self._store.load(key))
        await self._refresh()
        return resumable(cursor, self._view(), pchannel=pchannel)

    async def load_all(self) -> list[Cursor | DamagedCursor]:
        """Returns all cursors, damaged ones last."""
        return await self._run(self._store.load_all)

    async def infos(self) -> list[CursorInfo]:
        """Returns all cursors; see `Cursors.infos`. A damaged cursor is logged as a warning, and `retention` names it."""
        cursors = await self.load_all()
        await self._refresh()
        view = await self.placed(cursors)
        return await self._run(lambda: infos_of(cursors, view, now_s=self._wall()))

    async def placed(self, cursors: Iterable[Cursor | DamagedCursor]) -> LogView:
        """Returns the logs as they are known now, with the positions at which the cursors of patterns among these begin."""
        view = self._view()
        return await self._run(lambda: msgspec.structs.replace(view, positions=self._store.positions_of(cursors)))

    async def save(self, cursor: Cursor) -> bool:
        """Stores a reader's position; see `Cursors.save`."""
        saved = msgspec.structs.replace(cursor, saved_at=self._wall())
        return await self._run(lambda: self._store.save(saved))

    async def delete(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes cursors; see `Cursors.delete`. Raises NotLocalError for a cursor that consumers or transactions move."""
        await self._run(lambda: self._store.delete_named(name, vchannels))

    async def close(self) -> None:
        """Refuses further calls and waits for those in progress. Idempotent."""
        self._closed = True
        running = [asyncio.wrap_future(call) for call in list(self._running)]
        if running:
            await asyncio.wait(running)
        self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """Releases the threads after the event loop has ended. Blocks until the calls in progress are done."""
        self._closed = True
        self._pool.shutdown(wait=True)

    async def _run(self, call: Callable[[], _T]) -> _T:
        if self._closed:
            raise closed_log()
        return await asyncio.shield(asyncio.wrap_future(keep_task(self._running, self._pool.submit(call))))


def infos_of(cursors: Iterable[Cursor | DamagedCursor], view: LogView, *, now_s: float) -> list[CursorInfo]:
    """Returns these cursors as users see them, and warns of damaged ones. It may block, for the index of an old part of the log."""
    infos: list[CursorInfo] = []
    for cursor in cursors:
        if isinstance(cursor, DamagedCursor):
            _log.warning("a cursor cannot be shown: %s", cursor.error)
        elif (info := shown(cursor, view, now_s=now_s)) is not None:
            infos.append(info)
    return infos


class CursorUse:
    """One scanner's use of a cursor. Its saves are made in the order of the calls, including cancelled ones."""

    def __init__(self, name: str, vchannels: tuple[str, ...] | Matching, cursors: Callable[[], Awaitable[Cursors]]) -> None:
        """`cursors` returns the cursors of the log, once it is open."""
        self.key: CursorKey = CursorKey.of(name, vchannels)
        self._cursors = cursors
        self._saving: asyncio.Future[None] | None = None

    async def load(self, *, pchannel: str) -> Cursor | None:
        """Returns the saved cursor; see `Cursors.load`."""
        return await (await self._cursors()).load(self.key, pchannel=pchannel)

    async def save(
        self, incarnations: Mapping[str, int | None], at: Origin, *, start: tuple[int, int], event: tuple[int, int] | None, time_tick: int
    ) -> None:
        """Stores the position of a reader of names, after the saves before this one; see `Cursors.save`."""
        read = tuple([incarnations[name] for name in self.key.vchannels])
        await self.store(Cursor(self.key, read, at.pchannel, at.incarnation, start, event, time_tick, 0.0, at.form))

    async def store(self, cursor: Cursor) -> None:
        """Stores a cursor with this key, after the saves before this one; see `Cursors.save`."""
        cursors = await self._cursors()
        before = self._saving

        async def save() -> None:
            if before is not None and not before.done():
                await asyncio.wait((before,))
            await cursors.save(cursor)

        self._saving = asyncio.ensure_future(save())
        self._saving.add_done_callback(_seen)
        await asyncio.shield(self._saving)


def _seen(saving: asyncio.Future[None]) -> None:
    """Ignores the error of a save whose caller was cancelled."""
    if not saving.cancelled():
        saving.exception()
