"""A journal's directory is replaced while it works: the next steps of its threads stay in the old directory."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append
from tests.storage.journal.faults import HeldDisk
from tests.storage.journal.journals import PCHANNEL, folder, journal
from wal.errors import LockedError, StorageError
from wal.storage.files import HeldDirectory, HeldNames
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.disk import Disk
from wal.storage.journal.log import JournalLog

GONE = "removed or replaced under the open log"


def replace(place: Path) -> None:
    """Moves the journal away and puts an empty one's folders in its place."""
    place.rename(place.with_name("moved away"))
    folder(place).mkdir(parents=True)


@pytest.mark.parametrize("name", [".zeros", ".idx"])
async def test_file_in_creation_stays_in_the_old_directory(data_dir: Path, name: str) -> None:
    async def fill(log: JournalLog, maker: FrameMaker) -> None:
        while True:
            await append(log, maker.data(("v", bytes(5000))))

    disk = HeldDisk(name)
    backend = JournalBackend(data_dir, segment_bytes=64 << 10, first_segment_bytes=64 << 10, disk=disk)
    if name == ".zeros":
        disk.go.set()  # the first held file is that of the creation
        disk.held.set()
    await backend.create(PCHANNEL, incarnation=INCARNATION)
    disk.held.clear()
    disk.go.clear()
    log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
    maker = FrameMaker(1)
    appending = asyncio.ensure_future(fill(log, maker))
    await disk.until_held()
    await asyncio.to_thread(replace, data_dir)
    disk.go.set()
    with pytest.raises(StorageError, match=GONE):
        await appending
    with pytest.raises(StorageError, match=GONE):
        await log.close()
    await backend.close()
    assert list(folder(data_dir).iterdir()) == []


async def test_truncation_after_the_removal_removes_nothing(data_dir: Path) -> None:
    with pytest.raises(StorageError, match=GONE):
        async with journal(data_dir, segment=16 << 10) as log:
            maker = FrameMaker(1)
            positions = [await append(log, maker.data(("v", bytes(5000)))) for _ in range(20)]
            await asyncio.to_thread(replace, data_dir)
            for path in folder(data_dir.with_name("moved away")).glob("*.wal"):
                (folder(data_dir) / path.name).write_bytes(b"of somebody else")
            before = sorted(os.listdir(folder(data_dir)))
            for call in (
                log.truncate(positions[-1], 0),
                log.release(positions[-1], state=None),
                log.save_state(positions[-1], [b"state"]),
                log.read(positions[0], names=None, bytes_max=1 << 20),
            ):
                with pytest.raises(StorageError, match=GONE):
                    await call
            await append(log, maker.data(("v", b"refused")))
    assert sorted(os.listdir(folder(data_dir))) == before
    assert all(path.read_bytes() == b"of somebody else" for path in folder(data_dir).iterdir())


async def test_first_writer_gets_an_error_after_the_second(data_dir: Path) -> None:
    async with journal(data_dir):
        with pytest.raises(LockedError):
            await JournalBackend(data_dir).start()
    with pytest.raises(StorageError, match=GONE):
        async with journal(data_dir, term=2) as log:
            (data_dir / "LOCK").unlink()
            async with journal(data_dir, term=3) as later:
                await append(later, FrameMaker(3).term_start())
            await append(log, FrameMaker(2).term_start())


def test_names_are_looked_up_in_the_open_directory(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    disk, held = Disk(), HeldDirectory(tmp_path / "here")
    disk.hold(held)
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "here").mkdir()
    disk.replace(tmp_path / "here" / "file", b"content", temporary=tmp_path / "here" / "file.tmp")
    assert (tmp_path / "there" / "file").read_bytes() == b"content"
    disk.rename(tmp_path / "here" / "file", tmp_path / "here" / "other")
    disk.sync_directory(tmp_path / "here")
    with pytest.raises(FileNotFoundError) as caught:
        disk.open(tmp_path / "here" / "file")
    assert caught.value.filename == str(tmp_path / "here" / "file"), "errors name whole paths"
    disk.unlink(tmp_path / "here" / "other")
    disk.unlink(tmp_path / "here" / "other")
    assert os.listdir(tmp_path / "there") == os.listdir(tmp_path / "here") == []
    disk.let_go(held)
    held.close()
    held.close()
    disk.open(tmp_path / "here" / "file", create=True).close()
    assert os.listdir(tmp_path / "here") == ["file"]


def test_first_difference_is_final(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    held = HeldDirectory(tmp_path / "here")
    held.check()
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(StorageError, match=f"the directory {tmp_path}/here was {GONE}"):
        held.check()
    (tmp_path / "there").rename(tmp_path / "here")
    with pytest.raises(StorageError, match=GONE):
        held.check()
    held.close()


def test_names_depend_on_the_names_around_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    whole = HeldDirectory(tmp_path)
    whole.watch(tmp_path / "file", os.stat(tmp_path / "file"))
    part = HeldNames(within=whole)
    part.check()
    (tmp_path / "file").unlink()
    with pytest.raises(StorageError, match=f"the file {tmp_path}/file was {GONE}"):
        part.check()
    whole.close()


def test_released_name_may_go(tmp_path: Path) -> None:
    held = HeldNames()
    (tmp_path / "file").write_bytes(b"")
    held.watch(tmp_path / "file", os.stat(tmp_path / "file"))
    held.unwatch(tmp_path / "file")
    held.unwatch(tmp_path / "file")
    (tmp_path / "file").unlink()
    held.check()


def test_name_whose_owner_has_changed_is_no_loss(tmp_path: Path) -> None:
    """The error of `released` comes before the loss, which is then not recorded."""
    owned = True

    def released() -> None:
        if not owned:
            raise LockedError("it is another's")

    held = HeldNames(released=released)
    (tmp_path / "file").write_bytes(b"")
    held.watch(tmp_path / "file", os.stat(tmp_path / "file"))
    (tmp_path / "file").unlink()
    owned = False
    with pytest.raises(LockedError):
        held.check()
    owned = True
    with pytest.raises(StorageError, match=GONE):
        held.check()


def test_unreadable_name_is_a_loss_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    held = HeldDirectory(tmp_path / "here")
    (tmp_path / "here").rmdir()
    (tmp_path / "here").symlink_to(tmp_path / "here")
    with pytest.raises(StorageError, match=f"the directory {tmp_path}/here cannot be looked at .*: Too many levels of symbolic links"):
        held.check()
    held.close()
