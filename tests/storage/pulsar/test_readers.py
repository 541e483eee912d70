"""Topics that hold more than the log (duplicates, frames of fenced writers, marks) on a real Pulsar: every reader sees the same log.

A producer of the test writes the messages as `tests.storage.pulsar.physical` plays them; the metadata holds the records that the owners
of the terms would have stored.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random

import pulsar
import pytest

from tests.storage.frames import INCARNATION, append, append_all, read_all
from tests.storage.pulsar.conftest import admin, raw_client
from tests.storage.pulsar.physical import Item, Physical, meaning
from wal.errors import CorruptionError
from wal.frame import EncodedFrame, FrameDraft, Record, encode_frame
from wal.storage.kv import MemoryKV
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.backend import PulsarBackend
from wal.storage.pulsar.connection import READ_AHEAD, position_of_id
from wal.storage.pulsar.control import Control
from wal.storage.pulsar.layout import FRAMES_IN_FLIGHT, Mark, mark_properties
from wal.storage.pulsar.reader import PulsarReader
from wal.storage.pulsar.topic import TopicReader


def frame_of(term: int, sequence: int) -> EncodedFrame:
    """Returns the frame with this number; every third one is a TimeTick frame, without an event."""
    draft = FrameDraft()
    if sequence % 3 != 2:
        draft.append(("v", 1), [Record(b"%d/%d" % (term, sequence))])
    tick = (term << 30) + (sequence << 10)
    return encode_frame(
        draft, incarnation=INCARNATION, term=term, sequence=sequence, first_tick=tick, promised_tick=None if draft.indices else tick
    )


def put(address: PulsarAddress, pchannel: str, items: list[Item]) -> list[int]:
    """Writes these messages as they are; returns their positions."""
    client = raw_client(address)
    try:
        producer = client.create_producer(address.topic(pchannel), batching_enabled=False)
        positions: list[int] = []
        for item in items:
            if item.sequence is None:
                sent = producer.send(b"", properties=mark_properties(Mark(item.term, INCARNATION)))
            else:
                sent = producer.send(b"".join(frame_of(item.term, item.sequence).buffers))
            positions.append(position_of_id(sent))
        return positions
    finally:
        client.close()


async def note(kv: MemoryKV, pchannel: str, items: list[Item], positions: list[int]) -> None:
    """Stores the marks of the terms' owners, except of owners that died after their mark and wrote no frame."""
    control = Control(kv, pchannel)
    await control.load()
    owners = {item.term for item in items if item.sequence is not None} | {items[-1].term}
    for item, position in zip(items, positions, strict=True):
        if item.sequence is None and item.term > control.record.term:
            await control.claim(item.term)
            if item.term in owners:
                await control.change(item.term, terms={item.term: position})


@pytest.mark.parametrize("round_", range(2))
async def test_every_reader_sees_the_same_log(address: PulsarAddress, round_: int, soak: int) -> None:
    for number in range(soak):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        physical = Physical(rng, window=FRAMES_IN_FLIGHT)
        while len(physical.items) < 150:
            physical.step()
        items = physical.items
        kv, pchannel = MemoryKV(), f"p{number}"
        backend = PulsarBackend(address, kv)
        try:
            await backend.create(pchannel, incarnation=INCARNATION)
            positions = put(address, pchannel, items)
            await note(kv, pchannel, items, positions)
            counted, floors = meaning(items)
            log = await backend.open(pchannel, incarnation=INCARNATION, term=items[-1].term + 10)
            frames = [(items[at].term, items[at].sequence) for at in counted]
            assert (log.state.last_term, log.state.last_sequence) == (frames[-1] if frames else (0, -1)), floors[-1]
            events = [(positions[at], 0) for at in counted if items[at].sequence % 3 != 2]  # type: ignore[operator]
            assert log.state.newest == (events[-1] if events else None)
            for start in [0, *rng.sample(range(len(items)), 12), len(items) - 1]:
                found = await read_all(log, positions[start], bytes_max=rng.choice((1, 500, 1 << 20)))
                assert [frame.position for frame in found] == [positions[at] for at in counted if at >= start]
                assert [(frame.view.header.term, frame.view.header.sequence) for frame in found] == [
                    (items[at].term, items[at].sequence) for at in counted if at >= start
                ]
            await log.close()
        finally:
            await backend.close()


async def test_missing_frames_are_loud_wherever_a_read_begins(address: PulsarAddress) -> None:
    items = [Item(1, None), *(Item(1, sequence) for sequence in range(60) if sequence != 40)]
    kv = MemoryKV()
    backend = PulsarBackend(address, kv)
    try:
        await backend.create("p", incarnation=INCARNATION)
        positions = put(address, "p", items)
        await note(kv, "p", items, positions)
        log = await backend.open("p", incarnation=INCARNATION, term=9)
        for start in (0, positions[20], positions[39]):
            with pytest.raises(CorruptionError, match="number 41 of term 1: frames are missing"):
                await read_all(log, start)
        assert len(await read_all(log, positions[45])) == len(items) - 45, "the frames after the gap can still be read"
        await log.close()
    finally:
        await backend.close()


async def test_writer_finds_the_first_position_of_each_frame(address: PulsarAddress) -> None:
    """A producer of the test fences the writer's while it writes. The term is still the writer's, so it reopens the log."""
    kv = MemoryKV()
    backend = PulsarBackend(address, kv)
    client = raw_client(address)
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        futures = []
        thieves = []
        for sequence in range(200):
            futures.append(append(log, frame_of(1, sequence)))
            if sequence % 60 == 30:
                await futures[-8]
                thieves.append(
                    client.create_producer(
                        address.topic("p"), batching_enabled=False, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing
                    )
                )
        positions = [await future for future in futures]
        found = await read_all(log)
        assert [frame.position for frame in found] == positions
        assert [frame.view.header.sequence for frame in found] == list(range(200))
        for start in (3, 37, 95, 150, 199):
            assert [frame.position for frame in await read_all(log, positions[start])] == positions[start:]
        await log.close()
    finally:
        client.close()
        await backend.close()


async def test_fresh_read_begins_with_a_short_page(address: PulsarAddress) -> None:
    backend = PulsarBackend(address, MemoryKV())
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        positions = await append_all(log, [frame_of(1, sequence) for sequence in range(100)])
        for first in (0, 50, 90):
            start, pages = positions[first], []
            while start < log.durable_end:
                page = await log.read(start, names=None, bytes_max=1 << 20)
                pages.append([frame.position for frame in page.frames])
                start = page.next_position
            assert list(itertools.chain(*pages)) == positions[first:]
            assert len(pages[0]) == min(READ_AHEAD, 100 - first)
            assert len(pages) == (2 if first + READ_AHEAD < 100 else 1)
        await log.close()
    finally:
        await backend.close()


async def test_scan_uses_one_topic_reader(address: PulsarAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a scan that skips frames without its vchannels, while another scan continues."""
    opened: list[int] = []
    open_reader = PulsarReader._open

    def counted(reader: PulsarReader, begin: int, ahead: int) -> TopicReader:
        opened.append(begin)
        return open_reader(reader, begin, ahead)

    monkeypatch.setattr(PulsarReader, "_open", counted)
    backend = PulsarBackend(address, MemoryKV())
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        positions = await append_all(log, [frame_of(1, sequence) for sequence in range(200)])
        opened.clear()
        for other, start in zip(positions, positions[100::5], strict=False):
            for at in (start, other):
                page = await log.read(at, names=None, bytes_max=1)
                assert page.frames[0].position == at
        assert len(opened) == 2
        await log.close()
    finally:
        await backend.close()


async def test_idle_readers_are_closed(address: PulsarAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    async def readers() -> int:
        stats = json.loads(await asyncio.to_thread(admin, address, "GET", f"persistent/{address.path}/p/stats"))
        return sum(len(each["consumers"]) for each in stats["subscriptions"].values())

    monkeypatch.setattr(PulsarReader, "idle_s", 2.0)
    backend = PulsarBackend(address, MemoryKV())
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        positions = await append_all(log, [frame_of(1, sequence) for sequence in range(50)])
        await asyncio.gather(*(log.read(position, names=None, bytes_max=1) for position in positions[::5]))
        assert 0 < await readers() <= 4
        while await readers():
            await asyncio.sleep(0.05)
        assert len(await read_all(log)) == 50
        await log.close()
        assert await readers() == 0
    finally:
        await backend.close()
