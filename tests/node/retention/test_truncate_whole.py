"""A truncation whose caller was cancelled still finishes, and excludes cursor saves like any other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from tests.probes import payloads
from wal import Message, WALAccesser, open_wal
from wal.errors import TruncatedError
from wal.storage.journal.log import JournalTruncation


class Gate:
    """Blocks truncations in their threads, just before the earliest event is stored."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        real = JournalTruncation.truncate

        def held(truncation: JournalTruncation, earliest: tuple[int, int]) -> tuple[int, int]:
            self.reached.set()
            assert self.opened.wait(30)
            return real(truncation, earliest)

        monkeypatch.setattr(JournalTruncation, "truncate", held)


@pytest.fixture
async def gate(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


async def cancelled_truncation(log: WALAccesser, gate: Gate) -> None:
    """Truncates up to the eighth of ten messages, and cancels the truncation midway."""
    results = [await log.raw_append(Message("orders", b"%d" % number)) for number in range(10)]
    truncating = asyncio.ensure_future(log.truncate(up_to=results[7].message_id))
    async with asyncio.timeout(60):
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
    truncating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await truncating


async def test_no_cursor_is_overtaken_by_it(data: str, gate: Gate) -> None:
    async with open_wal(data) as log:
        await cancelled_truncation(log, gate)
        async with log.read("orders", cursor="billing") as scanner:
            assert (await anext(scanner)).payload == b"0"
            with pytest.raises(TruncatedError):  # the truncation has read the cursors
                await scanner.save()
            gate.opened.set()
        assert await log.cursors() == []
        async with asyncio.timeout(60):
            while await payloads(log, "orders") != [b"8", b"9"]:  # the truncation continues without its caller
                await asyncio.sleep(0.01)


async def test_close_waits_for_it(data: str, gate: Gate) -> None:
    log = await open_wal(data)
    await cancelled_truncation(log, gate)
    closing = asyncio.ensure_future(log.close())
    done, _ = await asyncio.wait([closing], timeout=0.2)
    assert not done
    gate.opened.set()
    await closing
    async with open_wal(data) as log:
        assert await payloads(log, "orders") == [b"8", b"9"]
