"""Vchannels and channels over the network: create, drop, locate, list, watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from tests.serve.servers import Serving, connected, serving
from wal.channels import slices
from wal.channels.channels import ChannelDescription
from wal.channels.owners import OwnerDescription
from wal.channels.vchannels import VChannelInfo, place
from wal.errors import ChannelExistError, ChannelNotExistError, ClosedError, InvalidArgumentError, NoSpaceError, WouldBlockError
from wal.requests.vchannels import (
    QUICK_NAMES,
    CreateChannels,
    CreateVChannel,
    DescribeChannels,
    DestroyChannels,
    DropVChannel,
    Existence,
    ListVChannels,
    LocateVChannels,
    VChannelState,
    VChannelStates,
)
from wal.rpc import methods
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.api import requests_pb2 as requests
from wal.rpc.api.pchannel_pb2 import OwnerDescription as OwnerProto
from wal.rpc.connection import Connection
from wal.rpc.converter import struct_from_proto
from wal.serve import watch

WAIT_S = 30.0
UNKNOWN, EXISTS, DROPPED = Existence


async def create(connection: Connection, name: str, pchannel: str | None = None) -> VChannelInfo:
    return await connection.submit(CreateVChannel(name, pchannel))


async def locate(connection: Connection, *names: str, create: bool = False, together: bool = False) -> list[VChannelState]:
    states = await connection.submit(LocateVChannels(names, create, together))
    return list(states)


async def listed(connection: Connection) -> dict[str, VChannelInfo]:
    return {info.name: info for info in await connection.submit(ListVChannels())}


async def watched(connection: Connection) -> AsyncGenerator[VChannelStates, None]:
    async with aclosing(connection.responses(methods.WATCH_VCHANNELS, proto.WatchVChannelsRequest(), "watching")) as told:
        async for states in told:
            yield struct_from_proto(VChannelStates, states)


async def test_many_names_extend_the_deadline() -> None:
    names = [f"v{number}" for number in range(QUICK_NAMES + 1)]
    async with serving() as served, connected(served.address, timeout_s=0.001) as connection:
        states = await locate(connection, *names, create=True)
    assert [state.name for state in states] == names
    assert [LocateVChannels(tuple(names[:count])).timeout_s for count in (1, QUICK_NAMES)] == [None, None]


async def test_vchannel_from_its_creation_to_its_end(served: Serving, connection: Connection) -> None:
    info = await create(connection, "orders")
    assert info == served.log.coordinator.vchannels.records["orders"]
    assert await listed(connection) == {"orders": info}
    assert await locate(connection, "orders") == [VChannelState(info, EXISTS)]
    with pytest.raises(ChannelExistError, match="'orders' exists already"):
        await create(connection, "orders")
    await connection.submit(DropVChannel("orders"))
    assert await listed(connection) == {}
    with pytest.raises(ChannelNotExistError, match="'orders' does not exist"):
        await connection.submit(DropVChannel("orders"))
    (gone,) = await locate(connection, "orders")
    assert (gone.state, gone.incarnation) == (UNKNOWN, info.incarnation + 1)


async def test_bad_request_changes_nothing(served: Serving, connection: Connection, subtests: pytest.Subtests) -> None:
    owner = OwnerProto(role="x")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"create_vchannel": requests.CreateVChannel()}, "vchannel is empty"),
        ({"create_vchannel": requests.CreateVChannel(name="a\n")}, "control characters"),
        ({"create_vchannel": requests.CreateVChannel(name="a", pchannel="p-99")}, "'p-99' does not exist: choose one"),
        ({"drop_vchannel": requests.DropVChannel(name="x" * 256)}, "256 bytes long: at most 255"),
        ({"locate_vchannels": requests.LocateVChannels(names=["a", ""], create=True)}, "vchannel is empty"),
        ({"create_channels": requests.CreateChannels(owner=owner)}, "count=0 is not between 1 and 60"),
        ({"create_channels": requests.CreateChannels(owner=owner, count=61)}, "count=61 is not between"),
        ({"create_channels": requests.CreateChannels(count=1)}, "role is empty"),
        ({"destroy_channels": requests.DestroyChannels(names=["a", "a"])}, "'a' more than once"),
        ({"destroy_channels": requests.DestroyChannels(names=map(str, range(61)))}, "61 channels, and one call takes at most 60"),
    ]
    for request_, words in cases:
        with subtests.test(words):
            with pytest.raises(InvalidArgumentError, match=words):
                await connection.call(methods.SUBMIT, requests.SubmitRequest(**request_), "asking")
            assert not served.log.coordinator.vchannels.records


async def test_request_names_a_bounded_number_of_vchannels(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "NAMES_MAX", 3)
    assert len(await locate(connection, "a", "b", "c")) == 3
    with pytest.raises(InvalidArgumentError, match="names 4 vchannels, and one request may name 3"):
        await locate(connection, "a", "b", "c", "d")


async def test_locating_tells_where_a_vchannel_is_or_would_be() -> None:
    async with serving(pchannels=4) as served, connected(served.address) as connection:
        pchannels = list(served.log.node.pchannels)
        away = next(name for name in pchannels if name != place("a", pchannels))
        await create(connection, "a", away)
        states = await locate(connection, "a", "b", "a")
        assert [(one.name, one.pchannel, one.state) for one in states] == [("a", away, EXISTS), ("b", place("b", pchannels), UNKNOWN)]
        assert states[1].incarnation == served.log.coordinator.vchannels.directory.next_incarnation
        (made,) = await locate(connection, "b", create=True)
        assert (made.state, made.pchannel) == (EXISTS, place("b", pchannels))
        assert "b" in served.log.coordinator.vchannels.directory.saved


async def test_vchannels_that_must_be_together_are_on_one_pchannel() -> None:
    async with serving(pchannels=2) as served, connected(served.address) as connection:
        one, other = served.log.node.pchannels
        for name, pchannel in (("a", one), ("b", one), ("c", other)):
            await create(connection, name, pchannel)
        assert len(await locate(connection, "a", "b", together=True)) == 2
        assert len(await locate(connection, "a", "b", together=True, create=True)) == 2
        with pytest.raises(InvalidArgumentError, match="one scanner reads one pchannel"):
            await locate(connection, "a", "c", together=True)
        with pytest.raises(InvalidArgumentError, match="a transaction is one frame and cannot span pchannels"):
            await locate(connection, "a", "c", together=True, create=True)
        new = next(name for name in map(str, range(99)) if place(name, [one, other]) == other)
        with pytest.raises(InvalidArgumentError, match="cannot span pchannels"):
            await locate(connection, "a", new, together=True, create=True)
        assert new not in served.log.coordinator.vchannels.records


async def test_where_appends_create_no_vchannels_an_unknown_one_is_an_error() -> None:
    async with serving(create_vchannels=False) as served, connected(served.address) as connection:
        for flags in ({}, {"create": True}, {"together": True}):
            with pytest.raises(ChannelNotExistError, match="'a' does not exist and create_vchannels is off"):
                await locate(connection, "a", **flags)
        await create(connection, "a")
        for flags in ({}, {"create": True}, {"together": True}):
            assert [state.state for state in await locate(connection, "a", **flags)] == [EXISTS]


async def test_vchannel_that_could_not_be_saved_is_not_shown(
    served: Serving, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, release = asyncio.Event(), asyncio.Event()

    async def full(*_: object) -> None:
        saving.set()
        await release.wait()
        raise NoSpaceError("the disk is full")

    monkeypatch.setattr(served.log.coordinator.kv, "multi_save_and_remove", full)
    creating = asyncio.create_task(locate(connection, "a", create=True))
    await asyncio.wait_for(saving.wait(), WAIT_S)
    locating = asyncio.create_task(locate(connection, "a"))
    assert await listed(connection) == {}
    assert not locating.done()
    release.set()
    with pytest.raises(NoSpaceError, match="the disk is full"):
        await asyncio.wait_for(creating, WAIT_S)
    assert [state.state for state in await asyncio.wait_for(locating, WAIT_S)] == [UNKNOWN]


async def test_channels_have_owners(served: Serving, connection: Connection) -> None:
    owner = OwnerDescription("ingest", "10.0.0.1:7", "rows")
    created = await connection.submit(CreateChannels(owner, 3))
    assert len(set(created)) == 3
    described = await connection.submit(DescribeChannels(created[1:]))
    assert described == tuple(ChannelDescription(name, owner) for name in created[1:])
    assert (await listed(connection))[created[0]].owner == owner
    everything = await connection.submit(DescribeChannels())
    assert [one.channel_name for one in everything] == list(created)
    assert await connection.submit(DescribeChannels(())) == ()
    with pytest.raises(ChannelNotExistError, match="'other' does not exist"):
        await connection.submit(DestroyChannels((created[0], "other")))
    assert len(await listed(connection)) == 3
    await connection.submit(DestroyChannels(created[:2]))
    assert list(await listed(connection)) == [created[2]]
    with pytest.raises(ChannelNotExistError):
        await connection.submit(DescribeChannels(created[:1]))


async def test_watcher_hears_of_every_change(served: Serving, connection: Connection) -> None:
    await create(connection, "before")
    async with aclosing(watched(connection)) as told:
        first = await anext(told)
        assert [(one.name, one.state) for one in first.vchannels] == [("before", EXISTS)]
        assert dict(first.floors) == dict.fromkeys(served.log.node.pchannels, served.log.coordinator.vchannels.directory.saved_next)
        known: dict[str, VChannelState] = {}

        async def until(name: str, state: Existence, incarnation: int) -> None:
            async with asyncio.timeout(WAIT_S):
                while name not in known or (known[name].state, known[name].incarnation) != (state, incarnation):
                    update = await anext(told)
                    known.update((one.name, one) for one in update.vchannels)
                    assert all(floor > incarnation for floor in update.floors.values())

        a = await create(connection, "a")
        await until("a", EXISTS, a.incarnation)
        await connection.submit(DropVChannel("a"))
        await until("a", DROPPED, a.incarnation)
        again = await create(connection, "a")
        await until("a", EXISTS, again.incarnation)
        await connection.submit(DropVChannel("before"))
        await until("before", DROPPED, first.vchannels[0].incarnation)
        assert len(served.log.coordinator.vchannels.directory.watchers) == 1
    async with asyncio.timeout(WAIT_S):
        while served.log.coordinator.vchannels.directory.watchers:
            await asyncio.sleep(0.01)


async def test_watcher_that_does_not_read_is_told_to_watch_again(
    served: Serving, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "BEHIND_MAX", 10)
    async with aclosing(watched(connection)) as told:
        await anext(told)
        # One operation, so all of them change before the watcher can be told.
        await served.log.submit(CreateChannels(OwnerDescription("test"), 20))
        with pytest.raises(WouldBlockError, match=r"20 vchannels changed .* 10 are kept for it: watch again"):
            await anext(told)


async def test_watch_ends_with_the_server(served: Serving, connection: Connection) -> None:
    async with aclosing(watched(connection)) as told:
        await anext(told)
        waiting = asyncio.ensure_future(anext(told))
        await served.node.close(drain_s=WAIT_S)
        with pytest.raises(ClosedError, match="the server is being stopped"):
            await asyncio.wait_for(waiting, WAIT_S)
