"""Writers that wait for the lock of a journal: their order, hand-overs under load, and the error after `wait_s`."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from tests.probes import payloads, start
from tests.processes import Line, Other, eventually
from wal import Message, WALAccesser, bridge, open_wal
from wal.errors import LockedError

LONG_S = 600.0
GAP_S = 1.0
"""The most time without a writer beside the drain, for half of the hand-overs: a busy machine may delay some of them."""


async def written_until_told(line: Line, data: str, number: int) -> None:
    """Opens the log when its writer has left, and appends under load until a word of the test; sends the times and its counts."""
    line.tell("waiting")
    log = await open_wal(data, wait_s=LONG_S)
    line.tell(time.monotonic())
    end = asyncio.ensure_future(line.hear())
    counts = [0] * 16

    async def append(writer: int) -> None:
        while not end.done():
            await log.raw_append(Message("orders", b"%d:%d:%d" % (number, writer, counts[writer])))
            counts[writer] += 1

    writers = [asyncio.create_task(append(writer)) for writer in range(len(counts))]
    await end
    await asyncio.gather(*writers)
    await log.close()
    line.tell((time.monotonic(), counts))


async def waiting(caplog: pytest.LogCaptureFixture, count: int) -> None:
    """Waits until this number of writers have a place."""
    lines = [record for record in caplog.records if getattr(record, "wal_event", "") == "lock awaited"]
    while len(lines) < count:
        await asyncio.sleep(0.005)
        lines = [record for record in caplog.records if getattr(record, "wal_event", "") == "lock awaited"]


async def opened(data: str, wait_s: float = LONG_S) -> WALAccesser:
    return await open_wal(data, wait_s=wait_s)


async def test_hand_overs_under_load_lose_nothing(data: str, soak: int) -> None:
    rounds = 5 if soak == 1 else 50
    gaps: list[float] = []
    written: list[bytes] = []
    left = 0.0
    async with Other(written_until_told, data, 0) as first:
        assert await first.hear() == "waiting"
        await first.hear()
        writer = first
        for number in range(1, rounds + 1):
            following = Other(written_until_told, data, number)
            assert await following.hear() == "waiting"
            await asyncio.sleep(0.1)  # a stretch of load
            writer.tell()
            left, counts = await writer.hear()
            written += [b"%d:%d:%d" % (number - 1, each, at) for each, count in enumerate(counts) for at in range(count)]
            gaps.append(await following.hear() - left)
            await writer.kill()
            writer = following
        writer.tell()
        _, counts = await writer.hear()
        written += [b"%d:%d:%d" % (rounds, each, at) for each, count in enumerate(counts) for at in range(count)]
        await writer.kill()
    async with open_wal(data) as log:
        assert sorted(await payloads(log, "orders")) == sorted(written)
    gaps.sort()
    print(f"{rounds} hand-overs, {len(written)} messages; gap: half within {gaps[len(gaps) // 2]:.3f} s, the longest {gaps[-1]:.3f} s")
    assert gaps[len(gaps) // 2] <= GAP_S, gaps


async def test_waiting_writers_are_served_in_order(data: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wal.journal")
    order: list[int] = []

    async def write(number: int) -> None:
        async with open_wal(data, wait_s=LONG_S) as log:
            order.append(number)
            await log.append("orders", b"%d" % number)

    async with open_wal(data):
        tasks = []
        for number in range(5):
            tasks.append(start(write(number)))
            await waiting(caplog, number + 1)
        tasks.pop(2).cancel()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 3, 4]
    assert f"at most 600 s: the journal {data} is open for writing in this process" in caplog.text
    assert f"got the lock of {data} after" in caplog.text


async def test_killed_waiter_holds_up_no_other(data: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wal.journal")
    async with open_wal(data), Other(written_until_told, data, 0) as earlier:
        assert await earlier.hear() == "waiting"
        await eventually(lambda: any("OFDLCK" in line for line in locks_of(Path(data) / "LOCK")))
        later = start(opened(data))
        await waiting(caplog, 1)
        await earlier.kill()
    await (await later).close()


def locks_of(path: Path) -> list[str]:
    """Returns the locks on a file as the kernel lists them."""
    inode = f":{path.stat().st_ino} "
    return [line for line in Path("/proc/locks").read_text().splitlines() if inode in line]


async def test_end_of_the_wait_names_the_holder(data: str) -> None:
    async with Other(written_until_told, data, 0) as holder:
        await holder.hear()
        await holder.hear()
        began = time.monotonic()
        with pytest.raises(LockedError, match=rf"open for writing in process {holder.pid}.*not free within wait_s=0\.2 s") as caught:
            await open_wal(data, wait_s=0.2)
        assert time.monotonic() - began >= 0.2
        assert caught.value.pid == holder.pid
        with pytest.raises(LockedError, match=r"not free within wait_s=0\.2 s"):
            await asyncio.to_thread(bridge.blocking(data, wait_s=0.2).open)


async def test_wait_ends_with_its_opening(data: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wal.journal")
    async with open_wal(data):
        cancelled = start(opened(data))
        await waiting(caplog, 1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert len(locks_of(Path(data) / "LOCK")) == 1


async def test_free_or_missing_log_is_opened_at_once(data: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wal.journal")
    for location in (data, data, "memory:"):
        async with open_wal(location, wait_s=LONG_S) as log:
            await log.append("orders", b"1")
    assert "waiting for the lock" not in caplog.text
