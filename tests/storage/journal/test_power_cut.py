"""A hundred power cuts, in a soak four times as many: no acknowledged frame is lost, no frame is wrong, and the log continues after each.

One run opens the log that the last cut left, checks it, appends and truncates, until the power fails again at a random operation.
Some runs write from a thread, some from the loop. Segments are small, so that most runs seal, recycle and begin some; recycled ones are
full of frames of earlier runs. In some runs only the process ends, and its unsynced writes stay in the page cache for the next run and its
power cut; a few runs close the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.frames import INCARNATION, FrameMaker, append, content, content_of, read_all
from wal.errors import ChannelFencedError, StorageError, WALError
from wal.frame import EncodedFrame
from wal.storage.base import PChannelLog
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.log import JournalLog
from wal.storage.journal.loop_path import WritePath
from wal.testing.power import PowerCutDisk

CHAINS = 8
FURTHER = pytest.mark.soak("two chains by default: the others differ in their seed alone")


@pytest.fixture
def place() -> Iterator[Path]:
    """Yields a directory in memory where there is a memory file system: the test cuts the power, not the disk."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, prefix="wal-power-") as directory:
        yield Path(directory)


@pytest.mark.linux
@pytest.mark.one_loop
@pytest.mark.parametrize("chain", [0, 1, *(pytest.param(chain, marks=FURTHER) for chain in range(2, CHAINS))])
async def test_power_cuts(place: Path, chain: int) -> None:
    # The fewest runs of a chain, and the fewest frames that the loop writes in it. A chain of many short runs continues until it has them.
    lives = 60

    class Model:
        """The frames that must be in the log after a cut."""

        def __init__(self) -> None:
            self.acked: list[tuple[int, EncodedFrame]] = []
            self.in_flight: list[EncodedFrame] = []
            self.earliest = (0, 0)
            self.truncating = (0, 0)
            self.extra_kept = 0

        async def check(self, log: PChannelLog) -> None:
            """Compares the log with the model, and adds the frames in flight that turned out to be there."""
            assert log.earliest in (self.earliest, self.truncating), (log.earliest, self.earliest, self.truncating)
            self.earliest = self.truncating = log.earliest
            found = await read_all(log, log.earliest[0], bytes_max=20_000)
            expected = [(position, frame) for position, frame in self.acked if position >= self.earliest[0]]
            assert [frame.position for frame in found[: len(expected)]] == [position for position, _ in expected]
            for stored, (_, frame) in zip(found, expected, strict=False):
                assert content(stored.view) == content_of(frame)
            extra = found[len(expected) :]
            assert len(extra) <= len(self.in_flight)
            for stored, frame in zip(extra, self.in_flight, strict=False):
                assert content(stored.view) == content_of(frame)
                self.acked.append((stored.position, frame))
            self.extra_kept += len(extra)
            self.in_flight.clear()
            state = log.state
            if found:
                last = found[-1].view.header
                assert (state.last_term, state.last_sequence) == (last.term, last.sequence)
                assert state.promised_tick >= last.promised_tick
            elif self.acked:
                last = self.acked[-1][1].header
                assert (state.last_term, state.last_sequence) == (last.term, last.sequence)
                assert state.promised_tick >= last.promised_tick
            events = [(position, frame.header.indices - 1) for position, frame in self.acked if frame.header.indices]
            assert state.newest == max(events, default=None)

        async def live(self, log: JournalLog, rng: random.Random, maker: FrameMaker) -> None:
            """Appends and truncates until the power fails."""

            async def appended(frame: EncodedFrame, future: asyncio.Future[int]) -> None:
                position = await future
                self.in_flight = [other for other in self.in_flight if other is not frame]
                self.acked.append((position, frame))

            while True:
                frames = [self._frame(rng, maker) for _ in range(rng.choice((1, 1, 2, 5)))]
                self.in_flight += frames
                futures = [append(log, frame) for frame in frames]
                outcomes = await asyncio.gather(
                    *[appended(frame, future) for frame, future in zip(frames, futures, strict=True)], return_exceptions=True
                )
                self.acked.sort(key=lambda pair: pair[0])
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        assert isinstance(outcome, StorageError), outcome
                if any(outcomes):
                    return
                log.promise(frames[-1].header.promised_tick, frames[-1].header.promised_tick + 1000)
                if rng.random() < 0.3:
                    index = rng.randrange(len(self.acked))
                    self.truncating = max(self.earliest, (self.acked[index][0], rng.randrange(2)))
                    await log.truncate(*self.truncating)
                    self.earliest = self.truncating

        def _frame(self, rng: random.Random, maker: FrameMaker) -> EncodedFrame:
            if rng.random() < 0.1:
                return maker.time_tick()
            size = rng.choice((10, 300, 1_500, 6_000, 14_000))
            return maker.data(*[(f"v-{rng.randrange(4)}", rng.randbytes(rng.randrange(size))) for _ in range(rng.randint(1, 3))])

    seed = random.randrange(1 << 32)
    print(f"seed {seed} (chain {chain})")
    rng = random.Random(seed)
    model = Model()
    here = place / "0"
    paths: tuple[WritePath, ...] = ("thread", "loop")
    backend = JournalBackend(here, first_segment_bytes=8 << 10, segment_bytes=32 << 10)
    await backend.create("p", incarnation=INCARNATION)
    await backend.close()
    disk = PowerCutDisk(rng, here, place / "1")
    cuts = crashes = recycled = by_loop = 0
    opened: int | None = None
    clean: bool | None = True
    life = 0
    while life < lives or (by_loop <= lives and life < 3 * lives):
        life += 1
        power = rng.random() < 0.75
        disk.go_on(rng.choice((rng.randrange(1, 12), rng.randrange(1, 250))), power=power)
        backend = JournalBackend(here, first_segment_bytes=8 << 10, segment_bytes=32 << 10, disk=disk, write_path=rng.choice(paths))
        log = None
        try:
            if opened is not None:
                with pytest.raises((ChannelFencedError, StorageError)):
                    await backend.open("p", incarnation=INCARNATION, term=opened)
            log = await backend.open("p", incarnation=INCARNATION, term=life)
            assert clean is None or log.state.clean == clean
            opened, clean = life, False
            await model.check(log)
            if rng.random() < 0.2:
                frame = FrameMaker(life).data(("v", b"a short life"))
                model.in_flight.append(frame)
                model.acked.append((await append(log, frame), model.in_flight.pop()))
                clean = None
                await log.close()
                clean = True
            else:
                await model.live(log, rng, FrameMaker(life))
        except StorageError:
            clean = None  # The power failed while the log opened, truncated or closed, so either mark is right.
        if log is not None:
            recycled += log.statistics().recycled
            by_loop += log.statistics().loop_frames
            with contextlib.suppress(WALError):
                await log.close()
        if power:
            disk.cut()
        await backend.close()
        if power:
            cuts += 1
            shutil.rmtree(here)
            here = place / str(cuts)
            disk = PowerCutDisk(rng, here, place / str(cuts + 1))
        else:
            crashes += 1
    backend = JournalBackend(here, first_segment_bytes=8 << 10, segment_bytes=32 << 10)
    log = await backend.open("p", incarnation=INCARNATION, term=life + 1)
    await model.check(log)
    assert await append(log, FrameMaker(life + 1).data(("v", b"goes on"))) >= log.state.end
    await log.close()
    await backend.close()
    print(
        f"{cuts} cuts, {crashes} crashes, {len(model.acked)} frames, {model.extra_kept} of them unacknowledged, "
        f"{recycled} recycled, {by_loop} frames by the loop"
    )
    assert cuts > life // 2
    assert len(model.acked) > lives
    assert by_loop > lives


async def test_name_that_only_the_kernel_knew(place: Path) -> None:
    """The process ends between naming a segment and syncing the name; the log is opened again; then the power fails."""

    class EndsThere(PowerCutDisk):
        armed = True

        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if self.armed and target.suffix == ".wal":
                self.go_on(0, power=False)
                self.armed = False

    class TakesAllNamesBack(random.Random):
        def randint(self, a: int, b: int) -> int:
            return a

    backend = JournalBackend(place / "0", segment_bytes=8 << 10)
    await backend.create("p", incarnation=INCARNATION)
    await backend.close()
    disk = EndsThere(TakesAllNamesBack(), place / "0", place / "1")
    disk.go_on(10_000, power=False)
    backend = JournalBackend(place / "0", segment_bytes=8 << 10, disk=disk)
    log = await backend.open("p", incarnation=INCARNATION, term=1)
    acked = [await append(log, FrameMaker(1).data(("v", b"x" * 3_000)))]
    with pytest.raises(StorageError):
        await append(log, FrameMaker(1).data(("v", b"x" * 3_000)))
    await log.close()
    await backend.close()
    disk.go_on(10_000, power=True)
    backend = JournalBackend(place / "0", segment_bytes=8 << 10, disk=disk)
    log = await backend.open("p", incarnation=INCARNATION, term=2)
    assert log.statistics().segments_held == 2
    disk.cut()
    with pytest.raises(StorageError, match="power"):
        await log.close()
    await backend.close()
    backend = JournalBackend(place / "1", segment_bytes=8 << 10)
    log = await backend.open("p", incarnation=INCARNATION, term=3)
    assert [frame.position for frame in await read_all(log)] == acked
    await log.close()
    await backend.close()
