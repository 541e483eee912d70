"""A log that is read from its archive: what a reader gets, what it costs, and what it gets where the store lies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.formats.test_backups import sealed
from tests.operate.backup.refusing_store import RefusingStore
from wal import Matching, Message, MessageID, ReadPosition, StartFrom, WALAccesser, bridge, open_wal
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, LogWentBackError, NotLocalError, StorageError, TruncatedError
from wal.location import parse_location
from wal.node.local.log import LocalLog
from wal.operate.backup import backup, forget, restore, upgrade
from wal.settings import Settings
from wal.storage.archive import archive_log
from wal.storage.archive.archive_log import CACHE_BLOCKS, Archive, BlockCache
from wal.storage.archive.manifest import OBJECTS, manifest_name
from wal.storage.archive.objects import BLOCK_BYTES
from wal.storage.archive.store import BackupStore, DirectoryStore, open_store

NAMES = ("v0", "v1", "v2")
Row = tuple[str, int, list[bytes]]


async def rows(log: WALAccesser, name: str | Matching, **options: Any) -> list[Row]:
    async with log.read(name, follow=False, **options) as scanner:
        return [(str(message.message_id), message.time_tick, [body.payload for body in message.bodies()]) async for message in scanner]


async def fill(log: WALAccesser, count: int, size: int = 100) -> None:
    """Appends messages, incompressible, and transactions."""
    for _ in range(count):
        await asyncio.gather(*(log.raw_append(Message(name, os.urandom(size))) for name in NAMES))
        await log.append_txn("v0", [b"first", b"second"])


async def archived(log: WALAccesser, data: Path, target: Path) -> None:
    """Makes a backup of all written messages: an idle pchannel promises its ticks later."""
    written = await log.allocate_time_tick()
    while (await backup(str(data), str(target))).tick < written:
        await asyncio.sleep(0.01)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The requests of a store: the call and the bytes that it returned."""
    made: list[tuple[str, int]] = []

    def counted(name: str) -> None:
        call: Callable[..., Any] = getattr(DirectoryStore, name)

        def count(*arguments: Any, **options: Any) -> Any:
            answer = call(*arguments, **options)
            made.append((name, len(answer)))
            return answer

        monkeypatch.setattr(DirectoryStore, name, count)

    for name in ("get", "get_range", "names"):
        counted(name)
    return made


async def test_archive_is_read_as_the_log(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data, pchannels=2) as log:
        await fill(log, 20)
        async with log.read("v0", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
        await archived(log, data, target)
        names = (*NAMES, Matching("v*"))
        expected = {str(name): await rows(log, name) for name in names}
        vchannels = await log.vchannels()
    async with open_wal(f"archive:{target}", create_vchannels=False) as log:
        assert log.wal_name == "archive"
        assert {str(name): await rows(log, name) for name in names} == expected
        assert await log.vchannels() == vchannels
        last = await log.last("v1")
        assert str(last) == expected["v1"][-1][0]
        async with log.read("v0", cursor="billing", follow=False) as scanner:
            assert [str(message.message_id) async for message in scanner] == [row[0] for row in expected["v0"][1:]]
            with pytest.raises(InvalidArgumentError, match="store str"):
                await scanner.save()
        with pytest.raises(InvalidArgumentError, match="read_only=True"):
            await log.append("v0", b"")
        with pytest.raises(NotLocalError):
            await log.latest_tick("v0")

    def read_in_this_thread() -> tuple[list[str], int]:
        with bridge.iterate(f"archive:{target}", "v1", follow=False) as messages:
            ids = [str(message.message_id) for message in messages]
        return ids, sum(batch.num_rows for batch in bridge.record_batches(f"archive:{target}", "v0", follow=False))

    ids, count = await asyncio.to_thread(read_in_this_thread)
    assert ids == [row[0] for row in expected["v1"]]
    assert count == sum(len(row[2]) for row in expected["v0"])


async def test_position_goes_on_in_journal_and_archive(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await fill(log, 10)
        await archived(log, data, target)
        expected = await rows(log, "v0")
    delivered: list[Row] = []
    position: ReadPosition | None = None
    for place in (data, f"archive:{target}") * 3:
        resume = None if position is None else ReadPosition.parse(str(position))
        async with open_wal(place, read_only=True) as log, log.read("v0", resume=resume, follow=False) as scanner:
            for _ in range(2):
                message = await anext(scanner)
                delivered.append((str(message.message_id), message.time_tick, [body.payload for body in message.bodies()]))
            position = scanner.position
    assert delivered == expected[:12]


async def test_archive_as_of_a_tick_is_exact(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data, pchannels=2) as log:
        for _ in range(3):
            await fill(log, 3)
            await asyncio.gather(*(log.raw_append(Message("v1", b"%d" % number)) for number in range(20)))
            await archived(log, data, target)
        names = (*NAMES, Matching("v*"))
        expected = {str(name): await rows(log, name) for name in names}
    ticks = [row[1] for row in expected[str(Matching("v*"))]]
    for tick in (*ticks[:: len(ticks) // 12], ticks[-1] + 1):
        async with open_wal(f"archive:{target}", as_of=tick) as log:
            for name in names:
                assert await rows(log, name) == [row for row in expected[str(name)] if row[1] <= tick]
    async with open_wal(f"archive:{target}", as_of=datetime(2020, 1, 1, tzinfo=UTC)) as log:
        assert await rows(log, "v0") == []


async def test_follower_goes_on_with_each_manifest(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await fill(log, 3)
        await archived(log, data, target)
        async with open_wal(f"archive:{target}", archive_poll_s=0.01) as reader, reader.read("v1") as scanner:
            for number in range(6):  # small objects are replaced by larger ones, and removed, while they are read
                for _ in range(3):
                    await anext(scanner)
                await fill(log, 3)
                await archived(log, data, target)
                if number % 2:
                    await forget(str(target), keep=1)


async def test_cost_of_a_read_is_bounded(tmp_path: Path, requests: list[tuple[str, int]]) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        for _ in range(12):
            await log.append_bulk([Message(name, os.urandom(40_000)) for name in NAMES])
            await backup(str(data), str(target))
        await archived(log, data, target)
    requests.clear()
    async with open_wal(f"archive:{target}") as log:
        assert [name for name, _ in requests] == ["get", "names", "get", "get"]
        assert sum(size for _, size in requests) < 1 << 20
        segments = await asyncio.to_thread(_objects, target)
        requests.clear()
        assert await rows(log, "v1")
        assert len(requests) <= 2 * segments
        requests.clear()
        async with log.read("v1", follow=False, deliver_policy=StartFrom(await log.last("v1"))) as scanner:  # type: ignore[arg-type]
            await anext(scanner)
        assert len(requests) <= 2, "one range"


def _objects(target: Path) -> int:
    archive = Archive(open_store(target), poll_s=1.0, as_of=None)
    archive.open()
    return sum(len(segment.chunks) for copy in archive.manifest.pchannels.values() for segment in copy.segments)


async def test_memory_of_a_reader_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[BlockCache] = []

    class Recorded(BlockCache):
        def __init__(self, store: BackupStore) -> None:
            super().__init__(store)
            caches.append(self)

    monkeypatch.setattr(archive_log, "BlockCache", Recorded)
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        for _ in range(6):
            await log.append_bulk([Message("v0", os.urandom(500_000)) for _ in range(8)])
        await archived(log, data, target)
    async with open_wal(f"archive:{target}") as log:
        assert len(await rows(log, "v0")) == 48
    (cache,) = caches
    assert len(cache._blocks) == CACHE_BLOCKS
    assert all(len(block) <= BLOCK_BYTES for block in cache._blocks.values())


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("kind", ["missing", "cut", "empty", "changed", "no index", "changed index"])
async def test_object_that_lies_is_named(tmp_path: Path, kind: str, scheme: str) -> None:
    """The project reads a directory itself, and a URL through the library of object stores."""
    if scheme:
        pytest.importorskip("obstore")
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await fill(log, 20)
        await archived(log, data, target)
    path = damaged_object(target, kind)
    place = f"{scheme}{target}"
    async with open_wal(f"archive:{place}") as log:
        with pytest.raises(CorruptionError) as raised:
            await rows(log, "v0")
    assert raised.value.path == f"{place}/{path.relative_to(target)}"
    assert path.name in str(raised.value)


def damaged_object(target: Path, kind: str, *, payload: bytes = b"") -> Path:
    """Damages the only object of a segment here, or its index, and returns its path. A change is in the last of these payloads."""
    (path,) = [path for path in (target / OBJECTS).iterdir() if path.name.startswith("index-" if "index" in kind else "p0-0")]
    content = path.read_bytes()
    if kind in ("missing", "no index"):
        path.unlink()
    elif kind == "changed" or kind == "changed index":
        at = content.rindex(payload) if payload and kind == "changed" else len(content) - 300
        path.write_bytes(content[:at] + bytes((content[at] ^ 1,)) + content[at + 1 :])
    else:
        path.write_bytes(b"" if kind == "empty" else content[:-600])
    return path


@pytest.mark.parametrize(
    ("status", "code"), [(403, "InvalidAccessKeyId"), (404, "NoSuchBucket")], ids=["refused credentials", "missing bucket"]
)
async def test_refusal_of_a_store_is_named(status: int, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The soak of `test_s3.py` has a server that gives these answers."""
    pytest.importorskip("obstore")
    with RefusingStore(status, code) as store:
        for name, value in store.client_environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StorageError, match=rf"s3://bucket/path/.*{status}.*: {code}: No\.$") as raised:
            await open_wal("archive:s3://bucket/path")
        assert store.secret not in str(raised.value)


async def test_forgotten_start_is_truncated(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data, segment_bytes=1 << 20) as log:
        for _ in range(3):
            await log.append_bulk([Message("v0", os.urandom(200_000)) for _ in range(4)])
        expected = await rows(log, "v0")
        await archived(log, data, target)
        async with open_wal(f"archive:{target}", archive_poll_s=60.0) as reader:
            ids = [row[0] for row in await rows(log, "v0")]
            await log.truncate(up_to=(await _id_at(log, 5)))
            while len(list((data / "pchannels" / "p0").glob("*.wal"))) > 3:
                await asyncio.sleep(0.01)
            await archived(log, data, target)
            await forget(str(target), keep=1)
            with pytest.raises(TruncatedError) as raised:
                await rows(reader, "v0")
            earliest = raised.value.earliest
            assert isinstance(earliest, MessageID)
            remaining = await rows(reader, "v0", deliver_policy=StartFrom(earliest))
            assert remaining == expected[-len(remaining) :]
            assert len(remaining) >= len(ids) - 6


async def _id_at(log: WALAccesser, number: int) -> Any:
    async with log.read("v0", follow=False) as scanner:
        return [message.message_id async for message in scanner][number]


async def test_restored_log_in_the_archive_is_another_incarnation(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await fill(log, 2)
        await archived(log, data, target)
    await restore(str(target), str(tmp_path / "restored"))
    async with open_wal(f"archive:{target}", archive_poll_s=0.01) as reader:
        before = await rows(reader, "v0")
        async with open_wal(tmp_path / "restored") as log:
            await log.append("v0", b"new")
            await archived(log, tmp_path / "restored", target)
            expected = await rows(log, "v0")
        with pytest.raises(LogWentBackError, match="restored from a backup"):
            async with reader.read("v0") as scanner:
                async for _ in scanner:
                    pass
    async with open_wal(f"archive:{target}") as reader:
        assert await rows(reader, "v0") == expected
        assert [row[2] for row in expected] == [*(row[2] for row in before), [b"new"]]


async def test_replaced_archive_is_detected(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in ("data", "other"):
        async with open_wal(tmp_path / name) as log:
            await fill(log, 2)
            await backup(str(tmp_path / name), str(target / name))
    (target / "data").rename(target / "here")
    async with open_wal(f"archive:{target / 'here'}", archive_poll_s=0.01) as reader:
        assert await rows(reader, "v0")
        (target / "here").rename(target / "data")
        (target / "other").rename(target / "here")
        with pytest.raises(LogWentBackError):
            async with reader.read("v0") as scanner:
                async for _ in scanner:
                    pass


async def test_bad_place_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no backup: name where"):
        await open_wal(f"archive:{tmp_path / 'nothing'}")
    for place, text in (
        ("archive:", "names no archive"),
        ("archive:s3://key:secret@bucket/path", "credentials come from the environment"),
        ("archive:nothing://bucket/path", "is not known"),
    ):
        with pytest.raises(InvalidArgumentError, match=text) as raised:
            await open_wal(place)
        assert "secret" not in str(raised.value)
    with pytest.raises(InvalidArgumentError, match="is only read: open the log itself"):
        LocalLog(parse_location(f"archive:{tmp_path}"), Settings())
    async with open_wal(tmp_path / "data") as log:
        await fill(log, 1)
        await archived(log, tmp_path / "data", tmp_path / "target")
    path = sorted((tmp_path / "target" / "manifests").iterdir())[-1]
    content = path.read_bytes()
    path.write_bytes(sealed(b'{"version":4,"anything":[]'))
    with pytest.raises(FormatError, match="has version 4, known here is 3"):
        await open_wal(f"archive:{tmp_path / 'target'}")
    path.write_bytes(content[:-9])
    with pytest.raises(CorruptionError, match=path.name):
        await open_wal(f"archive:{tmp_path / 'target'}")


async def test_archive_of_an_earlier_version_needs_an_upgrade(tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "target"
    async with open_wal(data) as log:
        await fill(log, 5)
        expected = await rows(log, "v0")
    made = await backup(str(data), str(target))
    name, copy = next(iter(made.pchannels.items()))
    segments = tuple(
        msgspec.structs.replace(segment, chunks=tuple(msgspec.structs.replace(chunk, index=None) for chunk in segment.chunks))
        for segment in copy.segments
    )
    bare = msgspec.structs.replace(made, version=2, pchannels={name: msgspec.structs.replace(copy, segments=segments)})
    (target / manifest_name(1)).write_bytes(bare.encode())
    async with open_wal(f"archive:{target}") as log:
        with pytest.raises(FormatError, match=r"has no index.*wal backup upgrade"):
            await rows(log, "v0")
    assert await upgrade(str(target)) is not None
    async with open_wal(f"archive:{target}") as log:
        assert await rows(log, "v0") == expected
