"""VChannelMapKeeper: writes the maps, the copies of the vchannel records that other processes read.

A pchannel's map is written when the log is opened, when it is closed, and in between soon after records are saved. Only one write is under
way, with a much longer pause after it, so that creating many vchannels uses only a small part of a thread. A map that cannot be written
only lags: the keeper logs that, and retries.

A map may lack new vchannels, since a reader recognises those by their incarnation. It must not list an ended one, whose messages a reader
would still show. So the end of an incarnation, and the creation of the next one, is answered only when no map shows the ended one any more
(`when_shown`); such a write has no pause before it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from wal.channels.directory import RecordCounter, VChannelDirectory
from wal.channels.vchannel_map import MapPlace, VChannelMap, write_map
from wal.channels.vchannels import VChannelInfo
from wal.errors import NoSpaceError, StorageError, WALError
from wal.storage.files import HeldDirectory

PAUSE_MIN_S: Final = 0.01
PAUSE_FACTOR: Final = 10
"""The pause after a write, as a multiple of the write's duration."""
RETRY_S: Final = 1.0


class VChannelMapKeeper:
    """Keeps the maps from when the pchannels are open until `close`. All calls except `abandon` are made on one event loop."""

    def __init__(
        self,
        directory: VChannelDirectory,
        places: Mapping[str, MapPlace],
        *,
        monotonic: Callable[[], float],
        held: HeldDirectory | None = None,
    ) -> None:
        """`held` is the directory of the log; no map is written once its name leads to another directory."""
        self._directory = directory
        self._places = places
        self._monotonic = monotonic
        self._held = held
        self._dirty: set[str] = set()
        self._lagging: set[str] = set()
        """The names that a map may show in an ended incarnation, and that the write in progress does not correct."""
        self._being_shown: set[str] = set()
        """The names that a map may show in an ended incarnation until the write in progress succeeds."""
        self._waiting: list[tuple[str, Callable[[WALError | None], None]]] = []
        self._running: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._closing = self._closed = False
        self._failing = False
        self._writing = False
        # Its own single thread, so that no write outlives the log.
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="wal-maps")

    async def start(self, *, durably: bool = False) -> bool:
        """Brings all maps up to date, and then keeps them so. Returns whether they could be written; `durably` as `write_map` does."""
        self._directory.counts_removals = True
        self._dirty.update(self._places)
        await self._write(durably=durably)
        self._directory.on_saved = self.changed
        if self._dirty:
            self.changed(())
        return not self._failing

    def changed(self, pchannels: Iterable[str], ended: Iterable[str] = ()) -> None:
        """Reports that records of these pchannels were saved, and that a former incarnation of each name in `ended` has ended."""
        self._dirty.update(pchannels)
        self._lagging.update(ended)
        if self._running is None and not self._closing:
            self._running = asyncio.get_running_loop().create_task(self._run(), name="vchannel maps")

    def when_shown(self, name: str, then: Callable[[WALError | None], None], *, wanted: bool = False) -> None:
        """Calls `then` with None when no map shows a former incarnation of this vchannel any more, which may be at once.

        With `wanted`, it is called when the maps show the latest saved records. If the next write of the maps fails, it is called with the
        error.
        """
        lags = name in self._lagging or name in self._being_shown
        # No map shows the former incarnation. With `wanted`, a map that waits to be written, or is being written, lags too.
        if not lags and not (wanted and (self._dirty or self._writing)):
            then(None)
            return
        if not self._dirty:  # the write in progress may fail: the next one answers
            self._dirty.update(self._places)
        self._waiting.append((name, then))
        self._hurry.set()

    def is_overdue(self, name: str) -> bool:
        """Returns whether writing the maps fails at the moment while one may show a former incarnation of this vchannel."""
        return self._failing and (name in self._lagging or name in self._being_shown)

    async def close(self) -> None:
        """Brings the maps up to date for the last time. Idempotent."""
        self._closing = True
        self._hurry.set()
        self._directory.on_saved = None
        if self._running is not None:
            await self._running
        if not self._closed:
            self._dirty.update(self._places)  # so that all have the counter of the metadata
            await self._write()
            self._closed = True
            self._pool.shutdown(wait=False)

    def abandon(self) -> None:
        """Waits for the write in progress, once the event loop has ended; nothing is written after it."""
        self._closed = True
        self._pool.shutdown(wait=True)

    async def _run(self) -> None:
        try:
            while self._dirty and not self._closing:
                began = self._monotonic()
                await self._write()
                took = self._monotonic() - began
                pause = RETRY_S if self._failing else max(PAUSE_MIN_S, PAUSE_FACTOR * took)
                try:
                    async with asyncio.timeout(pause):
                        await self._hurry.wait()
                except TimeoutError:
                    pass
        finally:
            self._running = None

    async def _write(self, *, durably: bool = False) -> None:
        """Writes the lagging maps from the current records, and answers the calls that waited for it."""
        if not self._dirty:
            return
        names, self._dirty = self._dirty, set()
        waiting, self._waiting = self._waiting, []
        self._being_shown, self._lagging = self._lagging, set()
        self._hurry.clear()
        places = {name: self._places[name] for name in names if name in self._places}
        records = list(self._directory.saved.values())
        counter = RecordCounter(self._directory.saved_next, self._directory.saved_removals)
        failure: BaseException | None = None
        try:
            self._writing = True
            writing = self._pool.submit(_write_maps, places, records, counter, self._held, durably=durably or bool(waiting))
            await asyncio.wrap_future(writing)
            self._failing = False
        except Exception as error:
            failure = error
            self._dirty |= names
            self._lagging |= self._being_shown
            if not self._failing:
                is_known = isinstance(error, OSError | StorageError)
                _log.log(
                    logging.WARNING if is_known else logging.ERROR,
                    "the vchannel maps for other processes could not be written, and lag until they can: %s",
                    error,
                    exc_info=None if is_known else error,
                )
            self._failing = True
        except BaseException as error:
            failure = error
            raise
        finally:
            self._writing = False
            self._being_shown = set()
            for name, then in waiting:
                then(None if failure is None else _unshown(name, failure))


def _write_maps(
    places: Mapping[str, MapPlace], records: list[VChannelInfo], counter: RecordCounter, held: HeldDirectory | None, *, durably: bool
) -> None:
    for name, place in places.items():
        if held is not None:
            held.check()
        here = [info for info in records if info.pchannel == name]
        own = {info.name: info.incarnation for info in here}
        owners = {info.name: info.owner for info in here if info.owner is not None}
        content = VChannelMap(place.incarnation, counter.next_incarnation, own, owners, counter.removals or 0)
        write_map(place.folder, content, durably=durably)


def _unshown(name: str, cause: BaseException) -> WALError:
    """Returns the error for a change of a vchannel that is saved, but not shown to readers in other processes."""
    if isinstance(cause, WALError):
        return cause
    text = (
        f"what changed of vchannel {name!r} is saved in the metadata, but readers in other processes cannot be told: the map of the "
        f"vchannels could not be written ({cause}); "
    )
    error: WALError
    if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
        error = NoSpaceError(text + "free some space, then make the call again")
    else:
        error = StorageError(text + "make the call again when it can be")
    error.__cause__ = cause
    return error


_log: Final = logging.getLogger("wal.channels")
