"""PageReads: the pages of a pchannel's log that its scanners fetch, a few at a time, and one for all that want it.

Scanners that catch up together ask for pages that begin at the same position, each for its own vchannels. If each had its own, a frame of
10,000 vchannels would be read and decoded 10,000 times, and be in memory as often. So only `READS_MAX` reads are under way, and those that
have to wait for one and begin at the same position become a single read, for the vchannels of all of them. A page may thus have frames in
which a scanner has nothing; it skips them, as it does in the recent frames.
"""

from __future__ import annotations

import asyncio
from typing import Final

from wal.backends import FramePage, ReadableLog
from wal.errors import WALError

__all__ = ["PAGE_BYTES", "READS_MAX", "PageReads"]

PAGE_BYTES: Final = 2 * 1024 * 1024
"""About this many bytes of the log are fetched at a time: enough for sequential reads, and few enough to keep memory flat."""
READS_MAX: Final = 8
"""As many as the journal has threads. Their pages take 16 MiB, and about twice that decoded."""


class PageReads:
    """The reads of one log."""

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._turns = asyncio.Semaphore(READS_MAX)
        self._together: dict[int, _Together] = {}
        """The scanners that wait for a turn, by where their page begins."""

    async def page(self, start: int, names: frozenset[str] | None) -> FramePage:
        """Returns the page that begins here, for a reader of these vchannels (None: of all). Raises what the log's `read` raises."""
        if not self._turns.locked():
            return await self._alone(start, names)
        together = self._together.get(start)
        if together is not None:
            together.wanted.append(names)
            await together.ended.wait()
            return together.page or await self._alone(start, names)
        together = self._together[start] = _Together(names)
        try:
            try:
                await self._turns.acquire()
            finally:
                del self._together[start]  # nobody joins any more
            try:
                together.page = await self._read(start, together.names())
                return together.page
            except WALError:
                if len(together.wanted) == 1:
                    raise
                return await self._read(start, names)  # it was perhaps the error of another's vchannel
            finally:
                self._turns.release()
        finally:
            together.ended.set()

    async def _alone(self, start: int, names: frozenset[str] | None) -> FramePage:
        async with self._turns:
            return await self._read(start, names)

    async def _read(self, start: int, names: frozenset[str] | None) -> FramePage:
        return await self._log.read(start, names=names, bytes_max=PAGE_BYTES)


class _Together:
    """Scanners that wait for one read, and the vchannels that each of them wants."""

    __slots__ = ("ended", "page", "wanted")

    def __init__(self, names: frozenset[str] | None) -> None:
        self.wanted = [names]
        self.page: FramePage | None = None
        self.ended = asyncio.Event()

    def names(self) -> frozenset[str] | None:
        """Returns the vchannels that they want together, None for all of the pchannel."""
        names = [some for some in self.wanted if some is not None]
        return frozenset().union(*names) if len(names) == len(self.wanted) else None
