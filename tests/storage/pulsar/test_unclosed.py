"""A log on Pulsar that was never closed, and a journal with its metadata in etcd: their resources are released."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.storage.pulsar.conftest import location_of
from wal import All, Message, WALAccesser, open_wal
from wal.storage.pulsar.address import PulsarAddress

Opening = Callable[[], Any]


@pytest.fixture(params=["pulsar", "etcd"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    """Opens the same log repeatedly."""
    if request.param == "etcd":
        kv = f"etcd://{request.getfixturevalue('etcd_address')}/wal-test-{secrets.token_hex(6)}"
        return lambda: open_wal(tmp_path / "data", kv=kv)
    address: PulsarAddress = request.getfixturevalue("address")
    location, settings = location_of(address, tmp_path / "meta.sqlite3")
    return lambda: open_wal(location, **settings)


async def opened(opening: Opening) -> WALAccesser:
    """Opens the log, appends one event and returns the log."""
    log: WALAccesser = await opening()
    await log.raw_append(Message("orders", b"one"))
    return log


async def count(opening: Opening) -> int:
    """Opens and closes the log; returns its number of events."""
    async with opening() as log, log.read("orders", deliver_policy=All(), follow=False) as scanner:
        return len([message async for message in scanner])


def test_close_releases_a_log_whose_loop_has_ended(opening: Opening) -> None:
    log = asyncio.run(opened(opening))
    asyncio.run(log.close())
    assert asyncio.run(count(opening)) == 1


def test_collected_log_after_its_loop_is_released(opening: Opening) -> None:
    async def main() -> None:
        await opened(opening)

    for expected in (1, 2):
        with pytest.warns(ResourceWarning, match=r"await log\.close\(\)"):
            asyncio.run(main())
        gc.collect()
        assert asyncio.run(count(opening)) == expected
