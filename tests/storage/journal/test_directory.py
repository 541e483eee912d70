"""The journal's directory: the directories that are accepted or refused, the cost of opening, and the valid names."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append
from tests.storage.journal.faults import GatedDisk
from tests.storage.journal.journals import PCHANNEL, folder, journal, open_files
from wal.errors import ClosedError, CorruptionError, FormatError, InvalidArgumentError, LockedError, StorageError
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.directory import is_being_written


async def test_empty_or_missing_directory_becomes_a_journal(tmp_path: Path) -> None:
    for place in (tmp_path / "a" / "b" / "c", tmp_path / "empty"):
        if place.name == "empty":
            place.mkdir()
        backend = JournalBackend(place)
        await backend.start()
        await backend.start()
        assert (place / "FORMAT").read_text() == "wal-journal 3\n"
        await backend.close()
        backend = JournalBackend(place)
        await backend.start()
        await backend.close()


@pytest.mark.parametrize("name", ["notes.txt", "meta.sqlite3", "cursors", "pchannels"])
async def test_directory_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("not ours")
    with pytest.raises(FormatError, match=name):
        await JournalBackend(tmp_path).start()
    assert os.listdir(tmp_path) == [name], "nothing was touched"


@pytest.mark.parametrize("text", ["wal-journal 4\n", "wal-journal\n", "rocksdb 1\n", "", "\xff\xfe"])
async def test_another_format_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "FORMAT").write_text(text, encoding="latin-1")
    with pytest.raises(FormatError, match="FORMAT"):
        await JournalBackend(tmp_path).start()


async def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    async with journal(tmp_path):
        pass
    (tmp_path / "meta.sqlite3").write_bytes(b"theirs")
    (tmp_path / "cursors").mkdir()
    async with journal(tmp_path, 2):
        assert (tmp_path / "meta.sqlite3").read_bytes() == b"theirs"


async def test_failed_start_releases_the_lock_and_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with journal(tmp_path):
        pass

    def broken(*_: object) -> None:
        raise StorageError("the format cannot be stored")

    backend = JournalBackend(tmp_path)
    monkeypatch.setattr("wal.storage.journal.backend.raise_format", broken)
    with pytest.raises(StorageError, match="cannot be stored"):
        await backend.start()
    assert open_files(tmp_path) == []
    assert is_being_written(tmp_path) is False
    monkeypatch.undo()
    async with journal(tmp_path, 2):
        pass
    await backend.start()
    assert is_being_written(tmp_path) is True
    await backend.close()
    assert is_being_written(tmp_path) is False


async def test_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FormatError):
        await JournalBackend(tmp_path / "file").start()
    with pytest.raises((FormatError, StorageError)):
        await JournalBackend(tmp_path / "file" / "below").start()


async def test_two_starts_at_once(tmp_path: Path) -> None:
    backend = JournalBackend(tmp_path)
    await asyncio.gather(*[backend.start() for _ in range(5)])
    other = JournalBackend(tmp_path)
    for error in await asyncio.gather(*[other.start() for _ in range(3)], return_exceptions=True):
        assert isinstance(error, LockedError)
    await backend.close()
    await other.start()
    await other.close()
    with pytest.raises(ClosedError):
        await other.start()
    with pytest.raises(ClosedError):
        await other.open("p", incarnation=1, term=1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "nul\0", "x" * 256, "ü" * 128])
async def test_names_that_cannot_name_a_folder_are_refused(tmp_path: Path, name: str) -> None:
    backend = JournalBackend(tmp_path)
    with pytest.raises(InvalidArgumentError):
        await backend.create(name, incarnation=1)
    with pytest.raises(InvalidArgumentError):
        await backend.open(name, incarnation=1, term=1)
    await backend.close()


@pytest.mark.parametrize("sizes", [{"segment_bytes": 4096}, {"segment_bytes": 10_000}, {"first_segment_bytes": 0}])
def test_impossible_segment_sizes_are_refused(tmp_path: Path, sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(sizes))):
        JournalBackend(tmp_path, **sizes)  # type: ignore[arg-type]


async def test_opening_waits_for_the_small_first_segment(tmp_path: Path) -> None:
    """benchmarks/opening.py measures how long an opening takes; this test checks which files are written before it returns."""
    disk = GatedDisk("-1.zeros")
    disk.gate.clear()  # the second segment, which is prepared in the background, makes no progress
    backend = JournalBackend(tmp_path, disk=disk)
    await backend.create(PCHANNEL, incarnation=INCARNATION)
    log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
    try:
        assert [path.stat().st_size for path in folder(tmp_path).glob("*.wal")] == [4 << 20]
        await append(log, FrameMaker(1).data(("v", b"1")))
    finally:
        disk.gate.set()
        await log.close()
        await backend.close()


async def test_segments_double_up_to_the_limit(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, first=8 << 10, segment=64 << 10) as log:
        for _ in range(40):
            await append(log, maker.data(("v", b"x" * 7_000)))
        sizes = [path.stat().st_size for path in sorted(folder(tmp_path).glob("*.wal"))]
    assert sizes[:4] == [8 << 10, 16 << 10, 32 << 10, 64 << 10]
    assert set(sizes[4:]) <= {64 << 10}


async def test_half_made_log_is_recreated(tmp_path: Path) -> None:
    """After a crash at any point of `create`, the next `create` recognises the files that are left."""
    async with journal(tmp_path):
        pass
    for missing in ("control", f"{0:016x}.wal"):
        (folder(tmp_path) / missing).unlink()
        backend = JournalBackend(tmp_path)
        if missing != "control":
            with pytest.raises(CorruptionError):
                await backend.open(PCHANNEL, incarnation=INCARNATION, term=9)
        await backend.create(PCHANNEL, incarnation=INCARNATION)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=8 + 2 * (missing != "control"))
        await log.close()
        await backend.close()


async def test_cancelled_opening_releases_the_log(tmp_path: Path) -> None:
    async with journal(tmp_path):
        pass
    backend = JournalBackend(tmp_path)
    await backend.start()
    for term in range(2, 12):
        opening = asyncio.ensure_future(backend.open(PCHANNEL, incarnation=INCARNATION, term=2 * term))
        for _ in range(term % 4):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=2 * term + 1)
        await append(log, FrameMaker(2 * term + 1).data(("v", b"1")))
        await log.close()
    await backend.close()
    async with journal(tmp_path, 100) as log:
        assert log.state.clean
