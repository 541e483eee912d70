"""The seam between an archive and its journal: a log whose retention drops reads as one that never dropped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.processes import eventually
from wal import All, BroadcastMessage, ImmutableMessage, Message, MessageID, StartAfter, StartFrom, WALAccesser, open_wal
from wal.errors import CorruptionError, StorageError, TruncatedError, UnavailableError
from wal.node.archiving import archiver
from wal.storage.archive.store import DirectoryStore
from wal.storage.journal.verify import VerifyProgress, verify_journal

MIB = 1 << 20


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver, "ROUND_S", 0.02)
    monkeypatch.setattr(archiver, "_RETRY_MIN_S", 0.02)


@asynccontextmanager
async def archived_log(tmp_path: Path) -> AsyncIterator[WALAccesser]:
    async with open_wal(tmp_path / "data", archive=str(tmp_path / "target"), segment_bytes=MIB, retention_bytes=2 * MIB) as log:
        yield log


async def write(log: WALAccesser, count: int = 60) -> None:
    for number in range(count):
        if number % 10 == 5:
            async with log.txn("orders") as txn:
                await txn.append(os.urandom(50_000))
                await txn.append(os.urandom(50_000))
        elif number % 10 == 8:
            await log.broadcast().append(BroadcastMessage(payload=os.urandom(1000), vchannels=["orders", "bills"], needs_ack=False))
        else:
            await log.raw_append(Message("orders", os.urandom(100_000)))


async def dropped(log: WALAccesser) -> None:
    """Waits until retention has dropped all that it may."""

    async def is_small() -> bool:
        (held,) = await log.retention()
        return held.bytes <= 2 * MIB

    await eventually(is_small)


def row(message: ImmutableMessage) -> tuple[MessageID, int, list[bytes]]:
    return message.message_id, message.time_tick, [body.payload for body in message.bodies()]


async def rows(log: WALAccesser, **options: Any) -> list[tuple[MessageID, int, list[bytes]]]:
    async with log.read("orders", follow=False, **options) as scanner:
        return [row(message) async for message in scanner]


async def rows_of_archive(tmp_path: Path) -> list[tuple[MessageID, int, list[bytes]]]:
    async with open_wal(f"archive:{tmp_path / 'target'}", read_only=True) as archive:
        return await rows(archive)


async def archive_has_all(log: WALAccesser) -> None:
    def has_all() -> bool:
        archive = log.statistics().archive
        return archive is not None and archive.lag_bytes == 0

    await eventually(has_all)


async def past_log(tmp_path: Path) -> list[tuple[MessageID, int, list[bytes]]]:
    """Writes a log, waits until most of it is dropped, and closes it; returns what a live reader got."""
    async with archived_log(tmp_path) as log, log.read("orders", deliver_policy=All()) as scanner:
        await write(log)
        last = await log.last("orders")
        live = [row(await anext(scanner))]
        while live[-1][0] != last:
            live.append(row(await anext(scanner)))
        await dropped(log)
        (held,) = await log.retention()
        assert held.earliest is not None
        assert held.earliest > live[20][0]
        await archive_has_all(log)
    return live


async def test_reader_crosses_the_seam(tmp_path: Path) -> None:
    live = await past_log(tmp_path)
    assert await rows_of_archive(tmp_path) == live
    async with archived_log(tmp_path) as log:
        assert await rows(log, deliver_policy=All()) == live
        for at in (0, 7, len(live) // 2, len(live) - 2):
            assert await rows(log, deliver_policy=StartFrom(live[at][0])) == live[at:]
            assert await rows(log, deliver_policy=StartAfter(live[at][0])) == live[at + 1 :]


async def test_drop_under_a_reader_loses_nothing(tmp_path: Path) -> None:
    live = await past_log(tmp_path)
    async with archived_log(tmp_path) as log, log.read("orders", deliver_policy=All()) as scanner:
        seen = [row(await anext(scanner)) for _ in range(3)]
        await write(log)
        await dropped(log)
        await archive_has_all(log)
        whole = await rows_of_archive(tmp_path)
        seen += [row(await anext(scanner)) for _ in range(len(whole) - 3)]
    assert seen == whole
    assert whole[: len(live)] == live


async def test_cursor_below_the_seam_goes_on(tmp_path: Path) -> None:
    await past_log(tmp_path)
    async with archived_log(tmp_path) as log:
        async with log.read("orders", cursor="billing", deliver_policy=All()) as scanner:
            for _ in range(5):
                await anext(scanner)
            await scanner.save()
        await write(log)
        await dropped(log)  # the cursor does not hold the disk
        await archive_has_all(log)
    whole = await rows_of_archive(tmp_path)
    async with archived_log(tmp_path) as log:
        assert await rows(log, cursor="billing") == whole[5:]


async def test_store_away_is_named_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = await past_log(tmp_path)

    def refuse(store: DirectoryStore, name: str, *bounds: int) -> bytes:
        raise StorageError("the store is away")

    async with archived_log(tmp_path) as log:
        with monkeypatch.context() as away:
            away.setattr(DirectoryStore, "get", refuse)
            away.setattr(DirectoryStore, "get_range", refuse)
            with pytest.raises(UnavailableError, match=r"target.*the store is away") as failure:
                await rows(log, deliver_policy=All())
            assert failure.value.retryable
            await log.raw_append(Message("bills", b"appends go on"))
            await log.retention()
        assert await rows(log, deliver_policy=All()) == live


async def test_explicit_truncation_moves_the_start(tmp_path: Path) -> None:
    live = await past_log(tmp_path)
    async with archived_log(tmp_path) as log:
        await archive_has_all(log)
        await log.truncate(up_to=live[4][0])
        assert await rows(log, deliver_policy=All()) == live[5:]
        with pytest.raises(TruncatedError) as failure:
            await rows(log, deliver_policy=StartFrom(live[2][0]))
        assert failure.value.earliest == live[5][0]
    async with archived_log(tmp_path) as log:
        await archive_has_all(log)
        assert await rows(log, deliver_policy=All()) == live[5:]
        await log.truncate(up_to=live[-3][0])  # on the disk
        assert await rows(log, deliver_policy=All()) == live[-2:]
    async with archived_log(tmp_path) as log:
        assert await rows(log, deliver_policy=All()) == live[-2:]


async def test_damaged_start_is_named(tmp_path: Path) -> None:
    await past_log(tmp_path)
    path = tmp_path / "data" / "pchannels" / "p0" / "archived"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    damages = await asyncio.to_thread(lambda: list(verify_journal(tmp_path / "data", VerifyProgress())))
    assert [damage.path for damage in damages] == [str(path)]
    with pytest.raises(CorruptionError, match="archived"):
        async with archived_log(tmp_path):
            pass
