"""A write that RocksDB would stall is retried until it succeeds; no caller notices, and the loop continues meanwhile."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from wal.streams.rocksmq import RocksMQ, RocksMQSettings, store


async def test_stalled_write_is_tried_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_max = 1 << 30
    stalls = 0
    sleep = time.sleep

    def counted(seconds: float) -> None:
        nonlocal stalls
        stalls += seconds == store.STALL_RETRY_S
        sleep(seconds)

    monkeypatch.setattr("wal.streams.rocksmq.store.time.sleep", counted)
    async with await RocksMQ.open(directory, settings=RocksMQSettings(write_buffer_bytes=65_536)) as mq:
        await mq.create_channel("x")
        await mq.create_consumer_group("g", "x")
        sent = 0
        while not stalls:
            assert sent * 50_000 < bytes_max, "RocksDB never stalled: the test shows nothing"
            batches = [[b"%d/" % (sent + index) + bytes(50_000)] for index in range(50)]
            await asyncio.gather(*(mq.produce("x", batch) for batch in batches))
            sent += len(batches)
        found = 0
        while messages := await mq.consume("g", "x", 1000):
            for message in messages:
                assert int(message.payload.partition(b"/")[0]) == found
                found += 1
        assert found == sent
