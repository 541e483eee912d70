"""The journal's bytes, to the byte; and its pure parts against naive models."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.frames import FrameMaker, append, append_all
from tests.storage.journal.journals import folder, journal
from wal.errors import CorruptionError, FormatError
from wal.frame import FrameHeader
from wal.message import Lineage, Restore
from wal.storage.journal.control import ControlPage, ControlRecord
from wal.storage.journal.disk import Disk
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import Envelope, SegmentHeader, padding, slot_bytes
from wal.storage.journal.lineage_file import load_lineage, save_lineage

HEADER = SegmentHeader(
    incarnation=0x0102,
    generation=0xA1A2A3A4A5A6A7A8,
    base=0x2000,
    size=0x10000,
    previous_base=0x1000,
    previous_term=3,
    previous_sequence=41,
    first_tick=0x51,
    promised_tick=0x50,
    newest=(0x1E00, 7),
)
RECORD = ControlRecord(0x0102, 4, 0x3200, (0x1E00, 2), 0x60, 0x70, closed=True)


def sealed(golden: str) -> bytes:
    """Returns the golden bytes and their CRC32C."""
    data = bytes.fromhex(golden)
    return data + struct.pack("<I", google_crc32c.value(data))


def test_golden_bytes() -> None:
    header_golden = (
        "57414c5345474d54" "01000000" "00000000" "0201000000000000" "a8a7a6a5a4a3a2a1" "0020000000000000" "0000010000000000"
        "0010000000000000" "0300000000000000" "2900000000000000" "5100000000000000" "5000000000000000" "001e000000000000"
        "07000000"
    )  # fmt: skip
    envelope_golden = "57414c45c8000000a8a7a6a5a4a3a2a1003000000000000000000000"
    slot_golden = (
        "57414c43" "01000000" "0900000000000000" "0201000000000000" "0400000000000000" "0032000000000000" "001e000000000000"
        "02000000" "01000000" "6000000000000000" "7000000000000000"
    )  # fmt: skip

    page = HEADER.pack()
    assert page == sealed(header_golden).ljust(4096, b"\0")
    assert page[100:104].hex() == "2aa644fd"
    assert SegmentHeader.unpack(page) == HEADER
    envelope = Envelope(200, HEADER.generation, 0x3000)
    assert envelope.pack() == sealed(envelope_golden)
    assert Envelope.unpack(envelope.pack(), 0, generation=HEADER.generation, position=0x3000) == envelope
    assert Envelope.unpack(envelope.pack(), 0, generation=HEADER.generation ^ 1, position=0x3000) is None
    assert Envelope.unpack(envelope.pack(), 0, generation=HEADER.generation, position=0x3200) is None
    assert RECORD.pack(9) == sealed(slot_golden)
    assert ControlRecord.unpack(RECORD.pack(9), 0) == (9, RECORD)


def test_golden_lineage(tmp_path: Path) -> None:
    lineage = Lineage(0x3333, (Restore(0x1111, 0x4000, (0x3000, 2)), Restore(0x2222, 0x5000)))
    lineage_golden = (
        "57414c52" "01000000" "02000000" "00000000" "3333000000000000"
        "1111000000000000" "0040000000000000" "0030000000000000" "02000000" "01000000"
        "2222000000000000" "0050000000000000" "0000000000000000" "00000000" "00000000"
    )  # fmt: skip

    save_lineage(Disk(), tmp_path, lineage)
    assert (tmp_path / "lineage").read_bytes() == sealed(lineage_golden)
    assert load_lineage(tmp_path, 0x3333) == lineage
    # A restore that was interrupted before the metadata knew of it does not count.
    assert load_lineage(tmp_path, 0x2222) == Lineage(0x2222, lineage.restores[:1])
    assert load_lineage(tmp_path, 0x1111) == Lineage(0x1111)
    with pytest.raises(CorruptionError, match="of the incarnations 1111, 2222, 3333"):
        load_lineage(tmp_path, 0x4444)


async def test_segment_to_the_byte(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    frames = [maker.data(("v", b"x" * 700)), maker.data(("v", b"y"))]
    async with journal(tmp_path, segment=8 << 10) as log:
        positions = await append_all(log, frames)
        data = (folder(tmp_path) / f"{0:016x}.wal").read_bytes()
        control = (folder(tmp_path) / "control").read_bytes()
        end = log.durable_end
    header = SegmentHeader.unpack(data[:4096])
    assert (header.base, header.size, header.incarnation, header.newest) == (0, 8 << 10, maker.incarnation, None)
    expected = b""
    for position, frame in zip(positions, frames, strict=True):
        assert position == 4096 + len(expected)
        expected += Envelope(frame.length, header.generation, position).pack() + b"".join(frame.buffers)
        expected = expected.ljust(-(-len(expected) // 512) * 512, b"\0")
    assert data[4096:] == expected.ljust(4096, b"\0")
    assert end == 4096 + len(expected)
    slots = [slot for at in (0, 512) if (slot := ControlRecord.unpack(control, at)) is not None]
    assert max(slots)[1].durable == end
    assert len(slots) == 2


async def test_sealed_segment_and_its_successor(tmp_path: Path) -> None:
    maker = FrameMaker(1)
    async with journal(tmp_path, segment=8 << 10) as log:
        first = await append(log, maker.data(("v", b"x" * 2_000)))
        second = await append(log, maker.data(("v", b"x" * 3_000)))
        newest = log.durable_end
        await append(log, maker.data(("v", b"x" * 3_000)))
    data = (folder(tmp_path) / f"{0:016x}.wal").read_bytes()
    old = SegmentHeader.unpack(data[:4096])
    base = second - 4096
    new = SegmentHeader.unpack((folder(tmp_path) / f"{base:016x}.wal").read_bytes()[:4096])
    assert Envelope.unpack(data, base, generation=old.generation, position=base) == Envelope(0, old.generation, base)
    assert (new.base, new.previous_base, new.previous_term, new.previous_sequence) == (base, 0, 1, 0)
    assert new.newest == (first, 0)
    assert new.promised_tick < new.first_tick
    generations = {SegmentHeader.unpack(path.read_bytes()[:4096]).generation for path in sorted(folder(tmp_path).glob("*.wal"))}
    assert len(generations) == 3
    assert newest == second + slot_bytes(3_000 + 200)


def test_bytes_that_are_no_header_are_refused() -> None:
    page = HEADER.pack()
    for damaged in (b"", page[:100], bytes(4096), page[:50] + b"\1" + page[51:]):
        with pytest.raises(CorruptionError):
            SegmentHeader.unpack(damaged)
    newer = page[:8] + struct.pack("<I", 2) + page[12:100]
    with pytest.raises(FormatError, match="version 2"):
        SegmentHeader.unpack((newer + struct.pack("<I", google_crc32c.value(newer))).ljust(4096, b"\0"))


@given(st.integers(0, 5_000_000))
def test_slots_are_whole_sectors(length: int) -> None:
    assert slot_bytes(length) % 512 == 0
    assert slot_bytes(length) == 32 + length + len(padding(length))
    assert len(padding(length)) < 512


@given(st.data())
@settings(max_examples=60)
def test_find_is_the_naive_search(data: st.DataObject) -> None:
    """The data holds envelopes of this and other generations, at their own and other positions, aligned and not."""
    generation, base, offset = 0x1122334455667788, 0x40000, 0x3000
    content = bytearray(random.Random(data.draw(st.integers(0, 99))).randbytes(4096))
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, 7)) * 512 + data.draw(st.sampled_from((0, 0, 0, 8)))
        position = base + offset + at + data.draw(st.sampled_from((0, 0, 512)))
        of = data.draw(st.sampled_from((generation, generation, 7)))
        content[at : at + 32] = Envelope(data.draw(st.integers(0, 9)), of, position).pack()
    naive = [
        offset + at
        for at in range(0, 4096, 512)
        if Envelope.unpack(bytes(content), at, generation=generation, position=base + offset + at) is not None
    ]
    assert Envelope.find(bytes(content), generation=generation, base=base, offset=offset) == min(naive, default=-1)


def frame_header(sequence: int, *, tick: int, indices: int, body: int) -> FrameHeader:
    return FrameHeader(0, 0, 1, 5, sequence, tick, tick + indices, indices, indices, 1, 0, 40, body, 4)


rows = st.lists(
    st.tuples(st.lists(st.sampled_from(["a", "b", "ü", "long name"]), max_size=4), st.booleans(), st.integers(0, 3), st.integers(0, 3_000)),
    max_size=30,
)


@given(rows, st.data())
def test_index_is_the_naive_index(frames: list[tuple[list[str], bool, int, int]], data: st.DataObject) -> None:
    index = SegmentIndex(0x9000)
    positions: list[int] = []
    for sequence, (names, wide, indices, body) in enumerate(frames):
        positions.append(index.end)
        index.add(index.end, frame_header(sequence, tick=10 * sequence, indices=indices, body=body), names, pchannel_wide=wide)
    stored = SegmentIndex.decode(index.encode(incarnation=1, generation=2), base=0x9000, incarnation=1, generation=2)
    assert (stored.end, stored.last) == (index.end, (5, len(frames) - 1) if frames else None)
    for found in (index, stored):
        first = data.draw(st.integers(0, len(frames)))
        end = data.draw(st.integers(first, len(frames)))
        chosen = frozenset(data.draw(st.sets(st.sampled_from(["a", "b", "ü", "nobody"]))))
        extent = range(first, end)
        assert found.wanted(None, first, end) == list(extent)
        assert found.wanted(chosen, first, end) == [i for i in extent if frames[i][1] or chosen & set(frames[i][0])]
        events = [(positions[i], frames[i][2] - 1) for i in extent if frames[i][2]]
        assert found.last_event(first, end) == (events[-1] if events else None)
        assert found.promise(first, end) == max((10 * i + frames[i][2] for i in extent), default=0)
        at = data.draw(st.integers(0x9000, index.end))
        assert found.ordinal(at) == sum(position < at for position in positions)


def test_no_flip_in_an_index_is_believed() -> None:
    index = SegmentIndex(0)
    index.add(4096, frame_header(0, tick=1, indices=1, body=10), ["a"], pchannel_wide=False)
    encoded = index.encode(incarnation=1, generation=2)
    for at in range(len(encoded)):
        damaged = encoded[:at] + bytes((encoded[at] ^ 1,)) + encoded[at + 1 :]
        with pytest.raises(CorruptionError):
            SegmentIndex.decode(damaged, base=0, incarnation=1, generation=2)
    for other in ({"base": 4096}, {"incarnation": 2}, {"generation": 3}):
        with pytest.raises(CorruptionError):
            SegmentIndex.decode(encoded, **{"base": 0, "incarnation": 1, "generation": 2, **other})


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=20), st.integers(0, 1))
@settings(max_examples=25)
def test_control_page_uses_the_untorn_slot(tmp_path_factory: pytest.TempPathFactory, ends: list[int], torn: int) -> None:
    path = tmp_path_factory.mktemp("control") / "control"
    ControlPage.create(Disk(), path, RECORD)
    records = [RECORD]
    page = ControlPage(Disk(), path)
    for end in ends:
        records.append(ControlRecord(1, 2, end, (0, 0), 0, 0, closed=False))
        with page.locked():
            page.store(records[-1])
        assert page.load() == records[-1]
    page.close()
    data = bytearray(path.read_bytes())
    data[torn * 512 + 40] ^= 1
    path.write_bytes(data)
    page = ControlPage(Disk(), path)
    newest_is_torn = (len(records) + 1) % 2 == torn
    assert page.load() == (records[-2] if newest_is_torn else records[-1])
    page.close()
