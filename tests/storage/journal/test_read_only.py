"""Read-only journals: while another process writes, a read returns the right bytes or raises TruncatedError, and it never writes itself."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.faults import copy_of_open
from tests.storage.frames import INCARNATION, FrameMaker, append, append_all, content, content_of, read_all
from tests.storage.journal.child import payload
from tests.storage.journal.journals import PCHANNEL, folder, journal, open_files, segments
from tests.storage.journal.test_processes import child
from wal.errors import ClosedError, CorruptionError, FormatError, TruncatedError
from wal.frame import EncodedFrame
from wal.read.read_only_pchannel import ThreadedLog
from wal.storage.base import FramePage
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.layout import HEADER_PAGE_BYTES
from wal.storage.journal.log import JournalLog
from wal.storage.journal.read_only_journal import ReadOnlyJournal, ReadOnlyJournalLog
from wal.storage.journal.segments import open_shared

SEGMENT = 32 << 10
NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def blockbuster() -> None:
    """Lets the loop be blocked: a ReadOnlyJournalLog blocks on purpose, and these tests call it on the writer's loop."""


def open_reader(place: Path, disk: Disk | None = None) -> ReadOnlyJournalLog:
    return ReadOnlyJournal(place, disk=disk).open(PCHANNEL)


def seen(
    log: ReadOnlyJournalLog, start: int | None = None, *, names: frozenset[str] | None = None, bytes_max: int = 1 << 20
) -> list[tuple[int, tuple[object, ...]]]:
    """Returns everything from `start` (or the earliest event) on, as a reader gets it."""
    return [
        (frame.position, content(frame.view, names))
        for page in seen_pages(log, start, names=names, bytes_max=bytes_max)
        for frame in page.frames
    ]


def seen_pages(
    log: ReadOnlyJournalLog, start: int | None = None, *, names: frozenset[str] | None = None, bytes_max: int = 1 << 20
) -> list[FramePage]:
    state = log.refresh()
    at = state.earliest[0] if start is None else start
    found: list[FramePage] = []
    while at < state.durable_end:
        page = log.page(at, state.durable_end, names, bytes_max)
        assert page.next_position > at
        found.append(page)
        at = page.next_position
    return found


def random_frames(rng: random.Random, maker: FrameMaker, count: int) -> list[EncodedFrame]:
    frames: list[EncodedFrame] = []
    for _ in range(count):
        kind = rng.randrange(8)
        if kind == 0:
            frames.append(maker.time_tick())
        elif kind == 1:
            frames.append(maker.broadcast(rng.sample(NAMES, 2), rng.randbytes(rng.randrange(200))))
        elif kind == 2:
            frames.append(maker.pchannel_wide(b"wide"))
        else:
            frames.append(maker.data(*[(rng.choice(NAMES), rng.randbytes(rng.randrange(4_000))) for _ in range(rng.randrange(1, 5))]))
    return frames


async def test_reader_reads_what_the_writer_reads(tmp_path: Path) -> None:
    """The test reads every set of names with every page size, while the log grows over many segments and is truncated from below."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        await append(log, maker.term_start())
        reader = open_reader(tmp_path)
        try:
            for _ in range(12):
                written = random_frames(rng, maker, rng.randrange(1, 30))
                positions = await append_all(log, written)
                if rng.random() < 0.3:
                    await log.truncate(rng.choice(positions), 0)
                state = reader.refresh()
                assert (state.durable_end, state.earliest, state.term) == (log.durable_end, log.earliest, 1)
                assert state.promised_tick == written[-1].header.promised_tick
                assert not state.closed
                newest = (
                    next(
                        (at, frame.header.indices - 1)
                        for at, frame in zip(reversed(positions), reversed(written), strict=True)
                        if frame.header.indices
                    )
                    if any(frame.header.indices for frame in written)
                    else None
                )
                if newest is not None:
                    assert (await asyncio.to_thread(reader.reach)).newest == newest
                for names in (None, frozenset(NAMES), frozenset("a"), frozenset(("b", "nobody"))):
                    for bytes_max in (1, 20_000, 1 << 20):
                        start, at = log.earliest[0], log.earliest[0]
                        expected = await read_all(log, start, names=names, bytes_max=bytes_max)
                        found = await asyncio.to_thread(seen, reader, at, names=names, bytes_max=bytes_max)
                        assert found == [(frame.position, content(frame.view, names)) for frame in expected]
        finally:
            reader.close()
    with pytest.raises(ClosedError):
        reader.refresh()


async def test_pages_equal_those_of_the_writer(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        await append_all(log, random_frames(random.Random(1), maker, 120))
        reader = open_reader(tmp_path)
        for names in (None, frozenset("a")):
            at = 0
            while at < log.durable_end:
                theirs = await log.read(at, names=names, bytes_max=10_000)
                ours = await asyncio.to_thread(reader.page, at, log.durable_end, names, 10_000)
                assert (ours.next_position, ours.last_event, ours.promised_tick) == (
                    theirs.next_position,
                    theirs.last_event,
                    theirs.promised_tick,
                )
                at = ours.next_position
        reader.close()


async def test_nothing_is_written(tmp_path: Path) -> None:
    """A reader writes neither to a closed journal nor to a crashed one, with its indexes or without."""

    def images(place: Path) -> dict[str, str]:
        """Returns every file of the journal and its content."""
        return {
            str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }

    maker = FrameMaker(1)
    crashed = tmp_path / "crashed"
    async with journal(tmp_path / "closed", segment=SEGMENT) as log:
        frames = random_frames(random.Random(2), maker, 100)
        await append_all(log, frames)
        copy_of_open(tmp_path / "closed", crashed)
    expected = [content_of(frame) for frame in frames]
    for place in (tmp_path / "closed", crashed):
        for path in folder(place).glob("*.idx"):
            if place == crashed:
                path.unlink()
        before = images(place)
        reader = open_reader(place)
        assert reader.refresh().closed == (place != crashed)
        assert [held for _, held in seen(reader)] == expected
        reader.close()
        assert images(place) == before


async def test_directory_without_write_permission_can_be_read(tmp_path: Path) -> None:
    """The reader is another user, whose group may only read the files."""
    nobody = 65_534

    def read_only(place: Path) -> str:
        reader = open_reader(place)
        count = len(seen(reader))
        try:
            (folder(place) / "mine").touch()
        except PermissionError:
            return f"{count} frames, no file made"
        return "it may write: the test shows nothing"

    def as_nobody(call: Callable[[], str]) -> str:
        """Returns the result of the call in a child process that has given up its rights."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setresgid(nobody, nobody, nobody)
                os.setresuid(nobody, nobody, nobody)
                os.write(writing, call().encode())
            except BaseException as error:
                os.write(writing, repr(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
        return said

    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    frames = random_frames(random.Random(3), FrameMaker(1), 60)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.chown(place, -1, nobody)
        place.chmod(0o2755)
        async with journal(place / "data", segment=SEGMENT, group_readable=True) as log:
            await append_all(log, frames)
            expected = len(await read_all(log))
            found = await asyncio.to_thread(as_nobody, lambda: read_only(place / "data"))
    assert found == f"{expected} frames, no file made"


async def fill(log: JournalLog, maker: FrameMaker, segment_count: int) -> list[int]:
    """Appends until this many more segments have begun."""
    goal = log.statistics().segments + segment_count
    positions: list[int] = []
    while log.statistics().segments < goal:
        positions.append(await append(log, maker.data(("v", os.urandom(6_000)))))
    return positions


async def test_reader_that_is_far_behind_catches_up(tmp_path: Path) -> None:
    """All segments that the reader knew are by now removed, or hold other frames."""
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        first = await fill(log, maker, 2)
        reader = open_reader(tmp_path)
        assert [position for position, _ in seen(reader)] == first
        for _ in range(3):
            last = (await fill(log, maker, 3))[-1]
            await log.truncate(last, 0)
        assert log.statistics().recycled > 2
        with pytest.raises(TruncatedError):
            reader.page(first[-1], reader.refresh().durable_end, None, 1 << 20)
        assert reader.reach().newest == (last, 0)
        assert [position for position, _ in seen(reader)] == [last]
        reader.close()


class StepDisk(Disk):
    """Calls `step` once, between the opening of a segment and its next use."""

    def __init__(self) -> None:
        self.step: Callable[[], None] | None = None
        self.after_reads = 0

    def _file(self, path: Path, fd: int) -> JournalFile:
        if path.suffix == ".wal" and self.step is not None and self.after_reads == 0:
            self._take()
        return _StepFile(self, path, fd)

    def _take(self) -> None:
        step, self.step = self.step, None
        if step is not None:
            step()


class _StepFile(JournalFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: StepDisk, path: Path, fd: int) -> None:
        super().__init__(path, fd)
        self._disk = disk

    def read(self, length: int, offset: int) -> bytes:
        data = super().read(length, offset)
        if self.path.suffix == ".wal" and self._disk.step is not None:
            self._disk.after_reads -= 1
            if self._disk.after_reads == 0:
                self._disk._take()
        return data


@pytest.mark.parametrize("after_reads", range(6))
async def test_segment_that_is_recycled_during_a_read(tmp_path: Path, after_reads: int) -> None:
    """The segment is recycled between the open and the lock, or at a later read: the page is right, or the read raises TruncatedError."""

    def _recycle(loop: asyncio.AbstractEventLoop, log: JournalLog, maker: FrameMaker, position: int) -> None:
        """Makes the writer truncate up to this position and overwrite the freed segments; called from a thread other than the loop's."""

        async def recycle() -> None:
            await log.truncate(position, 0)
            await fill(log, maker, 4)

        asyncio.run_coroutine_threadsafe(recycle(), loop).result()

    loop = asyncio.get_running_loop()
    maker = FrameMaker(1)
    disk = StepDisk()
    outcomes: set[str] = set()
    async with journal(tmp_path, segment=SEGMENT) as log:
        await fill(log, maker, 1)
        for _ in range(3):
            reader = open_reader(tmp_path, disk)
            positions = await fill(log, maker, 3)
            known = {frame.position: content(frame.view) for frame in await read_all(log, log.earliest[0])}

            state = reader.refresh()
            disk.after_reads = after_reads
            disk.step = partial(_recycle, loop, log, maker, positions[-1])
            try:
                page = await asyncio.to_thread(reader.page, state.earliest[0], state.durable_end, None, 64 << 10)
            except TruncatedError as error:
                assert error.earliest is not None
                outcomes.add("truncated")
            else:
                assert page.frames
                assert all(content(frame.view) == known[frame.position] for frame in page.frames)
                outcomes.add("right")
            assert disk.step is None, "the segments were never recycled"
            reader.close()
        assert log.statistics().recycled
    assert outcomes <= {"right", "truncated"}
    if after_reads == 0:
        assert outcomes == {"truncated"}


async def test_file_without_its_name_is_not_read(tmp_path: Path) -> None:
    """A file that is recycled right after it was opened is not mistaken for the segment, whatever it still holds."""
    path, disk = tmp_path / "0000000000000000.wal", StepDisk()
    for recycle in (
        lambda: path.rename(tmp_path / "1.spare"),
        lambda: (tmp_path / "other.wal").write_bytes(b"new") and (tmp_path / "other.wal").rename(path),
    ):
        path.write_bytes(b"old")
        disk.step = recycle  # type: ignore[assignment]
        with pytest.raises(FileNotFoundError):
            open_shared(disk, path)
    path.write_bytes(b"mine")
    file = open_shared(disk, path)
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.close()
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


async def test_damage_below_the_earliest_event_is_truncated(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        positions = await fill(log, maker, 3)
        reader = open_reader(tmp_path)
        end = reader.refresh().durable_end
        whole = seen(reader)
        base = int(segments(tmp_path)[1].stem, 16)
        damaged = next(position for position in positions if position > base + SEGMENT // 3)
        with segments(tmp_path)[1].open("r+b") as file:
            file.seek(damaged - base + 3_000)
            file.write(b"?!?!")
        fresh = open_reader(tmp_path)
        for log_seen in (reader, fresh):
            with pytest.raises(CorruptionError) as caught:
                log_seen.page(damaged, end, None, 1)
            assert caught.value.path == str(segments(tmp_path)[1])
            assert caught.value.offset == damaged - base
            assert log_seen.page(positions[0], end, None, 1).frames[0].position == positions[0]
        await log.truncate(positions[-1], 0)
        for log_seen in (reader, fresh):
            with pytest.raises(TruncatedError):
                log_seen.page(damaged, end, None, 1)
            assert seen(log_seen) == whole[-1:]
            log_seen.close()


async def test_missing_segment_is_an_error(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=SEGMENT) as log:
        positions = await fill(log, maker, 3)
    for victim in (0, 1, -1):
        place = tmp_path / f"without {victim}"
        shutil.copytree(tmp_path, place, ignore=shutil.ignore_patterns("without*"))
        lost = segments(place)[victim]
        lost.unlink()
        reader = open_reader(place)
        with pytest.raises(CorruptionError) as caught:
            seen(reader, positions[0])
        assert str(folder(place)) in str(caught.value)
        reader.close()


async def test_reader_stops_at_the_durable_position(tmp_path: Path) -> None:
    """Above the durable position a killed writer may have left anything."""

    def _payloads(log: ReadOnlyJournalLog, term: int) -> dict[int, int]:
        """Returns position → sequence of the frames of this term, and checks the content of each."""
        found: dict[int, int] = {}
        for page in seen_pages(log):
            for frame in page.frames:
                header = frame.view.header
                assert frame.view.columns(frame.view.runs[0]).payloads == [payload(header.term, header.sequence)]
                if header.term == term:
                    found[frame.position] = header.sequence
        return found

    async with journal(tmp_path, segment=SEGMENT, first=8 << 10):
        pass
    reader: ReadOnlyJournalLog | None = None
    for term in range(2, 8):
        async with child("acknowledge", tmp_path, term) as process:
            reader = reader or open_reader(tmp_path)
            acked: dict[int, int] = {}
            for _ in range(40):
                position, sequence = map(int, (await process.line()).split())
                acked[position] = sequence
            state = reader.refresh()
            assert state.durable_end > max(acked), "what was acknowledged is shown at once"
            await process.kill()
        state = reader.reach()
        assert (state.term, state.closed) == (term, False)
        with segments(tmp_path)[-1].open("r+b") as file:  # a torn frame
            file.seek(state.durable_end - int(segments(tmp_path)[-1].stem, 16))
            if HEADER_PAGE_BYTES <= file.tell() < SEGMENT - 704:  # else this segment has no frame yet, or no room
                file.write(b"WALE" + random.randbytes(700))
        found = _payloads(reader, term)
        assert found.keys() >= acked.keys()
        assert all(position < state.durable_end for position in found)
        assert reader.refresh() == state, "without a writer nothing moves"
    async with journal(tmp_path, 8, segment=SEGMENT) as log:
        assert reader is not None
        last = await append(log, FrameMaker(8).data(("v", payload(8, 0))))
        assert reader.reach().newest == (last, 0)
        assert [position for position, _ in seen(reader)] == [frame.position for frame in await read_all(log)]
        assert list(_payloads(reader, 8)) == [last]
        reader.close()


async def test_frames_above_the_durable_position_are_not_read(tmp_path: Path) -> None:
    """A frame that was written whole and never synced may be torn off, and another one written at its position."""
    maker = FrameMaker(1)
    crashed = tmp_path / "crashed"
    async with journal(tmp_path / "live", segment=1 << 20) as log:
        await append_all(log, random_frames(random.Random(6), maker, 5))
        copy_of_open(tmp_path / "live", crashed)
        torn = await append(log, maker.data(("a", bytes(3_000)), ("b", b"torn off")))
        shutil.copy(segments(tmp_path / "live")[0], segments(crashed)[0])
    reader = open_reader(crashed)
    assert reader.reach().durable_end == torn
    assert reader.reach().newest is not None
    before = seen(reader)
    assert before[-1][0] < torn
    with segments(crashed)[0].open("r+b") as file:
        file.seek(torn + 2_000)
        assert file.read(4) == bytes(4), "it was there whole"
        file.seek(torn + 2_000)
        file.write(b"torn")
    async with journal(crashed, 2, segment=1 << 20) as log:
        written = await append_all(log, random_frames(random.Random(7), FrameMaker(2), 10))
        assert written[0] == torn
        assert seen(reader) == [(frame.position, content(frame.view)) for frame in await read_all(log)]
        assert seen(reader, names=frozenset("b")) == [
            (frame.position, content(frame.view, frozenset("b"))) for frame in await read_all(log, names=frozenset("b"))
        ]
    reader.close()


async def test_directories_without_a_journal(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(FormatError, match="holds no journal"):
            ReadOnlyJournal(place)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(FormatError):
        ReadOnlyJournal(tmp_path / "file")
    (tmp_path / "FORMAT").write_text("wal-journal 99\n")
    with pytest.raises(FormatError, match="99"):
        ReadOnlyJournal(tmp_path)
    (tmp_path / "FORMAT").write_text("wal-journal 1\n")
    empty = ReadOnlyJournal(tmp_path)
    assert empty.pchannels() == []
    with pytest.raises(FormatError, match="no log of pchannel"):
        empty.open(PCHANNEL)


async def test_damaged_control_page_is_an_error(tmp_path: Path) -> None:
    async with journal(tmp_path, segment=SEGMENT) as log:
        await append(log, FrameMaker(1).data(("v", b"x")))
    control = folder(tmp_path) / "control"
    whole = control.read_bytes()
    for damaged in (bytes(4096), whole[:100], b""):
        control.write_bytes(damaged)
        with pytest.raises(CorruptionError) as caught:
            open_reader(tmp_path)
        assert caught.value.path == str(control)
    control.write_bytes(whole)
    assert len(seen(open_reader(tmp_path))) == 1


async def test_log_that_is_created_again_ends_its_readers(tmp_path: Path) -> None:
    """Only a log that never held a frame is ever recreated, after an interrupted creation."""
    backend = JournalBackend(tmp_path, segment_bytes=SEGMENT)
    await backend.create(PCHANNEL, incarnation=INCARNATION)
    reader = open_reader(tmp_path)
    assert seen(reader) == []
    await backend.create(PCHANNEL, incarnation=INCARNATION + 1)
    with pytest.raises(ClosedError, match="created again"):
        reader.refresh()
    assert open_reader(tmp_path).incarnation == INCARNATION + 1
    await backend.close()


async def test_log_in_threads_beside_an_event_loop(tmp_path: Path) -> None:
    """Reads reach the end that readers were shown; closing waits for reads in progress."""
    maker = FrameMaker(1)
    with ThreadPoolExecutor(2) as pool:
        async with journal(tmp_path, segment=SEGMENT) as log:
            await append_all(log, random_frames(random.Random(4), maker, 20))
            reader = open_reader(tmp_path)
            threaded = ThreadedLog(reader, pool, reader.refresh())
            more = await append_all(log, random_frames(random.Random(5), maker, 20))
            end = threaded.durable_end
            assert end <= more[0]
            assert (await threaded.read(0, names=None, bytes_max=1 << 30)).next_position == end
            state = await threaded.reach()
            assert state.durable_end == log.durable_end
            threaded.show(state)
            found = await threaded.read(end, names=None, bytes_max=1 << 30)
            assert [frame.position for frame in found.frames] == more
            await log.truncate(more[5], 0)
            assert threaded.earliest == log.earliest
            with pytest.raises(TruncatedError):
                await threaded.read(0, names=None, bytes_max=1)
            reading = asyncio.ensure_future(threaded.read(more[5], names=None, bytes_max=1 << 30))
            await asyncio.sleep(0)
            await threaded.close()
            assert (await reading).frames
            with pytest.raises(ClosedError):
                await threaded.read(0, names=None, bytes_max=1)
            await threaded.close()


@pytest.fixture(autouse=True)
def _no_file_left_open(tmp_path: Path) -> Iterator[None]:
    """Whatever happens in a read, its file is closed: none of these tests leaves a segment open."""
    yield
    assert not [path for path in open_files(tmp_path) if path.endswith((".wal", ".spare", ".idx"))]
