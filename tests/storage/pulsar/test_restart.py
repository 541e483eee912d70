"""Pulsar is killed (kill -9) and restarted while a log on it is written and read: no message is lost or duplicated, and ids stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.servers.pulsar import PulsarServer
from tests.storage.pulsar.conftest import location_of, new_namespace, own
from tests.storage.pulsar.stalls import StallWatch
from wal import ImmutableMessage, Message, MessageID, WALAccesser, open_wal


async def test_killed_and_started_again_under_load(pulsar_process: PulsarServer, tmp_path: Path, soak: int) -> None:
    WRITERS = 12
    kills = 1
    kills_soak = 5

    class Load:
        """Writers that continue whatever happens, and a reader that follows."""

        def __init__(self, log: WALAccesser) -> None:
            self.log = log
            self.acked: dict[bytes, MessageID] = {}
            self.seen: list[tuple[MessageID, bytes]] = []
            self.stop = False

        async def write(self, number: int) -> None:
            count = 0
            while not self.stop:
                payload = b"%d/%d" % (number, count)
                count += 1
                result = await self.log.raw_append(Message(f"v-{number % 4}", payload))
                assert result.message_id is not None
                self.acked[payload] = result.message_id

        async def read(self, vchannel: str) -> None:
            def take(message: ImmutableMessage) -> None:
                self.seen.append((message.message_id, message.payload))

            async with self.log.read(vchannel) as scanner:
                async for message in scanner:
                    take(message)
                    if self.stop and message.payload == b"end":
                        return

        async def more(self, count: int) -> None:
            """Waits for this number of further acknowledgements."""
            wanted = len(self.acked) + count
            while len(self.acked) < wanted:
                await asyncio.sleep(0.01)

    async def everything(log: WALAccesser) -> list[tuple[MessageID, bytes]]:
        found: list[tuple[MessageID, bytes]] = []
        for number in range(4):
            async with log.read(f"v-{number}", follow=False) as scanner:
                found += [(message.message_id, message.payload) async for message in scanner]
        return found

    server = pulsar_process
    location, settings = location_of(new_namespace(own(server)), tmp_path / "meta.sqlite3")
    async with StallWatch() as watch:
        async with open_wal(location, **settings) as log:
            load = Load(log)
            readers = [asyncio.create_task(load.read(f"v-{number}")) for number in range(4)]
            writers = [asyncio.create_task(load.write(number)) for number in range(WRITERS)]
            for _ in range(kills if soak == 1 else kills_soak):
                await load.more(300)
                await asyncio.to_thread(server.kill)
                before, log_size = len(load.acked), server.log.stat().st_size
                await asyncio.to_thread(server.start)
                assert b"Deleted path: /ledgers/available" not in server.log.read_bytes()[log_size:], "its bookie was still registered"
                await load.more(300)
                print(f"{before} acknowledged before a kill, {len(load.acked)} after it")
            load.stop = True
            await asyncio.gather(*writers)
            for number in range(4):
                result = await log.raw_append(Message(f"v-{number}", b"end"))
                load.acked[b"end %d" % number] = result.message_id
            await asyncio.gather(*readers)
            found = await everything(log)
        async with open_wal(location, **settings) as log:
            again = await everything(log)
    assert again == found, "ids and order are as before"
    payloads = [payload for _, payload in found if payload != b"end"]
    assert len(set(payloads)) == len(payloads), "something is in the log twice"
    ids = {payload: message_id for message_id, payload in found if payload != b"end"}
    ends = {message_id for message_id, payload in found if payload == b"end"}
    assert ids == {payload: at for payload, at in load.acked.items() if not payload.startswith(b"end")}
    assert ends == {at for payload, at in load.acked.items() if payload.startswith(b"end")}
    assert sorted(load.seen) == sorted(found), "the followers saw every message once"
    assert watch.stalls == [], "the loop stood still in Pulsar's client"
    assert watch.beats > 0
