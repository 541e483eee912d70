"""Scanners that catch up together fetch each frame once, and the bytes of a read over the network are those of its own vchannels."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import serving
from wal import Message, WALAccesser, open_wal
from wal.read.scanner import Scanner
from wal.rpc.frame_pages import EncodedPage
from wal.serve.frame_calls import FrameCalls
from wal.storage.journal.segments import Segment

VCHANNELS = 16
FRAMES = 60
SIZE = 8 * 1024
NAMES = [f"v{number}" for number in range(VCHANNELS)]


async def write(log: WALAccesser) -> None:
    """Writes frames that hold a message, and so a block, of every vchannel."""
    for name in NAMES:
        await log.create_vchannel(name)
    for number in range(FRAMES):
        await log.append_bulk([Message(name, number.to_bytes(SIZE, "little")) for name in NAMES])


async def numbers(scanner: Scanner) -> list[int]:
    return [int.from_bytes(message.payload, "little") async for page in scanner.batches() for message in page]


async def numbers_together(log: WALAccesser) -> list[list[int]]:
    """Reads every vchannel by a scanner of its own. All have begun before the first one fetches a page."""
    async with contextlib.AsyncExitStack() as stack:
        scanners = [await stack.enter_async_context(log.read(name, follow=False)) for name in NAMES]
        return await asyncio.gather(*map(numbers, scanners))


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the frame at each position was fetched from a segment."""
    counts: Counter[int] = Counter()
    fetch = Segment.frame

    def counted(self: Segment, window: Any, position: int, **options: Any) -> Any:
        counts[position] += 1
        return fetch(self, window, position, **options)

    monkeypatch.setattr(Segment, "frame", counted)
    return counts


async def test_scanners_of_a_journal_fetch_each_frame_once(tmp_path: Path, fetches: Counter[int]) -> None:
    async with open_wal(tmp_path / "log", pchannels=1) as log:
        await write(log)
    async with open_wal(tmp_path / "log") as log:
        fetches.clear()
        for numbers_read in await numbers_together(log):
            assert numbers_read == list(range(FRAMES))
        (pchannel,) = log.statistics().pchannels
        assert fetches.total() == FRAMES
        assert pchannel.shared_pages > 5 * pchannel.page_reads
        assert pchannel.shared_page_bytes == 0, "every scanner has come for its pages"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each page that a server sent."""
    sizes: list[int] = []
    read = FrameCalls._read

    async def counted(self: FrameCalls, request: Any, context: object) -> AsyncIterator[EncodedPage]:
        async for page in read(self, request, context):
            sizes.append(len(page.data))
            yield page

    monkeypatch.setattr(FrameCalls, "_read", counted)
    return sizes


async def test_scanners_of_a_client_get_the_log_once(sent: list[int]) -> None:
    async with serving(pchannels=1) as one:
        async with open_wal(f"wal://{one.address}") as log:
            await write(log)
        sent.clear()
        async with open_wal(f"wal://{one.address}") as log:
            for numbers_read in await numbers_together(log):
                assert numbers_read == list(range(FRAMES))
    payloads = VCHANNELS * FRAMES * SIZE
    assert payloads <= sum(sent) <= 1.5 * payloads, "each for itself would get the heads of all frames once more, and two blocks of each"


async def test_scanner_gets_the_blocks_of_its_own_vchannel(sent: list[int]) -> None:
    async with serving(pchannels=1) as one:
        async with open_wal(f"wal://{one.address}") as log:
            await write(log)
            await log.append_bulk([Message(NAMES[1], bytes(SIZE)) for _ in range(FRAMES)])  # frames with nothing for the reader
        sent.clear()
        async with open_wal(f"wal://{one.address}") as log, log.read(NAMES[0], follow=False) as scanner:
            assert await numbers(scanner) == list(range(FRAMES))
    # A block holds two messages of 8 KiB, because it has 16 KiB at least.
    assert sum(sent) <= 2 * (2 * FRAMES * SIZE)
