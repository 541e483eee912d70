"""VChannelMapKeeper: keeps the copies of the vchannel records that other processes read.

Owns: when the map of a pchannel is written: at opening, at close, and in between soon after its records were saved, one write at a
time and with a pause behind it that is long against the write, so that making many vchannels costs no more than a small part of a
thread. A map that cannot be written only lags: that is logged, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from wal.channels.directory import VChannelDirectory, VChannelInfo
from wal.channels.vchannel_map import VChannelMap, write_map
from wal.errors import StorageError
from wal.files import HeldDirectory

__all__ = ["MapPlace", "VChannelMapKeeper"]

PAUSE_MIN_S: Final = 0.01
PAUSE_FACTOR: Final = 10
"""The pause behind a write, in times of what the write took."""
RETRY_S: Final = 1.0


class MapPlace(msgspec.Struct, frozen=True):
    """Where the map of a pchannel lies, and which life of the pchannel it is about."""

    folder: Path
    incarnation: int


class VChannelMapKeeper:
    """Made when the pchannels are open; `changed` from then on, until `close`. All of it on one loop."""

    def __init__(
        self,
        directory: VChannelDirectory,
        places: Mapping[str, MapPlace],
        *,
        monotonic: Callable[[], float],
        held: HeldDirectory | None = None,
    ) -> None:
        """`held`: the directory of the log; no map is written once its names lead elsewhere."""
        self._directory = directory
        self._places = places
        self._monotonic = monotonic
        self._held = held
        self._dirty: set[str] = set()
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._failing = False

    async def start(self) -> None:
        """Brings all maps up to date, and keeps them so."""
        self._dirty.update(self._places)
        await self._write()
        self._directory.on_saved = self.changed
        if self._dirty:
            self.changed(())

    def changed(self, pchannels: Iterable[str]) -> None:
        """Records of these pchannels were saved."""
        self._dirty.update(pchannels)
        if self._running is None and not self._closing.is_set():
            self._running = asyncio.get_running_loop().create_task(self._run(), name="vchannel maps")

    async def close(self) -> None:
        """Brings the maps up to date for the last time. Idempotent."""
        self._closing.set()
        self._directory.on_saved = None
        if self._running is not None:
            await self._running
        await self._write()

    async def _run(self) -> None:
        try:
            while self._dirty and not self._closing.is_set():
                began = self._monotonic()
                await self._write()
                took = self._monotonic() - began
                pause = RETRY_S if self._failing else max(PAUSE_MIN_S, PAUSE_FACTOR * took)
                try:
                    await asyncio.wait_for(self._closing.wait(), pause)
                except TimeoutError:
                    pass
        finally:
            self._running = None

    async def _write(self) -> None:
        """Writes the maps that are behind, as the records are now."""
        if not self._dirty:
            return
        names, self._dirty = self._dirty, set()
        places = {name: self._places[name] for name in names if name in self._places}
        records = list(self._directory.saved.values())
        following = self._directory.saved_next
        try:
            await asyncio.to_thread(_write_maps, places, records, following, self._held)
        except Exception as error:
            self._dirty |= names
            if not self._failing:
                known = isinstance(error, OSError | StorageError)
                _log.log(
                    logging.WARNING if known else logging.ERROR,
                    "the vchannel maps for other processes could not be written, and lag until they can: %s",
                    error,
                    exc_info=None if known else error,
                )
            self._failing = True
        else:
            self._failing = False


def _write_maps(
    places: Mapping[str, MapPlace], records: list[VChannelInfo], following: int, held: HeldDirectory | None
) -> None:
    for name, place in places.items():
        if held is not None:
            held.check()
        own = {info.name: info.incarnation for info in records if info.pchannel == name}
        write_map(place.folder, VChannelMap(place.incarnation, following, own))


_log: Final = logging.getLogger("wal.channels")
