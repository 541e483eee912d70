"""A pchannel that another process writes: it looks only while a scanner waits, and reads a frame once for all scanners."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actors import SystemClock
from tests.storage.frames import FrameMaker, append, append_all
from tests.storage.journal.journals import PCHANNEL, journal
from wal.errors import ClosedError, CorruptionError, UnavailableError, WALError
from wal.message import FORM_JOURNAL
from wal.read.options import Latest, ReadOptions, Selection
from wal.read.read_only_pchannel import ReadOnlyPChannel, ThreadedLog
from wal.read.scanner import Scanner
from wal.storage.base import FramePage, LogSnapshot
from wal.storage.journal.disk import Disk
from wal.storage.journal.log import JournalLog
from wal.storage.journal.read_only_journal import ReadOnlyJournal, ReadOnlyJournalLog


class CountedLog(ThreadedLog):
    """A log that counts its calls, and can be damaged for the reads that scanners share."""

    def __init__(self, log: ReadOnlyJournalLog, pool: ThreadPoolExecutor) -> None:
        super().__init__(log, pool, log.refresh())
        self.looks = self.pages = 0
        self.damaged = False
        self.failure: WALError | None = None

    async def refresh(self) -> LogSnapshot:
        self.looks += 1
        if self.failure is not None:
            raise self.failure
        return await super().refresh()

    async def read_to(self, end: int, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        self.pages += 1
        if self.damaged and names is None:
            raise CorruptionError("as if one of the frames were damaged")
        return await super().read_to(end, start, names=names, bytes_max=bytes_max)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[JournalLog]:
    async with journal(tmp_path, segment=256 << 10) as opened:
        await append(opened, FrameMaker(1).term_start())
        yield opened


@pytest.fixture
async def pchannel(log: JournalLog, tmp_path: Path) -> AsyncIterator[ReadOnlyPChannel]:
    with ThreadPoolExecutor(2) as pool:
        core = await asyncio.to_thread(lambda: ReadOnlyJournal(tmp_path).open(PCHANNEL))
        pchannel = ReadOnlyPChannel(CountedLog(core, pool), form=FORM_JOURNAL, clock=SystemClock(), awaited=lambda: None)
        pchannel.start()
        yield pchannel
        await pchannel.close(ClosedError("closed"))


def counted(pchannel: ReadOnlyPChannel) -> CountedLog:
    assert isinstance(pchannel.log, CountedLog)
    return pchannel.log


def scanner(pchannel: ReadOnlyPChannel, name: str = "v") -> Scanner:
    async def attach(_: Scanner) -> tuple[ReadOnlyPChannel, Selection, object]:
        await pchannel.catch_up()
        return pchannel, Selection({name: 1}, floor=0), None

    return Scanner(ReadOptions.of((name,), deliver_policy=Latest()), attach=attach)  # type: ignore[arg-type]


async def test_hundred_scanners_that_wait_cost_about_one_read(log: JournalLog, pchannel: ReadOnlyPChannel) -> None:
    SCANNERS = 100
    maker = FrameMaker(1)
    scanners = [scanner(pchannel) for _ in range(SCANNERS)]
    for each in scanners:
        await each.__aenter__()
    readings = [asyncio.ensure_future(_take(each, 30)) for each in scanners]
    expected = []
    for number in range(30):
        await append(log, maker.data(("v", b"%d" % number), ("other", bytes(1_000))))
        expected.append(b"%d" % number)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*readings) == [expected] * SCANNERS
    assert counted(pchannel).pages <= 60, "one read a move, not one a reader"
    for each in scanners:
        await each.close()


async def _take(reading: Scanner, count: int) -> list[bytes]:
    return [(await anext(reading)).payload for _ in range(count)]


async def test_nothing_is_looked_for_while_no_scanner_waits(log: JournalLog, pchannel: ReadOnlyPChannel) -> None:
    async with scanner(pchannel) as reading:
        taking = asyncio.ensure_future(anext(reading))
        await append(log, FrameMaker(1).data(("v", b"x")))
        async with asyncio.timeout(60):
            assert (await taking).payload == b"x"
        looks = counted(pchannel).looks
        while looks != (looks := counted(pchannel).looks):
            await asyncio.sleep(0.05)
        await append(log, FrameMaker(1).data(("v", b"y")))
        await asyncio.sleep(0.1)  # only time can show that nothing happens
        assert counted(pchannel).looks == looks
        assert (await anext(reading)).payload == b"y"


async def test_looks_are_rarer_while_nothing_moves(log: JournalLog, pchannel: ReadOnlyPChannel) -> None:
    async with scanner(pchannel) as reading:
        taking = asyncio.ensure_future(anext(reading))
        looks = counted(pchannel)
        backed_off = looks.looks + 40  # the wait between looks reaches its maximum of 20 ms long before that
        while looks.looks < backed_off:
            await asyncio.sleep(0.005)
        before, began = looks.looks, time.monotonic()
        while looks.looks < before + 10:
            await asyncio.sleep(0.005)
        assert time.monotonic() - began >= 9 * 0.019, "every 20 ms at the most: a busy machine only makes it less often"
        await append(log, FrameMaker(1).data(("v", b"x")))
        assert (await taking).payload == b"x"


async def test_newest_event_is_known_after_catching_up(log: JournalLog, pchannel: ReadOnlyPChannel) -> None:
    maker = FrameMaker(1)
    positions = await append_all(log, [maker.data(("v", b"1"), ("w", b"2")), maker.time_tick()])
    await pchannel.catch_up()
    assert pchannel.tail.newest == (positions[0], 1)
    assert pchannel.tail.durable_end == log.durable_end
    (last,) = await append_all(log, [maker.data(("w", b"3"))])
    async with scanner(pchannel) as reading:
        taking = asyncio.ensure_future(anext(reading))
        while not pchannel.tail.is_awaited():
            await asyncio.sleep(0)
        (at,) = await append_all(log, [maker.data(("v", b"4"))])
        assert (await taking).payload == b"4"
        assert (last, at) < (at, at)
        assert pchannel.tail.newest == (at, 0)
        assert len(pchannel.recent), "it came by way of the window"
        await pchannel.catch_up()
        assert pchannel.tail.newest == (at, 0)


async def test_unreadable_frame_is_left_to_each_scanner(log: JournalLog, pchannel: ReadOnlyPChannel) -> None:
    """Scanners of vchannels with undamaged runs continue."""
    maker = FrameMaker(1)
    async with scanner(pchannel) as reading:
        taking = asyncio.ensure_future(_take(reading, 3))
        while not pchannel.tail.is_awaited():
            await asyncio.sleep(0)
        counted(pchannel).damaged = True
        await append(log, maker.data(("v", b"1"), ("w", b"?")))
        while pchannel.tail.durable_end < log.durable_end:
            await asyncio.sleep(0)
        counted(pchannel).damaged = False
        await append_all(log, [maker.data(("v", b"2")), maker.data(("v", b"3"))])
        async with asyncio.timeout(60):
            assert await taking == [b"1", b"2", b"3"]


async def test_closing_ends_the_scanners_that_wait(log: JournalLog, pchannel: ReadOnlyPChannel) -> None:
    async with scanner(pchannel) as reading:
        taking = asyncio.ensure_future(anext(reading))
        while not pchannel.tail.is_awaited():
            await asyncio.sleep(0)
        await pchannel.close(ClosedError("closed"))
        with pytest.raises(ClosedError):
            await taking


async def test_silent_server_is_an_error_of_its_own(log: JournalLog, pchannel: ReadOnlyPChannel) -> None:
    async with scanner(pchannel) as reading:
        taking = asyncio.ensure_future(anext(reading))
        while not pchannel.tail.is_awaited():
            await asyncio.sleep(0)
        counted(pchannel).failure = UnavailableError("as if the metadata did not answer")
        async with asyncio.timeout(60):
            with pytest.raises(UnavailableError, match="did not answer"):
                await taking


async def test_closing_ends_calls_that_wait_for_a_server(tmp_path: Path, log: JournalLog) -> None:
    """The call also asks the server, so it does not run on the event loop."""

    class AwayLog(ReadOnlyJournalLog):
        """A log whose server is unreachable: its calls wait until the log is closed."""

        refresh_waits = True

        def __init__(self, directory: Path) -> None:
            super().__init__(Disk(), directory, PCHANNEL)
            self.asked = threading.Event()
            self.given_up = threading.Event()
            self.closing_threads: set[int] = set()

        def reach(self) -> LogSnapshot:
            self.asked.set()
            assert self.given_up.wait(10)
            raise ClosedError("closed")

        def close(self) -> None:
            self.closing_threads.add(threading.get_ident())
            self.given_up.set()
            super().close()

    with ThreadPoolExecutor(1) as pool:
        away = await asyncio.to_thread(AwayLog, tmp_path / "pchannels" / PCHANNEL)
        threaded = ThreadedLog(away, pool, away.refresh())
        reaching = asyncio.ensure_future(threaded.reach())
        await asyncio.to_thread(away.asked.wait)
        async with asyncio.timeout(60):
            await threaded.close()
            with pytest.raises(ClosedError):
                await reaching
    assert threading.get_ident() not in away.closing_threads
