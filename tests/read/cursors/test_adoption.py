"""Records that the writer makes of pins: pins of processes beside it, pins from a time without a writer, and pins of earlier versions."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.faults import copy_of_open
from tests.probes import local
from tests.processes import eventually
from tests.read.cursors.samples import saved_in
from tests.read.cursors.test_moving import filled, left, output, stage
from tests.read.cursors.test_pinned import written_by
from tests.read.readers import numbered, rest, take
from wal import Log, open_wal
from wal.errors import CorruptionError
from wal.read.cursors.cursor import CursorKey
from wal.read.cursors.pins import stem_of
from wal.write.cursor_table import CursorTable

KEY = CursorKey.of("billing", ["orders"])


def pins(data: str) -> list[str]:
    return os.listdir(Path(data, "cursors")) if Path(data, "cursors").exists() else []


async def take_beside(data: str, count: int) -> list[int]:
    async with open_wal(data, read_only=True) as beside:
        return await take(beside, count, cursor="billing")


async def test_pin_becomes_a_record(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        await take_beside(data, 3)
        assert len(local(log).node.pchannels["p0"].cursors.table) == 0
        assert await rest(log, cursor="billing") == list(range(3, 10))
        assert len(local(log).node.pchannels["p0"].cursors.table) == 1
        for name in pins(data):
            Path(data, "cursors", name).unlink()
        assert await take_beside(data, 2) == [3, 4], "another process reads the record in the log"
    async with open_wal(data) as log:
        assert await rest(log, cursor="billing") == list(range(5, 10))


async def test_unseen_pin_outlives_the_writer(data: str, tmp_path: Path) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        await take(log, 1, cursor="billing")
        await take_beside(data, 2)
        copy_of_open(Path(data), tmp_path / "killed")
    killed = str(tmp_path / "killed")
    assert await take_beside(killed, 2) == [3, 4], "also while no writer is there"
    async with open_wal(killed) as log:
        assert await rest(log, cursor="billing") == list(range(5, 10))


async def test_save_of_the_writer_ends_the_pin(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        async with open_wal(data, read_only=True) as beside, beside.read("orders", cursor="billing") as other:
            await anext(other)
            await other.save()
            async with log.read("orders", cursor="billing") as scanner:
                for _ in range(4):
                    await anext(scanner)
                await scanner.save()
            await eventually(lambda: not pins(data))
            assert await rest(beside, cursor="billing") == list(range(5, 10))
            await other.save()  # the last save counts, wherever it is made
        assert await rest(log, cursor="billing") == list(range(1, 10))


async def test_deletion_beside_the_writer_is_carried_out(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        await take(log, 3, cursor="billing")
        async with open_wal(data, read_only=True) as beside:
            await beside.delete_cursor("billing")
            assert await beside.cursors() == []
        assert await log.cursors() == []
        assert pins(data) == []
        await take(log, 4, cursor="billing")
    async with open_wal(data, read_only=True) as beside:
        await beside.delete_cursor("billing")
    async with open_wal(data) as log:
        assert await log.cursors() == []
        assert await rest(log, cursor="billing") == list(range(10))


async def test_files_of_earlier_versions_are_adopted(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        await take(log, 3, cursor="billing")
    saved = await asyncio.to_thread(saved_in, Path(data), KEY)
    assert saved is not None
    other, copy = (msgspec.structs.replace(saved, key=CursorKey.of(name, ["orders"])) for name in ("other", "copy"))
    Path(data, "cursors").mkdir()
    for cursor, content in (
        (saved, written_by(1, msgspec.structs.replace(saved, start=(0, 0), event=None, saved_at=saved.saved_at - 5))),
        (other, written_by(1, other)),
        (copy, written_by(2, copy, moved_at=1.0, home="p0", revision=7)),
    ):
        Path(data, "cursors", f"{stem_of(cursor.key)}.cursor").write_bytes(content)
    for read_only in (True, False, False):
        async with open_wal(data, read_only=read_only) as log:
            assert [info.name for info in await log.cursors()] == ["billing", "other"]
            assert await rest(log, cursor="billing") == list(range(3, 10)), "the record is later than the file"
            assert await rest(log, cursor="other") == list(range(3, 10))
    assert pins(data) == [f"{stem_of(other.key)}.cursor"]


async def test_damaged_file_of_an_earlier_version_is_loud(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
    Path(data, "cursors").mkdir()
    Path(data, "cursors", f"{stem_of(KEY)}.cursor").write_bytes(b"WALCURSR")
    async with open_wal(data) as log:
        with pytest.raises(CorruptionError, match="billing"):
            await rest(log, cursor="billing")
        await log.delete_cursor("billing")
        assert await rest(log, cursor="billing") == list(range(10))


async def test_transaction_elsewhere_moves_plain_cursor(log4: Log) -> None:
    for name, pchannel in (("in", "p0"), ("out", "p1")):
        await log4.create_vchannel(name, pchannel=pchannel)
    await filled(log4)
    async with log4.read("in", cursor="stage") as scanner:
        await anext(scanner)
        await scanner.save()
        saving = [asyncio.ensure_future(scanner.save()) for _ in range(3)]
        await stage(log4, 2)
        await asyncio.gather(*saving)
    assert len(await log4.cursors()) == 1
    assert await output(log4) == [b"1", b"2"]


async def test_cursor_with_two_homes_has_the_later_one(tmp_path: Path) -> None:
    """The process dies after it has written a cursor to its next home, and before it has deleted it at the one before."""
    key = CursorKey.of("stage", ["in"])
    async with open_wal(tmp_path / "log", pchannels=2) as log:
        for name, pchannel in (("in", "p0"), ("out", "p1")):
            await log.create_vchannel(name, pchannel=pchannel)
        await filled(log)
        async with log.read("in", cursor="stage", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        cursors, pchannels = local(log).node.cursors, local(log).node.pchannels
        record = pchannels["p0"].cursors.table.get(key)
        assert record is not None
        await cursors.changed(pchannels["p1"], key, make=partial(CursorTable.take_over, record=record))
        copy_of_open(tmp_path / "log", tmp_path / "killed")
    async with open_wal(tmp_path / "killed") as log:
        assert len(await log.cursors()) == 1
        tables = [pchannel.cursors.table for pchannel in local(log).node.pchannels.values()]
        assert [len(table) for table in tables] == [0, 1]
        assert await left(log) == [b"1", b"2", b"3", b"4", b"5"]
        await stage(log, 5)
        assert await output(log) == [b"1", b"2", b"3", b"4", b"5"]
