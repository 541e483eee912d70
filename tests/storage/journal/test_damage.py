"""Damage anywhere in a journal is harmless, or an error, or (only above the durable position) cut off as a torn tail."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import copy_of_open
from tests.storage.frames import FrameMaker, append_all, content, content_of, read_all
from tests.storage.journal.journals import folder, journal, segments
from wal.errors import CorruptionError, FormatError
from wal.frame import EncodedFrame
from wal.storage.journal.control import CONTROL_BYTES
from wal.storage.journal.layout import HEADER_PAGE_BYTES, SECTOR_BYTES, Envelope, SegmentHeader


@pytest.fixture
def fast() -> Iterator[Path]:
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, prefix="wal-damage-") as directory:
        yield Path(directory)


async def images(place: Path) -> tuple[Path, Path, list[EncodedFrame]]:
    """Returns a log over three segments as a crash left it, the same log closed, and its frames."""
    maker = FrameMaker(1)
    frames = [maker.term_start(), maker.time_tick()]
    frames += [maker.data(("a", b"x" * (20 * i)), ("b", b"y" * 30)) for i in range(16)]
    log_place, crashed = place / "closed", place / "crashed"
    async with journal(log_place, segment=8 << 10) as log:
        await append_all(log, frames)
        assert len(segments(log_place)) == 3
        copy_of_open(log_place, crashed)
    return crashed, log_place, frames


async def outcome(place: Path, frames: list[EncodedFrame]) -> str:
    """Opens and reads the whole log: returns "whole", "short" or "loud" (an error). Any other outcome fails here."""
    try:
        async with journal(place, 2, segment=8 << 10) as log:
            found = await read_all(log)
    except FormatError:
        return "loud"
    except CorruptionError as error:
        says_where = error.path.startswith(str(place)) and error.path in str(error) and error.offset >= 0
        return "loud" if says_where else f"not where: {error!r}"
    assert [content(frame.view) for frame in found] == [content_of(frame) for frame in frames[: len(found)]]
    return "whole" if len(found) == len(frames) else "short"


def used(path: Path) -> list[int]:
    """Returns the offsets of a file at which it has content, and a few at which it has none."""
    data = path.read_bytes()
    return [at for at in range(len(data)) if data[at] or at % 97 == 0]


@pytest.mark.one_loop
async def test_every_flipped_bit_is_harmless_or_an_error(fast: Path, soak: int) -> None:
    flips = 100
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    *places, frames = await images(fast)
    targets = [
        (place, path.relative_to(place), at)
        for place in places
        for path in sorted(folder(place).iterdir())
        if path.suffix in (".wal", ".idx", "") and path.is_file()
        for at in used(path)
    ]
    seen = {"whole": 0, "loud": 0}
    for number, (place, path, at) in enumerate(rng.sample(targets, flips * soak)):
        copy = fast / str(number)
        shutil.copytree(place, copy)
        data = bytearray((copy / path).read_bytes())
        data[at] ^= 1 << rng.randrange(8)
        (copy / path).write_bytes(data)
        found = await outcome(copy, frames)
        assert found in seen, f"{path} flipped at {at}: frames are lost without a word"
        seen[found] += 1
        shutil.rmtree(copy)
    print(seen)
    assert min(seen.values()) > flips // 20


@pytest.mark.one_loop
async def test_torn_tail_ends_above_the_durable_position(fast: Path, soak: int) -> None:
    async def outcome_again(place: Path, frames: list[EncodedFrame]) -> str:
        """Returns whether the log is whole, and accepts new frames in place of the torn one."""
        async with journal(place, 3, segment=8 << 10) as log:
            assert [content(frame.view) for frame in await read_all(log)] == [content_of(frame) for frame in frames]
            more = FrameMaker(3).data(("a", b"again"))
            (position,) = await append_all(log, [more])
            assert (await read_all(log, position))[0].view.header == more.header
        return "whole"

    crashed, _, frames = await images(fast)
    tail = segments(crashed)[-1]
    last = max(at for at in used(tail) if tail.read_bytes()[at])
    last_frame = last // SECTOR_BYTES * SECTOR_BYTES
    for forget in (False, True):
        for at in range(last_frame, last + 1, 40 if soak == 1 else 7):
            copy = fast / "copy"
            shutil.copytree(crashed, copy)
            if forget:
                (folder(copy) / "control").write_bytes(bytes(CONTROL_BYTES))
            path = folder(copy) / tail.name
            data = bytearray(path.read_bytes())
            data[at] ^= 0x10
            path.write_bytes(data)
            expected = {"short", "loud"} if forget else {"loud"}
            assert await outcome(copy, frames) in expected
            if forget and at < last_frame + 4:
                assert await outcome_again(copy, frames[:-1]) == "whole"
            shutil.rmtree(copy)


async def test_broken_frame_before_a_whole_one_is_damage(fast: Path) -> None:
    crashed, _, frames = await images(fast)
    tail = segments(crashed)[-1]
    (folder(crashed) / "control").write_bytes(b"")
    data = bytearray(tail.read_bytes())
    data[HEADER_PAGE_BYTES : HEADER_PAGE_BYTES + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    tail.write_bytes(data)
    with pytest.raises(CorruptionError, match="one follows at offset") as caught:
        async with journal(crashed, 2):
            pass
    assert (caught.value.path, caught.value.offset) == (str(tail), HEADER_PAGE_BYTES)
    del frames


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_missing_segment_is_an_error(fast: Path, which: int) -> None:
    crashed, _, _ = await images(fast)
    segments(crashed)[which].unlink()
    with pytest.raises(CorruptionError):
        async with journal(crashed, 2):
            pass


async def test_indices_are_computed_again(fast: Path) -> None:
    _, closed, frames = await images(fast)
    indices = sorted(folder(closed).glob("*.idx"))
    assert len(indices) == 3
    before = [path.read_bytes() for path in indices]
    indices[0].unlink()
    indices[1].write_bytes(b"no index")
    indices[2].write_bytes(indices[2].read_bytes()[:-1])
    async with journal(closed, 2, segment=8 << 10) as log:
        assert log.state.clean
        found = await read_all(log, names=frozenset({"b"}))
        assert len(found) == len(frames) - 2
    assert [path.read_bytes() for path in indices] == before


async def test_control_page_is_rebuilt(fast: Path) -> None:
    crashed, _, frames = await images(fast)
    for page in (b"", bytes(CONTROL_BYTES), b"\xff" * CONTROL_BYTES, None):
        copy = fast / "copy"
        shutil.copytree(crashed, copy)
        control = folder(copy) / "control"
        control.unlink()
        if page is not None:
            control.write_bytes(page)
        async with journal(copy, 2, segment=8 << 10) as log:
            assert log.state.last_term == 1
            assert not log.state.clean
            assert log.state.promised_tick == frames[-1].header.promised_tick
            assert [content(frame.view) for frame in await read_all(log)] == [content_of(frame) for frame in frames]
        shutil.rmtree(copy)


async def test_reader_finds_damage_in_what_it_reads(fast: Path) -> None:
    _, closed, _ = await images(fast)
    first = segments(closed)[0]
    async with journal(closed, 2, segment=8 << 10) as log:
        whole = await read_all(log)
        second = whole[3]
        data = bytearray(first.read_bytes())
        data[second.next_position - 200] ^= 1
        data[whole[4].position + 32 + 20] ^= 1
        first.write_bytes(data)
        with pytest.raises(CorruptionError) as caught:
            await read_all(log, whole[4].position)
        assert (caught.value.path, caught.value.offset) == (str(first), whole[4].position)
        assert [frame.position for frame in await read_all(log, whole[5].position)] == [f.position for f in whole[5:]]
        await log.truncate(whole[5].position, 0)
        assert len(await read_all(log, whole[5].position)) == len(whole) - 5


async def test_torn_frame_is_zeroed(fast: Path) -> None:
    crashed, _, frames = await images(fast)
    tail = segments(crashed)[-1]
    data = bytearray(tail.read_bytes())
    header = SegmentHeader.unpack(bytes(data[:HEADER_PAGE_BYTES]))
    end = max(at for at in used(tail) if data[at]) // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES
    torn = Envelope(900, header.generation, header.base + end).pack() + b"\xee" * 1_600
    data[end : end + len(torn)] = torn
    tail.write_bytes(data)
    assert await outcome(crashed, frames) == "whole"
    mended = tail.read_bytes()
    assert mended[end : end + 1024] == bytes(1024)
    assert mended[end + 1024 :] == data[end + 1024 :], "nothing else was touched"
