"""The memory backend: the guarantees of every backend, and its own store, which outlives the backend."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.storage.conformance import BackendConformance
from tests.storage.frames import INCARNATION, FrameMaker, append, read_all
from wal.storage.base import LogBackend
from wal.storage.memory import MemoryBackend, MemoryStore


class TestMemoryBackend(BackendConformance):
    def setup_method(self) -> None:
        self.stores: dict[Path, MemoryStore] = {}

    def make(self, place: Path) -> LogBackend:
        return MemoryBackend(self.stores.setdefault(place, MemoryStore()))


async def test_turn_answers_all_frames_of_the_turn_before() -> None:
    backend = MemoryBackend()
    await backend.create("p", incarnation=INCARNATION)
    log = await backend.open("p", incarnation=INCARNATION, term=1)
    maker = FrameMaker(1)
    futures = [append(log, maker.data(("v", b"x"))) for _ in range(10)]
    await asyncio.sleep(0)
    assert all(future.done() for future in futures)
    assert len(await read_all(log)) == 10


async def test_backends_without_a_store_share_nothing() -> None:
    for _ in range(2):
        backend = MemoryBackend()
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        assert await append(log, FrameMaker(1).data(("v", b"x"))) == 0
