"""kill -9 of a migration: every message of RocksMQ is in the log, once and in order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.processes import WAIT_TIMEOUT_S, Child
from tests.streams.msgstream.packs import produce, row, tick
from wal import open_wal
from wal.streams.msgstream import MsgType
from wal.streams.msgstream.dispatcher import UnmarshalDispatcher
from wal.streams.msgstream.media.rocksmq import RmqMsgStream
from wal.streams.msgstream.migrate import migrate
from wal.streams.rocksmq import RocksMQ

CHANNELS = {"a": "a", "b": "copied b"}


@pytest.mark.one_loop
async def test_killed_migration_loses_and_repeats_nothing(tmp_path: Path, soak: int) -> None:
    kills = 3

    async def write_and_migrate(directory: Path, seed: int) -> None:
        """Writes to RocksMQ and migrates it until it is killed."""
        draw = random.Random(seed)
        async with (
            open_wal(f"journal:{directory / 'log'}") as log,
            RmqMsgStream(directory / "mq") as producer,
            RmqMsgStream(directory / "mq") as stream,
        ):
            await producer.as_producer([*CHANNELS])
            print("ready", flush=True)

            async def write() -> None:
                number = seed * 1_000_000
                while True:
                    count = draw.randrange(1, 60)
                    rows = [row(number + index, key=draw.randrange(2)) for index in range(count)]
                    number += count
                    await produce(producer, *rows, *([tick(number, key=count % 2)] if count % 3 == 0 else []))
                    print("sent", flush=True)
                    await asyncio.sleep(draw.random() * 0.005)

            await asyncio.gather(write(), migrate(stream, log, channels=CHANNELS, name="move"))

    def kill(directory: Path, seed: int, sends: int) -> None:
        """Runs a process until it has sent this many packs, and kills it."""
        with Child(write_and_migrate, directory, seed) as child:
            assert child.line_now() == "ready"
            for _ in range(sends):
                assert child.line_now() == "sent"
            child.kill_now()

    async def finished(directory: Path, copied_before: int) -> int:
        """Has the migration copy the rest, compares, and returns the number of messages in the log."""
        rows: dict[str, list[bytes]] = {}
        unmarshal = UnmarshalDispatcher().unmarshal
        async with await RocksMQ.open(directory / "mq") as mq:
            for channel in CHANNELS:
                await mq.create_consumer_group("check", channel)
                sent: list[bytes] = []
                while messages := await mq.consume("check", channel, 10_000):
                    sent += [message.payload for message in messages]
                await mq.destroy_consumer_group("check", channel)
                rows[channel] = [payload for payload in sent if unmarshal(payload).msg_type != MsgType.TIME_TICK]
                assert len(rows[channel]) < len(sent)
        copied: dict[str, list[bytes]] = {}
        async with open_wal(f"journal:{directory / 'log'}") as log:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while sum(map(len, copied.values())) < sum(map(len, rows.values())):  # a busy host may be slower than the idle time
                    async with RmqMsgStream(directory / "mq") as stream:
                        await migrate(stream, log, channels=CHANNELS, name="move", idle_s=0.5)
                    for channel, vchannel in CHANNELS.items():
                        async with log.read(vchannel, follow=False) as scanner:
                            copied[channel] = [body.payload async for message in scanner for body in message.bodies()]
        assert copied == rows
        count = sum(map(len, copied.values()))
        assert count > copied_before
        return count

    draw = random.Random(11)
    copied = 0
    for seed in range(1, kills * soak + 1):
        await asyncio.to_thread(kill, tmp_path, seed, draw.randrange(0, 80))
        if seed % 3 == 0:
            copied = await finished(tmp_path, copied)
