"""The pages of scanners that catch up together: few reads at a time, one for all that wait for it, and none that concerns another."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from wal.errors import CorruptionError, TruncatedError
from wal.read.pchannel import READS_MAX, PageReads
from wal.storage.base import FramePage, ReadableLog

Names = frozenset[str] | None


class Log:
    """A log whose reads end when `release` is set; it fails those of the vchannels in `damaged`."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, Names]] = []
        self.under_way = self.most = 0
        self.release = asyncio.Event()
        self.damaged: set[str] = set()

    async def read(self, start: int, *, names: Names, bytes_max: int) -> FramePage:
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
        return FramePage([], start + 1, None, 0)

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


async def test_those_that_wait_at_one_position_share_a_read() -> None:
    log = Log()
    reads = log.reader
    first = await busy(reads)
    same = [asking(reads, 7, f"v{number}") for number in range(50)]
    other = asking(reads, 8, "y")
    await turns()
    assert len(log.reads) == READS_MAX
    log.release.set()
    pages = await asyncio.gather(*same)
    assert all(page is pages[0] for page in pages)
    assert (await other).next_position == 9
    await asyncio.gather(*first)
    assert log.reads[READS_MAX:] == [(7, frozenset(f"v{number}" for number in range(50))), (8, frozenset("y"))]
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
