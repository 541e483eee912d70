"""Every KV keeps the same guarantees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.storage.kv.conformance import KVConformance
from wal.storage.kv import KVBase, MemoryKV, SqliteKV


async def memory(_: Path) -> KVBase:
    return MemoryKV()


async def memory_under_root(_: Path) -> KVBase:
    return MemoryKV(root_path="/by-dev/meta")


async def memory_part(_: Path) -> KVBase:
    kv = MemoryKV()
    await kv.multi_save({"by-dev": "x", "by-de": "x", "by-dev/": "x", "by-dev2/a": "x", "by-dev0": "x"})
    return kv.under("by-dev/part")


async def sqlite(folder: Path) -> KVBase:
    return await SqliteKV.open(folder / "kv.sqlite3")


async def sqlite_under_root(folder: Path) -> KVBase:
    return await SqliteKV.open(folder / "kv.sqlite3", root_path="by-dev/meta")


FACTORIES: dict[str, Callable[[Path], Awaitable[KVBase]]] = {
    "memory": memory,
    "memory-under-root": memory_under_root,
    "memory-part": memory_part,
    "sqlite": sqlite,
    "sqlite-under-root": sqlite_under_root,
}


ROOTS = pytest.mark.soak("a root of sqlite and a part in memory show the same")


class TestKV(KVConformance):
    @pytest.fixture(params=[pytest.param(name, marks=ROOTS if name == "memory-under-root" else ()) for name in FACTORIES])
    async def kv(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KVBase]:
        kv = await FACTORIES[request.param](tmp_path)
        yield kv
        await kv.close()
