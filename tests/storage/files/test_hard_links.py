"""A copy of a log by hard links (`cp -al`) is never changed through the other log: a file that is written in place must have one name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.probes import payloads
from tests.storage.frames import FrameMaker, append
from tests.storage.journal.journals import folder, journal
from tests.storage.journal.test_recycling import SEGMENT, fill_segments
from wal import open_wal
from wal.errors import StorageError
from wal.storage.files import SpaceReserve


def link_all(directory: Path, copy: Path) -> Path:
    """Copies a directory as `cp -al` does."""
    return Path(shutil.copytree(directory, copy, copy_function=os.link))


def contents(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


async def test_hard_linked_log_is_not_opened_for_writing(data_dir: Path, tmp_path: Path) -> None:
    async with open_wal(data_dir, pchannels=1) as log:
        await log.append("orders", b"1")
    copy = link_all(data_dir, tmp_path / "copy")
    before = contents(data_dir)
    for place in (data_dir, copy):
        with pytest.raises(StorageError, match=r"LOCK has 2 names .*`cp -al`.* remove the other names, or copy the log by `wal copy`"):
            await open_wal(place)
        async with open_wal(place, read_only=True) as reader:
            assert await payloads(reader, "orders") == [b"1"]
    assert contents(data_dir) == before
    shutil.rmtree(copy)
    async with open_wal(data_dir) as log:
        await log.append("orders", b"2")
        assert await payloads(log, "orders") == [b"1", b"2"]


async def test_file_written_in_place_has_one_name(data_dir: Path, tmp_path: Path) -> None:
    async with open_wal(data_dir, pchannels=1) as log:
        await log.append("orders", b"1")
    pchannel = data_dir / "pchannels" / "p0"
    (segment,) = pchannel.glob("*.wal")
    for path in (data_dir / "LOCK", pchannel / "control", segment, data_dir / "meta.sqlite3"):
        other = tmp_path / "other"
        os.link(path, other)
        before = other.read_bytes()
        with pytest.raises(StorageError, match=rf"{path} has 2 names"):
            await open_wal(data_dir)
        assert other.read_bytes() == before, path
        other.unlink()
    async with open_wal(data_dir) as log:
        assert await payloads(log, "orders") == [b"1"]


async def test_other_files_are_replaced_and_their_copies_stay(data_dir: Path, tmp_path: Path) -> None:
    """A log that was copied by `cp -al`, and whose files that are written in place were then copied in full, continues."""
    async with journal(data_dir, segment=SEGMENT) as log:
        positions = await fill_segments(log, maker := FrameMaker(1), 4)
        await log.truncate(positions[len(positions) // 2], 0)  # leaves spare segments
    copy = link_all(folder(data_dir), tmp_path / "copy")
    before = contents(copy)
    assert {Path(name).suffix for name in before} >= {".wal", ".spare", ".idx"}
    last = max(folder(data_dir).glob("*.wal"))
    for path in (folder(data_dir) / "control", last):
        path.with_suffix(".full").write_bytes(path.read_bytes())
        path.with_suffix(".full").replace(path)
    async with journal(data_dir, 2, segment=SEGMENT) as log:
        maker.term = 2
        await append(log, maker.data(("v", b"1")))
        positions = await fill_segments(log, maker, 3)
        await log.truncate(positions[-1], 0)
        await fill_segments(log, maker, 4)
        assert log.statistics().recycled
    assert contents(copy) == before


async def test_running_log_leaves_copies_as_they_are(data_dir: Path, tmp_path: Path) -> None:
    """The sealed segments, the spare files and the checkpoint's reserve are linked while the log is written, as a backup does it."""

    def reserves(data_dir: Path) -> list[Path]:
        return list(folder(data_dir).glob("*reserve*"))

    async with journal(data_dir, segment=SEGMENT) as log:
        maker = FrameMaker(1)
        positions = await fill_segments(log, maker, 3)
        log.keep_room(8192)
        while not list(folder(data_dir).glob("*.spare")) or not [path for path in reserves(data_dir) if path.stat().st_size]:
            await append(log, maker.data(("v", b"1")))
        copy = tmp_path / "copy"
        copy.mkdir()
        active = max(folder(data_dir).glob("*.wal"))
        for path in folder(data_dir).iterdir():
            if path != active and (path.suffix in (".wal", ".spare") or "reserve" in path.name):
                os.link(path, copy / path.name)
        before = contents(copy)
        await log.truncate(positions[-1], 0)
        assert log.statistics().recycled == 0
        await fill_segments(log, maker, 4)
        await log.save_state(positions[-1], [bytes(100)])
        log.keep_room(1)
    assert contents(copy) == before
    assert [path.stat().st_nlink for path in reserves(data_dir)] == [1]


def test_metadata_reserve_of_a_copy_stays(tmp_path: Path) -> None:
    (tmp_path / "kv").touch()
    SpaceReserve(str(tmp_path / "kv")).fill()
    copy = tmp_path / "copy"
    os.link(tmp_path / "kv-reserve", copy)
    reserve = SpaceReserve(str(tmp_path / "kv"))
    reserve.fill()
    assert reserve.release() == copy.stat().st_size > 0
