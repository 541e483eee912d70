"""A log recovers on a disk without a free byte: after a crash it opens, frees space, closes, and accepts appends again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.probes import payloads, read_all
from tests.processes import Child
from tests.small_disk import fill, free_bytes, mounted
from wal import Message, open_wal
from wal.errors import NoSpaceError

ROOT: Final = Path(__file__).parents[2]
SEGMENT_BYTES: Final = 1 << 20
SETTINGS: Final[dict[str, Any]] = {"segment_bytes": SEGMENT_BYTES, "time_tick_interval_s": 5.0}
"""The disk is full before the first tick: what a full disk needs is there from the opening on."""
OPENINGS: Final = 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=12) as place:
        yield place


async def fill_and_kill(disk: Path, *, keyed: bool = False) -> int:
    """Has a process fill its log, then fills the disk to the last byte, and kills it; returns the number of acknowledged events."""
    async with Child("-m", "tests.crash.full_disk_child", disk / "data", json.dumps(SETTINGS), *(["keyed"] if keyed else [])) as child:
        line = await child.line()
        await asyncio.to_thread(fill, disk)
        await child.kill()
    await asyncio.to_thread(fill, disk)
    assert free_bytes(disk) == 0
    return int(line)


def numbers(found: list[bytes]) -> list[int]:
    return [int(payload[:8]) for payload in found]


async def test_log_opens_truncates_and_closes_without_a_free_byte(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    acknowledged = await fill_and_kill(disk)
    for _ in range(OPENINGS):
        await asyncio.to_thread(fill, disk)
        assert free_bytes(disk) == 0
        async with open_wal(disk / "data", **SETTINGS) as log:
            assert numbers(await payloads(log, "orders")) == list(range(acknowledged))
            await asyncio.to_thread(fill, disk)
            with pytest.raises(NoSpaceError):
                await log.raw_append(Message("orders", bytes(100_000)))
    assert "takes no append until there is room" in caplog.text, "there was not even room for the first frame of a term"
    await asyncio.to_thread(fill, disk)
    async with open_wal(disk / "data", **SETTINGS) as log:
        messages = await read_all(log, "orders")
        await log.truncate(up_to=messages[acknowledged // 2].message_id)
        assert free_bytes(disk) > SEGMENT_BYTES
        await log.raw_append(Message("orders", b"%08d" % acknowledged + bytes(60_000)))
    async with open_wal(disk / "data", **SETTINGS) as log:
        assert numbers(await payloads(log, "orders")) == list(range(acknowledged // 2 + 1, acknowledged + 1))


async def test_retention_makes_room_without_a_free_byte(disk: Path) -> None:
    acknowledged = await fill_and_kill(disk)
    async with open_wal(disk / "data", retention_bytes=SEGMENT_BYTES, **SETTINGS) as log:
        async with asyncio.timeout(60):
            while free_bytes(disk) < 2 * SEGMENT_BYTES:
                await asyncio.sleep(0.01)
        found = numbers(await payloads(log, "orders"))
        assert found[0] > 0
        assert found == list(range(found[0], acknowledged))
        await log.raw_append(Message("orders", b"%08d" % acknowledged + bytes(60_000)))
    async with open_wal(disk / "data", **SETTINGS) as log:
        assert numbers(await payloads(log, "orders"))[-1] == acknowledged


async def test_service_that_is_killed_again_and_again_on_a_full_disk_opens_each_time(disk: Path) -> None:
    """No opening may use up the space that the next one needs."""
    acknowledged = await fill_and_kill(disk)
    for _ in range(OPENINGS):
        assert await fill_and_kill(disk) == 0
    async with open_wal(disk / "data", **SETTINGS) as log:
        assert numbers(await payloads(log, "orders")) == list(range(acknowledged))


async def test_keys_do_not_prevent_freeing_space(disk: Path) -> None:
    """Segments are removed only once a checkpoint, which is a separate file, has the keys of their events."""
    acknowledged = await fill_and_kill(disk, keyed=True)
    for _ in range(2):
        assert await fill_and_kill(disk, keyed=True) == acknowledged, "its keys are known, and nothing is new"
    async with open_wal(disk / "data", **SETTINGS) as log:
        messages = await read_all(log, "orders")
        await log.truncate(up_to=messages[acknowledged // 2].message_id)
        assert free_bytes(disk) > SEGMENT_BYTES
    async with open_wal(disk / "data", **SETTINGS) as log:
        for number in range(acknowledged):
            again = await log.raw_append(Message("orders", b"again"), idempotency_key=f"{number:040}")
            assert again.duplicate, number


async def test_log_from_before_the_reserves_gets_them_when_there_is_room(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        await log.raw_append(Message("orders", b"1"), idempotency_key="1")
    reserves = [data_dir / "meta.sqlite3-reserve", data_dir / "pchannels" / "p0" / "checkpoint.reserve"]
    for reserve in reserves:
        reserve.unlink()
    async with open_wal(data_dir) as log:
        assert await payloads(log, "orders") == [b"1"]
        await log.raw_append(Message("orders", b"2"), idempotency_key="2")
    assert all(reserve.stat().st_size > 0 for reserve in reserves)
