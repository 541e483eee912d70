"""Crafted files of a journal with valid CRCs: an index is recomputed; any other file is read as it is or raises CorruptionError.

No other exception is raised, no loop is endless, and no memory is allocated for content that a field claims but the file lacks.
"""

from __future__ import annotations

import asyncio
import random
import resource
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.faults import copy_of_open
from tests.storage.crafting import crafted, fields_of
from tests.storage.frames import FrameMaker, append_all, content, read_all
from tests.storage.journal.journals import PCHANNEL, folder, journal
from wal.errors import ChannelFencedError, ClosedError, CorruptionError, FormatError, TruncatedError
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import SECTOR_BYTES
from wal.storage.journal.read_only_journal import ReadOnlyJournal, ReadOnlyJournalLog

INDEX: Final = fields_of("4sIQQQQQQqIIIIII")
SAMPLE: Final = 20
"""The number of crafted files of a kind that are tried, drawn at random; a soak tries all of them."""
MEMORY_BYTES: Final = 4 << 30

Seen = list[tuple[int, tuple[object, ...]]]


@pytest.fixture(autouse=True)
def blockbuster() -> None:
    """Allows blocking calls, because a ReadOnlyJournalLog blocks on purpose."""


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Makes an allocation of a crafted length raise MemoryError, which no test expects."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()  # above it, or no thread can begin
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
async def original(tmp_path: Path) -> Path:
    """Creates a log of some sealed segments and an incomplete one, and closes it properly."""
    maker = FrameMaker(1)
    place = tmp_path / "original"
    frames = [maker.keyed((f"v{i % 5}", b"%04d" % i), ("é", b"x")) for i in range(60)]
    frames += [maker.data((f"v{i % 7}", bytes(2_500)), ("w", bytes(300))) for i in range(60)]
    async with journal(place) as log:
        await append_all(log, frames)
    return place


def chosen(rng: random.Random, cases: Iterator[tuple[str, bytes]], soak: int) -> list[tuple[str, bytes]]:
    found = list(cases)
    return found if soak > 1 or len(found) <= SAMPLE else rng.sample(found, SAMPLE)


def observe(place: Path) -> Seen:
    """Returns everything that a read-only process gets."""
    log: ReadOnlyJournalLog = ReadOnlyJournal(place).open(PCHANNEL)
    try:
        state = log.reach()
        found: Seen = []
        at = state.earliest[0]
        while at < state.durable_end:
            page = log.page(at, state.durable_end, None, 1 << 20)
            found += [(frame.position, content(frame.view)) for frame in page.frames]
            assert page.next_position > at
            at = page.next_position
        named = frozenset(["w"])
        for frame in log.heads(state.earliest[0], state.durable_end, named):
            assert frame.position >= state.earliest[0]
        return found
    finally:
        log.close()


async def write(place: Path, term: int) -> Seen:
    """Returns everything that the next writer gets."""
    async with journal(place, term) as log:
        return [(frame.position, content(frame.view)) for frame in await read_all(log, log.earliest[0])]


async def test_crafted_index_is_computed_again(original: Path, tmp_path: Path, soak: int) -> None:
    def index_cells(data: bytes) -> list[tuple[int, str]]:
        """Returns some cells of the columns and rows of an index."""
        (frames,) = struct.unpack_from("<I", data, 68)
        at = 88
        cells = []
        for form in "QQQIII":
            width = struct.calcsize(form)
            cells += [(at + width * ordinal, form) for ordinal in (0, frames // 2, frames - 1)]
            at += width * frames
        cells += [(offset, "I") for offset in range(at, len(data) - 8, max(4, (len(data) - at) // 40 // 4 * 4))]
        return cells + [(offset, "B") for offset in range(at, len(data) - 4, max(1, (len(data) - at) // 25))]

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    expected = await asyncio.to_thread(observe, original)
    assert len(expected) == 120
    paths = sorted(folder(original).glob("*.idx"))
    assert len(paths) > 2
    for path in (paths[0], paths[-1]):
        data = path.read_bytes()
        cases = chosen(rng, crafted(data, INDEX + index_cells(data)), soak)
        for number, (what, changed) in enumerate(cases):
            place = tmp_path / "crafted"
            copy_of_open(original, place)
            (folder(place) / path.name).write_bytes(changed)
            found = await asyncio.to_thread(observe, place)
            assert found == expected, f"a reader, {path.name}, {what}"
            if number % 3 == 0:
                found = await write(place, 2)
                assert found == expected, f"a writer, {path.name}, {what}"
            shutil.rmtree(place)


def test_index_of_any_bytes_is_read_or_refused() -> None:
    """With a valid CRC nothing else is raised, whatever the counts and lengths are."""
    index = SegmentIndex(0x4000)
    data = index.encode(incarnation=3, generation=5)
    rng = random.Random(7)
    for what, changed in crafted(data + bytes(64), INDEX):
        for size in (len(changed), len(data)):
            body = bytearray(changed[: size - 4])
            body += rng.randbytes(4)
            struct.pack_into("<Q", body, 8, len(body))
            try:
                found = SegmentIndex.decode(bytes(body), base=0x4000, incarnation=3, generation=5)
            except CorruptionError:
                continue
            assert len(found) == 0, what


async def outcome(place: Path, term: int, expected: Seen, what: str) -> None:
    """Runs a reader and then a writer: each gets content of the log, or a documented error."""
    for who in (asyncio.to_thread(observe, place), write(place, term)):
        try:
            async with asyncio.timeout(60):
                found = await who
        except (CorruptionError, FormatError, TruncatedError, ChannelFencedError, ClosedError):
            continue
        assert [event for event in found if event not in expected] == [], what


@pytest.mark.parametrize("which", [0, -1])
async def test_segment_header(original: Path, tmp_path: Path, soak: int, which: int) -> None:
    segment = fields_of("8sIIQQQQQQqQQQI")
    rng = random.Random(random.randrange(1 << 30))
    expected = await asyncio.to_thread(observe, original)
    path = sorted(folder(original).glob("*.wal"))[which]
    page = path.read_bytes()[:4096]
    for what, changed in chosen(rng, crafted(page, segment, crc_at=100), soak):
        place = tmp_path / "crafted"
        copy_of_open(original, place)
        with (folder(place) / path.name).open("r+b") as file:
            file.write(changed)
        await outcome(place, 2, expected, what)
        shutil.rmtree(place)


async def test_control_page(original: Path, tmp_path: Path, soak: int) -> None:
    slot = fields_of("4sIQQQQQIIQQ")
    slot_bytes = 72
    rng = random.Random(random.randrange(1 << 30))
    expected = await asyncio.to_thread(observe, original)
    page = (folder(original) / "control").read_bytes()
    slots = [page[at : at + slot_bytes + 4] for at in (0, SECTOR_BYTES)]
    newer = max((0, 1), key=lambda number: struct.unpack_from("<Q", slots[number], 8)[0])
    for what, changed in chosen(rng, crafted(slots[newer], slot), soak):
        place = tmp_path / "crafted"
        copy_of_open(original, place)
        both = bytearray(page)
        at = newer * SECTOR_BYTES
        both[at : at + len(changed)] = changed
        (folder(place) / "control").write_bytes(bytes(both))
        await outcome(place, 2, expected, what)
        shutil.rmtree(place)
