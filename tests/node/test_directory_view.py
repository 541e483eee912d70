"""DirectoryView: a node's copy of the coordinator's records, which may lag and never goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.processes import eventually
from wal.channels.directory import NEXT_KEY, PREFIX
from wal.channels.vchannels import VChannelInfo
from wal.errors import ChannelNotExistError, CorruptionError
from wal.node.directory_view import DirectoryView
from wal.storage.kv import KVBase, MemoryKV


def record(incarnation: int, pchannel: str = "p0") -> str:
    return f'{{"pchannel":"{pchannel}","incarnation":{incarnation}}}'


@pytest.fixture
async def kv() -> AsyncIterator[KVBase]:
    async with MemoryKV() as kv:
        yield kv


@pytest.fixture
async def view(kv: KVBase) -> AsyncIterator[DirectoryView]:
    await kv.multi_save({PREFIX + "a": record(1), NEXT_KEY: "2"})
    view = DirectoryView(kv, ["p0", "p1"])
    await view.start()
    yield view
    await view.close()


async def test_view_follows_saved_and_removed_records(kv: KVBase, view: DirectoryView) -> None:
    changes: list[tuple[VChannelInfo | None, VChannelInfo | None]] = []
    view.on_changed = lambda before, now: changes.append((before, now))
    assert view.records == {"a": VChannelInfo("a", "p0", 1)}
    await kv.multi_save({PREFIX + "b": record(2, "p1"), NEXT_KEY: "3"})
    await eventually(lambda: view.next_incarnation == 3 and view.pchannel_of("b") == "p1" and "b" in view.records)
    await kv.remove(PREFIX + "a")
    await eventually(lambda: "a" not in view.records)
    assert changes == [(None, VChannelInfo("b", "p1", 2)), (VChannelInfo("a", "p0", 1), None)]


async def test_name_is_looked_up_before_it_is_refused(kv: KVBase, view: DirectoryView) -> None:
    await kv.save(PREFIX + "new", record(5))
    assert await view.look_up("new") == VChannelInfo("new", "p0", 5)
    assert view.next_incarnation >= 6
    assert await view.look_up("none") is None
    with pytest.raises(ChannelNotExistError, match="'none'"):
        view.create_nowait("none")


async def test_older_incarnation_replaces_no_later_one(kv: KVBase, view: DirectoryView) -> None:
    await kv.save(PREFIX + "a", record(7))
    await view.look_up("a")
    view._take(VChannelInfo("a", "p0", 3))
    assert view.records["a"].incarnation == 7


async def test_ended_vchannel_ignores_its_late_record(kv: KVBase, view: DirectoryView) -> None:
    view.forget(view.records["a"])
    assert await view.look_up("a") is None
    await view.catch_up()
    assert "a" not in view.records
    await kv.save(PREFIX + "a", record(2))
    assert await view.look_up("a") == VChannelInfo("a", "p0", 2)


async def test_ended_vchannel_exists_in_a_restored_copy(kv: KVBase, view: DirectoryView) -> None:
    copy = await kv.load_with_prefix("")
    await kv.multi_save({PREFIX + "b": record(2), NEXT_KEY: "3"})
    await view.catch_up()
    view.forget(view.records["a"])
    await kv.remove_with_prefix("")
    await kv.multi_save(dict(zip(*copy, strict=True)))
    await view.catch_up()
    assert view.records == {"a": VChannelInfo("a", "p0", 1)}


async def test_catching_up_shows_what_was_saved_before(kv: KVBase, view: DirectoryView) -> None:
    for number in range(20):
        await kv.save(f"{PREFIX}n{number}", record(10 + number))
        await asyncio.gather(*(view.catch_up() for _ in range(3)))
        assert f"n{number}" in view.records


async def test_record_that_cannot_be_read_is_damage(kv: KVBase) -> None:
    await kv.save(PREFIX + "a", "?")
    view = DirectoryView(kv, ["p0"])
    with pytest.raises(CorruptionError, match="cannot be read") as caught:
        await view.start()
    assert caught.value.expected == PREFIX + "a"
    await view.close()
