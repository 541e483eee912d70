"""A log that archives itself: what its retention drops, what the archive has then, and what a store that fails costs."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tests.locations import SOAK
from tests.processes import WAIT_TIMEOUT_S, eventually, run_python
from tests.small_disk import mounted
from wal import Message, MessageID, WALAccesser, open_wal
from wal.channels.cluster import FORMAT, ClusterRecord
from wal.errors import CorruptionError, InvalidArgumentError, LockedError, NoSpaceError, StorageError, WALError
from wal.node.archiving import archiver
from wal.node.archiving.rounds import Rounds
from wal.operate.backup import backup, restore, verify
from wal.operate.processes.opening import settings_for
from wal.settings import Settings
from wal.storage.archive.store import DirectoryStore, open_store

MIB = 1 << 20


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiver, "ROUND_S", 0.02)
    monkeypatch.setattr(archiver, "_RETRY_MIN_S", 0.02)


async def write(log: WALAccesser, count: int) -> list[bytes]:
    payloads = [os.urandom(100_000) for _ in range(count)]
    for payload in payloads:
        await log.raw_append(Message("orders", payload))
    return payloads


async def read(location: Path | str) -> list[bytes]:
    async with open_wal(location, read_only=True) as log, log.read("orders", follow=False) as scanner:
        return [body.payload async for message in scanner for body in message.bodies()]


def lag_of(log: WALAccesser) -> int:
    archive = log.statistics().archive
    assert archive is not None
    return archive.lag_bytes


async def earliest_of(log: WALAccesser) -> MessageID | None:
    return (await log.retention())[0].earliest


async def test_archive_has_what_retention_drops(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data, archive=str(target), segment_bytes=MIB, retention_bytes=2 * MIB) as log:
        written = await write(log, 60)
        first = await earliest_of(log)
        await eventually(lambda: lag_of(log) == 0)

        async def is_small() -> bool:
            (held,) = await log.retention()
            return held.bytes <= 2 * MIB

        await eventually(is_small)
        assert await earliest_of(log) != first
        assert await read(data) == written
    async with open_wal(data, archive=str(target), segment_bytes=MIB, retention_bytes=2 * MIB) as log:  # another opening continues it
        written += await write(log, 30)
        await eventually(lambda: lag_of(log) == 0)
    assert await read(f"archive:{target}") == written
    assert not await verify(str(target))
    await restore(str(target), str(tmp_path / "restored"))
    assert await read(tmp_path / "restored") == written
    with pytest.raises(InvalidArgumentError, match="archives itself"):
        await backup(str(data), str(target))


@pytest.mark.parametrize("failure", [StorageError("the store is away"), NoSpaceError("the store is full")], ids=["away", "full"])
async def test_failing_store_holds_back_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: WALError) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    create = DirectoryStore.create
    is_away = True

    def refusing(store: DirectoryStore, name: str, data: bytes) -> None:
        if is_away:
            raise type(failure)(str(failure))
        create(store, name, data)

    monkeypatch.setattr(DirectoryStore, "create", refusing)
    async with open_wal(data, archive=str(target), segment_bytes=MIB, retention_bytes=2 * MIB) as log:
        first = await earliest_of(log)
        written = await write(log, 60)

        def has_failed() -> bool:
            archive = log.statistics().archive
            return archive is not None and archive.failing

        await eventually(has_failed)
        statistics = log.statistics()
        assert statistics.archive is not None
        assert str(failure) in statistics.archive.failure
        (held,) = await log.retention()
        assert held.bytes > 5 * MIB
        assert [(holder.kind, holder.name, holder.position) for holder in held.holders] == [("archive", str(target), 0)]
        event = await log.last("orders")
        assert event is not None
        with pytest.raises(InvalidArgumentError, match=r"archive.*wait until the archive has it"):
            await log.truncate(up_to=event)
        is_away = False
        await eventually(lambda: lag_of(log) == 0)

        async def is_small() -> bool:
            (held,) = await log.retention()
            return held.bytes <= 2 * MIB

        await eventually(is_small)
        assert not log.statistics().archive.failing  # type: ignore[union-attr]
        assert await earliest_of(log) != first
    assert await read(f"archive:{target}") == written


async def test_slow_store_delays_no_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    create, answered, asked = DirectoryStore.create, threading.Event(), threading.Event()

    def slow(store: DirectoryStore, name: str, data: bytes) -> None:
        asked.set()
        assert answered.wait(WAIT_TIMEOUT_S)
        create(store, name, data)

    monkeypatch.setattr(DirectoryStore, "create", slow)
    async with open_wal(data, archive=str(target), segment_bytes=MIB, retention_bytes=2 * MIB) as log:
        written = await write(log, 1)
        await eventually(asked.is_set)
        written += await write(log, 60)
        (held,) = await log.retention()
        assert held.bytes > 5 * MIB
        assert [(holder.kind, holder.position) for holder in held.holders] == [("archive", 0)]
        assert lag_of(log) > 5 * MIB
        answered.set()
        await eventually(lambda: lag_of(log) == 0)
    assert await read(f"archive:{target}") == written


async def test_full_disk_is_explained_by_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, create, is_away = tmp_path / "target", DirectoryStore.create, True

    def refusing(store: DirectoryStore, name: str, data: bytes) -> None:
        if is_away:
            raise StorageError("the store is away")
        create(store, name, data)

    monkeypatch.setattr(DirectoryStore, "create", refusing)
    with mounted(tmp_path / "small", size_mib=24) as disk:
        async with open_wal(disk / "data", archive=str(target), segment_bytes=MIB, retention_bytes=2 * MIB) as log:
            written: list[bytes] = []
            with pytest.raises(NoSpaceError, match=rf"append again; nothing is dropped.*archived at {target}: the store is away"):
                while True:
                    written += await write(log, 1)
            is_away = False

            async def has_room() -> bool:
                try:
                    written.extend(await write(log, 1))
                except NoSpaceError:
                    return False
                return True

            await eventually(has_room)
            await eventually(lambda: lag_of(log) == 0)
            assert await read(f"archive:{target}") == written


async def failure_of(data: Path, target: Path) -> str:
    """Opens a log that cannot be archived; returns the failure, once it has taken an append."""
    async with open_wal(data, archive=str(target), segment_bytes=MIB, retention_bytes=MIB) as log:
        await write(log, 1)

        def failure() -> str:
            archive = log.statistics().archive
            return "" if archive is None else archive.failure

        await eventually(lambda: bool(failure()))
        (held,) = await log.retention()
        assert held.holders[0].kind == "archive"
        return failure()


async def test_archive_of_another_log_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    async with open_wal(tmp_path / "other", archive=str(target)) as log:
        written = await write(log, 2)
        await eventually(lambda: lag_of(log) == 0)
    assert "another log" in await failure_of(tmp_path / "data", target)
    assert await read(f"archive:{target}") == written


async def test_older_copy_of_log_is_refused(tmp_path: Path) -> None:
    data, target, copy = tmp_path / "data", tmp_path / "target", tmp_path / "copy"
    async with open_wal(data) as log:
        await write(log, 2)
    shutil.copytree(data, copy)
    async with open_wal(data, archive=str(target)) as log:
        await write(log, 5)
        await eventually(lambda: lag_of(log) == 0)
    written = await read(data)
    assert "mark it as restored" in await failure_of(copy, target)
    assert await read(f"archive:{target}") == written


async def test_second_archiver_is_refused(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        written = await write(log, 3)

    def race() -> None:
        first, second = (Rounds(data, open_store(target), None, keeps_history=True) for _ in range(2))
        with closing(first), closing(second):
            first.make()
            second.make()
            with pytest.raises(LockedError, match="another process has made backup 2"):
                first.make()

    await asyncio.to_thread(race)
    assert await read(f"archive:{target}") == written


async def test_killed_archiver_loses_nothing(tmp_path: Path) -> None:
    """Every write to the store after a first append is the last one of a process in turn, while the log is written, and its beginning is
    dropped."""
    data, target = tmp_path / "data", tmp_path / "target"
    program = """
import asyncio, ctypes, itertools, os, signal, sys, threading
import wal.node.local.log  # before the processes are forked
from wal import open_wal
from wal.node.archiving import archiver
from wal.storage.archive import store
archiver.ROUND_S = archiver._REST = 0.005
write, writes, has_append = store.DirectoryStore._write, itertools.count(1), threading.Event()
def killed(self, name, data, move):
    number = next(writes) if has_append.is_set() else 0  # several threads store objects at once
    if 0 < number == last - 1:
        move = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # its temporary file is there
    try:
        write(self, name, data, move)
    finally:  # the object may be there already
        if number == last:
            os.kill(os.getpid(), signal.SIGKILL)
async def main(first):
    async with open_wal(sys.argv[1], archive=sys.argv[2], segment_bytes=1 << 20, retention_bytes=1 << 20) as log:
        number = first
        while True:
            result = await log.append("orders", b"%08d" % number + os.urandom(40_000))
            os.write(1, b"%d %s\\n" % (number, str(result.message_id).encode()))
            number += 1
            has_append.set()
            await asyncio.sleep(0.003)
store.DirectoryStore._write = killed
for last in range(1, int(sys.argv[3])):
    if not (pid := os.fork()):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with its parent
        asyncio.run(main(last * 1_000_000))
    os.waitpid(pid, 0)
"""
    ended = await asyncio.to_thread(run_python, "-c", program, data, target, 60 if SOAK else 9)
    acknowledged = [int(line.split()[0]) for line in ended.out.splitlines()]
    assert len({number // 1_000_000 for number in acknowledged}) == (59 if SOAK else 8), ended.err
    async with open_wal(data, archive=str(target), segment_bytes=MIB, retention_bytes=MIB) as log:
        await write(log, 1)
        await eventually(lambda: lag_of(log) == 0)
    numbers = [int(payload[:8]) for payload in (await read(f"archive:{target}"))[:-1]]
    assert numbers == sorted(set(numbers))
    assert set(numbers) >= set(acknowledged)
    assert len(numbers) <= len(acknowledged) + 60, "at most one append of each process had no answer"
    assert not await verify(str(target))


async def test_bad_archives_are_refused_at_opening(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="set it at the server of wal://"):
        await open_wal("wal://127.0.0.1:1", archive=str(tmp_path / "archive"))
    with pytest.raises(InvalidArgumentError, match=r"only an archive is read as of a tick.*archive:URL"):
        await open_wal(tmp_path / "log", as_of=1)
    with pytest.raises(InvalidArgumentError, match="not a journal"):
        await open_wal("memory:", archive=str(tmp_path / "target"))
    with pytest.raises(InvalidArgumentError, match="not a journal"):
        await open_wal(f"archive:{tmp_path / 'other'}", archive=str(tmp_path / "target"))
    with pytest.raises(InvalidArgumentError, match=r"setting archive='s3://a/b'.*pulsar.*not a journal"):
        settings_for(ClusterRecord("pulsar://127.0.0.1:6650/a/b", {}, 1 << 20, FORMAT), Settings(archive="s3://a/b"), "etcd://127.0.0.1/x")
    with pytest.raises(InvalidArgumentError, match="own directory"):
        await open_wal(tmp_path / "data", archive=str(tmp_path / "data" / "archive"))
    with pytest.raises(InvalidArgumentError, match="not known"):
        await open_wal(tmp_path / "data", archive="nowhere://bucket")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="is a file"):
        await open_wal(tmp_path / "data", archive=str(tmp_path / "file"))


async def test_damage_before_archiving_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte in each part of a frame as it lies on the disk, while the writer has the index of these frames in memory."""
    data, target = tmp_path / "data", tmp_path / "target"
    create, is_damaged = DirectoryStore.create, threading.Event()

    def waiting(store: DirectoryStore, name: str, data: bytes) -> None:
        assert is_damaged.wait(WAIT_TIMEOUT_S)
        create(store, name, data)

    monkeypatch.setattr(DirectoryStore, "create", waiting)
    async with open_wal(data, archive=str(target)) as log:
        ids = [(await log.raw_append(Message("orders", os.urandom(1000)))).message_id for _ in range(12)]
        (path,) = (data / "pchannels" / "p0").glob("*.wal")
        parts = {"length": 5, "header": 32 + 50, "tables": 32 + 96 + 4, "body": 32 + 700, "padding": 1535}
        with path.open("r+b") as file:
            for event, offset in zip(ids[1::2], parts.values(), strict=False):
                file.seek(event.position + offset)
                byte = file.read(1)[0]
                file.seek(event.position + offset)
                file.write(bytes([byte ^ 1]))
        is_damaged.set()
        await eventually(lambda: lag_of(log) == 0)
    assert len([finding for finding in await verify(str(target)) if "was damaged when it was copied" in finding]) == len(parts)
    with pytest.raises(CorruptionError):
        await read(f"archive:{target}")
