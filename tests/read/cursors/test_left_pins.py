"""Pins and records that a killed process has left: what is saved stays, and what was deleted does not come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from tests.faults import copy_of_open
from tests.probes import local
from tests.read.cursors.test_moving import filled, stage
from tests.read.readers import numbered, rest, take
from wal import open_wal
from wal.errors import NoSpaceError, NotLocalError
from wal.node.cursors import NodeCursors
from wal.operate.copying import copy
from wal.read.cursors.cursor import CursorKey
from wal.read.cursors.pins import PinFiles, PinFilesInThreads, decode_pin, encode_pin
from wal.write.cursor_table import CursorChange

KEY = CursorKey.of("billing", ["orders"])


async def saved_beside(data: str, count: int, *, deleted: bool = False) -> None:
    async with open_wal(data, read_only=True) as beside:
        if deleted:
            await beside.delete_cursor("billing")
        else:
            await take(beside, count, cursor="billing")


@pytest.mark.parametrize("removed", [5, 10, 16])
async def test_deletion_survives_a_kill_during_removal_of_pins(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    async def leave_all(data: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Saves a cursor beside the writer so often, and then deletes it, by processes that are killed before they remove earlier pins."""
        with monkeypatch.context() as patch:
            patch.setattr(PinFiles, "remove", lambda self, names: None)
            for _ in range(count):
                await saved_beside(data, 1)
            await saved_beside(data, 0, deleted=True)

    async with open_wal(data) as log:
        await numbered(log, 20)
    await leave_all(data, 16, monkeypatch)
    assert len(os.listdir(Path(data, "cursors"))) == 17
    killed = tmp_path / "killed"
    real, left = os.unlink, removed

    def unlink(path: object, **options: object) -> None:
        nonlocal left
        if str(path).endswith(".cursor"):
            if not left and not killed.exists():
                copy_of_open(Path(data), killed)
            left -= 1
        real(path, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        async with open_wal(data) as log:
            assert await log.cursors() == []
    async with open_wal(killed) as log:
        assert await log.cursors() == []


async def test_record_counts_whose_earlier_home_has_deleted_it(tmp_path: Path) -> None:
    """Another process sees a cursor at its new home, though the log of the home before has a deletion with as high a revision."""
    data = str(tmp_path / "log")
    async with open_wal(data, pchannels=2) as log:
        for name, pchannel in (("in", "p0"), ("out", "p1")):
            await log.create_vchannel(name, pchannel=pchannel)
        await filled(log)
        async with log.read("in", cursor="stage", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        node = local(log).node
        await node.cursors.named(CursorKey.of("stage", ["in"]), "p1")
        async with open_wal(data, read_only=True) as beside:
            assert [info.name for info in await beside.cursors()] == ["stage"]


async def test_record_of_a_recreated_cursor_counts(tmp_path: Path) -> None:
    data = str(tmp_path / "log")
    async with open_wal(data, pchannels=2) as log:
        for name, pchannel in (("in", "p0"), ("out", "p1")):
            await log.create_vchannel(name, pchannel=pchannel)
        await filled(log)
        await stage(log, 4)
        await log.delete_cursor("stage")
        async with log.read("in", cursor="stage", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        async with open_wal(data, read_only=True) as beside:
            assert [info.name for info in await beside.cursors()] == ["stage"]
        copy_of_open(Path(data), tmp_path / "killed")
    result = await copy(str(tmp_path / "killed"), str(tmp_path / "copy"))
    assert result is not None
    assert result.cursors == 1


async def test_process_beside_the_writer_reads_its_save(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's save is the newest one from the moment when it is done, also for the process whose pin it replaces."""
    real = PinFilesInThreads.remove

    async def slow(self: PinFilesInThreads, names: Iterable[str]) -> None:
        await asyncio.sleep(0.5)
        await real(self, names)

    async with open_wal(data) as log:
        await numbered(log, 10)
        async with open_wal(data, read_only=True) as beside, beside.read("orders", cursor="billing") as other:
            await anext(other)
            await other.save()
            async with log.read("orders", cursor="billing") as scanner:
                for _ in range(4):
                    await anext(scanner)
                monkeypatch.setattr(PinFilesInThreads, "remove", slow)
                await scanner.save()
            assert await rest(beside, cursor="billing") == list(range(5, 10))


@pytest.mark.parametrize("how", ["consumer", "transaction"])
async def test_pinning_process_spares_a_moving_cursor(data: str, how: str) -> None:
    """From the moment when consumers or transactions move a cursor, only the writer saves it."""
    async with open_wal(data) as log:
        await numbered(log, 10)
        async with open_wal(data, read_only=True) as beside, beside.read("orders", cursor="billing") as other:
            await anext(other)
            await other.save()
            if how == "consumer":
                await (await local(log).node.cursor_home(KEY)).claim()
            else:
                async with log.read("orders", cursor="billing") as scanner:
                    await anext(scanner)
                    async with log.txn("out") as txn:
                        await txn.append(b"output")
                        txn.save(scanner)
            with pytest.raises(NotLocalError):
                await other.save()


async def test_pin_stays_until_a_later_save_is_durable(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        await take(log, 1, cursor="billing")
        await saved_beside(data, 2)
        cursors, table = local(log).node.cursors, local(log).node.pchannels["p0"].cursors.table
        record = table.get(KEY)
        assert record is not None
        assert record.cursor is not None
        later = msgspec.structs.replace(record.cursor, start=(record.cursor.start[0], 9), saved_at=cursors.wall() + 1)
        under_way = table.save(CursorChange(KEY, later))  # its frame is not written yet
        assert under_way is not None
        await cursors.look()
        assert len(os.listdir(Path(data, "cursors"))) == 1
        table.failed(under_way)
        assert await rest(log, cursor="billing") == list(range(3, 10))


async def test_deletion_beside_the_writer_survives_a_full_disk(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        await take(log, 3, cursor="billing")
        await saved_beside(data, 0, deleted=True)

        async def refused(*_args: object, **_options: object) -> None:
            raise NoSpaceError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(NodeCursors, "changed", refused)
            assert await log.cursors() == []
            assert await rest(log, cursor="billing") == list(range(10))
        assert await log.cursors() == []
        assert os.listdir(Path(data, "cursors")) == []


async def test_running_save_of_a_moved_pchannel_is_forgotten(data: str) -> None:
    async with open_wal(data) as log:
        await numbered(log, 10)
        await take(log, 1, cursor="billing")
        cursors, pchannel = local(log).node.cursors, local(log).node.pchannels["p0"]
        record = pchannel.cursors.table.get(KEY)
        assert record is not None
        assert record.cursor is not None
        saving = cursors.send(CursorChange(KEY, record.cursor), pchannel)
        cursors.detach(pchannel)
        await saving
        assert cursors.detach(pchannel) == []


async def test_record_of_a_pin_is_the_newest(data: str) -> None:
    """A process has seen the deletion of a cursor at another home, with a high revision: later saves of the writer count all the same."""
    async with open_wal(data) as log:
        await numbered(log, 10)
        await saved_beside(data, 1)
        (name,) = os.listdir(Path(data, "cursors"))
        path = Path(data, "cursors", name)
        path.write_bytes(encode_pin(msgspec.structs.replace(decode_pin(path.read_bytes()), revision=50)))
        kept = path.read_bytes()
        await take(log, 4, cursor="billing")
    path.write_bytes(kept)  # as if the writer had died before it has removed it
    async with open_wal(data) as log:
        assert await rest(log, cursor="billing") == list(range(5, 10))
