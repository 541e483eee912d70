"""The stored index: parts of a growing segment, damaged and older files, and its use in a recovery."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from tests.faults import copy_of_open
from tests.processes import eventually
from tests.storage.frames import FrameMaker, append_all, read_all, read_keyed
from tests.storage.journal.journals import folder, journal
from wal.errors import CorruptionError
from wal.frame import KEYED, FrameHeader
from wal.storage.journal.index import SegmentIndex, index_name
from wal.storage.journal.index_keeper import PART_FRAMES, PART_RUNS
from wal.storage.journal.layout import HEADER_PAGE_BYTES

BASE = 0x4000
IDENTITY: dict[str, Any] = {"incarnation": 3, "generation": 5}


def grown(rng: random.Random, count: int) -> tuple[SegmentIndex, list[int], list[bytes]]:
    """Returns an index of this many frames, the ordinals at which its parts begin, and the parts."""
    index = SegmentIndex(BASE)
    starts, parts = [0], []
    for ordinal in range(count):
        header = FrameHeader(
            0, KEYED * rng.randrange(2), 3, 1 + ordinal // 50, ordinal, 10 * ordinal, 10 * ordinal + 2, 3, 3, 1, 1, 50, 700, 9
        )
        names = [f"v-{rng.randrange(5)}" for _ in range(rng.randint(0, 3))]
        index.add(index.end, header, names, pchannel_wide=rng.random() < 0.1)
        if rng.random() < 0.1 or ordinal == count - 1:
            parts.append(index.encode(**IDENTITY, part=index.part(starts[-1])))
            starts.append(len(index))
    return index, starts, parts


def decode(data: bytes, **more: int) -> SegmentIndex:
    return SegmentIndex.decode(data, base=BASE, **IDENTITY, **more)


def test_parts_are_the_whole() -> None:
    rng = random.Random(1)
    for count in (1, 2, 100, 300):
        index, starts, parts = grown(rng, count)
        whole = index.encode(**IDENTITY)
        found = decode(b"".join(parts))
        assert found.encode(**IDENTITY) == whole
        assert decode(whole).encode(**IDENTITY) == whole
        assert found.keyed(0, count) == index.keyed(0, count)
        for number in range(len(parts)):
            prefix = decode(b"".join(parts[: number + 1]))
            assert len(prefix) == starts[number + 1]
            assert prefix.end == (index.positions[len(prefix)] if len(prefix) < count else index.end)
            assert len(decode(b"".join(parts), end_max=prefix.end)) == len(prefix)
            assert len(decode(whole, end_max=prefix.end)) == (count if prefix.end == index.end else 0)


def test_invalid_part_ends_the_index() -> None:
    rng = random.Random(2)
    _, starts, parts = grown(rng, 200)
    assert len(parts) > 5
    for number in range(1, len(parts)):
        before = b"".join(parts[:number])
        damaged = bytearray(b"".join(parts))
        damaged[rng.randrange(len(before), len(before) + len(parts[number]))] ^= 1 << rng.randrange(8)
        assert len(decode(bytes(damaged))) == starts[number]
        cut = len(before) + rng.randrange(len(parts[number]))
        assert len(decode(b"".join(parts)[:cut])) == starts[number]
        left_out = before + b"".join(parts[number + 1 :])
        assert len(decode(left_out)) == starts[number]
    for data in (b"", parts[0][:-1], parts[1]):
        with pytest.raises(CorruptionError):
            decode(data)


async def test_index_of_an_older_version_is_computed_again(tmp_path: Path) -> None:
    def of_version(data: bytes, version: int) -> bytes:
        body = data[:4] + struct.pack("<I", version) + data[8:-4]
        return body + struct.pack("<I", google_crc32c.value(body))

    maker = FrameMaker(1)
    frames = [maker.keyed(("v", b"%04d" % i)) if i % 7 == 0 else maker.data(("v", bytes(3_000))) for i in range(200)]
    async with journal(tmp_path) as log:
        positions = await append_all(log, frames)
    paths = sorted(folder(tmp_path).glob("*.idx"))
    assert len(paths) > 3
    for path in paths:
        path.write_bytes(of_version(path.read_bytes(), 1))
    async with journal(tmp_path, 2) as log:
        assert [frame.position for frame in await read_all(log)] == positions
        assert [frame.position for frame in await read_keyed(log, 0)] == positions[::7]
    for path in paths:
        assert path.read_bytes()[4:8] == struct.pack("<I", 2)


@pytest.mark.one_loop
@pytest.mark.parametrize(("runs", "batch"), [(1, PART_FRAMES), (512, PART_RUNS // 512)])
async def test_crash_loses_little_of_the_index(tmp_path: Path, runs: int, batch: int) -> None:
    def stored_index(place: Path) -> SegmentIndex:
        (segment,) = folder(place).glob("*.wal")
        with segment.open("rb") as file:
            generation = struct.unpack_from("<Q", file.read(HEADER_PAGE_BYTES), 24)[0]
        data = (folder(place) / index_name(0)).read_bytes()
        return SegmentIndex.decode(data, base=0, incarnation=0x1CE, generation=generation)

    def stored_frames(place: Path) -> int:
        try:
            return len(stored_index(place))
        except (FileNotFoundError, CorruptionError):  # the first part is being written
            return 0

    maker = FrameMaker(1)
    count = 2 * batch + batch // 2
    frames = [maker.keyed(*[(f"v-{run}", b"%d" % i) for run in range(runs)]) for i in range(count)]
    crashed = tmp_path / "crashed"
    async with journal(tmp_path / "data", segment=64 << 20) as log:
        positions = await append_all(log, frames)
        await eventually(lambda: stored_frames(tmp_path / "data") >= count - batch)
        copy_of_open(tmp_path / "data", crashed)
    stored = stored_index(crashed)
    assert count - batch <= len(stored) < count
    assert list(stored.positions) == positions[: len(stored)]
    async with journal(crashed, 2, segment=64 << 20) as log:
        assert [frame.position for frame in await read_keyed(log, 0)] == positions
        more = await append_all(log, [FrameMaker(2).data(("v", b"more")) for _ in range(batch + 1)])
    async with journal(crashed, 3, segment=64 << 20) as log:
        assert [frame.position for frame in await read_all(log, bytes_max=1 << 30)] == positions + more
