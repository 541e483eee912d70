"""A log on Pulsar writes TimeTick frames for readers of the topic, and its durable cursor follows truncation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.storage.frames import INCARNATION, FrameMaker, append_all, read_all
from tests.storage.pulsar.conftest import admin, headers_in, location_of
from wal import Message, ProducerKey, open_wal
from wal.storage.kv import MemoryKV
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.backend import PulsarBackend


def released(address: PulsarAddress, topic: str) -> str:
    """Returns the last message that the durable cursor of the log released, as `ledger:entry`."""
    answer = json.loads(admin(address, "GET", f"persistent/{address.path}/{topic}/internalStats"))
    return str(answer["cursors"]["wal"]["markDeletePosition"])


async def test_time_tick_frame_follows_data(address: PulsarAddress, tmp_path: Path) -> None:
    location, settings = location_of(address, tmp_path / "kv")
    async with open_wal(location, **settings) as log:
        result = await log.raw_append(Message("v", b"1"))
        while log.statistics().pchannels[0].frames < 3:  # the term's first, the message, a TimeTick
            await asyncio.sleep(0.01)
    ticks = await asyncio.to_thread(headers_in, address, "p0")
    assert [header.indices for header in ticks] == [0, 1, 0, 0], "term start, message, TimeTick, close"
    assert result.time_tick is not None
    assert ticks[2].promised_tick > result.time_tick
    assert ticks[3].promised_tick > ticks[2].promised_tick


async def test_pulsar_deletes_only_what_was_truncated(address: PulsarAddress) -> None:
    backend = PulsarBackend(address, MemoryKV())
    topic = address.topic("p")
    rest = Admin(address)
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1, checkpoint=0)
        maker = FrameMaker(1)
        positions = await append_all(log, [maker.keyed(("v", b"%d" % number)) for number in range(450)])
        before = await asyncio.to_thread(rest.ledgers, topic)
        assert before is not None
        assert len(before) >= 4
        await log.truncate(positions[300], 0)
        assert await asyncio.to_thread(released, address, "p") == f"{before[0].number}:-1", "the checkpoint holds it"
        await log.release(positions[250], state=None)
        ledger, entry = positions[249] >> 64, positions[249] & ((1 << 64) - 1)
        while await asyncio.to_thread(released, address, "p") != f"{ledger}:{entry}":
            await asyncio.sleep(0.02)
        await asyncio.to_thread(admin, address, "POST", f"persistent/{address.path}/p/trim")
        after = await asyncio.to_thread(rest.ledgers, topic)
        while after is None or after[0].number != ledger:
            await asyncio.sleep(0.02)
            after = await asyncio.to_thread(rest.ledgers, topic)
        assert [frame.position for frame in await read_all(log, positions[300])] == positions[300:]
        await log.close()
        log = await backend.open("p", incarnation=INCARNATION, term=2, checkpoint=positions[250])
        page = await log.read_keyed(positions[250], bytes_max=1 << 20)
        assert [frame.position for frame in page.frames] == positions[250:]
        await log.close()
    finally:
        await backend.close()


async def test_keys_producers_and_cursors_survive_reopening(address: PulsarAddress, tmp_path: Path) -> None:
    location, settings = location_of(address, tmp_path / "kv")
    async with open_wal(location, **settings) as log:
        first = await log.raw_append(Message("v", b"1"), idempotency_key="one")
        await log.raw_append(Message("v", b"2"), idempotency_key=ProducerKey("p", 7))
        broadcast = await log.broadcast().tasks()
        assert broadcast == []
    async with open_wal(location, **settings) as log:
        again = await log.raw_append(Message("v", b"1"), idempotency_key="one")
        assert (again.duplicate, again.message_id, again.time_tick) == (True, first.message_id, first.time_tick)
        assert (await log.raw_append(Message("v", b"2"), idempotency_key=ProducerKey("p", 7))).duplicate
        async with log.read("v", follow=False, cursor="c") as scanner:
            assert [message.payload async for message in scanner] == [b"1", b"2"]
            await scanner.save()
    async with open_wal(location, **settings) as log:
        await log.raw_append(Message("v", b"3"))
        async with log.read("v", follow=False, cursor="c") as scanner:
            assert [message.payload async for message in scanner] == [b"3"]
        assert first.message_id is not None
        (cursor,) = await log.cursors()
        assert 0 < cursor.lag_bytes < 1 << 20
        await log.truncate(up_to=first.message_id)
        assert (await log.retention())[0].earliest != first.message_id
        await log.delete_cursor("c")
        assert await log.cursors() == []
    async with open_wal(location, **settings) as log, log.read("v", follow=False) as scanner:
        assert [message.payload async for message in scanner] == [b"2", b"3"]
