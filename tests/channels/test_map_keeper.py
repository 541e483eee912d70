"""The maps follow the records: at opening, at close, and soon after each save; failed writes are retried."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from actors import ActorSystem
from tests.processes import eventually
from wal import Message, open_wal
from wal.channels import map_keeper
from wal.channels.directory import RecordChange, VChannelDirectory
from wal.channels.map_keeper import VChannelMapKeeper
from wal.channels.vchannel_map import MapPlace, VChannelMap, read_changed_map
from wal.channels.vchannels import place
from wal.errors import ChannelNotExistError, StorageError, WALError
from wal.storage.files import MAP_NAME
from wal.storage.kv import MemoryKV


async def shown(data: Path, pchannel: str = "p0") -> VChannelMap:
    changed = await asyncio.to_thread(read_changed_map, data / "pchannels" / pchannel, None)
    assert changed is not None
    return changed[1]


async def test_map_shows_existing_vchannels(data_dir: Path) -> None:
    async with open_wal(data_dir, pchannels=2) as log:
        assert (await shown(data_dir)).records == {}
        made = await log.create_vchannel("a", pchannel="p0")
        other = await log.create_vchannel("b", pchannel="p1")

        async def both() -> bool:
            return (await shown(data_dir)).records == {"a": made.incarnation} and (await shown(data_dir, "p1")).records == {
                "b": other.incarnation
            }

        await eventually(both)
        assert (await shown(data_dir, "p1")).next_incarnation == other.incarnation + 1
        await log.drop_vchannel("a")
        again = await log.create_vchannel("a", pchannel="p0")
    assert (await shown(data_dir)).records == {"a": again.incarnation}, "at close it is up to date"
    (data_dir / "pchannels" / "p0" / "vchannels").unlink()
    async with open_wal(data_dir):
        assert (await shown(data_dir)).records == {"a": again.incarnation}, "and at opening"


async def test_many_vchannels_cost_few_writes(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = map_keeper.write_map  # type: ignore[attr-defined]

    def counted(folder: Path, content: VChannelMap, *, durably: bool) -> bool:
        written.append(len(content.records))
        return write(folder, content, durably=durably)

    monkeypatch.setattr(map_keeper, "write_map", counted)
    # The pause after a write is a multiple of its duration: here one that outlasts the test, however slow the appends are.
    monkeypatch.setattr(map_keeper, "PAUSE_FACTOR", 1_000_000_000)
    async with open_wal(data_dir) as log:
        for first in range(0, 2_000, 10):
            await asyncio.gather(*(log.raw_append(Message(f"v{number}", b"x")) for number in range(first, first + 10)))
    assert len((await shown(data_dir)).records) == 2_000
    assert written == sorted(written)
    assert len(written) == 3, "200 turns each saved some: written are the maps at the opening, of the first turn, and at the close"


async def test_failed_write_of_a_map_is_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_keeper, "RETRY_S", 0.01)
    folder = tmp_path / "p0"
    directory = VChannelDirectory(MemoryKV())
    keeper = VChannelMapKeeper(directory, {"p0": MapPlace(folder, 1)}, monotonic=asyncio.get_running_loop().time)
    with caplog.at_level(logging.WARNING, "wal.channels"):
        await keeper.start()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    folder.mkdir()

    async def there() -> bool:
        return await asyncio.to_thread((folder / MAP_NAME).exists)

    await eventually(there)
    await keeper.close()
    await keeper.close()


async def test_drop_hidden_from_readers_is_reported(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is appended to the next incarnation either, until no map shows the former one."""
    monkeypatch.setattr(map_keeper, "RETRY_S", 60.0)
    async with open_wal(data_dir) as log:
        await log.raw_append(Message("a", b"1"))
        await log.raw_append(Message("b", b"1"))

        async def both() -> bool:
            return (await shown(data_dir)).records.keys() == {"a", "b"}

        await eventually(both)
        in_the_way = data_dir / "pchannels" / "p0" / "vchannels.tmp"
        in_the_way.mkdir()
        for _ in range(2):
            with pytest.raises(StorageError, match=r"'a' is saved .* readers in other processes cannot be told.* again"):
                await log.drop_vchannel("a")
        assert [info.name for info in await log.vchannels()] == ["b"]
        with pytest.raises(StorageError, match="'a' could not be saved"):
            await log.raw_append(Message("a", b"2"))
        await log.raw_append(Message("b", b"2"))
        await log.raw_append(Message("c", b"1"))
        assert [info.name for info in await log.vchannels()] == ["b", "c"]
        in_the_way.rmdir()
        await log.drop_vchannel("a")
        assert (await shown(data_dir)).records.keys() == {"b", "c"}
        with pytest.raises(ChannelNotExistError):
            await log.drop_vchannel("a")
        await log.raw_append(Message("a", b"3"))
        async with log.read("a", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"3"]


async def test_vchannel_on_unexpected_pchannel_is_shown_first(data_dir: Path) -> None:
    async with open_wal(data_dir, pchannels=2) as log:
        for number in range(8):
            made = await log.create_vchannel(f"v{number}", pchannel="p1")
            if place(made.name, ["p0", "p1"]) != "p1":
                assert (await shown(data_dir, "p1")).records[made.name] == made.incarnation


async def test_counter_counts_saved_changes_only() -> None:
    """A vchannel created during a save must move the saved counter too, or a later incarnation would get its number."""

    class SlowKV(MemoryKV):
        """Saves wait for `gate`."""

        def __init__(self) -> None:
            super().__init__()
            self.gate = asyncio.Event()

        async def multi_save_and_remove(self, *args: Any, **kwargs: Any) -> None:
            await self.gate.wait()
            await super().multi_save_and_remove(*args, **kwargs)

    kv = SlowKV()
    directory = VChannelDirectory(kv)
    await directory.load()
    async with ActorSystem("test") as system:
        ref = system.spawn(directory, name="directory")
        outcomes: list[WALError | None] = []
        ref.tell(RecordChange((directory.admit("a", "p0"),), False, outcomes.append))
        await asyncio.sleep(0)  # the save of it begins
        ref.tell(RecordChange((directory.admit("b", "p0"),), False, outcomes.append))
        assert directory.saved == {}
        kv.gate.set()
        async with asyncio.timeout(60):
            while len(outcomes) < 2:
                await asyncio.sleep(0)
    assert outcomes == [None, None]
    assert directory.saved == directory.records
    reopened = VChannelDirectory(kv)
    await reopened.load()
    assert reopened.next_incarnation == directory.next_incarnation == reopened.saved_next


async def test_defect_does_not_end_the_maps(data_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_keeper, "RETRY_S", 0.01)
    write, defect = map_keeper.write_map, [MemoryError("no memory")]  # type: ignore[attr-defined]

    def broken_once(folder: Path, content: VChannelMap, *, durably: bool) -> bool:
        if defect and content.records:
            raise defect.pop()
        return write(folder, content, durably=durably)

    monkeypatch.setattr(map_keeper, "write_map", broken_once)
    async with open_wal(data_dir) as log:
        await log.create_vchannel("a")

        async def there() -> bool:
            return "a" in (await shown(data_dir)).records

        await eventually(there)
    assert not defect
    (record,) = [record for record in caplog.records if record.name == "wal.channels"]
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
