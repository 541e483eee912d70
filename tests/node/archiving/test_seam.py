"""The seam between an archive and its journal: a log whose retention drops reads as one that never dropped."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.locations import SOAK
from tests.processes import Child, eventually, run_python
from tests.serve.servers import serving
from wal import All, BroadcastMessage, ImmutableMessage, Message, MessageID, StartAfter, StartAt, StartFrom, WALAccesser, bridge, open_wal
from wal.errors import CorruptionError, InvalidArgumentError, StorageError, TruncatedError, UnavailableError
from wal.node.archiving import archiver
from wal.storage.archive.store import DirectoryStore
from wal.storage.journal.verify import VerifyProgress, verify_journal
from wal.timestamp.timestamp import to_datetime

MIB = 1 << 20


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver, "ROUND_S", 0.02)
    monkeypatch.setattr(archiver, "_REST", 1.0)
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


@asynccontextmanager
async def reader_of(tmp_path: Path, kind: str) -> AsyncIterator[WALAccesser]:
    """Opens a log that archives itself, and a reader of it: the writer, another opening beside it or without it, or a client."""
    if kind == "served":
        options: dict[str, Any] = {"archive": str(tmp_path / "target"), "segment_bytes": MIB, "retention_bytes": 2 * MIB}
        async with serving(tmp_path / "data", **options) as server, open_wal(f"wal://{server.address}") as client:
            yield client
        return
    async with AsyncExitStack() as stack:
        log = None if kind == "without a writer" else await stack.enter_async_context(archived_log(tmp_path))
        if log is None or kind == "beside":
            log = await stack.enter_async_context(open_wal(tmp_path / "data", read_only=True))
        yield log


@pytest.mark.parametrize("kind", ["writer", "beside", "without a writer", "served"])
async def test_reader_crosses_the_seam(tmp_path: Path, kind: str) -> None:
    live = await past_log(tmp_path)
    assert await rows_of_archive(tmp_path) == live
    async with reader_of(tmp_path, kind) as log:
        assert await rows(log, deliver_policy=All()) == live
        for at in (0, 7, len(live) // 2, len(live) - 2):
            assert await rows(log, deliver_policy=StartFrom(live[at][0])) == live[at:]
            assert await rows(log, deliver_policy=StartAfter(live[at][0])) == live[at + 1 :]
        policy = StartAt(to_datetime(live[len(live) // 3][1]))
        assert await rows(log, deliver_policy=policy) == [each for each in live if each[1] >= policy.time_tick]


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


_FOLLOWER = """
import asyncio, sys
from wal import All, open_wal
async def main():
    async with open_wal(sys.argv[1], read_only=True) as log, log.read("orders", deliver_policy=All()) as scanner:
        async for message in scanner:
            print(message.message_id, flush=True)
            if any(body.payload == b"last" for body in message.bodies()):
                return
            sys.stdin.readline()
asyncio.run(main())
"""


async def test_follower_in_another_process_loses_nothing(tmp_path: Path) -> None:
    """The reader is stopped time and again, and what comes next for it is dropped meanwhile."""
    await past_log(tmp_path)
    async with Child("-c", _FOLLOWER, tmp_path / "data") as follower, archived_log(tmp_path) as log:
        ids = [await follower.line()]
        for _ in range(8 if SOAK else 2):
            await write(log, 30)
            await dropped(log)
            for _ in range(15):
                follower.tell()
                ids.append(await follower.line())
        await log.raw_append(Message("orders", b"last"))
        await archive_has_all(log)
        follower.close_input()
        ids += [line async for line in follower.lines()]
    assert ids == [str(message_id) for message_id, _, _ in await rows_of_archive(tmp_path)]


@pytest.mark.parametrize("kind", ["writer", "beside"])
async def test_cursor_below_the_seam_goes_on(tmp_path: Path, kind: str) -> None:
    await past_log(tmp_path)
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(archived_log(tmp_path))
        reader = log if kind == "writer" else await stack.enter_async_context(open_wal(tmp_path / "data", read_only=True))
        async with reader.read("orders", cursor="billing", deliver_policy=All()) as scanner:
            for _ in range(5):
                await anext(scanner)
            await scanner.save()
        await write(log)
        await dropped(log)  # the cursor does not hold the disk
        await archive_has_all(log)
    whole = await rows_of_archive(tmp_path)
    async with reader_of(tmp_path, kind) as reader:
        assert await rows(reader, cursor="billing") == whole[5:]


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


async def test_other_reads_beside_cross_the_seam(tmp_path: Path) -> None:
    live = await past_log(tmp_path)
    payloads = [payload for _, _, payloads in live for payload in payloads]
    data = tmp_path / "data"

    def read() -> None:
        messages = list(bridge.iterate(data, "orders", follow=False))
        assert [body.payload for message in messages for body in message.bodies()] == payloads
        batches = list(bridge.record_batches(data, "orders", follow=False))
        assert [payload for batch in batches for payload in batch.column("payload").to_pylist()] == payloads
        assert [row(message) for message in messages] == live
        later = bridge.iterate(data, "orders", follow=False, deliver_policy=StartFrom(live[9][0]))
        assert [row(message) for message in later] == live[9:]

    async with archived_log(tmp_path):
        await asyncio.to_thread(read)
    copied = tmp_path / "copied"
    await asyncio.to_thread(run_python, "-m", "wal", "copy", data, copied)
    async with open_wal(copied, read_only=True) as log:
        assert [payload for _, _, payloads in await rows(log) for payload in payloads] == payloads


async def test_archive_that_moved_is_named_beside(tmp_path: Path) -> None:
    live = await past_log(tmp_path)
    target, moved = tmp_path / "target", tmp_path / "moved"
    target.rename(moved)
    async with open_wal(tmp_path / "data", read_only=True) as log:
        with pytest.raises(UnavailableError, match=rf"position 0 of pchannel 'p0' is in the archive at {target}.*holds no backup"):
            await rows(log, deliver_policy=All())
        async with open_wal(tmp_path / "data", read_only=True, archive=str(moved)) as elsewhere:
            assert await rows(elsewhere, deliver_policy=All()) == live
        async with open_wal(tmp_path / "other", archive=str(target)) as other:
            await other.raw_append(Message("orders", b"1"))
            await archive_has_all(other)
        with pytest.raises(UnavailableError, match=rf"position 0 of pchannel 'p0' is in the archive at {target}.*another log"):
            await rows(log, deliver_policy=All())
        shutil.rmtree(target)
        moved.rename(target)
        assert await rows(log, deliver_policy=All()) == live
    ended = await asyncio.to_thread(run_python, "-m", "wal", "info", tmp_path / "data")
    assert "p0" in ended.out


async def test_start_that_is_missing_is_named(tmp_path: Path) -> None:
    await past_log(tmp_path)
    path = tmp_path / "data" / "pchannels" / "p0" / "archived"
    path.unlink()
    async with open_wal(tmp_path / "data", read_only=True) as log:
        with pytest.raises(CorruptionError, match=rf"{path} is missing"):
            await rows(log, deliver_policy=All())


async def test_explicit_truncation_moves_the_start(tmp_path: Path) -> None:
    live = await past_log(tmp_path)
    async with archived_log(tmp_path) as log, open_wal(tmp_path / "data", read_only=True) as beside:
        assert await rows(beside, deliver_policy=All()) == live
        await archive_has_all(log)
        await log.truncate(up_to=live[4][0])
        for reader in (log, beside):
            assert await rows(reader, deliver_policy=All()) == live[5:]
            with pytest.raises(TruncatedError) as failure:
                await rows(reader, deliver_policy=StartFrom(live[2][0]))
            assert failure.value.earliest == live[5][0]
        await log.raw_append(Message("bills", b"another round"))
        await archive_has_all(log)
        assert await rows_of_archive(tmp_path) == live[5:], "the archive is truncated with the log"
    async with archived_log(tmp_path) as log:
        await archive_has_all(log)
        assert await rows(log, deliver_policy=All()) == live[5:]
        await log.truncate(up_to=live[-3][0])  # on the disk
        assert await rows(log, deliver_policy=All()) == live[-2:]
        await log.raw_append(Message("bills", b"another round"))
        await archive_has_all(log)
        assert await rows_of_archive(tmp_path) == live[-2:]
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


async def test_archive_at_another_url_needs_the_past(tmp_path: Path) -> None:
    live = await past_log(tmp_path)
    data, target, moved = tmp_path / "data", tmp_path / "target", tmp_path / "moved"
    options: dict[str, Any] = {"segment_bytes": MIB, "retention_bytes": 2 * MIB}
    async with open_wal(tmp_path / "another log", archive=str(tmp_path / "other")) as other:
        await other.raw_append(Message("orders", b"1"))
        await archive_has_all(other)
    for place in (tmp_path / "empty", tmp_path / "other"):
        with pytest.raises(InvalidArgumentError, match=rf"begins at position 0 of its archive at {target}.*archive='{place}' does not"):
            await open_wal(data, archive=str(place), **options)
    async with archived_log(tmp_path) as log:
        assert await rows(log, deliver_policy=All()) == live
    target.rename(moved)
    for _ in range(2):  # the second opening finds the new URL in the file
        async with open_wal(data, archive=str(moved), **options) as log, open_wal(data, read_only=True) as beside:
            assert (await rows(log, deliver_policy=All()))[: len(live)] == live
            await write(log, 30)
            await dropped(log)
            await archive_has_all(log)
            whole = await rows(log, deliver_policy=All())
            assert whole[: len(live)] == live
            assert await rows(beside, deliver_policy=All()) == whole
    async with open_wal(f"archive:{moved}", read_only=True) as archive:
        assert await rows(archive) == whole
