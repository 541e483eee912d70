"""The pages of scanners that catch up together: few concurrent reads, shared between all scanners of a page, without harm to the others."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.storage.frames import FrameMaker
from wal.errors import CorruptionError, TruncatedError
from wal.frame import EncodedFrame, FrameView
from wal.read.page_reads import PAGE_BYTES, READS_MAX, SHARED_PAGES_BYTES_MAX, PageReads, SharedPages
from wal.storage.base import FramePage, ReadableLog, StoredFrame

Names = frozenset[str] | None


def stored(position: int, frame: EncodedFrame) -> StoredFrame:
    head, *blocks = frame.buffers
    return StoredFrame(position, position + 1, FrameView.decode(head, lambda start, end: b"".join(blocks)[start:end], own=True))


FRAMES = [stored(10 + number, frame) for maker in [FrameMaker(1)] for number, frame in enumerate([maker.data(("a", bytes(1 << 20)))] * 2)]
"""Two frames of 1 MiB each."""


class Log:
    """A log whose reads end when `release` is set; it fails those of the vchannels in `damaged`."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, Names]] = []
        self.under_way = self.most = 0
        self.release = asyncio.Event()
        self.damaged: set[str] = set()
        self.step = 1

    earliest = (-10, 0)

    def bytes_between(self, start: int, end: int) -> int:
        return PAGE_BYTES * max(0, end - start) // 2

    async def read(self, start: int, *, names: Names, bytes_max: int, end: int | None = None) -> FramePage:
        assert bytes_max > 1
        self.reads.append((start, names))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.release.wait()
        finally:
            self.under_way -= 1
        if start < 0:
            raise TruncatedError("truncated")
        if names is None or names & self.damaged:
            raise CorruptionError("damaged", path="", offset=0, expected="")
        return FramePage([], min(start + self.step, end or start + self.step), None, 0)

    @property
    def reader(self) -> PageReads:
        return PageReads(cast("ReadableLog", self))


def asking(reads: PageReads, start: int, *names: str) -> asyncio.Task[FramePage]:
    return asyncio.create_task(reads.page(start, frozenset(names) if names else None))


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def busy(reads: PageReads) -> list[asyncio.Task[FramePage]]:
    """Begins as many reads as there may be."""
    first = [asking(reads, 100 + number, "x") for number in range(READS_MAX)]
    await turns()
    return first


async def test_readers_at_one_position_share_a_read() -> None:
    log = Log()
    reads = log.reader
    first = await busy(reads)
    same = [asking(reads, 7, f"v{number}") for number in range(50)]
    other = asking(reads, 20, "y")
    await turns()
    assert len(log.reads) == READS_MAX
    log.release.set()
    pages = await asyncio.gather(*same)
    assert all(page is pages[0] for page in pages)
    assert (await other).next_position == 21
    await asyncio.gather(*first)
    assert log.reads[READS_MAX:] == [(7, frozenset(f"v{number}" for number in range(50))), (20, frozenset("y"))]
    assert log.most == READS_MAX


async def test_reader_of_everything_widens_the_read() -> None:
    log = Log()
    reads = log.reader
    first = await busy(reads)
    same = [asking(reads, 7, "a"), asking(reads, 7), asking(reads, 7, "b")]
    await turns()
    log.release.set()
    with pytest.raises(CorruptionError):  # the log fails a read of everything
        await same[1]
    assert (await same[0]).next_position == (await same[2]).next_position == 8
    await asyncio.gather(*first)
    assert (7, None) in log.reads


async def test_damage_concerns_only_those_that_read_it() -> None:
    log = Log()
    log.damaged = {"v3"}
    reads = log.reader
    first = await busy(reads)
    same = [asking(reads, 7, f"v{number}") for number in range(20)]
    await turns()
    log.release.set()
    outcomes = await asyncio.gather(*same, return_exceptions=True)
    assert [isinstance(outcome, CorruptionError) for outcome in outcomes] == [number == 3 for number in range(20)]
    await asyncio.gather(*first)
    assert log.most <= READS_MAX


async def test_each_gets_an_error_of_its_own() -> None:
    log = Log()
    reads = log.reader
    first = await busy(reads)
    same = [asking(reads, -1, f"v{number}") for number in range(3)]
    await turns()
    log.release.set()
    errors = await asyncio.gather(*same, return_exceptions=True)
    assert all(isinstance(error, TruncatedError) for error in errors)
    assert len(set(map(id, errors))) == 3
    await asyncio.gather(*first)


@pytest.mark.parametrize("moment", ["while it waits for a turn", "while it reads"])
async def test_cancelled_one_leaves_the_others_their_pages(moment: str) -> None:
    log = Log()
    reads = log.reader
    first = await busy(reads)
    leader, *others = [asking(reads, 7, f"v{number}") for number in range(3)]
    await turns()
    if moment == "while it reads":
        first[0].cancel()
        await turns()
        assert log.reads[-1][0] == 7
    leader.cancel()
    await turns()
    log.release.set()
    assert [page.next_position for page in await asyncio.gather(*others)] == [8, 8]
    await asyncio.gather(*first, return_exceptions=True)
    assert log.most <= READS_MAX
    await asyncio.gather(*await busy(reads))


def many(count: int) -> list[frozenset[str]]:
    return [frozenset([f"v{number}"]) for number in range(count)]


async def test_scanners_read_each_page_once() -> None:
    log = Log()
    log.release.set()
    reads, names = log.reader, many(64)
    for start in range(5):
        pages = await asyncio.gather(*[reads.page(start, one) for one in names])
        assert all(page is pages[0] for page in pages)
    assert log.reads == [(start, frozenset().union(*names)) for start in range(5)]
    assert (reads.count, reads.shared_count, len(reads.shared)) == (5, 5 * 63, 0)


async def test_slow_scanner_finds_a_page_already_read() -> None:
    log = Log()
    log.release.set()
    reads, (*fast, slow) = log.reader, many(4)
    await asyncio.gather(*[reads.page(0, one) for one in (*fast, slow)])
    for start in (1, 2, 3):
        await asyncio.gather(*[reads.page(start, one) for one in fast])
    assert len(reads.shared) == 3
    assert [(await reads.page(start, slow)).next_position for start in (1, 2, 3)] == [2, 3, 4]
    assert [start for start, _ in log.reads] == [0, 1, 2, 3]
    assert not len(reads.shared), "nobody else comes for these pages"


async def test_scanners_that_begin_apart_go_on_together() -> None:
    log = Log()
    log.step = 4
    log.release.set()
    reads, (ahead, behind) = log.reader, many(2)
    assert (await reads.page(0, behind)).next_position == 4
    assert (await reads.page(5, ahead)).next_position == 9  # the other one follows closely: the page is for both
    assert (await reads.page(4, behind)).next_position == 5
    assert (await reads.page(5, behind)).next_position == 9
    assert log.reads == [(0, behind), (5, ahead | behind), (4, behind)]
    await asyncio.gather(reads.page(9, ahead), reads.page(9, behind))
    assert log.reads[3:] == [(9, ahead | behind)]


async def test_truncated_page_is_not_reused() -> None:
    log = Log()
    log.release.set()
    reads, (fast, slow) = log.reader, many(2)
    await asyncio.gather(reads.page(0, fast), reads.page(0, slow))
    await reads.page(1, fast)
    log.earliest = (2, 0)
    await reads.page(1, slow)
    assert log.reads[2:] == [(1, slow)], "the log says what becomes of the read"


async def test_scanner_alone_has_nothing_kept() -> None:
    log = Log()
    log.release.set()
    reads = log.reader
    for start in range(3):
        await reads.page(start, frozenset("a"))
        assert not len(reads.shared)


def test_pages_are_bounded() -> None:
    pages, (fast, slow) = SharedPages(lambda start, end: end - start), many(2)
    both = fast | slow
    pages.add(0, both, FramePage([], 1, None, 0), [fast, slow])
    for start in range(1, 40):
        pages.arrived(start, fast)
        pages.add(start, both, FramePage(FRAMES, start + 1, None, 0), [fast])
        assert pages.size <= SHARED_PAGES_BYTES_MAX
    assert 1 < len(pages) < 39
    assert pages.take(1, slow) is None
    assert pages.take(39, slow) is not None


def test_pages_that_nobody_comes_for_are_dropped() -> None:
    pages, (fast, closed) = SharedPages(lambda start, end: end - start), many(2)
    pages.add(0, fast | closed, FramePage([], 1, None, 0), [fast, closed])
    pages.arrived(1, fast)
    pages.add(1, fast | closed, FramePage(FRAMES, 2, None, 0), [fast])
    pages.sweep()
    assert len(pages) == 1, "it is fresh"
    pages.sweep()
    assert (len(pages), pages.size, bool(pages)) == (0, 0, False)


def test_part_of_a_kept_page_is_taken() -> None:
    pages, (fast, slow) = SharedPages(lambda start, end: end - start), many(2)
    first, second = FRAMES
    pages.add(0, fast, FramePage([], 2, None, 0), [fast])
    pages.add(3, slow, FramePage([], first.position, None, 0), [slow])
    pages.arrived(first.position, slow)
    pages.add(0, fast | slow, FramePage(FRAMES, 100, (second.position, 0), 7), [fast])
    pages.add(2, None, FramePage(FRAMES, 100, (first.position, 0), 7), [None])
    page = pages.take(second.position, fast)
    assert page is not None
    assert (page.frames, page.next_position, page.last_event, page.promised_tick) == ([second], 100, None, 7)
