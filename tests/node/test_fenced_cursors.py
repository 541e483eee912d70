"""A node changes the cursors of the pchannels that it has, and none after another node has claimed the pchannel: etcd decides that."""

from __future__ import annotations

import asyncio

import pytest

from tests.read.cursors.samples import cursor
from wal.channels.pchannels import PREFIX, PChannelMeta, create_pchannel, encode, raise_term
from wal.errors import ChannelFencedError, ChannelNotExistError
from wal.read.cursors.cursor import Cursor
from wal.read.cursors.in_kv import FencedCursors
from wal.storage.kv import KVBase, MemoryKV
from wal.storage.kv.base import KVBatch


class HeldKV(MemoryKV):
    """Metadata whose next change waits on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.arriving: asyncio.Event | None = None
        self.sent = asyncio.Event()

    async def _commit(self, batch: KVBatch) -> str | None:
        if (arriving := self.arriving) is not None:
            self.arriving = None
            self.sent.set()
            await arriving.wait()
        return await super()._commit(batch)


class OneNode:
    """The cursors of a node that has these pchannels."""

    def __init__(self, kv: KVBase, *metas: PChannelMeta) -> None:
        self.claims = {meta.name: meta for meta in metas}
        self.cursors = FencedCursors(kv, self.claims.get)

    async def save(self, position: int) -> bool:
        saved = cursor(start=(position, 0), event=None)
        return await asyncio.to_thread(lambda: self.cursors.save(saved, earliest=lambda: (0, 0)))

    async def load(self) -> list[Cursor]:
        return [each for each in await asyncio.to_thread(self.cursors.load_all) if isinstance(each, Cursor)]


async def claimed(kv: KVBase) -> PChannelMeta:
    meta = PChannelMeta("p0", cursor().incarnation, 1)
    await create_pchannel(kv, meta)
    return meta


async def test_save_on_its_way_changes_nothing_of_the_next_owner() -> None:
    kv = HeldKV()
    first = OneNode(kv, meta := await claimed(kv))
    await first.save(10)
    kv.arriving = arriving = asyncio.Event()
    late = asyncio.ensure_future(first.save(20))
    await kv.sent.wait()
    second = OneNode(kv, await raise_term(kv, meta))
    await second.save(30)
    arriving.set()
    with pytest.raises(ChannelFencedError, match="p0 was claimed by another node"):
        await late
    assert [each.start for each in await second.load()] == [(30, 0)]


async def test_deletion_after_a_claim_deletes_nothing() -> None:
    kv = MemoryKV()
    first = OneNode(kv, meta := await claimed(kv))
    await first.save(10)
    second = OneNode(kv, await raise_term(kv, meta))
    key = cursor().key
    for vchannels in (None, key.vchannels):
        with pytest.raises(ChannelFencedError):
            await asyncio.to_thread(first.cursors.delete_named, key.name, vchannels)
    with pytest.raises(ChannelFencedError):
        await asyncio.to_thread(first.cursors.delete, lambda _: False)
    assert len(await second.load()) == 1
    await asyncio.to_thread(second.cursors.delete_named, key.name, None)
    assert await second.load() == []


async def test_cursors_of_another_node_are_left_alone() -> None:
    kv = MemoryKV()
    here = OneNode(kv, await claimed(kv))
    elsewhere = OneNode(kv)
    await here.save(10)
    await asyncio.to_thread(elsewhere.cursors.delete_named, cursor().key.name, None)
    assert len(await elsewhere.load()) == 1
    with pytest.raises(ChannelNotExistError, match="not on this node any more"):
        await elsewhere.save(20)


async def test_damaged_cursor_is_deleted_by_any_node() -> None:
    kv = MemoryKV()
    here = OneNode(kv, await claimed(kv))
    await here.save(10)
    (name,), _ = await kv.load_with_prefix("cursors/")
    await kv.save(name, "damaged")
    await asyncio.to_thread(OneNode(kv).cursors.delete_named, cursor().key.name, None)
    assert await kv.load_with_prefix("cursors/") == ([], [])


async def test_mark_of_an_earlier_owner_ends_with_its_claim() -> None:
    kv = MemoryKV()
    first = OneNode(kv, meta := await claimed(kv))
    await first.cursors.begin(["p0"])
    await asyncio.to_thread(first.cursors.acquire, 1.0)
    second = OneNode(kv, raised := await raise_term(kv, meta))
    await second.cursors.begin(["p0"])
    assert await kv.load("cursors/truncating/p0") == ""
    first.cursors.release()
    with pytest.raises(ChannelFencedError):
        await asyncio.to_thread(first.cursors.acquire, 1.0)
    assert await kv.load("cursors/truncating/p0") == ""
    # It comes back in a later term, with the mark of a node that was killed meanwhile.
    again = await raise_term(kv, raised)
    await kv.save("cursors/truncating/p0", "killed")
    first.claims["p0"] = again
    await first.cursors.begin(["p0"])
    assert await kv.load("cursors/truncating/p0") == ""
    assert await kv.load(PREFIX + "p0") == encode(again)
