"""PageReads: the pages that the scanners of a pchannel fetch from its log.

Owns: the reads that wait or are under way, and the pages that are kept for scanners which have not come for them yet. Frames that were just
written come from `recent.py` instead.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from wal.errors import WALError
from wal.read.recent import cost_bytes
from wal.storage.base import FramePage, ReadableLog

PAGE_BYTES: Final = 2 * 1024 * 1024
"""About this many bytes of the log are fetched at a time: enough for sequential reads, and few enough to keep memory flat."""
READS_MAX: Final = 8
"""As many as the journal has threads. Their pages take 16 MiB, and about twice that decoded."""


class PageReads:
    """Fetches pages of a pchannel's log for its scanners: few reads run at once, and scanners share a page.

    Scanners that catch up together ask for pages that begin at the same position, each for its own vchannels. If each had its own, a frame
    of 64 vchannels would be read and decoded 64 times, and be in memory as often. So a read serves all scanners that ask for the page, and
    scanners that took the previous page and will ask next: a frame is fetched once. A scanner that lags a little finds the page that
    another one has read ahead of it (`SharedPages`). Its own pages end where that page begins, so both continue with the same pages. At
    most `READS_MAX` reads are under way. A page may have frames in which a scanner has nothing; it skips them, as it does in the recent
    frames. A read for several scanners that fails is repeated for each of them: the error may concern the vchannel of another one.
    """

    def __init__(self, log: ReadableLog) -> None:
        self._log = log
        self._turns = asyncio.Semaphore(READS_MAX)
        self._reads: dict[int, _PageRead] = {}
        """The read at each position: waiting for a turn, or under way."""
        self.shared: SharedPages = SharedPages(log.bytes_between)
        self._sweeping = False
        self.count: int = 0
        """How many pages were read from the log …"""
        self.shared_count: int = 0
        """… and how many were handed to a scanner without a read of its own."""

    async def page(self, start: int, names: frozenset[str] | None) -> FramePage:
        """Returns the page that begins here, for a reader of these vchannels (None: of all). Raises what the log's `read` raises."""
        self.shared.arrived(start, names)
        while True:
            if start >= self._log.earliest[0] and (page := self.shared.take(start, names)) is not None:
                self.shared_count += 1
                return page
            read = self._reads.get(start)
            if read is None:
                read = self._reads[start] = _PageRead()
                return await self._lead(read, start, names)
            if read.has_begun and not _covers(read.names, names):
                await read.ended.wait()  # all that come too late for it share the next one
                continue
            read.takers.append(names)
            await read.ended.wait()
            if read.page is not None:
                self.shared_count += 1
                return read.page
            if read.failed:
                async with self._turns:
                    return await self._read(start, names)
            # The scanner that led the read was closed.

    async def _lead(self, read: _PageRead, start: int, names: frozenset[str] | None) -> FramePage:
        """Reads a page for all that ask for it until the read begins."""
        read.takers.append(names)
        try:
            async with self._turns:
                await asyncio.sleep(0)  # for the scanners that ask in the same turn of the loop
                read.names, read.has_begun = self.shared.names_for(start, read.takers), True
                try:
                    page = await self._read(start, read.names, end=self.shared.end_for(start, read.takers))
                except WALError:
                    read.failed = True
                    if read.names == names:
                        raise
                    return await self._read(start, names)
            self.shared.add(start, read.names, page, read.takers)
            self._sweep_later()
            read.page = page
            return page
        finally:
            del self._reads[start]
            read.ended.set()

    async def _read(self, start: int, names: frozenset[str] | None, *, end: int | None = None) -> FramePage:
        self.count += 1
        return await self._log.read(start, names=names, bytes_max=PAGE_BYTES, end=end)

    def _sweep_later(self) -> None:
        if not self._sweeping and self.shared:
            self._sweeping = True
            asyncio.get_running_loop().call_later(SHARED_PAGES_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        self.shared.sweep()
        self._sweep_later()


class _PageRead:
    """A read, and the vchannels of the scanners that wait for its page. `names` are the vchannels of a read that has begun."""

    __slots__ = ("ended", "failed", "has_begun", "names", "page", "takers")

    def __init__(self) -> None:
        self.takers: list[frozenset[str] | None] = []
        self.names: frozenset[str] | None = frozenset()
        self.has_begun = False
        self.failed = False
        """Whether it ended with an error of the log."""
        self.page: FramePage | None = None
        self.ended = asyncio.Event()


SHARED_PAGES_BYTES_MAX: Final = 8 * 1024 * 1024
"""About four pages for each pchannel, counted as `cost_bytes` does. The newest page may take more: a page of many small frames does."""
SHARED_PAGES_S: Final = 2.0
_EXPECTED_MAX: Final = 256
"""The most positions at which scanners are expected; the ones that were noted first are forgotten first."""


class SharedPages:
    """The pages that are kept for scanners that have not come for them yet, and where each scanner is expected next. Pure.

    A page is kept while a scanner is expected for it, while there is room (`SHARED_PAGES_BYTES_MAX`), and not longer than about
    `SHARED_PAGES_S` after its last use: a scanner that was closed never comes. So nothing is kept for a scanner that reads alone. It is
    true while there is anything to forget.
    """

    __slots__ = ("_bytes_between", "_expected", "_is_fresh", "_pages", "size")

    def __init__(self, bytes_between: Callable[[int, int], int]) -> None:
        self._bytes_between = bytes_between
        self._expected: dict[int, Counter[frozenset[str] | None]] = {}
        """Where the next page of each scanner begins, by its vchannels."""
        self._pages: deque[_KeptPage] = deque()
        self._is_fresh = False
        """Whether a page was read since the last sweep."""
        self.size: int = 0
        """The bytes that the pages take."""

    def __bool__(self) -> bool:
        return bool(self._pages or self._expected)

    def __len__(self) -> int:
        return len(self._pages)

    def arrived(self, start: int, names: frozenset[str] | None) -> None:
        """Notes that a scanner which may have been expected here asks for its page."""
        if (expected := self._expected.get(start)) is not None and _remove(expected, names):
            del self._expected[start]

    def take(self, start: int, names: frozenset[str] | None) -> FramePage | None:
        """Returns the page from this position on for a scanner of these vchannels, if it is kept."""
        for kept in self._pages:
            if kept.start <= start < kept.page.next_position and _covers(kept.names, names):
                if _remove(kept.awaited, names):
                    self._pages.remove(kept)
                    self.size -= kept.size
                kept.is_fresh = True
                page = kept.page
                self._expect(page.next_position, names)
                return page if start == kept.start else _from(page, start)
        return None

    def names_for(self, start: int, takers: Sequence[frozenset[str] | None]) -> frozenset[str] | None:
        """Returns the vchannels that a read is for which begins here: those of its takers, and of the scanners that come for it later."""
        names = {*takers, *self._awaited(start)}
        return None if None in names else frozenset().union(*filter(None, names))

    def end_for(self, start: int, takers: Sequence[frozenset[str] | None]) -> int | None:
        """Returns where a read for these scanners should end because a page that all of them can take begins there; None if none does."""
        starts = [
            kept.start for kept in self._pages if kept.start > start and all(_covers(kept.names, names) for names in takers)
        ]  # fmt: skip
        return min(starts, default=None)

    def add(self, start: int, names: frozenset[str] | None, page: FramePage, takers: Sequence[frozenset[str] | None]) -> None:
        """Notes a page that these scanners took, and keeps it if others are expected to come for it."""
        awaited = Counter({other: count for other, count in self._awaited(start).items() if _covers(names, other)})
        if awaited and page.next_position > start:
            size = sum([cost_bytes(frame.view.header) for frame in page.frames])
            self._pages.append(_KeptPage(start, names, page, awaited, size))
            self.size += size
            while self.size > SHARED_PAGES_BYTES_MAX and len(self._pages) > 1:
                self.size -= self._pages.popleft().size
        self._is_fresh = True
        for taker in takers:
            self._expect(page.next_position, taker)

    def sweep(self) -> None:
        """Drops what was not used since the last sweep."""
        pages = [kept for kept in self._pages if kept.is_fresh]
        self._pages = deque(pages)
        self.size = sum([kept.size for kept in pages])
        for kept in pages:
            kept.is_fresh = False
        if not self._is_fresh:
            self._expected.clear()
        self._is_fresh = False

    def _expect(self, position: int, names: frozenset[str] | None) -> None:
        expected = self._expected.get(position)
        if expected is None:
            expected = self._expected[position] = Counter()
            if len(self._expected) > _EXPECTED_MAX:
                del self._expected[next(iter(self._expected))]
        expected[names] += 1

    def _awaited(self, start: int) -> Counter[frozenset[str] | None]:
        """Returns the scanners that will ask for this page, because they are expected here or lag only a little."""
        oldest = min([kept.start for kept in self._pages], default=start)
        awaited: Counter[frozenset[str] | None] = Counter()
        for position, names in self._expected.items():
            if position == start or (position < start and (position >= oldest or self._bytes_between(position, start) <= PAGE_BYTES)):
                awaited.update(names)
        return awaited


class _KeptPage:
    """A page that is kept for the scanners in `awaited`."""

    __slots__ = ("awaited", "is_fresh", "names", "page", "size", "start")

    def __init__(
        self, start: int, names: frozenset[str] | None, page: FramePage, awaited: Counter[frozenset[str] | None], size: int
    ) -> None:
        self.start = start
        self.names = names
        self.page = page
        self.awaited = awaited
        self.size = size
        self.is_fresh = True
        """Whether it was read or taken since the last sweep."""


def _covers(names: frozenset[str] | None, others: frozenset[str] | None) -> bool:
    """Returns whether a page of these vchannels has everything for a scanner of the others. None means all vchannels."""
    return names is None or (others is not None and others <= names)


def _remove(counter: Counter[frozenset[str] | None], names: frozenset[str] | None) -> bool:
    """Removes one scanner of these vchannels, if there is one; returns whether none is left."""
    if counter[names] > 1:
        counter[names] -= 1
    else:
        del counter[names]
    return not counter


def _from(page: FramePage, start: int) -> FramePage:
    """Returns the part of a page from this position on."""
    event = page.last_event
    frames = [frame for frame in page.frames if frame.position >= start]
    return FramePage(frames, page.next_position, None if event is not None and event[0] < start else event, page.promised_tick)
