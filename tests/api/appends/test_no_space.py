"""A full disk: nothing acknowledged is lost, the error can be retried, and writing continues once there is room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.probes import payloads
from tests.small_disk import fill, mounted
from wal import AppendResult, Message, WALAccesser, open_wal
from wal.errors import NoSpaceError, StreamingCode

SIZE_MIB = 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", size_mib=SIZE_MIB) as disk:
        yield disk


async def test_new_log_on_a_full_disk_fails(small_disk: Path) -> None:
    filler = fill(small_disk)
    for free in (0, 4096, 64 << 10, 1 << 20):  # full from the directory on, from the metadata on, and from the first segment on
        os.truncate(filler, filler.stat().st_size - free)
        with pytest.raises(NoSpaceError) as caught:
            async with open_wal(small_disk / "data"):
                pass
        assert caught.value.retryable
        assert str(caught.value).count("room") == 1
        fill(small_disk)
    filler.unlink()
    async with open_wal(small_disk / "data") as log:
        await log.append("orders", b"x")


async def test_no_space_is_retryable_and_nothing_is_lost(small_disk: Path) -> None:
    async def append_until_full(log: WALAccesser, acknowledged: list[int]) -> NoSpaceError:
        number = acknowledged[-1] + 1 if acknowledged else 0
        while True:
            futures = [log.append_nowait(Message("orders", b"%06d" % (number + step) + bytes(50_000))) for step in range(8)]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, AppendResult):
                    acknowledged.append(number)
                number += 1
            for outcome in outcomes:
                if isinstance(outcome, NoSpaceError):
                    return outcome
                assert isinstance(outcome, AppendResult), outcome

    data = small_disk / "data"
    acknowledged: list[int] = []
    async with open_wal(data, segment_bytes=4 << 20) as log:
        await log.raw_append(Message("orders", b"%06d" % 0))
        acknowledged.append(0)
        filler = fill(small_disk)
        for _ in range(3):
            error = await append_until_full(log, acknowledged)
            assert error.retryable
            assert error.code == StreamingCode.NO_SPACE
            assert not error.outcome_unknown
        with pytest.raises(NoSpaceError):
            await log.append_bulk([Message("orders", b"9" * 6 + bytes(900_000)) for _ in range(8)])
        assert [int(payload[:6]) for payload in await payloads(log, "orders") if payload[:6] != b"9" * 6] == acknowledged
        filler.unlink()
        again = acknowledged[-1] + 1000
        for _ in range(100):
            try:
                await log.raw_append(Message("orders", b"%06d" % again + bytes(50_000)))
            except NoSpaceError:
                continue
            break
        acknowledged.append(again)
        for number in range(again + 1, again + 40):
            await log.raw_append(Message("orders", b"%06d" % number + bytes(50_000)))
            acknowledged.append(number)
        assert log.statistics().bytes_in_flight == 0
    async with open_wal(data) as log:
        found = [int(payload[:6]) for payload in await payloads(log, "orders") if payload[:6] != b"9" * 6]
        assert found == acknowledged, "what was acknowledged, and nothing of what was refused"


async def test_writers_outlive_a_full_disk(small_disk: Path) -> None:
    """Several frames are in flight whenever the disk fills up: their numbers have no gap, and no refused message is in the log."""
    data = small_disk / "data"
    acknowledged: list[bytes] = []
    refused: list[bytes] = []
    full = False
    over = asyncio.Event()

    async def write(log: WALAccesser, writer: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            key = b"%02d-%05d" % (writer, number)
            try:
                if number % 3:
                    result = await log.raw_append(Message("orders", key + bytes(20_000)))
                else:
                    async with log.txn("orders") as txn:
                        await txn.append(key + bytes(20_000))
                    assert txn.result is not None
                    result = txn.result
            except NoSpaceError:
                refused.append(key)
                await asyncio.sleep(0)
            else:
                acknowledged.append(key)
                if len(acknowledged) >= 100 and not full:  # a log that is truncated would reuse its own files for ever
                    del acknowledged[:]
                    await log.truncate(up_to=result.message_id)

    async with open_wal(data, segment_bytes=2 << 20) as log:
        writers = [asyncio.ensure_future(write(log, number)) for number in range(6)]
        for _ in range(4):
            full = True
            filler = await asyncio.to_thread(fill, small_disk)
            before = len(refused)
            while len(refused) < before + 20:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(filler.unlink)
            full = False
            once = len(acknowledged)
            while len(acknowledged) in (once, 0):
                await asyncio.sleep(0.001)
        over.set()
        await asyncio.gather(*writers)
        found = [payload[:8] for payload in await payloads(log, "orders")]
        assert len(found) == len(set(found))
        assert set(acknowledged) <= set(found)
        assert not set(refused) & set(found)
    async with open_wal(data) as log:
        assert [payload[:8] for payload in await payloads(log, "orders")] == found
        await log.raw_append(Message("orders", b"goes on"))
