"""Many saves wait for a lock that is never released: each fails after its time limit, and the log can be closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.probes import local
from wal import Message, open_wal
from wal.errors import WouldBlockError
from wal.read.cursors.files import CursorFiles
from wal.read.cursors.store import CursorStore

TIMEOUT_S = 1.0
SAVES = 60
"""In four threads, one after the other, the saves would take fifteen times as long."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = CursorStore.locked

    def sooner(store: CursorStore, timeout_s: float = TIMEOUT_S, *, since_s: float | None = None) -> AbstractContextManager[None]:
        return locked(store, min(timeout_s, TIMEOUT_S), since_s=since_s)

    monkeypatch.setattr(CursorStore, "locked", sooner)


@contextlib.contextmanager
def held(data: str) -> Iterator[None]:
    """Holds the lock as another process would, through a descriptor of its own."""
    other = CursorFiles(Path(data))
    other.acquire(10)
    try:
        yield
    finally:
        other.release()


async def test_no_save_waits_longer_than_the_first(data: str) -> None:
    log = await open_wal(data)
    service = local(log).cursors
    await log.raw_append(Message("orders", b"1"))
    async with contextlib.AsyncExitStack() as stack:
        scanners = [await stack.enter_async_context(log.read("orders", cursor=f"c{n}")) for n in range(SAVES)]
        with held(data):
            saves = [asyncio.ensure_future(scanner.save()) for scanner in scanners]
            while len(service._running) < SAVES:
                await asyncio.sleep(0)
            async with asyncio.timeout(SAVES * TIMEOUT_S / 2):  # one after the other they would wait twice as long
                await log.close()
            for outcome in await asyncio.gather(*saves, return_exceptions=True):
                assert isinstance(outcome, WouldBlockError)
    async with open_wal(data) as log:
        assert await log.cursors() == []
        async with log.read("orders", cursor="c0") as scanner:
            await scanner.save()
        assert [info.name for info in await log.cursors()] == ["c0"]
