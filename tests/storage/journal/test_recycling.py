"""Truncated segments are reused by the writer, or removed while a reader has them open; a reader never takes one for another segment."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import threading
from pathlib import Path

import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append, append_all, content, content_of, read_all
from tests.storage.journal.faults import GatedDisk, HeldDisk, RemovalDisk, WatchedDisk
from tests.storage.journal.journals import PCHANNEL, folder, journal, segments
from wal.errors import ChannelFencedError, TruncatedError
from wal.storage.journal import index_keeper
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.directory import is_being_written
from wal.storage.journal.log import JournalLog

SEGMENT = 32 << 10


async def fill_segments(log: JournalLog, maker: FrameMaker, count: int) -> list[int]:
    """Appends until this many more segments are held."""
    positions: list[int] = []
    goal = log.statistics().segments_held + count
    while log.statistics().segments_held < goal:
        positions.append(await append(log, maker.data(("v", os.urandom(6_000)))))
    return positions


async def test_truncated_segment_is_written_again(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        positions = await fill_segments(log, maker, 2)
        inode = segments(tmp_path)[0].stat().st_ino
        await log.truncate(positions[-1], 0)
        assert log.statistics().recycled >= 1
        positions += await fill_segments(log, maker, 4)
        assert inode in {path.stat().st_ino for path in segments(tmp_path)}
        assert [frame.position for frame in await read_all(log, log.earliest[0])] == [
            position for position in positions if position >= log.earliest[0]
        ]
    # The check needs a closed log: the thread that stores an index may be removing the index of a segment that is already gone.
    assert not indices_without_segment(tmp_path)


def indices_without_segment(place: Path) -> list[Path]:
    """Returns indices without a segment. A closed log has none; the next opening would remove them, so the test looks before it."""
    return [path for path in folder(place).glob("*.idx*") if not path.with_name(f"{path.stem}.wal").exists()]


async def test_index_is_not_stored_after_its_segment_went(tmp_path: Path) -> None:
    """The segment is sealed and truncated while the thread that stores its index is blocked."""
    disk = HeldDisk(".idx.")
    async with journal(tmp_path, segment=SEGMENT, disk=disk) as log:
        positions = await fill_segments(log, FrameMaker(1), 1)
        await disk.until_held()
        await log.truncate(positions[-1], 0)
        assert log.statistics().recycled == 1
        disk.go.set()
    assert not indices_without_segment(tmp_path)
    assert len(list(folder(tmp_path).glob("*.idx"))) == 1, "that of the segment that is left"


async def test_computed_index_of_a_removed_segment_is_dropped(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        positions = await fill_segments(log, maker, 1)
    for path in folder(tmp_path).glob("*.idx"):
        path.unlink()
    disk = HeldDisk(".idx.")
    async with journal(tmp_path, 2, segment=SEGMENT, disk=disk) as log:
        reading = asyncio.ensure_future(log.read(0, names=None, bytes_max=1 << 20))
        await disk.until_held()
        await log.truncate(positions[-1], 0)
        disk.go.set()
        with pytest.raises(TruncatedError):
            await reading
        assert not indices_without_segment(tmp_path)


async def test_fenced_writer_stores_no_index_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer stores neither the rest of its segment's index nor all of it: the next writer has truncated that segment meanwhile."""
    monkeypatch.setattr(index_keeper, "PART_FRAMES", 1)
    disk = HeldDisk(".idx")
    backend = JournalBackend(tmp_path, segment_bytes=SEGMENT, first_segment_bytes=SEGMENT, disk=disk)
    await backend.create("p", incarnation=INCARNATION)
    old = await backend.open("p", incarnation=INCARNATION, term=1)
    await append(old, FrameMaker(1).data(("v", b"1")))
    await disk.until_held()
    new = await backend.open("p", incarnation=INCARNATION, term=2)
    positions = await fill_segments(new, FrameMaker(2), 1)
    await new.truncate(positions[-1], 0)
    await new.close()
    assert not indices_without_segment(tmp_path)
    with pytest.raises(ChannelFencedError):
        await append(old, FrameMaker(1).data(("v", b"2")))
    disk.go.set()
    await old.close()
    assert not indices_without_segment(tmp_path)
    await backend.close()


async def test_segment_with_a_reader_is_not_recycled(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        positions = await fill_segments(log, maker, 1)
        held = segments(tmp_path)[0]
        fd = os.open(held, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            before = os.pread(fd, SEGMENT, 0)
            await log.truncate(positions[-1], 0)
            assert (log.statistics().recycled, log.statistics().removed) == (0, 1)
            assert not held.exists()
            await fill_segments(log, maker, 4)
            assert os.pread(fd, SEGMENT, 0) == before
        finally:
            os.close(fd)


async def test_readers_during_a_truncation_are_exact(tmp_path: Path) -> None:
    """Readers read at the start of the log while it moves: they get the frames written there, or TruncatedError."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    maker = FrameMaker(1)
    made: list[tuple[object, ...]] = []
    wrong: list[object] = []
    truncated = read = 0
    async with journal(tmp_path, segment=SEGMENT) as log:

        async def reader() -> None:
            nonlocal truncated, read
            while not writing.done():
                start = log.earliest[0]
                await asyncio.sleep(0)
                try:
                    page = await log.read(start, names=rng.choice((None, frozenset({"v"}))), bytes_max=50_000)
                except TruncatedError as error:
                    truncated += 1
                    if error.earliest is not None and error.earliest.position <= start:  # type: ignore[attr-defined]
                        wrong.append(error)
                    continue
                wrong.extend(frame for frame in page.frames if content(frame.view) != made[frame.view.header.sequence])
                read += len(page.frames)

        async def writer() -> None:
            positions: list[int] = []
            for _ in range(25):
                frames = [maker.data(("v", rng.randbytes(rng.randrange(9_000)))) for _ in range(6)]
                made.extend(map(content_of, frames))
                positions += await append_all(log, frames)
                await log.truncate(positions[-rng.randrange(1, 6)], 0)

        writing = asyncio.create_task(writer())
        await asyncio.gather(writing, *[reader() for _ in range(2)])
        statistics = log.statistics()
    print(f"{read} frames read, {truncated} times truncated, {statistics}")
    assert not wrong
    assert read
    assert statistics.recycled


async def test_fenced_handle_reads_what_is_left(tmp_path: Path) -> None:
    """A fenced handle's view of the log is old: positions that the new writer truncated raise TruncatedError."""
    backend = JournalBackend(tmp_path, segment_bytes=SEGMENT)
    await backend.create("p", incarnation=INCARNATION)
    old = await backend.open("p", incarnation=INCARNATION, term=1)
    positions = await fill_segments(old, FrameMaker(1), 3)
    new = await backend.open("p", incarnation=INCARNATION, term=2)
    await new.truncate(positions[-1], 0)
    with pytest.raises(TruncatedError) as caught:
        await old.read(positions[0], names=None, bytes_max=1 << 20)
    assert caught.value.earliest.position == positions[-1]  # type: ignore[attr-defined]
    assert [frame.position for frame in await read_all(old, positions[-1])] == positions[-1:]
    await old.close()
    await append(new, FrameMaker(2).data(("v", b"not disturbed")))
    await new.close()
    await backend.close()


async def test_spares_serve_the_next_opening(tmp_path: Path) -> None:
    async with journal(tmp_path, segment=SEGMENT) as log:
        await fill_segments(log, FrameMaker(1), 1)
        await log.truncate(log.durable_end, 0)
    spares = {path.stat().st_ino for path in folder(tmp_path).glob("*.spare")}
    assert spares
    async with journal(tmp_path, 2, segment=SEGMENT) as log:
        await fill_segments(log, FrameMaker(2), 1)
        assert segments(tmp_path)[-1].stat().st_ino in spares
        await append_all(log, [FrameMaker(2).time_tick()])


async def test_reader_holds_what_it_reads(tmp_path: Path) -> None:
    disk = WatchedDisk()
    async with journal(tmp_path, segment=SEGMENT, disk=disk) as log:
        await fill_segments(log, FrameMaker(1), 2)
        for names in (None, frozenset({"v"})):
            disk.watching = True
            await read_all(log, names=names)
            disk.watching = False
            assert disk.free
            assert not any(disk.free)
            disk.free.clear()


async def test_closing_waits_for_calls_in_flight(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with journal(tmp_path, segment=SEGMENT, disk=disk) as log:
        positions = await fill_segments(log, FrameMaker(1), 2)
        disk.gate.clear()
        saving = asyncio.ensure_future(log.save_state(positions[-1], [b"blob"]))
        reading = asyncio.ensure_future(log.read(0, names=None, bytes_max=1 << 30))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(log.close())
        done, _ = await asyncio.wait({closing}, timeout=0.1)
        disk.gate.set()
        assert not done, "a checkpoint was still being written"
        await closing
        await saving
        assert [frame.position for frame in (await reading).frames] == positions
    async with journal(tmp_path, 2, segment=SEGMENT) as log:
        assert log.state.clean
        assert await log.load_state(positions[-1]) == b"blob"


def test_abandoned_truncation_is_recovered(tmp_path: Path) -> None:
    disk = RemovalDisk()
    maker = FrameMaker(1)
    frames = [maker.data(("v", b"%d" % number + bytes(3_000))) for number in range(40)]

    async def begin_a_truncation() -> tuple[JournalBackend, list[int]]:
        backend = JournalBackend(tmp_path, segment_bytes=SEGMENT, first_segment_bytes=SEGMENT, disk=disk)
        await backend.create(PCHANNEL, incarnation=INCARNATION)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
        positions = await append_all(log, frames)
        truncating = asyncio.ensure_future(log.truncate(positions[20], 0))
        assert await asyncio.to_thread(disk.held.wait, 10)
        assert not truncating.done()
        return backend, positions

    backend, positions = asyncio.run(begin_a_truncation())
    abandoning = threading.Thread(target=backend.abandon)
    abandoning.start()
    assert is_being_written(tmp_path), "the truncation still runs"
    disk.go.set()
    abandoning.join(10)
    assert not abandoning.is_alive()
    assert not is_being_written(tmp_path)

    async def recover() -> None:
        async with journal(tmp_path, 2, segment=SEGMENT) as log:
            assert log.earliest == (positions[20], 0)
            assert [frame.position for frame in await read_all(log, positions[20])] == positions[20:]
            with pytest.raises(TruncatedError):
                await log.read(positions[19], names=None, bytes_max=1)

    asyncio.run(recover())
