"""The directory of a log is removed or replaced while other processes read it: they report that, and never call it damage."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.api.opening.removals import GONE, READER_REMOVALS, Removal, content_of, few, no_longer_there, remove_all, replace_by_an_empty_one
from tests.api.opening.test_removed_directory import NOTICED_S, text
from tests.probes import payloads, start
from tests.read.readers import numbered
from tests.small_disk import mounted_over
from wal import Latest, Message, ReadPosition, open_wal
from wal.bridge import iterate, record_batches
from wal.errors import ClosedError, StorageError, WALError

MANY = 40
"""The number of frames of 100 kB, more than a reader fetches at once."""


async def written(data: str, count: int = 3, size: int = 0) -> None:
    async with open_wal(data) as log:
        for number in range(count):
            await log.raw_append(Message("orders", b"%d" % number + bytes(size)))


@pytest.mark.parametrize("removal", READER_REMOVALS)
async def test_reader_that_waits_is_told(data: str, removal: Removal) -> None:
    await written(data)
    async with open_wal(data, read_only=True) as log:
        async with log.read("orders", deliver_policy=Latest()) as scanner:
            waiting = start(anext(scanner))
            await asyncio.to_thread(removal, Path(data))
            async with asyncio.timeout(5 * NOTICED_S):
                with pytest.raises(StorageError, match=GONE) as caught:
                    await waiting
        assert data in str(caught.value), "the error names the absolute path"
        with pytest.raises(StorageError, match=GONE):
            await payloads(log, "orders")


@pytest.mark.parametrize("removal", few(READER_REMOVALS))
async def test_read_that_begins_afterwards_is_told(data: str, removal: Removal) -> None:
    await written(data)
    async with open_wal(data, read_only=True) as log:
        await asyncio.to_thread(removal, Path(data))
        with pytest.raises(StorageError, match=GONE):
            await payloads(log, "orders")


@pytest.mark.parametrize("removal", few(READER_REMOVALS))
async def test_active_reader_reports_a_removed_directory(data: str, removal: Removal) -> None:
    """A missing file is not reported as damage, and all messages that the reader has fetched or can still find are right."""
    await written(data, MANY, 100_000)
    async with open_wal(data, read_only=True) as log, log.read("orders") as scanner:
        assert (await anext(scanner)).payload.startswith(b"0")
        await asyncio.to_thread(removal, Path(data))
        async with asyncio.timeout(5 * NOTICED_S):
            with pytest.raises(StorageError, match=GONE):
                for number in range(1, MANY + 1):
                    assert (await anext(scanner)).payload == b"%d" % number + bytes(100_000)


@pytest.mark.parametrize("removal", few(READER_REMOVALS[:5]))
async def test_idle_reader_reports_a_removed_directory(data: str, removal: Removal) -> None:
    await written(data)
    async with open_wal(data, read_only=True) as log, log.read("orders", cursor="billing") as scanner:
        await anext(scanner)
        await scanner.save()
        await asyncio.to_thread(removal, Path(data))
        for call in (scanner.save, log.cursors, lambda: log.delete_cursor("billing"), log.vchannels, log.retention):
            with pytest.raises(StorageError, match=GONE):
                await call()
    if Path(data).is_dir() and removal is replace_by_an_empty_one:
        assert list(Path(data).iterdir()) == []


async def test_mount_over_the_directory_of_a_reader(data: str) -> None:
    await written(data)
    async with open_wal(data, read_only=True) as log, log.read("orders", deliver_policy=Latest()) as scanner:
        waiting = start(anext(scanner))
        with mounted_over(Path(data), "-t", "tmpfs", "tmpfs"):
            async with asyncio.timeout(5 * NOTICED_S):
                with pytest.raises(StorageError, match=no_longer_there(Path(data))):
                    await waiting
            with pytest.raises(StorageError, match=GONE):
                await log.cursors()
            assert list(Path(data).iterdir()) == []


async def test_readers_beside_the_writer_report_a_removal(data: str) -> None:
    log = await open_wal(data)
    await numbered(log, 3)
    async with open_wal(data, read_only=True) as observing, observing.read("orders") as scanner:
        for _ in range(3):
            await anext(scanner)
        await asyncio.to_thread(remove_all, Path(data))
        async with asyncio.timeout(5 * NOTICED_S):
            with pytest.raises(StorageError, match=GONE):
                await anext(scanner)
            with pytest.raises(StorageError, match=GONE):
                await log.raw_append(text(3))
    with pytest.raises(StorageError, match=GONE):
        await log.close()


@pytest.mark.parametrize("reading", [iterate, record_batches])
@pytest.mark.parametrize("removal", few(READER_REMOVALS[:5]))
def test_reads_of_the_bridge_are_told(data: str, removal: Removal, reading: Any) -> None:
    asyncio.run(written(data))
    with reading(data, "orders", cursor="billing", timeout_s=5 * NOTICED_S) as read:
        next(read)
        read.save()
        removal(Path(data))
        with pytest.raises(StorageError, match=GONE):
            read.save()
        with pytest.raises(StorageError, match=GONE) as caught:
            while True:
                next(read)
        assert data in str(caught.value)
        with pytest.raises(StorageError) as later:
            next(read)
        assert str(later.value) == str(caught.value)


@pytest.mark.parametrize("removal", few(READER_REMOVALS))
def test_bridge_reports_a_removed_directory(data: str, removal: Removal) -> None:
    asyncio.run(written(data, MANY, 100_000))
    with iterate(data, "orders", timeout_s=5 * NOTICED_S) as messages:
        next(messages)
        removal(Path(data))
        with pytest.raises(StorageError, match=GONE):
            for number in range(1, MANY + 1):
                assert next(messages).payload == b"%d" % number + bytes(100_000)


async def test_rewritten_log_differs_from_the_first(data: str) -> None:
    """The path holds a valid log again, but another one: readers of the first get nothing of it."""
    await written(data)
    position: ReadPosition | None
    async with open_wal(data, read_only=True) as log, log.read("orders") as scanner:
        for _ in range(3):
            await anext(scanner)
        position = scanner.position
        await asyncio.to_thread(remove_all, Path(data))
        await written(data, 10)
        before = content_of(Path(data))
        async with asyncio.timeout(5 * NOTICED_S):
            with pytest.raises(StorageError, match=GONE):
                await anext(scanner)
        with pytest.raises(StorageError, match=GONE):
            await log.delete_cursor("billing")
        assert content_of(Path(data)) == before
    async with open_wal(data, read_only=True) as log:
        assert await payloads(log, "orders") == [b"%d" % number for number in range(10)]
        with pytest.raises(WALError):
            await payloads(log, "orders", resume=position)


async def test_relative_location_of_a_reader(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    await written(data)
    monkeypatch.chdir(Path(data).parent)
    async with open_wal(Path(data).name, read_only=True) as log:
        monkeypatch.chdir(tmp_path / "elsewhere")
        async with log.read("orders", cursor="billing") as scanner:
            for number in range(3):
                assert (await anext(scanner)).payload == b"%d" % number
            await scanner.save()
            waiting = start(anext(scanner))
            async with open_wal(data) as writer:
                await writer.raw_append(text(3))
                assert (await waiting).payload == b"3"
        assert [info.name for info in await log.cursors()] == ["billing"]
        assert os.listdir() == []


def test_relative_location_of_the_bridge(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    asyncio.run(written(data))
    monkeypatch.chdir(Path(data).parent)
    messages = iterate(Path(data).name, "orders", cursor="billing", follow=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with messages:
        assert [message.payload for message in messages] == [b"0", b"1", b"2"]
        assert os.listdir() == []


async def test_recreated_empty_log_is_not_a_removal(data: str) -> None:
    """The writer itself replaces the files of a log that never held anything: readers get the usual error, to open it again."""
    async with open_wal(data):
        pass
    async with open_wal(data, read_only=True) as log:
        try:
            async with open_wal(data) as writer:
                await writer.raw_append(text(0))
            assert await payloads(log, "orders") == [b"0"]
        except ClosedError:
            pass
