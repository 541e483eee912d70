"""A broadcast on a full disk fails as an append does: NoSpaceError, and no part of it is left that would be completed later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.probes import made_on, payloads
from tests.small_disk import fill, mounted
from wal import BroadcastMessage, BroadcastState, Message, ResourceKey, WALAccesser, open_wal
from wal.errors import NoSpaceError, UnknownOutcomeError

KEY = ResourceKey("collection", "orders")
SETTINGS: dict[str, Any] = {"segment_bytes": 1 << 20}
ANSWER_S = 10.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size_mib=16) as place:
        yield place


async def fill_log(log: WALAccesser, vchannel: str) -> None:
    """Appends until the log accepts no further message, however small."""
    for size in (60_000, 300):
        with contextlib.suppress(NoSpaceError):
            while True:
                await log.raw_append(Message(vchannel, bytes(size)))


def change(*vchannels: str, needs_ack: bool = True) -> BroadcastMessage:
    return BroadcastMessage(vchannels=vchannels, payload=b"change", resource_keys=[KEY], needs_ack=needs_ack)


@pytest.mark.parametrize("needs_ack", [False, True])
@pytest.mark.parametrize("vchannels", [("a0", "a1"), ("a0", "b0")], ids=["one pchannel", "two pchannels"])
async def test_broadcast_without_room_is_refused(disk: Path, vchannels: tuple[str, ...], needs_ack: bool) -> None:
    async with open_wal(disk / "data", pchannels=2, **SETTINGS) as log:
        await made_on(log, "p0", "a0", "a1")
        await made_on(log, "p1", "b0")
        kept = await log.raw_append(Message("a0", b"kept"))
        filler = await asyncio.to_thread(fill, disk)
        for name in ("a0", "b0"):
            await fill_log(log, name)
        await asyncio.to_thread(fill, disk)
        for _ in range(3):
            async with asyncio.timeout(ANSWER_S):
                with pytest.raises(NoSpaceError):
                    await log.broadcast().append(change(*vchannels, needs_ack=needs_ack))
                assert await log.broadcast().tasks() == [], "the key is free, and nothing is to be completed"
        await asyncio.to_thread(filler.unlink)
    async with open_wal(disk / "data", **SETTINGS) as log:
        assert await log.broadcast().tasks() == []
        for name in vchannels:
            assert b"change" not in await payloads(log, name)
        async with asyncio.timeout(ANSWER_S):
            result = await log.broadcast().append(change(*vchannels, needs_ack=needs_ack))
        assert result.append_results.keys() == set(vchannels)
        assert b"change" in await payloads(log, "a0")
        assert kept.message_id is not None


async def test_partial_broadcast_is_completed_with_room(disk: Path) -> None:
    async with open_wal(disk / "data", pchannels=2, **SETTINGS) as log:
        await made_on(log, "p0", "a0")
        await made_on(log, "p1", "b0")
        filler = await asyncio.to_thread(fill, disk)
        await fill_log(log, "a0")
        async with asyncio.timeout(ANSWER_S):
            with pytest.raises(UnknownOutcomeError, match="do not repeat it"):
                await log.broadcast().append(change("a0", "b0"))
        (task,) = await log.broadcast().tasks()
        assert task.state is BroadcastState.PENDING
        assert task.missing_appends == ("a0",)
        assert b"change" in await payloads(log, "b0")
        await asyncio.to_thread(filler.unlink)
        async with asyncio.timeout(60):
            while (await log.broadcast().tasks())[0].state is not BroadcastState.WAIT_ACK:
                await asyncio.sleep(0.01)
        assert (await payloads(log, "a0")).count(b"change") == 1
        assert (await payloads(log, "b0")).count(b"change") == 1
