"""A scanner that waits at the tail holds only its own few objects in memory, and nothing of the frames that it has read.

The log has frames with 1,000 vchannels each. The decoded tables of one take some 200 KiB; a scanner reads one to three of the vchannels.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import tracemalloc
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.probes import local, made_on
from tests.processes import eventually
from wal import Latest, Message, MessageType, MessageTypes, Scanner, TimeTickGT, WALAccesser, open_wal
from wal.write.pchannel import PChannel

VCHANNELS: Final = 1_000
SCANNERS: Final = 100
WARM: Final = 20
"""Scanners that exist before the measurement begins, so that objects shared by all scanners are not counted."""
SAME_FIGURES: Final = 5
"""The figures in a row, all about equal, after which memory counts as settled; a page is 200 KiB."""
TABLE_BYTES_MIN: Final = 1 << 18
"""More than a list of all names grows by at a time, and less than the table of names does."""
IDLE_BYTES_MAX: Final = 4096
"""The maximum bytes of one scanner, without the task that its consumer has anyway."""

Make = Callable[[WALAccesser, int], Scanner]


def name(number: int) -> str:
    return f"vchannel-{number % VCHANNELS}"


KINDS: Final[dict[str, Make]] = {
    "plain": lambda log, number: log.read(name(number)),
    "several": lambda log, number: log.read([name(number), name(number + 1), name(number + 2)]),
    "filters": lambda log, number: log.read(name(number), filters=[TimeTickGT(1), MessageTypes(MessageType.INSERT)]),
    "cursor": lambda log, number: log.read(name(number), cursor=f"c{number}"),
    "with ticks": lambda log, number: log.read(name(number), include_time_ticks=True),
}

FURTHER: Final = pytest.mark.soak("scanners of one vchannel, with filters and with a cursor keep nothing either")


def only_pchannel(log: WALAccesser) -> PChannel:
    (pchannel,) = local(log).node.pchannels.values()
    return pchannel


async def append_everywhere(log: WALAccesser, count: int = VCHANNELS) -> int:
    """Appends one frame or two, with a message for each vchannel, and returns the last tick."""
    messages = [Message(name(number), b"x" * 50) for number in range(count)]
    return max(result.time_tick for result in await asyncio.gather(*map(log.append_nowait, messages)))


@contextlib.asynccontextmanager
async def idle(log: WALAccesser, make: Make, numbers: range, tick: int) -> AsyncIterator[list[Scanner]]:
    """Yields scanners that have delivered everything up to this tick and wait at the tail, each driven by a task."""

    async def consume(scanner: Scanner) -> None:
        async for _ in scanner:
            pass

    scanners = [make(log, number) for number in numbers]
    consumers = [asyncio.create_task(consume(scanner)) for scanner in scanners]
    try:
        for scanner in scanners:
            await scanner.wait_for(tick)
        yield scanners
    finally:
        await asyncio.gather(*(scanner.close() for scanner in scanners))
        await asyncio.gather(*consumers)


@contextlib.asynccontextmanager
async def consumers_alone() -> AsyncIterator[None]:
    """Starts as many tasks as SCANNERS have consumers; they wait for an event that never comes."""
    end = asyncio.Event()

    async def wait() -> None:
        await end.wait()

    tasks = [asyncio.create_task(wait()) for _ in range(SCANNERS)]
    await asyncio.sleep(0)
    yield
    end.set()
    await asyncio.gather(*tasks)


@pytest.fixture(scope="module", autouse=True)
def room_for_names() -> None:
    """Has the interpreter's table of interned names grow before these tests, so that it does not while scanners are counted.

    `pathlib` interns the names of files, such as those of cursors. The table grows at once, by megabytes that no scanner holds, at a name
    that depends on the tests that this process ran before; afterwards it has room for thousands.
    """
    names: list[str] = []
    before = after = 0
    with traced():
        while after - before < TABLE_BYTES_MIN:
            before = tracemalloc.get_traced_memory()[0]
            names.append(sys.intern(f"a name of test_idle_scanners {len(names)}"))
            after = tracemalloc.get_traced_memory()[0]


@contextlib.contextmanager
def traced() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what earlier tests left in this process takes long to traverse, and each figure does so
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def settled() -> int:
    """Returns the memory once it has stopped changing: on a busy machine a thread that has returned a page may not have released it yet.

    Such a page, counted in a first figure and released before the second, would be charged to the scanners between the two.
    """
    figures: deque[int] = deque(maxlen=SAME_FIGURES)

    def same() -> bool:
        figures.append(memory())
        return len(figures) == SAME_FIGURES and max(figures) - min(figures) < IDLE_BYTES_MAX

    await eventually(same)
    return figures[-1]


async def holds(log: WALAccesser, make: Make, tick: int) -> None:
    """Each further idle scanner makes memory grow by less than IDLE_BYTES_MAX, not counting its consumer."""
    with traced():
        async with idle(log, make, range(WARM), tick):
            before = await settled()
            async with consumers_alone():
                consumers = await settled() - before
            before = await settled()
            async with idle(log, make, range(WARM, WARM + SCANNERS), tick):

                def each() -> float:
                    return (memory() - before - consumers) / SCANNERS

                with contextlib.suppress(TimeoutError):  # a thread may be about to release the page that it returned
                    await eventually(lambda: each() < IDLE_BYTES_MAX, timeout_s=5)
                assert each() < IDLE_BYTES_MAX


@pytest.mark.parametrize("kind", ["plain", "filters", "cursor", *(pytest.param(kind, marks=FURTHER) for kind in ("several", "with ticks"))])
async def test_idle_scanner_releases_the_files_read(data_dir: Path, kind: str) -> None:
    async with open_wal(data_dir) as log:
        tick = await append_everywhere(log)
    async with open_wal(data_dir) as log:
        await holds(log, KINDS[kind], tick)


async def test_idle_scanner_releases_files_in_a_reader_process(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        tick = await append_everywhere(log)
    async with open_wal(data_dir, read_only=True) as log:
        await holds(log, KINDS["plain"], tick)


async def test_idle_scanner_releases_recent_frames(tmp_path: Path) -> None:
    WOKEN = 25

    async def each_is_small(each: Callable[[], float]) -> None:
        """Waits until an idle scanner takes less than IDLE_BYTES_MAX: a thread may be about to release the page that it returned."""
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: each() < IDLE_BYTES_MAX, timeout_s=5)
        assert each() < IDLE_BYTES_MAX

    @contextlib.asynccontextmanager
    async def woken(directory: Path, *, scanners: int) -> AsyncIterator[None]:
        """Appends WOKEN frames, each with 400 vchannels and one more, which wakes one of the scanners if there are any.

        When it yields, the frames have left the window of recent frames.
        """
        async with open_wal(directory) as log:
            tick = await append_everywhere(log, 400)
            names = [f"woken {number}" for number in range(WOKEN)]
            await made_on(log, "p0", *names)

            def latest(log: WALAccesser, number: int) -> Scanner:
                return log.read(names[number], deliver_policy=Latest())

            pchannel = only_pchannel(log)
            with traced():
                async with idle(log, latest, range(scanners), tick) as waiting:
                    for number, name in enumerate(names):
                        waking = log.append_nowait(Message(name, b"x"))
                        await append_everywhere(log, 400)
                        if waiting:
                            await waiting[number].wait_for((await waking).time_tick)
                    pchannel.recent.restart(pchannel.tail.durable_end)
                    yield

    async with woken(tmp_path / "without", scanners=0):
        before = await settled()
        async with consumers_alone():
            consumers = (await settled() - before) / SCANNERS
    async with woken(tmp_path / "with", scanners=WOKEN):
        await each_is_small(lambda: (memory() - before) / WOKEN - consumers)


async def test_delivered_messages_belong_to_their_consumer(data_dir: Path) -> None:
    """A frame with thousands of messages for one vchannel, read message by message and page by page: at the tail none of them is kept."""
    async with open_wal(data_dir) as log:
        results = await asyncio.gather(*(log.append_nowait(Message("big", bytes(100))) for _ in range(5_000)))
        tick = results[-1].time_tick
        with traced():
            before = memory()
            async with log.read("big") as single, log.read("big") as paged:

                async def pages() -> None:
                    async for page in paged.batches():
                        del page

                async def messages() -> None:
                    async for _ in single:
                        pass

                consumers = [asyncio.create_task(messages()), asyncio.create_task(pages())]
                await asyncio.gather(single.wait_for(tick), paged.wait_for(tick))
                pchannel = only_pchannel(log)
                pchannel.recent.restart(pchannel.tail.durable_end)
                assert memory() - before < 64 * 1024
                await asyncio.gather(single.close(), paged.close())
                await asyncio.gather(*consumers)
