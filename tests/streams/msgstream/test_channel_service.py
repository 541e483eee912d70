"""ChannelService: names that are never given twice, owners, and calls that happen as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from wal import OwnerDescription
from wal.errors import ChannelNotExistError, ClosedError, CorruptionError, InvalidArgumentError
from wal.storage.kv import KVBase, MemoryKV, SqliteKV
from wal.streams.msgstream import ChannelService
from wal.timestamp import IdAllocator

OWNER = OwnerDescription("ingest", "10.0.0.7:9000", "orders of the shop")


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def kv(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KVBase]:
    async with MemoryKV() if request.param == "memory" else await SqliteKV.open(tmp_path / "kv.sqlite3") as opened:
        yield opened


@pytest_asyncio.fixture
async def service(kv: KVBase) -> AsyncIterator[ChannelService]:
    async with IdAllocator(kv, key="ids", batch=5) as ids:
        yield ChannelService(kv, ids)


async def test_channels_are_described_in_the_order_asked_for(service: ChannelService) -> None:
    other = OwnerDescription("search")
    first = await service.create_channels(OWNER, 12)
    (second,) = await service.create_channels(other)
    assert len({*first, second}) == 13
    found = await service.describe_channels([second, first[3]])
    assert [(one.channel_name, one.owner) for one in found] == [(second, other), (first[3], OWNER)]
    everything = await service.describe_channels()
    assert [one.channel_name for one in everything] == [*first, second]
    assert await service.describe_channels([]) == []


async def test_name_of_a_destroyed_channel_is_never_reused(service: ChannelService) -> None:
    names = await service.create_channels(OWNER, 3)
    await service.destroy_channels(names[:2])
    assert [one.channel_name for one in await service.describe_channels()] == names[2:]
    again = await service.create_channels(OWNER, 3)
    assert set(again).isdisjoint(names)
    with pytest.raises(ChannelNotExistError, match=repr(names[0])):
        await service.destroy_channels(names[:1])


async def test_unknown_name_changes_nothing(service: ChannelService) -> None:
    names = await service.create_channels(OWNER, 2)
    for call in (service.destroy_channels, service.describe_channels):
        with pytest.raises(ChannelNotExistError, match="'channel-999'"):
            await call([names[0], "channel-999"])
    assert [one.channel_name for one in await service.describe_channels()] == names


async def test_services_of_a_kv_share_channels(kv: KVBase) -> None:
    async with IdAllocator(kv, key="ids", batch=3) as one, IdAllocator(kv, key="ids", batch=4) as two:
        services = [ChannelService(kv, one), ChannelService(kv, two)]
        created = await asyncio.gather(*(services[turn % 2].create_channels(OWNER, 2) for turn in range(10)))
        names = [name for some in created for name in some]
        assert len(set(names)) == 20
        for service in services:
            assert {found.channel_name for found in await service.describe_channels()} == set(names)


async def test_channels_outlive_the_service(tmp_path: Path) -> None:
    created: list[str] = []
    for _ in range(2):
        async with AsyncExitStack() as stack:
            kv = await stack.enter_async_context(await SqliteKV.open(tmp_path / "kv.sqlite3"))
            service = ChannelService(kv, await stack.enter_async_context(IdAllocator(kv, key="ids")))
            assert [one.channel_name for one in await service.describe_channels()] == created
            created += await service.create_channels(OWNER, 2)


async def test_bad_input_creates_nothing(service: ChannelService, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, type[Exception]]] = [
        ("ingest", 1, TypeError),
        (None, 1, TypeError),
        (OWNER, 0, InvalidArgumentError),
        (OWNER, 61, InvalidArgumentError),
        (OWNER, "2", TypeError),
    ]
    for owner, count, error in cases:
        with subtests.test(repr(owner)):
            with pytest.raises(error):
                await service.create_channels(owner, count)
            assert await service.describe_channels() == []


async def test_bad_names_are_refused(service: ChannelService, subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, type[Exception]]] = [
        ("channel-1", TypeError),
        ([1], TypeError),
        ([""], InvalidArgumentError),
        (["a", "a"], InvalidArgumentError),
        ([f"channel-{number}" for number in range(200)], InvalidArgumentError),
    ]
    for names, error in cases:
        with subtests.test(repr(names)):
            for call in (service.destroy_channels, service.describe_channels):
                with pytest.raises(error):
                    await call(names)


async def test_record_that_is_none_is_corruption(kv: KVBase, service: ChannelService) -> None:
    (name,) = await service.create_channels(OWNER)
    await kv.save(f"channels/{name}", "not json")
    with pytest.raises(CorruptionError, match=name):
        await service.describe_channels()
    await service.destroy_channels([name])


async def test_closed_kv_says_so(kv: KVBase, service: ChannelService) -> None:
    await kv.close()
    with pytest.raises(ClosedError):
        await service.describe_channels()
