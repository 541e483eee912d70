"""The directory of an open log is removed or replaced: the log reports it, acknowledges nothing more, and touches no other log's files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.api.opening.removals import GONE, REMOVALS, Removal, content_of, few, no_longer_there, remove_all
from tests.probes import payloads, start
from tests.processes import Line, Other, eventually
from tests.read.readers import numbered, rest
from tests.small_disk import mounted, mounted_over
from wal import Latest, Message, WALAccesser, open_wal
from wal.errors import StorageError

PAUSE_S = 0.05
"""Seconds between two appends above which the second one counts as an append after a pause."""
NOTICED_S = 1.0
"""Seconds within which a log notices the removal, whether it is idle or busy."""


def text(number: int) -> Message:
    return Message("orders", b"%d" % number)


async def close(log: WALAccesser) -> None:
    """Closes a log whose directory is gone: the close raises, and releases everything."""
    with pytest.raises(StorageError, match=GONE):
        await log.close()


@pytest.mark.parametrize("removal", REMOVALS)
async def test_append_after_a_pause_is_refused_at_once(data: str, removal: Removal) -> None:
    log = await open_wal(data, time_tick_interval_s=5.0)
    await numbered(log, 3)
    await asyncio.to_thread(removal, Path(data))
    await asyncio.sleep(PAUSE_S)
    with pytest.raises(StorageError, match=GONE) as caught:
        await log.raw_append(text(3))
    assert data in str(caught.value), "the error names the absolute path"
    assert not caught.value.outcome_unknown, "nothing was written"
    with pytest.raises(StorageError) as later:
        await log.raw_append(text(4))
    assert str(later.value) == str(caught.value)
    await close(log)


@pytest.mark.parametrize("removal", few(REMOVALS))
async def test_idle_log_notices_by_itself(data: str, removal: Removal) -> None:
    log = await open_wal(data, time_tick_interval_s=60.0)
    await numbered(log, 3)
    async with log.read("orders", deliver_policy=Latest()) as scanner:
        waiting = start(anext(scanner))
        await asyncio.to_thread(removal, Path(data))
        async with asyncio.timeout(5 * NOTICED_S):
            with pytest.raises(StorageError, match=GONE):
                await waiting
    with pytest.raises(StorageError, match=GONE):
        await log.append_nowait(text(3))
    await close(log)


@pytest.mark.parametrize("removal", few(REMOVALS))
async def test_appends_that_follow_each_other_end(data: str, removal: Removal) -> None:
    async def until_ended(log: WALAccesser) -> StorageError:
        """Appends until an append fails, and returns its error."""
        with pytest.raises(StorageError, match=GONE) as caught:
            while True:
                await log.raw_append(text(0))
        return caught.value

    log = await open_wal(data)
    await log.raw_append(text(0))
    ended = start(until_ended(log))
    await asyncio.to_thread(removal, Path(data))
    async with asyncio.timeout(5 * NOTICED_S):
        await ended
    await close(log)


async def test_closing_without_the_directory_is_an_error(data: str) -> None:
    log = await open_wal(data)
    await numbered(log, 3)
    await asyncio.to_thread(remove_all, Path(data))
    with pytest.raises(StorageError, match=GONE):
        await log.close()
    async with open_wal(data) as again:  # its resources are released
        assert await again.vchannels() == []


@pytest.mark.parametrize("options", [("-t", "tmpfs", "tmpfs"), ("--bind", "elsewhere")])
async def test_mount_over_the_directory(data: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    with mounted(tmp_path / "trial", size_mib=1):
        pass  # a user who may not mount is told so before the log is open
    (tmp_path / "elsewhere").mkdir()
    options = tuple(str(tmp_path / option) if option == "elsewhere" else option for option in options)
    log = await open_wal(data)
    await numbered(log, 3)
    with mounted_over(Path(data), *options):
        await asyncio.sleep(PAUSE_S)
        with pytest.raises(StorageError, match=no_longer_there(Path(data))):
            await log.raw_append(text(3))
        await close(log)
        assert list(Path(data).iterdir()) == []
    async with open_wal(data) as again:
        assert await rest(again) == [0, 1, 2]


async def test_moved_directory_holds_all_acknowledged_messages(data: str, tmp_path: Path) -> None:
    log = await open_wal(data)
    acknowledged = 0
    Path(data).rename(tmp_path / "moved")
    with pytest.raises(StorageError, match=GONE):
        while True:
            await log.raw_append(text(acknowledged))
            acknowledged += 1
    await close(log)
    async with open_wal(tmp_path / "moved") as moved:
        assert await rest(moved) == list(range(acknowledged))


async def second(line: Line, data: str) -> None:
    """Opens the path that the first process still has open, and writes its own log there."""
    async with open_wal(data, segment_bytes=1 << 20) as log:
        await numbered(log, 100)
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        await log.raw_append(Message("orders", b"100"), idempotency_key="key")
        line.tell("open")
        await line.hear()
    line.tell("closed")
    await line.hear()
    async with open_wal(data) as log:
        line.tell((await rest(log), [info.name for info in await log.cursors()]))


async def test_second_process_opens_the_path(data: str) -> None:
    """The lock was removed with the directory, so the second process can open the log; the first one acknowledges nothing more."""
    log = await open_wal(data, segment_bytes=1 << 20, retention_bytes=2 << 20)
    await numbered(log, 200)
    await log.raw_append(text(200), idempotency_key="key")
    await asyncio.to_thread(remove_all, Path(data))
    async with Other(second, data) as other:
        assert await other.hear() == "open"
        with pytest.raises(StorageError, match=GONE):
            await log.raw_append(text(201))
        metadata = {path.name: path.stat().st_ino for path in Path(data).glob("meta.sqlite3*")}
        assert len(metadata) > 1, "the second process has its metadata open"
        await close(log)
        assert {path.name: path.stat().st_ino for path in Path(data).glob("meta.sqlite3*")} == metadata
        other.tell("close")
        assert await other.hear() == "closed"
        other.tell("check")
        assert await other.hear() == (list(range(101)), ["billing"])
        await other.end()


async def test_calls_on_a_replaced_directory_change_nothing(data: str) -> None:
    """Makes every call that changes files before the log notices: each fails, or changes the directory that belongs to the log."""
    log = await open_wal(data, segment_bytes=1 << 20, time_tick_interval_s=60.0)
    results = await numbered(log, 200)
    await log.raw_append(text(200), idempotency_key="key")
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        await anext(scanner)
        await asyncio.to_thread(remove_all, Path(data))
        async with Other(second, data) as other:
            assert await other.hear() == "open"
            other.tell("close")
            assert await other.hear() == "closed"
            before = content_of(Path(data))
            for call in (
                scanner.save(),
                log.delete_cursor("billing"),
                log.cursors(),
                log.truncate(up_to=results[150].message_id),
                log.create_vchannel("invoices"),
                log.drop_vchannel("orders"),
                log.retention(),
                log.append_bulk(Message("orders", bytes(200_000)) for _ in range(20)),
            ):
                with pytest.raises(StorageError, match=GONE):
                    await call
            await close(log)
            assert content_of(Path(data)) == before
            other.tell("check")
            assert await other.hear() == (list(range(101)), ["billing"])
            await other.end()


async def test_relative_location_and_another_working_directory(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(Path(data).parent)
    async with open_wal(Path(data).name, segment_bytes=1 << 20) as log:
        monkeypatch.chdir(tmp_path / "elsewhere")
        for number in range(200):
            await log.raw_append(Message("orders", b"%d" % number + bytes(1000)))
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        await asyncio.sleep(PAUSE_S)
        await log.raw_append(text(0))
        assert len(await payloads(log, "orders")) == 201
        assert os.listdir() == []
    async with open_wal(data) as log:
        assert len(await payloads(log, "orders")) == 201
        assert [info.name for info in await log.cursors()] == ["billing"]


async def test_retention_and_recycled_segments_are_no_removal(data: str, soak: int) -> None:
    """Segments are named, unnamed and reused under load and retention, while other threads and processes check the directory."""

    async def follow_until_told(line: Line, data: str) -> None:
        """Reads while the writer writes, repeatedly from the start of the log, and fails for anything but a truncation."""
        from wal.errors import TruncatedError

        async with open_wal(data, read_only=True) as log:
            line.tell("open")
            told = asyncio.ensure_future(line.hear())
            while not told.done():
                try:
                    async with log.read("orders", follow=False) as scanner:
                        async for _ in scanner:
                            pass
                except TruncatedError:
                    pass
                await asyncio.sleep(0)
        line.tell("ended")

    count = 0
    async with open_wal(data, segment_bytes=1 << 20, retention_bytes=2 << 20) as log, asyncio.timeout(60 * soak):
        reader = Other(follow_until_told, data)
        assert await reader.hear() == "open"
        for _ in range(6 * soak):
            for _ in range(25):
                await asyncio.gather(*[log.append_nowait(Message("orders", bytes(100_000))) for _ in range(4)])
                count += 4
            await log.cursors()
        reader.tell("end")
        assert await reader.hear() == "ended"
        await reader.end()
        folder = Path(data) / "pchannels" / "p0"
        # Most segments were freed meanwhile.
        await eventually(lambda: len(list(folder.glob("*.wal"))) * (1 << 20) < count * 100_000 / 10)


async def test_log_under_load_is_never_taken_for_removed(data: str, soak: int) -> None:
    async with open_wal(data, segment_bytes=1 << 20, pchannels=4) as log:
        await asyncio.gather(*[log.append_bulk(Message(f"orders-{one}", bytes(2000)) for _ in range(500 * soak)) for one in range(8)])
    assert await eventually(lambda: (Path(data) / "LOCK").exists())
