"""Pulsar is killed (kill -9) and restarted while streams write and read: no acknowledged message is lost, and the packs of a time-ticked
stream have nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.servers.pulsar import PulsarServer
from tests.storage.pulsar.conftest import own
from tests.storage.pulsar.stalls import StallWatch
from tests.streams.msgstream.packs import number, row, tick
from tests.streams.msgstream.pulsar.conftest import kept_namespace
from wal.streams.msgstream import MsgPack, MsgStream, MsgType
from wal.streams.msgstream.media.pulsar import PulsarMsgStream, PulsarTtMsgStream


@pytest.mark.soak("tests/storage/pulsar/test_restart.py kills the broker by default, and test_medium.py loses the connection of a stream")
async def test_killed_and_started_again_under_load(pulsar_process: PulsarServer) -> None:
    kills = 5
    channels = ["a", "b"]
    # Messages between two time ticks.
    rows = 20
    # Messages that must be acknowledged before a kill, and after it.
    between = 400
    source = 7

    class Load:
        """A producer of messages with numbers and of time ticks. `acked`: numbers of messages whose produce() returned."""

        def __init__(self, stream: MsgStream) -> None:
            self.acked: set[int] = set()
            self.stop = False
            self.is_over = False
            self.last_tick = 0
            self._stream = stream

        async def run(self) -> None:
            count = 0
            while not self.stop:
                numbers = range(count, count + rows)
                count += rows
                msgs = [row(each, each + 1, key=each, id=each + 1, source_id=source) for each in numbers]
                await self._stream.produce(MsgPack([*msgs]))
                self.acked.update(numbers)
                await self._stream.broadcast(MsgPack([tick(count)]))
                self.last_tick = count

        async def end(self, writing: asyncio.Task[None]) -> None:
            """Ends the writing, and sends a last tick for readers that wait."""
            self.stop = True
            await writing
            self.is_over = True
            self.last_tick += 1
            await self._stream.broadcast(MsgPack([tick(self.last_tick)]))

        async def more(self, count: int) -> None:
            """Waits for this number of further acknowledgements."""
            wanted = len(self.acked) + count
            while len(self.acked) < wanted:
                await asyncio.sleep(0.01)

    async def read_ticked(stream: MsgStream, load: Load, found: list[MsgPack]) -> None:
        async for pack in stream:
            found.append(pack)
            if load.is_over and pack.end_ts >= load.last_tick:
                return

    async def read_plain(stream: MsgStream, load: Load, found: Counter[int]) -> None:
        async for pack in stream:
            found.update(number(msg) for msg in pack.msgs if msg.msg_type is not MsgType.TIME_TICK)
            if load.is_over and found.keys() >= load.acked:
                return

    address = kept_namespace(own(pulsar_process))
    packs: list[MsgPack] = []
    plain: Counter[int] = Counter()
    async with (
        StallWatch() as watch,
        PulsarMsgStream(address) as writer,
        PulsarTtMsgStream(address) as ticked,
        PulsarMsgStream(address) as shared,
    ):
        await writer.create_pulsar_producers(channels)
        await ticked.create_pulsar_consumers(channels, "ticked")
        await shared.create_pulsar_consumers(channels, "shared")
        load = Load(writer)
        readers = [asyncio.create_task(read_ticked(ticked, load, packs)), asyncio.create_task(read_plain(shared, load, plain))]
        writing = asyncio.create_task(load.run())
        for _ in range(kills):
            await load.more(between)
            await asyncio.to_thread(pulsar_process.kill)
            before, read = len(load.acked), len(plain)
            await asyncio.to_thread(pulsar_process.start)
            await load.more(between)
            print(f"{before} acknowledged and {read} read before a kill, {len(load.acked)} and {len(plain)} after it")
        await load.end(writing)
        await asyncio.gather(*readers)
    delivered = Counter(number(msg) for pack in packs for msg in pack.msgs)
    assert delivered.keys() >= load.acked, "a message that was acknowledged is lost"
    assert plain.keys() >= load.acked, "a message that was acknowledged is lost"
    assert [each for each, times in delivered.items() if times > 1] == []
    ends = [pack.end_ts for pack in packs]
    assert ends == sorted({*ends})
    for pack in packs:
        assert all(pack.begin_ts < msg.end_ts <= pack.end_ts for msg in pack.msgs)
    assert watch.stalls == [], "the loop stood still in Pulsar's client"
    assert watch.beats > 0
