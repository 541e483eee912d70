"""The index of vchannels on Pulsar, against a model of frames; and reads fetch little more than they need."""

from __future__ import annotations

import asyncio
import random
import secrets
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.probes import local, payloads
from tests.storage.frames import INCARNATION, FrameMaker, append_all
from tests.storage.pulsar.conftest import location_of
from wal import Message, open_wal
from wal.errors import CorruptionError
from wal.storage.base import FramePage
from wal.storage.kv import MemoryKV
from wal.storage.pulsar import vchannel_index
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.backend import PulsarBackend
from wal.storage.pulsar.log import PulsarLog
from wal.storage.pulsar.read_only_topic import INDEX_MIN
from wal.storage.pulsar.topic import TopicEntry, TopicReader
from wal.storage.pulsar.vchannel_index import FRAMES_MIN, VChannelIndex

NAMES = "abcd"
Frames = list[tuple[int, frozenset[str], bool]]
FRAMES = st.lists(st.tuples(st.integers(1, 3), st.frozensets(st.sampled_from(NAMES), max_size=2), st.booleans()), max_size=60)


def read(index: VChannelIndex, frames: Frames, start: int, end: int, names: frozenset[str]) -> tuple[list[int], int]:
    """Returns the frames for these vchannels that a read by the index finds, and the number that it fetches."""
    found: list[int] = []
    fetched = 0
    while start < end:
        if (hole := index.hole(start, end, names)) is not None:
            below = [frame for frame in frames if frame[0] < hole.end]
            assert hole.promised_tick <= max((position for position, _, _ in below), default=0)
            assert hole.end <= end
            start, before = hole.end, start
            assert start > before
            continue
        stop = index.run_end(start, end, names)
        assert start < stop <= end
        for position, members, for_all in frames:
            if start <= position < stop:
                fetched += 1
                if members & names or for_all:
                    found.append(position)
        start = stop
    return found, fetched


@given(
    steps=FRAMES, known=st.integers(0, 60), gap=st.integers(0, 20), names=st.frozensets(st.sampled_from(NAMES), min_size=1), data=st.data()
)
def test_holes_hold_nothing_for_the_reader(
    steps: list[tuple[int, frozenset[str], bool]], known: int, gap: int, names: frozenset[str], data: st.DataObject
) -> None:
    def small(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vchannel_index, "FRAMES_MIN", 2)
        monkeypatch.setattr(vchannel_index, "HOLE_MIN", 4)
        monkeypatch.setattr(vchannel_index, "EXTENTS_MAX", 5)
        monkeypatch.setattr(vchannel_index, "BITMAP_BYTES_MAX", 4)

    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        index, position = VChannelIndex(), 0
        frames: Frames = []
        for number, (step, members, rare) in enumerate(steps):
            position += step
            for_all = rare and number % 7 == 0
            frames.append((position, members, for_all))
            if number == known + gap:
                index.begin(position)
            if not known <= number < known + gap:
                index.add(position, members, indices=1, promised_tick=position, for_all=for_all)
            if number == known + 5:
                index = VChannelIndex.decode(index.encode())
        end = position + 1
        start = data.draw(st.integers(0, end))
        stop = data.draw(st.integers(start, end))
        wanted = [at for at, members, for_all in frames if start <= at < stop and (members & names or for_all)]
        assert read(index, frames, start, stop, names)[0] == wanted
        index.drop_below(start)
        assert read(index, frames, start, stop, names)[0] == wanted


def test_index_is_bounded() -> None:
    index, seeded = VChannelIndex(), random.Random(27)
    for position in range(50_000):
        index.add(position, [f"v{seeded.randrange(100_000)}"], indices=1, promised_tick=position)
    data = index.encode()
    assert len(data) < 1 << 20
    assert len(VChannelIndex.decode(data).encode()) == len(data)
    with pytest.raises(CorruptionError):
        VChannelIndex.decode(data[:-1])


def test_reads_fetch_twice_what_they_need() -> None:
    """Three hundred vchannels write; others write for a while each, at any time, and are idle before and after."""
    index, seeded = VChannelIndex(), random.Random(28)
    frames: Frames = []
    needs: dict[str, int] = {}
    for position in range(30_000):
        members = {f"v{seeded.randrange(300)}" for _ in range(8)}
        if position % 1_500 >= 1_000:
            name = f"once-{position // 1_500}"
            members.add(name)
            needs[name] = needs.get(name, 0) + 1
        frames.append((position, frozenset(members), False))
        index.add(position, members, indices=1, promised_tick=position)
    for name, need in needs.items():
        found, fetched = read(index, frames, 0, 30_000, frozenset((name,)))
        assert len(found) == need
        assert fetched <= 2 * need
    assert read(index, frames, 0, 30_000, frozenset(("new",))) == ([], 0)


class Fetched:
    """Counts the messages that are fetched from topics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        following = TopicReader.next

        def counted(reader: TopicReader, incarnation: int) -> TopicEntry:
            self.count += 1
            return following(reader, incarnation)

        monkeypatch.setattr(TopicReader, "next", counted)


async def test_index_outlives_its_writer(address: PulsarAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole(log: PulsarLog, names: frozenset[str]) -> list[int]:
        positions: list[int] = []
        start = 0
        while start < log.durable_end:
            page: FramePage = await log.read(start, names=names, bytes_max=1 << 20)
            positions += [frame.position for frame in page.frames]
            start = page.next_position
        return positions

    fetched = Fetched(monkeypatch)
    backend = PulsarBackend(address, MemoryKV())
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1, checkpoint=0)
        maker = FrameMaker(1)
        old = await append_all(log, [maker.data((f"v{number % 30}", b"x")) for number in range(10 * FRAMES_MIN)])
        new = await append_all(log, [maker.data(("new", b"y")) for _ in range(FRAMES_MIN)])
        await log.release(new[0], state=None)
        later = await append_all(log, [maker.data(("v0", b"z")) for _ in range(3 * FRAMES_MIN)])
        for term in (2, 3):
            fetched.count = 0
            assert await whole(log, frozenset(("new",))) == new
            assert len(new) <= fetched.count <= 2 * len(new) + 80
            assert (await whole(log, frozenset(("v0",))))[-1] == later[-1]
            fetched.count = 0
            assert await whole(log, frozenset(("none",))) == []
            assert fetched.count <= 2, "the marks of writers"
            assert await whole(log, frozenset(("v3",))) == old[3::30]
            await log.close()
            log = await backend.open("p", incarnation=INCARNATION, term=term, checkpoint=new[0])
            await log.last_events(new[0])
        await log.close()
    finally:
        await backend.close()


async def test_reader_elsewhere_uses_the_stored_index(address: PulsarAddress, etcd_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    location, settings = location_of(address, Path("kv"))
    settings |= {"kv": f"etcd://{etcd_address}/wal-test-{secrets.token_hex(6)}", "pchannels": 1}
    async with open_wal(location, **settings) as writer:
        await writer.raw_append(Message("idle", b"0"))
        for number in range(INDEX_MIN):
            await writer.raw_append(Message(f"v{number % 10}", b"x"))
        await writer.raw_append(Message("new", b"1"))
        async with open_wal(location, read_only=True, **settings) as reader:
            fetched = Fetched(monkeypatch)
            assert await payloads(reader, "new") == [b"1"]
            assert fetched.count < INDEX_MIN // 4, "its record says where it begins"
        log = local(writer).node.pchannels["p0"].log
        await log.release(log.durable_end, state=None)
        await writer.raw_append(Message("idle", b"2"))
        async with open_wal(location, read_only=True, **settings) as reader:
            fetched.count = 0
            assert await payloads(reader, "idle") == [b"0", b"2"]
            assert fetched.count < INDEX_MIN // 2
            assert len(await payloads(reader, "v3")) == INDEX_MIN // 10 + (INDEX_MIN % 10 > 3)


async def test_followers_of_a_new_vchannel_fetch_nothing_else(
    address: PulsarAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, settings = location_of(address, tmp_path / "kv")
    async with open_wal(location, pchannels=1, **settings) as log:
        for _ in range(40):
            await asyncio.gather(*(log.raw_append(Message(f"v{number}", b"x" * 1000)) for number in range(300)))
        fetched = Fetched(monkeypatch)
        await log.raw_append(Message("new", b"1"))
        scanners = [log.read("new") for _ in range(50)]
        for scanner in scanners:
            async with scanner:
                assert (await anext(scanner)).payload == b"1"
    assert fetched.count <= 50 * 2
