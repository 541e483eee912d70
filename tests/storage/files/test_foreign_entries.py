"""Entries of a file system or a tool in a directory (`lost+found`, names that begin with a dot) are not part of a log, and stay there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.probes import payloads
from wal import open_wal
from wal.errors import FormatError
from wal.operate.backup import backup, restore, verify
from wal.operate.cli.main import main
from wal.operate.copying import copy
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.locks import check_journal
from wal.streams.rocksmq import RocksMQ


def litter(directory: Path) -> Path:
    """Creates in a directory what other programs create there, and returns the directory."""
    for folder in (directory / "lost+found", directory / ".snapshot"):
        folder.mkdir(parents=True)
        (folder / "note").write_bytes(b"not a log's")
    (directory / ".DS_Store").touch()
    return directory


def test_foreign_entries_are_no_part_of_a_log(tmp_path: Path) -> None:
    def foreign_names(directory: Path) -> set[str]:
        return {path.name for path in directory.iterdir() if path.name.startswith(".") or path.name == "lost+found"}

    data, copies, restored, copied = (litter(tmp_path / name) for name in ("data", "copies", "restored", "copied"))

    async def use() -> None:
        async with open_wal(data, pchannels=1) as log:
            await log.append("orders", b"1")
            litter(data / "pchannels")
            litter(data / "pchannels" / "p0")
            litter(data / "cursors")
        async with open_wal(data) as log:
            await log.append("orders", b"2")
            assert [info.name for info in await log.cursors()] == []
        await backup(str(data), str(copies))
        for folder in [folder for folder in copies.iterdir() if folder.is_dir() and folder.name not in foreign_names(copies)]:
            litter(folder)
        await backup(str(data), str(copies))
        assert await verify(str(copies)) == []
        await restore(str(copies), str(restored))
        await copy(str(data), str(copied))
        for place in (data, restored, copied):
            async with open_wal(place, read_only=True) as log:
                assert await payloads(log, "orders") == [b"1", b"2"]

    asyncio.run(use())
    for command in ("verify", "info", "ls", "health", "cursors"):
        assert main([command, str(data)]) == 0, command
    for place in (data, copies, restored, copied, data / "pchannels", data / "pchannels" / "p0"):
        assert foreign_names(place) == {"lost+found", ".snapshot", ".DS_Store"}, place


async def test_unknown_entries_prevent_a_new_log(tmp_path: Path) -> None:
    (litter(tmp_path / "data") / "notes.txt").touch()
    with pytest.raises(FormatError, match=r"has no FORMAT but holds notes\.txt;"):
        await open_wal(tmp_path / "data")


def test_spark_sink_ignores_foreign_entries(tmp_path: Path) -> None:
    check_journal(SinkFolder(litter(tmp_path / "data")))


async def test_rocksmq_ignores_foreign_entries(tmp_path: Path) -> None:
    await (await RocksMQ.open(litter(tmp_path / "data"))).close()
