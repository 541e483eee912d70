"""A disk that fails, is full, or writes less than requested: the error of each call, and the content of the log afterwards."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.small_disk import mounted
from tests.storage.frames import FrameMaker, append, append_all, content, content_of, read_all
from tests.storage.journal.faults import FaultyDisk
from tests.storage.journal.journals import journal
from wal.errors import NoSpaceError, StorageError
from wal.storage.journal.disk import Disk
from wal.storage.journal.loop_path import WritePath


@pytest.mark.parametrize("fault", ["fail_sync", "fail_write"])
async def test_failed_write_or_sync_is_final(tmp_path: Path, fault: str, write_path: WritePath) -> None:
    disk = FaultyDisk()
    maker = FrameMaker(1)
    async with journal(tmp_path, disk=disk, write_path=write_path) as log:
        acked = [await append(log, maker.data(("v", b"%d" % i))) for i in range(5)]
        setattr(disk, fault, True)
        hit, following = append(log, maker.data(("v", b"hit"))), append(log, maker.data(("v", b"following")))
        with pytest.raises(StorageError) as caught:
            await hit
        assert caught.value.outcome_unknown, "a part of it may be on the disk"
        assert ".wal" in str(caught.value)
        with pytest.raises(StorageError) as caught:
            await following
        assert not caught.value.outcome_unknown, "it was never touched"
        with pytest.raises(StorageError) as caught:
            await append(log, maker.data(("v", b"later")))
        assert not caught.value.outcome_unknown
        assert not getattr(disk, fault)
        assert log.statistics().loop_frames == (4 if write_path == "loop" else 0)
        assert [frame.position for frame in await read_all(log)] == acked
    async with journal(tmp_path, 2) as log:
        assert not log.state.clean
        found = await read_all(log)
        assert [frame.position for frame in found[: len(acked)]] == acked
        assert len(found) <= len(acked) + 1, "the frame after the failed one was not written"
        await append(log, FrameMaker(2).data(("v", b"goes on")))


async def test_last_frame_is_rewritten_after_a_failed_sync(tmp_path: Path, write_path: WritePath) -> None:
    """The kernel may have marked its pages clean: a sync alone would then sync nothing."""
    disk = FaultyDisk()
    async with journal(tmp_path, disk=disk, write_path=write_path) as log:
        disk.fail_sync = True
        with pytest.raises(StorageError):
            await append(log, FrameMaker(1).data(("v", b"in the page cache only")))
    again = FaultyDisk()
    async with journal(tmp_path, 2, disk=again) as log:
        (frame,) = await read_all(log)
        assert (frame.position, frame.next_position - frame.position) in again.written


async def test_frame_has_one_sync(tmp_path: Path, write_path: WritePath) -> None:
    disk = FaultyDisk()
    maker = FrameMaker(1)
    async with journal(tmp_path, disk=disk, write_path=write_path) as log:
        disk.syncs.clear()
        await append_all(log, [maker.data(("v", b"x" * 100)) for _ in range(50)])
        assert disk.syncs[f"{0:016x}.wal"] == 50
        assert log.statistics().syncs == log.statistics().frames == 50


async def test_partial_writes_are_finished(tmp_path: Path) -> None:
    """By the thread; one of the loop would be final, see `test_write_paths`."""
    disk = FaultyDisk()
    maker = FrameMaker(1)
    frames = [maker.data(*[(f"v-{i}", os.urandom(17_000)) for i in range(6)]) for _ in range(4)]
    async with journal(tmp_path, segment=256 << 10, disk=disk, write_path="thread") as log:
        for partial in (30_001, 4_096, 513, 33):
            disk.partial = partial
            await append(log, frames[(30_001, 4_096, 513, 33).index(partial)])
        disk.partial = None
    async with journal(tmp_path, 2) as log:
        assert [content(frame.view) for frame in await read_all(log)] == [content_of(frame) for frame in frames]


async def test_frame_of_many_buffers(tmp_path: Path) -> None:
    """The frame has more blocks than one pwritev takes."""
    disk = FaultyDisk()
    frame = FrameMaker(1).data(*[("v", bytes([i % 251]) * 16_384) for i in range(1_500)])
    assert len(frame.buffers) == 1_501
    async with journal(tmp_path, disk=disk, write_path="thread") as log:
        await append(log, frame)
        assert disk.buffers_max == 1_024
        (found,) = await read_all(log)
        assert content(found.view) == content_of(frame)


async def _fill(log, maker: FrameMaker, rounds: int = 400) -> list[int]:  # type: ignore[no-untyped-def]
    """Appends pairs of frames until the disk is full; returns the positions of the written ones."""
    acked: list[int] = []
    for _ in range(rounds):
        sequence = maker.sequence
        pair = [append(log, maker.data(("v", b"x" * 9_000))), append(log, maker.data(("v", b"y")))]
        outcomes = await asyncio.gather(*pair, return_exceptions=True)
        if isinstance(outcomes[0], NoSpaceError):
            assert isinstance(outcomes[1], NoSpaceError), "the next frame would leave a gap in the sequence"
            maker.sequence = sequence
            return acked
        acked.append(outcomes[0])  # type: ignore[arg-type]
        if isinstance(outcomes[1], NoSpaceError):
            maker.sequence = sequence + 1
            return acked
        acked.append(outcomes[1])  # type: ignore[arg-type]
    raise AssertionError("the disk never filled")


async def _no_space_and_room_again(  # type: ignore[no-untyped-def]
    place: Path, disk: Disk | None, make_room, write_path: WritePath = "auto"
) -> None:
    maker = FrameMaker(1)
    async with journal(place, segment=256 << 10, disk=disk, write_path=write_path) as log:
        acked = await _fill(log, maker)
        for _ in range(3):
            with pytest.raises(NoSpaceError):
                await append(log, maker.data(("v", b"z" * 10_000)))
            maker.sequence -= 1
        assert [frame.position for frame in await read_all(log)] == acked
        make_room()
        acked += await append_all(log, [maker.data(("v", b"z" * 10_000)) for _ in range(3)])
        found = await read_all(log)
        assert [frame.position for frame in found] == acked
        assert [frame.view.header.sequence for frame in found] == list(range(len(acked)))
    async with journal(place, 2, segment=256 << 10) as log:
        assert log.state.clean
        assert [frame.position for frame in await read_all(log)] == acked


async def test_no_room_for_the_next_segment(tmp_path: Path, write_path: WritePath) -> None:
    disk = FaultyDisk()
    disk.room = 700 << 10
    await _no_space_and_room_again(tmp_path, disk, lambda: setattr(disk, "room", None), write_path)


async def test_full_file_system(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", size_mib=1) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(300 << 10))
        await _no_space_and_room_again(disk / "journal", None, ballast.unlink)


async def test_threads_end_with_the_log(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with journal(tmp_path) as log:
        await append(log, FrameMaker(1).data(("v", b"1")))
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {"wal-write-p", "wal-prepare-p"}
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
