"""The concurrency of a consumer: it reads while its commits are written, fetches a page ahead, and yields to other tasks."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.probes import local
from tests.processes import eventually
from wal import All, Delivery, Message, WALAccesser, open_wal
from wal.consumers.session import ConsumerSession
from wal.node.cursor_claims import LocalCursorHome
from wal.read.scanner import ScannerStatistics

FRAME = 20
FRAMES = 30


async def fill(log: WALAccesser) -> None:
    for first in range(0, FRAMES * FRAME, FRAME):
        await log.append_bulk([Message("jobs", b"%d" % number) for number in range(first, first + FRAME)])


async def test_consumer_reads_while_its_commit_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first commit that moves the cursor is not answered until more was read."""
    monkeypatch.setattr("wal.consumers.plan.PAGE", 64)
    real, going, answered = LocalCursorHome.commit, asyncio.Event(), asyncio.Event()
    positions: list[object] = []

    def commit(self: LocalCursorHome, bodies: Any, *, position: Any, **options: Any) -> Any:
        written = real(self, bodies, position=position, **options)
        positions.append(position.start)
        moves = position.start != positions[0]
        if moves and not answered.is_set():
            reading.append(scanner().messages)

        async def outcome() -> Any:
            if moves:
                await answered.wait()
            return await written

        return outcome()

    async def handle(delivery: Delivery) -> None:
        await going.wait()

    def scanner() -> ScannerStatistics:
        session = consumer._session
        assert isinstance(session, ConsumerSession)
        return session.scanner.statistics()

    reading: list[int] = []
    monkeypatch.setattr(LocalCursorHome, "commit", commit)
    async with open_wal("memory:") as log:
        await fill(log)
        async with log.consume("jobs", handle, cursor="worker") as consumer:
            await eventually(lambda: consumer.statistics().in_hand and consumer.statistics().pending >= 2 * 64)
            going.set()
            await eventually(lambda: reading and scanner().messages > reading[0])
            answered.set()
            await consumer.caught_up()
            assert consumer.statistics().handled == FRAMES * FRAME


async def test_page_is_fetched_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is fetched once, and nothing is fetched at the end of the read."""
    monkeypatch.setattr("wal.read.page_reads.PAGE_BYTES", 2048)
    async with open_wal(tmp_path / "log") as log:
        await fill(log)
    async with open_wal(tmp_path / "log") as log, log.read("jobs", deliver_policy=All(), follow=False) as scanner:
        (pchannel,) = local(log).node.pchannels.values()
        numbers: list[int] = []
        while messages := await scanner._page():
            numbers += [int(message.payload) for message in messages]
            scanner._hand_over(len(messages))
            scanner._loop.fetch_ahead()
            if len(numbers) < FRAMES * FRAME // 2:
                await eventually(lambda: pchannel.reads.count == scanner.statistics().pages + 1)
        assert numbers == list(range(FRAMES * FRAME))
        assert pchannel.reads.count == scanner.statistics().pages > 3


async def test_waiting_messages_hold_no_other_vchannels_in_memory(tmp_path: Path) -> None:
    """Each frame has 400 KB of another vchannel beside the waiting message."""
    frames, going = 150, asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        await going.wait()

    async with open_wal(tmp_path / "log") as log:
        for number in range(frames):
            await log.append_bulk([Message("jobs", b"%d" % number), Message("other", bytes(400_000))])
    async with open_wal(tmp_path / "log") as log:
        tracemalloc.start()
        try:
            async with log.consume("jobs", handle, cursor="worker") as consumer:
                await eventually(lambda: consumer.statistics().pending == frames)
                assert tracemalloc.get_traced_memory()[0] < 15_000_000
                going.set()
                await consumer.caught_up()
        finally:
            tracemalloc.stop()


async def test_handler_that_never_suspends_lets_others_have_their_turns(log: WALAccesser) -> None:
    turns, handled = 0, 0
    seen: list[int] = []

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def handle(batch: list[Delivery]) -> None:
        nonlocal handled
        handled += len(batch)
        seen.append(turns)
        end = asyncio.get_running_loop().time() + 0.002
        while asyncio.get_running_loop().time() < end:
            pass

    await fill(log)
    counting = asyncio.ensure_future(count())
    async with log.consume("jobs", handle, cursor="worker", batch=100) as consumer:
        await consumer.caught_up()
    counting.cancel()
    assert handled == FRAMES * FRAME
    assert len(set(seen)) == len(seen), "two batches in one turn"
