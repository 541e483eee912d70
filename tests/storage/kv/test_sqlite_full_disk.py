"""A disk without a free byte: existing records can still be changed, and a save without room is refused as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import fill, free_bytes, mounted
from wal.errors import NoSpaceError
from wal.storage.files import RESERVE_BYTES
from wal.storage.kv import SqliteKV

CHANGES = 400
"""More changes than fit into the reserve if each of them used some of it up."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=4) as place:
        yield place


def reserve(path: Path) -> Path:
    return path.with_name(f"{path.name}-reserve")


async def test_records_change_for_ever_on_a_full_disk(disk: Path) -> None:
    path = disk / "kv.sqlite3"
    async with await SqliteKV.open(path) as kv:
        await kv.save("term", "0")
        await kv.multi_save({f"key/{number:04}": "value" * 20 for number in range(100)})
        for number in range(CHANGES):
            await asyncio.to_thread(fill, disk)
            assert await kv.compare_and_swap("term", str(number), str(number + 1))
            assert reserve(path).stat().st_blocks * 512 == RESERVE_BYTES, "it is whole for the next one"
    async with await SqliteKV.open(path) as kv:
        assert await kv.load("term") == str(CHANGES)


async def test_openings_on_a_full_disk_need_no_room(disk: Path) -> None:
    path = disk / "kv.sqlite3"
    async with await SqliteKV.open(path) as kv:
        await kv.save("term", "0")
    for number in range(40):
        await asyncio.to_thread(fill, disk)
        assert free_bytes(disk) == 0
        async with await SqliteKV.open(path) as kv:
            assert await kv.compare_and_swap("term", str(number), str(number + 1))


async def test_save_on_a_full_disk_is_refused_whole(disk: Path) -> None:
    """New records make the file grow until the reserve is too small to fold it: then they are refused."""
    path = disk / "kv.sqlite3"
    async with await SqliteKV.open(path) as kv:
        await kv.save("term", "0")
        await asyncio.to_thread(fill, disk)
        saved: list[str] = []
        with pytest.raises(NoSpaceError):
            for number in range(10_000):
                await kv.multi_save({f"new/{number:05}/{part}": "v" * 900 for part in range(4)})
                saved += [f"new/{number:05}/{part}" for part in range(4)]
        for number in range(CHANGES):
            await asyncio.to_thread(fill, disk)
            assert await kv.compare_and_swap("term", str(number), str(number + 1))
    async with await SqliteKV.open(path) as kv:
        assert (await kv.load_with_prefix("new/"))[0] == saved


async def test_large_record_is_refused_whole(disk: Path) -> None:
    path = disk / "kv.sqlite3"
    async with await SqliteKV.open(path) as kv:
        await kv.save("term", "0")
        await asyncio.to_thread(fill, disk)
        with pytest.raises(NoSpaceError):
            await kv.save("large", "v" * (RESERVE_BYTES + 1))
        assert await kv.compare_and_swap("term", "0", "1")
        assert await kv.load_with_prefix("") == (["term"], ["1"])


async def test_missing_reserve_is_created_when_there_is_room(disk: Path) -> None:
    path = disk / "kv.sqlite3"
    async with await SqliteKV.open(path) as kv:
        await kv.save("term", "0")
    reserve(path).unlink()
    filler = await asyncio.to_thread(fill, disk)
    async with await SqliteKV.open(path) as kv:
        with pytest.raises(NoSpaceError):
            await kv.save("term", "1")
        filler.unlink()
        await kv.save("term", "2")
        assert reserve(path).stat().st_size == RESERVE_BYTES
