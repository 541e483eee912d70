"""Segments that bypass the page cache: they do, the journal works where they cannot, and readers see only right bytes.

Readers use the page cache while the writer bypasses it. The kernel keeps the two consistent; the last test checks that it does, on this
machine and file system.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from tests.processes import Child
from tests.storage.frames import FrameMaker, append, append_all, content, content_of, read_all
from tests.storage.journal.faults import FaultyDisk
from tests.storage.journal.journals import journal, segments
from wal.storage.journal import disk as disk_module
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.layout import HEADER_PAGE_BYTES, SECTOR_BYTES

pytestmark = pytest.mark.linux

READS = 200
"""The fewest reads while frames are written."""


def is_direct(file: JournalFile) -> bool:
    return bool(fcntl.fcntl(file.fd, fcntl.F_GETFL) & os.O_DIRECT)


def can_be_direct(directory: Path) -> bool:
    """Returns whether the kernel can read a sector of this directory's file system directly, asked without the product."""
    path = directory / "probe"
    path.write_bytes(bytes(HEADER_PAGE_BYTES))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    try:
        with mmap.mmap(-1, HEADER_PAGE_BYTES) as aligned, memoryview(aligned) as view, view[:SECTOR_BYTES] as sector:
            return os.preadv(fd, [sector], SECTOR_BYTES) == SECTOR_BYTES
    except OSError:
        return False
    finally:
        os.close(fd)
        path.unlink()


async def test_active_segment_bypasses_the_page_cache(tmp_path: Path) -> None:
    """This holds from the first segment over every change of segment, and after a reopening; without the flag the journal does not claim
    it."""
    direct = can_be_direct(tmp_path)
    maker = FrameMaker(1)
    place = tmp_path / "journal"
    frames = [maker.data(("v", os.urandom(20_000))) for _ in range(16)]
    async with journal(place, segment=128 << 10) as log:
        for frame in frames:
            await append(log, frame)
            assert is_direct(log._tail.active.file) is direct
        assert log.statistics().segments >= 2, "a rolled segment is as direct as the first"
        last = log._tail.active.segment.path
        assert [content(frame.view) for frame in await read_all(log)] == list(map(content_of, frames))
    async with journal(place, 2, segment=128 << 10) as log:
        assert is_direct(log._tail.active.file) is direct
        assert log._tail.active.segment.path == last
        await append(log, FrameMaker(2).data(("v", b"goes on")))
        assert is_direct(log._tail.active.file) is direct
        assert len(await read_all(log)) == 17


async def test_written_frames_are_not_in_the_page_cache(tmp_path: Path) -> None:
    """The flag alone proves nothing; the kernel's count of pages does."""

    def can_bypass(directory: Path) -> bool:
        """Returns whether direct writes stay out of the page cache. A tmpfs takes the flag, but all of it is page cache."""
        if not can_be_direct(directory):
            return False
        path = directory / "probe"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        try:
            with mmap.mmap(-1, HEADER_PAGE_BYTES) as aligned:
                assert os.pwritev(fd, [aligned], 0) == HEADER_PAGE_BYTES
            return resident(path, 0, HEADER_PAGE_BYTES) == 0
        finally:
            os.close(fd)
            path.unlink()

    def resident(path: Path, offset: int, length: int) -> int:
        """Returns how many pages of this range the page cache holds, without bringing any in."""
        page = mmap.PAGESIZE
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            count = length // page
            pages = (ctypes.c_ubyte * count)()
            pin = ctypes.c_char.from_buffer(mapping)
            address = ctypes.addressof(pin) + offset
            answer = libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(count * page), pages)
            del pin
            assert answer == 0, os.strerror(ctypes.get_errno())
            return sum(entry & 1 for entry in pages)

    libc = ctypes.CDLL(None, use_errno=True)

    bypassed = can_bypass(tmp_path)
    maker = FrameMaker(1)
    async with journal(tmp_path / "journal", segment=4 << 20) as log:
        for _ in range(8):
            await append(log, maker.data(("v", os.urandom(256 << 10))))
        (path,) = segments(tmp_path / "journal")
        held = resident(path, HEADER_PAGE_BYTES, 2 << 20)
        # Readahead of the header at opening may have cached some pages before they were written: those were dropped.
        assert (held == 0) if bypassed else (held > 0), f"{held} pages of {(2 << 20) // mmap.PAGESIZE}"


async def test_refused_direct_flag_uses_the_cache(tmp_path: Path) -> None:
    class BufferedDisk(Disk):
        """A file system without direct writes: setting the flag fails, as it does there."""

        def __init__(self) -> None:
            self.asked = 0

        def _file(self, path: Path, fd: int) -> JournalFile:
            return BufferedFile(self, path, fd)

    class BufferedFile(JournalFile):
        __slots__ = ("_disk",)

        def __init__(self, disk: BufferedDisk, path: Path, fd: int) -> None:
            super().__init__(path, fd)
            self._disk = disk

        def bypass_cache(self) -> None:
            real = fcntl.fcntl

            def refused(fd: int, command: int, argument: int = 0) -> int:
                if command == fcntl.F_SETFL and argument & os.O_DIRECT:
                    self._disk.asked += 1
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                return real(fd, command, argument)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(disk_module.fcntl, "fcntl", refused)  # type: ignore[attr-defined]
                super().bypass_cache()

    disk = BufferedDisk()
    maker = FrameMaker(1)
    frames = [maker.data(("v", os.urandom(20_000))) for _ in range(16)]
    async with journal(tmp_path, segment=128 << 10, disk=disk) as log:
        await append_all(log, frames)
        assert not is_direct(log._tail.active.file)
        assert log._tail.active.file._aligned is None
        assert log.statistics().segments >= 2
    assert disk.asked >= 3, "each file was asked"
    async with journal(tmp_path, 2, segment=128 << 10) as log:
        assert [content(frame.view) for frame in await read_all(log)] == list(map(content_of, frames))


def test_disk_with_larger_sectors_uses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag can be set there, but the first write of 512 bytes would fail: a read detects that earlier."""
    path = tmp_path / "segment"
    path.write_bytes(bytes(64 << 10))

    def misaligned(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    file = Disk().open(path)
    try:
        monkeypatch.setattr(disk_module.os, "preadv", misaligned)  # type: ignore[attr-defined]
        file.bypass_cache()
        assert not is_direct(file)
        file.write([b"x" * SECTOR_BYTES], HEADER_PAGE_BYTES + SECTOR_BYTES)
        assert file.read(SECTOR_BYTES, HEADER_PAGE_BYTES + SECTOR_BYTES) == b"x" * SECTOR_BYTES
    finally:
        file.close()


@pytest.mark.parametrize(("offset", "length"), [(SECTOR_BYTES, 700), (SECTOR_BYTES + 3, SECTOR_BYTES), (1, 1)])
def test_partial_sectors_are_written_through_the_cache(tmp_path: Path, offset: int, length: int) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(64 << 10))
    file = Disk().open(path)
    try:
        file.bypass_cache()
        assert is_direct(file) is can_be_direct(tmp_path)
        first, second = os.urandom(4 * SECTOR_BYTES), os.urandom(length)
        file.write([first[:100], first[100:]], 32 * SECTOR_BYTES)
        file.write([second], offset)
        assert not is_direct(file), "and stays so: mixing the two for one place is what the kernel warns of"
        file.write([first], 64 * SECTOR_BYTES)
        file.sync()
    finally:
        file.close()
    expected = bytearray(64 << 10)
    expected[offset : offset + length] = second
    expected[32 * SECTOR_BYTES : 36 * SECTOR_BYTES] = expected[64 * SECTOR_BYTES : 68 * SECTOR_BYTES] = first
    assert path.read_bytes() == expected


async def test_short_direct_write_is_finished_through_the_cache(tmp_path: Path) -> None:
    """A write stops within a sector: the frame is whole, and so are those before and after it."""
    disk = FaultyDisk()
    maker = FrameMaker(1)
    frames = [maker.data(("v", os.urandom(30_000))) for _ in range(3)]
    async with journal(tmp_path, segment=256 << 10, disk=disk, write_path="thread") as log:
        assert is_direct(log._tail.active.file) is can_be_direct(tmp_path)
        await append(log, frames[0])
        disk.partial = 10_001
        await append(log, frames[1])
        disk.partial = None
        assert not is_direct(log._tail.active.file)
        await append(log, frames[2])
        assert [content(frame.view) for frame in await read_all(log)] == list(map(content_of, frames))
    async with journal(tmp_path, 2, segment=256 << 10) as log:
        assert [content(frame.view) for frame in await read_all(log)] == list(map(content_of, frames))


async def test_frame_larger_than_the_aligned_buffer(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    frames = [maker.data(("v", os.urandom(size))) for size in (3 << 20, 100, (5 << 20) + 1)]
    async with journal(tmp_path, segment=16 << 20) as log:
        await append_all(log, frames)
        assert is_direct(log._tail.active.file) is can_be_direct(tmp_path)
        assert [content(frame.view) for frame in await read_all(log)] == list(map(content_of, frames))


async def test_readers_of_another_process_never_see_wrong_bytes(tmp_path: Path) -> None:
    """Frames are written directly, while another process reads READS times through the page cache right below the durable end.

    The file is a recycled one, full of bytes that must not be seen. Frames share pages with the frames before and after them, so that the
    reader caches the page to which the next write goes, and its readahead fetches bytes that are not written yet.
    """
    # The largest frame of the readers' test. Each of its sectors holds its own number, over and over.
    pattern_sectors = 8
    # The fewest sectors that are written.
    SECTORS = 100

    def _write(file: JournalFile, frame: bytes, offset: int) -> None:
        file.write([frame], offset)
        file.sync()

    def _sector(number: int) -> bytes:
        return number.to_bytes(8, "little") * (SECTOR_BYTES // 8)

    size = 8 << 20
    path = tmp_path / "segment"
    file = Disk().open(path, create=True)
    file.write([b"\xee" * size], 0)
    file.sync()
    file.bypass_cache()
    assert is_direct(file) is can_be_direct(tmp_path)
    try:
        async with Child("-c", _READER, path) as reader:
            assert await reader.line() == "ready"
            sectors = 0
            enough = asyncio.ensure_future(reader.line())
            while (not enough.done() or sectors < SECTORS) and (sectors + pattern_sectors) * SECTOR_BYTES <= size:
                count = 1 + sectors % pattern_sectors  # an odd grain: pages are shared in every way
                frame = b"".join(_sector(sectors + each) for each in range(count))
                await asyncio.to_thread(_write, file, frame, sectors * SECTOR_BYTES)
                sectors += count
                reader.tell(sectors)
            assert await enough == "enough"
            reader.close_input()
            answer = await reader.line()
            await reader.end()
    finally:
        file.close()
    words = answer.split()
    assert words[:1] == ["right"], answer
    assert int(words[1]) == sectors >= SECTORS


_READER = f"""
import os, random, select, sys

SECTOR = {SECTOR_BYTES}
fd = os.open(sys.argv[1], os.O_RDONLY)
os.write(1, b"ready\\n")
durable = reads = 0
open_ = True
rest = b""
while open_:
    while select.select([0], [], [], 0 if durable else None)[0]:
        data = os.read(0, 1 << 16)
        if not data:
            open_ = False
            break
        *lines, rest = (rest + data).split(b"\\n")
        if lines:
            durable = int(lines[-1])
    # Mostly at the end, where the writer is; sometimes anywhere; at the very end of it all once everything.
    if not open_:
        spans = [(first, min(first + 256, durable)) for first in range(0, durable, 256)]
    else:
        back = random.choice((1, 2, 9, 40, durable))
        first = max(0, durable - back) if back < durable else random.randrange(durable)
        spans = [(first, min(durable, first + 64))]
    for first, end in spans:
        found = os.pread(fd, (end - first) * SECTOR, first * SECTOR)
        wanted = b"".join(number.to_bytes(8, "little") * (SECTOR // 8) for number in range(first, end))
        reads += 1
        if found != wanted:
            os.write(1, b"wrong at sectors %d to %d of %d durable\\n" % (first, end, durable))
            os._exit(1)
        if open_ and reads == {READS}:
            os.write(1, b"enough\\n")
os.write(1, b"right %d\\n" % durable)
"""
