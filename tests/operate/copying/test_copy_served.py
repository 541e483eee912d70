"""Copies of a served log: they have the content that a client can read, and content that needs more is rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.operate.copying.test_copy import compare, prepare, step
from tests.serve.servers import child
from wal import BroadcastMessage, Message, ProducerKey, open_wal
from wal.errors import InvalidArgumentError, UnavailableError
from wal.operate.copying import copy


@pytest.mark.parametrize("pchannels", [None, 5])
async def test_copy_of_a_served_log_is_the_log(tmp_path: Path, pchannels: int | None) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    await prepare(source, pchannels=3)
    async with served(source) as place:
        with pytest.raises(UnavailableError, match="is not finished"):
            await copy(place, str(target))
        assert not list(tmp_path.glob("target*"))
        async with open_wal(place) as log:
            for task in await log.broadcast().tasks():
                for name in task.missing_acks:
                    await log.broadcast().ack(task.broadcast_id, name)
        result = await copy(place, str(target), pchannels=pchannels)
        assert result is not None
        assert (result.pchannels, result.cursors) == (pchannels or 3, 3)
        await compare(place, target, {}, {})


async def test_copy_is_of_one_tick_while_clients_write(tmp_path: Path) -> None:
    """Every broadcast of the source up to the tick is there with all its copies, and no other; ticks continue above all of the source's."""
    names = [f"v{number}" for number in range(4)]

    async def write(place: str) -> None:
        async with open_wal(place) as log:
            for number in range(100_000):
                began = time.monotonic()
                await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"%d" % number, needs_ack=False), wait=True)
                await asyncio.gather(*(log.append(name, b"plain %d" % number) for name in names))
                # Most moments have no running broadcast, on a slow machine as well: a copy needs such moments.
                await asyncio.sleep(10 * (time.monotonic() - began))

    async with open_wal(tmp_path / "source", pchannels=2) as log:
        for number, name in enumerate(names):
            await log.create_vchannel(name, pchannel=f"p{number % 2}")
    async with served(tmp_path / "source") as place:
        writing = asyncio.create_task(write(place))
        try:
            async with open_wal(place, read_only=True) as log, log.read("v0") as scanner:
                for _ in range(4):
                    await anext(scanner)
            for _ in range(50):
                try:
                    result = await copy(place, str(tmp_path / "target"))
                    break
                except UnavailableError:  # a broadcast is running: the same call resumes the copy
                    continue
        finally:
            writing.cancel()
            await asyncio.wait([writing])
        assert result is not None
        async with open_wal(place) as log:
            given = await log.allocate_time_tick()
            expected = {name: [row for row in await rows_of(log, name) if row[0] <= result.tick] for name in names}
    async with open_wal(tmp_path / "target") as log:
        found = {name: await rows_of(log, name) for name in names}
        assert found == expected
        copies = [[payload for _, payload in rows if not payload.startswith(b"plain")] for rows in found.values()]
        assert copies[0]
        assert all(own == copies[0] for own in copies)
        assert await log.broadcast().tasks() == []
        assert (await log.append("v0", b"new")).time_tick > given > result.tick


async def test_state_hidden_from_clients_is_refused_or_omitted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    async with open_wal(source) as log:
        await log.append("in", b"0")
        await log.append("late", b"1", deliver_at=datetime(2100, 1, 1, tzinfo=UTC), idempotency_key="waits")
        keyed = await log.raw_append(Message("in", b"2"), idempotency_key=ProducerKey("old", 1))
        assert keyed.message_id is not None
        await log.truncate(up_to=keyed.message_id)
        await log.append("in", b"3")
    async with served(source) as place:
        with pytest.raises(InvalidArgumentError, match=r"'waits' .* is in no frame any more"):
            await copy(place, str(tmp_path / "target"))
        assert not (tmp_path / "target").exists()
        async with open_wal(place) as log:
            assert await (await log.scheduled("late")).cancel("waits")
        assert await copy(place, str(tmp_path / "target")) is not None
        async with open_wal(tmp_path / "target") as copied:
            assert not (await copied.raw_append(Message("in", b"2"), idempotency_key=ProducerKey("old", 1))).duplicate
            assert [payload for _, payload in await rows_of(copied, "in")] == [b"3", b"2"]
        async with open_wal(place) as log:
            await step(log)
        with pytest.raises(InvalidArgumentError, match=r"'stage' .* moves with transactions"):
            await copy(place, str(tmp_path / "again"))
        with pytest.raises(InvalidArgumentError, match="without follow"):
            await copy(place, str(tmp_path / "again"), follow=True)


async def rows_of(log: object, name: str) -> list[tuple[int, bytes]]:
    async with log.read(name, follow=False) as scanner:  # type: ignore[attr-defined]
        return [(message.time_tick, body.payload) async for message, body in scanner.bodies()]


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[str]:
    async with child(directory) as server:
        yield f"wal://{server.address}"
