"""The two ways of a frame to the disk, and events between them: order, faults, a loop that does not continue, close, and waiting
threads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append, append_all, content, content_of, read_all
from tests.storage.journal.faults import FaultyDisk
from tests.storage.journal.journals import PCHANNEL, journal
from wal.errors import ChannelFencedError, InvalidArgumentError, StorageError
from wal.storage.journal import loop_path
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.linux_aio import AsyncWrite
from wal.storage.journal.loop_path import LOOP_BYTES_MAX, WritePath

WAIT_S = 60.0
by_loop = pytest.mark.usefixtures("always_by_loop")


async def frozen_append(log, disk: FaultyDisk, frame) -> asyncio.Future[int]:  # type: ignore[no-untyped-def]
    """Submits a frame that is in flight, and that the loop will not see complete."""
    disk.frozen = True
    begun = disk.begun
    future = append(log, frame)
    assert disk.begun == begun + 1, "the loop writes it"
    return future


@by_loop
async def test_frames_after_the_first_go_from_the_loop(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    frames = [maker.data(("v", os.urandom(size))) for size in (1, 500, 5_000, 200_000, 50, 1 << 20)]
    async with journal(tmp_path, segment=4 << 20, write_path="loop") as log:
        await append(log, frames[0])
        await append_all(log, frames[1:])
        statistics = log.statistics()
        assert (statistics.frames, statistics.loop_frames, statistics.syncs) == (6, 5, 6)
    async with journal(tmp_path, 2) as log:
        assert log.state.clean
        assert [content(frame.view) for frame in await read_all(log)] == list(map(content_of, frames))


@by_loop
async def test_first_frame_after_a_pause_lets_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes through the thread in any case, so the next one goes from the loop."""
    maker = FrameMaker(1)
    monkeypatch.setattr(loop_path, "YIELD_S", 0.0)
    async with journal(tmp_path, write_path="loop") as log:
        monkeypatch.setattr(loop_path, "YIELD_S", 3600.0)  # the turn is due now, and then not for long
        for _ in range(2):
            await append(log, maker.data(("v", b"x")))
        assert log.statistics().loop_frames == 1


@by_loop
async def test_auto_leaves_large_frames_to_the_thread(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=4 << 20) as log:
        for _ in range(3):
            await append(log, maker.data(("v", b"x")))
        assert log.statistics().loop_frames == 2
        await append(log, maker.data(("v", os.urandom(LOOP_BYTES_MAX))))
        assert log.statistics().loop_frames == 2
        await append(log, maker.data(("v", b"x")))
        assert log.statistics().loop_frames == 3


@by_loop
async def test_outcomes_keep_their_order_over_both_paths(tmp_path: Path) -> None:
    """Large frames go through the thread, small ones from the loop, and some begin a segment."""
    maker = FrameMaker(1)
    frames = [maker.data(("v", os.urandom(LOOP_BYTES_MAX if number % 7 in (3, 4) else 300))) for number in range(120)]
    answered: list[int] = []
    async with journal(tmp_path, segment=2 << 20) as log:
        done = asyncio.Event()

        def note(position: int, error: BaseException | None) -> None:
            assert error is None
            answered.append(position)
            if len(answered) == len(frames):
                done.set()

        for number, frame in enumerate(frames):
            log.append(frame, note)
            if number % 5 == 0:
                await asyncio.sleep(0)
            if number % 30 == 29:
                count = len(answered)
                while len(answered) == count:
                    await asyncio.sleep(0)
        await asyncio.wait_for(done.wait(), WAIT_S)
        statistics = log.statistics()
        assert statistics.segments >= 3
        assert 0 < statistics.loop_frames < len(frames)
        found = await read_all(log)
        assert [frame.position for frame in found] == answered == sorted(answered)
        assert [content(frame.view) for frame in found] == list(map(content_of, frames))


@by_loop
async def test_short_write_is_final(tmp_path: Path) -> None:
    disk, maker = FaultyDisk(), FrameMaker(1)
    async with journal(tmp_path, disk=disk, write_path="loop") as log:
        acked = [await append(log, maker.data(("v", os.urandom(2_000)))) for _ in range(3)]
        disk.short = True
        hit, following = append(log, maker.data(("v", os.urandom(2_000)))), append(log, maker.data(("v", b"following")))
        with pytest.raises(StorageError) as caught:
            await hit
        assert caught.value.outcome_unknown
        with pytest.raises(StorageError) as caught:
            await following
        assert not caught.value.outcome_unknown
        assert [frame.position for frame in await read_all(log)] == acked
    async with journal(tmp_path, 2) as log:
        assert [frame.position for frame in await read_all(log)] == acked


@by_loop
async def test_thread_writes_what_the_kernel_does_not_take(tmp_path: Path) -> None:
    """The kernel has room again after EAGAIN; any other error means that it will never take our writes."""
    disk, maker = FaultyDisk(), FrameMaker(1)
    async with journal(tmp_path, disk=disk, write_path="loop") as log:
        for _ in range(2):
            await append(log, maker.data(("v", b"x")))
        disk.submit_error = errno.EAGAIN
        await append(log, maker.data(("v", b"by the thread")))
        await append(log, maker.data(("v", b"by the loop")))
        assert log.statistics().loop_frames == 2
        disk.submit_error = errno.EINVAL
        await append_all(log, [maker.data(("v", b"by the thread")) for _ in range(3)])
        statistics = log.statistics()
        assert (statistics.frames, statistics.loop_frames) == (7, 2)


@by_loop
async def test_thread_finishes_what_the_loop_does_not(tmp_path: Path) -> None:
    """The completion is not seen on the loop, as if the loop were blocked."""
    disk, maker = FaultyDisk(), FrameMaker(1)
    async with asyncio.timeout(WAIT_S), journal(tmp_path, disk=disk, write_path="loop") as log:
        await append(log, maker.data(("v", b"first")))
        in_flight = await frozen_append(log, disk, maker.data(("v", b"in flight")))
        waiting = append(log, maker.data(("v", b"waiting")))
        await in_flight
        disk.frozen = False
        await waiting
        assert len(await read_all(log)) == 3


@by_loop
async def test_frame_may_complete_before_the_loop_continues(tmp_path: Path) -> None:
    """The thread, which may wait for a completion anyway, may run before the loop does after a submission."""

    class SlowLoopDisk(Disk):
        """While `slow` is set, the loop continues after a submission only when the thread has taken the completion."""

        slow = False
        submitted = False

        def async_write(self, file: JournalFile) -> AsyncWrite:
            super().async_write(file).close()  # raises where there is none
            return SlowLoopWrite(self)

    class SlowLoopWrite(AsyncWrite):
        __slots__ = ("_disk",)

        def __init__(self, disk: SlowLoopDisk) -> None:
            super().__init__()
            self._disk = disk

        def submit(self, fd: int, length: int, offset: int) -> None:
            super().submit(fd, length, offset)
            self._disk.submitted = self._disk.slow
            while self._disk.slow:
                pass

    disk, maker = SlowLoopDisk(), FrameMaker(1)
    async with asyncio.timeout(WAIT_S), journal(tmp_path, disk=disk, write_path="loop") as log:
        await append(log, maker.data(("v", b"first")))

        def take_over() -> None:
            while not disk.submitted:
                time.sleep(0.001)
            log._writer._thread._take_over()
            disk.slow = False

        disk.slow = True
        taking = asyncio.create_task(asyncio.to_thread(take_over))
        await asyncio.sleep(0)
        await append(log, maker.data(("v", b"complete at once")))
        await taking
        await append(log, maker.data(("v", b"third")))
        assert log.statistics().loop_frames == 2


@by_loop
async def test_fence_call_waits_no_longer_than_the_thread(tmp_path: Path) -> None:
    disk, maker = FaultyDisk(), FrameMaker(1)
    async with asyncio.timeout(WAIT_S), journal(tmp_path, disk=disk, write_path="loop") as log:
        first = await append(log, maker.data(("v", b"first")))
        in_flight = await frozen_append(log, disk, maker.data(("v", b"in flight")))
        await log.truncate(first, 1)
        assert log.earliest == (first, 1)
        assert in_flight.done()


@by_loop
async def test_closing_waits_for_the_frame_in_flight(tmp_path: Path) -> None:
    disk, maker = FaultyDisk(), FrameMaker(1)
    async with asyncio.timeout(WAIT_S), journal(tmp_path, disk=disk, write_path="loop") as log:
        await append(log, maker.data(("v", b"first")))
        futures = [await frozen_append(log, disk, maker.data(("v", b"in flight")))]
        futures += [append(log, maker.data(("v", b"waiting"))) for _ in range(3)]
        await log.close()
        assert all(future.done() for future in futures)
        positions = [future.result() for future in futures]
        assert positions == sorted(positions)
    async with journal(tmp_path, 2) as log:
        assert log.state.clean
        assert [frame.position for frame in await read_all(log)][1:] == positions


@by_loop
def test_loop_that_ends_with_a_frame_in_flight(tmp_path: Path) -> None:
    """The log is abandoned; what was appended is written, as by the thread."""
    disk, maker = FaultyDisk(), FrameMaker(1)
    backend = JournalBackend(tmp_path, disk=disk, write_path="loop")

    async def use() -> None:
        await backend.create(PCHANNEL, incarnation=INCARNATION)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
        await append(log, maker.data(("v", b"first")))
        await frozen_append(log, disk, maker.data(("v", b"in flight")))
        append(log, maker.data(("v", b"waiting")))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(use())
    loop.close()
    backend.abandon()

    async def look() -> None:
        async with journal(tmp_path, 2) as log:
            assert len(await read_all(log)) == 3

    asyncio.run(look())


@by_loop
async def test_higher_term_waits_for_the_frame_in_flight(tmp_path: Path) -> None:
    """So no frame of the old writer follows the first one of the new."""
    disk, maker = FaultyDisk(), FrameMaker(1)
    backend = JournalBackend(tmp_path, disk=disk, write_path="loop")
    async with asyncio.timeout(WAIT_S):
        await backend.create(PCHANNEL, incarnation=INCARNATION)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
        await append(log, maker.data(("v", b"first")))
        in_flight = await frozen_append(log, disk, maker.data(("v", b"in flight")))
        successor = await backend.open(PCHANNEL, incarnation=INCARNATION, term=2)
        assert in_flight.done()
        assert len(await read_all(successor)) == 2
        disk.frozen = False
        with pytest.raises(ChannelFencedError):
            await append(log, maker.data(("v", b"late")))
        await append(successor, FrameMaker(2).data(("v", b"goes on")))
        await log.close()
        await successor.close()
        await backend.close()


class _CachedDisk(Disk):
    def async_write(self, file: JournalFile) -> AsyncWrite:
        file.use_cache()
        return super().async_write(file)


@pytest.mark.parametrize("write_path", ["auto", "thread"])
async def test_without_direct_writes_the_thread_writes_all(tmp_path: Path, write_path: WritePath) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, disk=_CachedDisk(), write_path=write_path) as log:
        await append_all(log, [maker.data(("v", b"x")) for _ in range(5)])
        assert log.statistics().loop_frames == 0


async def test_loop_alone_is_refused_where_it_cannot_write(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(InvalidArgumentError, match=r"write_path='loop'.*O_DIRECT.*use 'auto'"):
        async with journal(tmp_path, disk=_CachedDisk(), write_path="loop"):
            pass
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("wal-")]
    async with journal(tmp_path) as log:
        await append(log, FrameMaker(1).data(("v", b"x")))


@by_loop
async def test_waiting_thread_gets_the_fence_under_load(tmp_path: Path) -> None:
    """The loop takes the fence again a moment after it has let go of it, but not if anybody waits."""
    maker = FrameMaker(1)
    async with asyncio.timeout(WAIT_S), journal(tmp_path, segment=4 << 20, write_path="loop") as log:
        first = await append(log, maker.data(("v", b"first")))
        stop = False

        async def load() -> None:
            while not stop:
                await asyncio.gather(*[append(log, maker.data(("v", b"x"))) for _ in range(4)])

        loading = asyncio.create_task(load())
        for index in range(1, 20):
            await log.truncate(first, index)
        stop = True
        await loading
        assert log.statistics().loop_frames > 0


@by_loop
@pytest.mark.parametrize("kind", ["wal-prepare", "wal-write"])
async def test_log_whose_thread_cannot_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The machine has no thread left. What was opened for the log is released, and it can be opened again."""
    closed: list[int] = []
    start, close = threading.Thread.start, AsyncWrite.close

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith(kind):
            raise RuntimeError("can't start new thread")
        start(thread)

    def noted(write: AsyncWrite) -> None:
        closed.append(write.event_fd)
        close(write)

    backend = JournalBackend(tmp_path, write_path="loop")
    await backend.create(PCHANNEL, incarnation=INCARNATION)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        patch.setattr(AsyncWrite, "close", noted)
        with pytest.raises(RuntimeError, match="can't start"):
            await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
        async with asyncio.timeout(WAIT_S):
            while not closed or any(thread.name.startswith("wal-prepare") for thread in threading.enumerate()):
                await asyncio.sleep(0)
    assert not asyncio.get_running_loop().remove_reader(closed[0])
    log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=2)
    await append(log, FrameMaker(2).data(("v", b"x")))
    assert len(await read_all(log)) == 1
    await log.close()
    await backend.close()


def test_unknown_write_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="write_path is 'quick': give one of 'auto', 'loop', 'thread'"):
        JournalBackend(tmp_path, write_path="quick")  # type: ignore[arg-type]


@by_loop
async def test_forked_child_spares_the_frame_in_flight(tmp_path: Path) -> None:
    """The child lets go of what it inherited. The loop of the parent finishes that frame and writes the next ones."""
    disk, maker = FaultyDisk(), FrameMaker(1)
    backend = JournalBackend(tmp_path, disk=disk, write_path="loop")
    async with asyncio.timeout(WAIT_S):
        await backend.create(PCHANNEL, incarnation=INCARNATION)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
        await append(log, maker.data(("v", b"first")))
        in_flight = await frozen_append(log, disk, maker.data(("v", b"in flight")))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert not in_flight.done()
                backend.abandon()
                code = 0
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        disk.frozen = False
        await in_flight
        seen = disk.reaped
        await append_all(log, [maker.data(("v", b"x")) for _ in range(5)])
        assert disk.reaped >= seen + 5, "the loop itself saw them complete"
        assert len(await read_all(log)) == 7
        await log.close()
        await backend.close()
