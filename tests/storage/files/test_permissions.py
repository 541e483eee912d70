"""The rights of the machine's users to the files of a log, whatever the umask is."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Line, Other, eventually
from tests.storage.files.other_user import READERS, SERVICE, STRANGER, OtherUser, modes, place, root_only
from wal import Message, bridge, open_wal
from wal.errors import LockedError, StorageError
from wal.read.cursors.pins import PinFiles
from wal.spark.batch_reader import take_snapshot
from wal.spark.frame_source import LogSource
from wal.spark.sink.folder import SinkFolder, make_directory
from wal.spark.sink.locks import PublishingLock
from wal.storage.kv import SqliteKV
from wal.streams.rocksmq import RocksMQSettings
from wal.streams.rocksmq.store import Store

__all__ = ["place"]

MIB = 1 << 20


async def use_all(directory: str, **settings: Any) -> None:
    """Makes a log create each kind of file: several segments, indices, a checkpoint, cursors, and the files that Spark's sink stages."""
    async with open_wal(directory, segment_bytes=MIB, **settings) as log:
        results = [await log.raw_append(Message("orders", bytes(120_000)), idempotency_key=f"{n}") for n in range(12)]
        await save_beside(directory)
        await log.truncate(up_to=results[0].message_id)
    await asyncio.to_thread(publish, Path(directory))


async def save_beside(directory: str) -> None:
    """Saves a cursor as a process beside the writer does."""
    async with open_wal(directory, read_only=True) as log, log.read("orders", cursor="billing", follow=False) as scanner:
        async for _ in scanner:
            pass
        await scanner.save()


def publish(journal: Path) -> None:
    sink = SinkFolder(journal)
    with PublishingLock(sink, timeout_s=1):
        make_directory(sink.path / "staged")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("group_readable", [False, True])
async def test_modes_follow_the_setting_whatever_the_umask_is(tmp_path: Path, umask: int, group_readable: bool) -> None:
    async def use_all_under(line: Line, umask: int, directory: str, settings: dict[str, Any]) -> None:
        os.umask(umask)
        reserve = Path(directory) / "pchannels" / "p0" / "checkpoint.reserve"
        async with open_wal(directory, **settings):
            # A thread makes the last file of an opening, and its mode before its size.
            await eventually(lambda: reserve.exists() and reserve.stat().st_size > 0)
            line.tell(modes(Path(directory)))
        await use_all(directory, **settings)
        line.tell(modes(Path(directory)))

    def is_for_writers(name: str) -> bool:
        """Returns whether the name is a lock, or a file that no reader of the log needs."""
        return Path(name).name in ("LOCK", "cursors.lock", "fence") or name.startswith(("meta.sqlite3", "spark"))

    directory = tmp_path / "data"
    settings = {"group_readable": True} if group_readable else {}
    async with Other(use_all_under, umask, str(directory), settings) as other:
        while_open, closed = await other.hear(), await other.hear()
        await other.end()
    assert "meta.sqlite3-wal" in while_open
    assert {"FORMAT", "LOCK", "meta.sqlite3", "pchannels/p0/control", "cursors", "spark/lock"} <= closed.keys()
    for found in (while_open, closed):
        for name, mode in found.items():
            path = directory / name
            is_directory = path.is_dir() or name == "."
            private = not group_readable or is_for_writers(name)
            assert oct(mode) == oct((0o700 if is_directory else 0o600) if private else (0o750 if is_directory else 0o640)), name


async def test_empty_directory_of_the_user_becomes_private(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o755)
    async with open_wal(str(directory)):
        pass
    assert directory.stat().st_mode & 0o777 == 0o700


async def test_directories_above_the_log_are_created_like_mkdir(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        async with open_wal(str(tmp_path / "a" / "b" / "data")):
            pass
    finally:
        os.umask(mask)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/data")] == [0o755, 0o755, 0o700]


async def test_readable_journal_is_closed_with_one_warning(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    def loosen(directory: Path) -> None:
        """Sets all files to the modes that they had before the log's files were private."""
        for root, _, files in os.walk(directory):
            os.chmod(root, 0o755)
            for name in files:
                os.chmod(Path(root, name), 0o644)

    await use_all(str(data_dir))
    loosen(data_dir)
    for expected in (1, 0):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "wal"):
            async with open_wal(str(data_dir)) as log:
                assert [cursor.name for cursor in await log.cursors()] == ["billing"]
        assert sum("group_readable" in record.getMessage() for record in caplog.records) == expected
    found = modes(data_dir)
    loose = {name for name, mode in found.items() if mode & 0o077 and not name.startswith("spark/")}
    assert not loose, "the sink's files lie in spark/, which nobody else can enter"


async def test_setting_is_remembered_until_it_is_set_again(data_dir: Path) -> None:
    async def mode_after(**settings: Any) -> tuple[str, str, str]:
        async with open_wal(str(data_dir), **settings) as log:
            await log.raw_append(Message("orders", b"1"))
            await save_beside(str(data_dir))
        found = modes(data_dir)
        (cursor,) = (name for name in found if name.endswith(".cursor"))
        return oct(found["."]), oct(found["pchannels/p0/control"]), oct(found[cursor])

    private, group = ("0o700", "0o600", "0o600"), ("0o750", "0o640", "0o640")
    assert await mode_after() == private
    assert await mode_after(group_readable=True) == group
    assert await mode_after() == group
    assert await mode_after(group_readable=False) == private
    assert await mode_after() == private


@root_only
@pytest.mark.parametrize("is_open", [False, True])
async def test_reader_of_the_group_reads_in_every_way(place: Path, is_open: bool) -> None:
    async def read_everything(line: Line, directory: str) -> None:
        """Reads in every way that saves nothing; each word is the result of one way."""
        async with open_wal(directory, read_only=True) as log:
            async with log.read("orders", follow=False) as scanner:
                line.tell([message.payload[:5] async for message in scanner])
            line.tell([info.name for info in await log.vchannels()])
            line.tell([cursor.name for cursor in await log.cursors()])
            (told,) = await log.retention()
            line.tell(told.pchannel)
        with bridge.iterate(directory, "orders", follow=False) as messages:
            line.tell([message.payload[:5] for message in messages])
        line.tell(sum(batch.num_rows for batch in bridge.record_batches(directory, "orders", follow=False)))
        frames = LogSource(directory).open()
        snapshot = take_snapshot(frames, time_tick=None, timeout_s=5)
        (end,) = snapshot.ends.values()
        line.tell(len(frames.page("p0", 0, end[0], None, MIB).frames))
        frames.close()

    async def heard_by_a_reader(directory: Path, expected: list[bytes]) -> None:
        async with OtherUser(read_everything, str(directory)) as reader:
            assert await reader.hear() == expected
            assert await reader.hear() == ["orders"]
            assert await reader.hear() == ["billing"]
            assert await reader.hear() == "p0"
            assert await reader.hear() == expected
            assert await reader.hear() == len(expected)
            assert await reader.hear() > 0
            await reader.end()

    directory = place / "data"
    expected = [b"%05d" % number for number in range(12)]
    async with open_wal(str(directory), segment_bytes=MIB, group_readable=True) as log:
        for payload in expected:
            await log.raw_append(Message("orders", payload + bytes(120_000)))
        async with log.read("orders", cursor="billing") as scanner:
            await anext(scanner)
            await scanner.save()
        if is_open:
            await heard_by_a_reader(directory, expected)
    if not is_open:
        await heard_by_a_reader(directory, expected)


@root_only
async def test_reader_of_the_group_cannot_save(place: Path) -> None:
    async def save_and_delete(line: Line, directory: str) -> None:
        async with open_wal(directory, read_only=True) as log, log.read("orders", cursor="mine") as scanner:
            await anext(scanner)
            calls: tuple[Callable[[], Awaitable[object]], ...] = (scanner.save, lambda: log.delete_cursor("billing"))
            for call in calls:
                try:
                    await call()
                except StorageError as error:
                    line.tell(str(error))
                else:
                    line.tell("it may")
        with bridge.iterate(directory, "orders", cursor="mine") as messages:
            next(messages)
            try:
                messages.save()
            except StorageError as error:
                line.tell(str(error))
        try:
            async with open_wal(directory):
                line.tell("it may write")
        except StorageError as error:
            line.tell(str(error))

    directory = place / "data"
    async with open_wal(str(directory), group_readable=True) as log:
        await log.raw_append(Message("orders", b"1"))
        async with log.read("orders", cursor="billing") as scanner:
            await anext(scanner)
            await scanner.save()
        async with OtherUser(save_and_delete, str(directory)) as reader:
            for _ in range(3):
                text = await reader.hear()
                assert f"user {STRANGER} cannot save or delete cursors" in text
                assert "user 0" in text, "it names the user who can"
                assert "resume=" in text, "it says what helps"
            assert "LOCK" in await reader.hear()
            await reader.end()
        assert [cursor.name for cursor in await log.cursors()] == ["billing"]


@root_only
@pytest.mark.parametrize("group_readable", [False, True])
async def test_user_outside_the_group_gets_permission_denied(place: Path, group_readable: bool) -> None:
    async def try_to_read(line: Line, directory: str) -> None:
        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: open_wal(directory, read_only=True).__aenter__(),
            lambda: open_wal(directory).__aenter__(),
        )
        for call in calls:
            try:
                await call()
            except StorageError as error:
                line.tell(str(error))
            else:
                line.tell("it may")

    directory = place / "data"
    async with open_wal(str(directory), group_readable=group_readable) as log:
        await log.raw_append(Message("orders", b"secret"))
    async with OtherUser(try_to_read, str(directory), gid=STRANGER) as reader:
        assert "Permission denied" in await reader.hear()
        assert "Permission denied" in await reader.hear()
        await reader.end()


async def append_and_save(line: Line, directory: str) -> None:
    await use_all(directory)
    async with open_wal(directory) as log:
        line.tell(len(await log.cursors()))


@root_only
async def test_service_writes_in_another_users_directory(place: Path) -> None:
    """The directory's own mode cannot be changed, as on a volume of an orchestrator; the files in it are private."""
    directory = place / "data"
    directory.mkdir()
    directory.chmod(0o777)
    async with OtherUser(append_and_save, str(directory), uid=SERVICE) as service:
        assert await service.hear() == 1
        await service.end()
    found = modes(directory)
    assert found.pop(".") == 0o777
    assert not {name for name, mode in found.items() if mode & 0o077}


@root_only
async def test_files_that_root_creates_belong_to_the_service(place: Path) -> None:
    """An administrator uses a journal with sudo: the service can still use all of it, even the cursor that root saved."""
    directory = place / "data"
    place.chmod(0o2777)
    async with OtherUser(append_and_save, str(directory), uid=SERVICE) as service:
        assert await service.hear() == 1
        await service.end()
    pins = PinFiles(directory)
    await asyncio.to_thread(lambda: pins.remove(pins.names()))
    await use_all(str(directory))
    strangers = {str(path) for path in directory.rglob("*") if path.stat().st_uid != SERVICE}
    assert not strangers
    async with OtherUser(append_and_save, str(directory), uid=SERVICE) as service:
        assert await service.hear() == 1
        await service.end()


async def test_file_of_metadata_elsewhere_is_its_owners_alone(tmp_path: Path) -> None:
    """A file that others could read until now becomes private too: a user who may read it could take sqlite's locks."""
    path = tmp_path / "kv.sqlite3"
    for _ in range(2):
        kv = await SqliteKV.open(path)
        await kv.save("key", "value")
        assert {name: mode for name, mode in modes(tmp_path).items() if name != "."} == {
            "kv.sqlite3": 0o600,
            "kv.sqlite3-reserve": 0o600,
            "kv.sqlite3-wal": 0o600,
        }
        await kv.close()
        path.chmod(0o644)


async def test_locks_of_open_metadata_survive_another_opening(tmp_path: Path) -> None:
    """Closing any descriptor of a file releases the locks of its process, so checking the mode must not open the file."""

    async def open_metadata(line: Line, path: str) -> None:
        try:
            await SqliteKV.open(path)
        except LockedError:
            line.tell("LockedError")
        else:
            line.tell("opened")

    path = tmp_path / "kv.sqlite3"
    kv = await SqliteKV.open(path)
    path.chmod(0o644)
    for _ in range(2):
        with pytest.raises(LockedError):
            await SqliteKV.open(path)
    async with Other(open_metadata, str(path)) as other:
        assert await other.hear() == "LockedError"
    await kv.close()


def test_nobody_else_enters_a_directory_of_rocksdb(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    Store.open(tmp_path / "a" / "mq", RocksMQSettings()).close()
    assert modes(tmp_path / "a" / "mq")["."] == 0o700


def test_reading_group_is_another_one_than_the_strangers() -> None:
    assert len({READERS, STRANGER, SERVICE}) == 3
