"""Names of cursors: any text is a valid name without side effects, however many cursors there are."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.locations import open_wal
from tests.read.readers import numbered, rest, take
from wal import WALAccesser
from wal.errors import InvalidArgumentError

ODD_NAMES = [
    "billing/eu",
    "/etc/passwd",
    "..",
    ".",
    "../../escape",
    "übung-☃-日本",
    "e\u0301",
    "x" * 255,
    "a b",
    "%2e%2e",
    "UPPER",
    "upper",
    "con.tmp",
    "~",
    "*",
]


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
async def test_odd_names_are_names(data: str, tmp_path: Path, name: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 3)
        await take(log, 1, cursor=name)
        assert [info.name for info in await log.cursors()] == [name]
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"], "nothing lies outside the log's directory"
    async with open_wal(data) as log:
        assert await rest(log, cursor=name) == [1, 2]
        await log.delete_cursor(name)
        assert await log.cursors() == []


async def test_odd_names_are_kept_apart(log: WALAccesser) -> None:
    await numbered(log, len(ODD_NAMES) + 1)
    for count, name in enumerate(ODD_NAMES, 1):
        assert len(await take(log, count, cursor=name)) == count
    for count, name in enumerate(ODD_NAMES, 1):
        assert (await rest(log, cursor=name))[0] == count
    assert sorted(info.name for info in await log.cursors()) == sorted(ODD_NAMES)


@pytest.mark.one_location("wal.api refuses the call before any log has it")
async def test_wrong_names(log: WALAccesser) -> None:
    for wrong in (b"billing", 7, ["billing"]):
        with pytest.raises(TypeError):
            log.read("orders", cursor=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await log.delete_cursor(wrong)  # type: ignore[arg-type]
    for name in ("", "x" * 100_000, "\ud800"):
        with pytest.raises(InvalidArgumentError):
            log.read("orders", cursor=name)
    with pytest.raises(TypeError):
        await log.delete_cursor("billing", vchannels=7)  # type: ignore[arg-type]


async def test_many_cursors(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)

        async def one(number: int) -> None:
            async with log.read("orders", cursor=f"cursor {number}") as scanner:
                for _ in range(1 + number % 9):
                    await anext(scanner)
                await scanner.save()

        for first in range(0, 300, 100):
            await asyncio.gather(*(one(number) for number in range(first, first + 100)))
        assert len(await log.cursors()) == 300
    async with open_wal(data) as log:
        infos = await log.cursors()
        assert {info.name for info in infos} == {f"cursor {number}" for number in range(300)}
        for number in (0, 8, 200, 299):
            assert (await rest(log, cursor=f"cursor {number}"))[0] == 1 + number % 9
