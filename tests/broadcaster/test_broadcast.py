"""Broadcast over real frames: the guarantees for callers while nothing crashes."""

from __future__ import annotations

import asyncio

import pytest

from broadcaster import BroadcastMessage, BroadcastState
from tests.broadcaster.world import Life, World
from wal.errors import InvalidArgumentError, ResourceAcquiredError
from wal.message import ResourceKey

KEY = ResourceKey("collection", "orders")


def message(*vchannels: str, keys: tuple[ResourceKey, ...] = (KEY,), needs_ack: bool = True) -> BroadcastMessage:
    return BroadcastMessage(vchannels=vchannels, payload=b"change", resource_keys=keys, needs_ack=needs_ack)


async def test_broadcast_reaches_all_and_frees_its_keys() -> None:
    world = World()
    async with Life(world) as life:
        names = [f"v{number}" for number in range(8)]
        result = await life.broadcast.append(message(*names))
        assert set(result.append_results) == set(names)
        copies = world.in_logs().copies
        assert copies == {(result.broadcast_id, name): 1 for name in names}
        assert len({one.time_tick for one in result.append_results.values()}) == 8
        with pytest.raises(ResourceAcquiredError) as caught:
            await life.broadcast.append(message("v1"))
        assert caught.value.holder == result.broadcast_id
        assert caught.value.keys == (KEY,)
        for name in names:
            (task,) = await life.broadcast.tasks()
            assert task.state is BroadcastState.WAIT_ACK
            assert name in task.missing_acks
            await life.broadcast.ack(result.broadcast_id, name)
        assert await life.broadcast.tasks() == []
        again = await life.broadcast.append(message("v1"))
        assert again.broadcast_id > result.broadcast_id


async def test_broadcast_without_acks_frees_keys_at_return() -> None:
    async with Life(World()) as life:
        for names in (("a",), ("a", "b", "c", "d"), ("b",)):
            await life.broadcast.append(message(*names, needs_ack=False))
        assert await life.broadcast.tasks() == []


async def test_abort_tells_the_vchannels_that_have_a_copy() -> None:
    world = World()
    async with Life(world) as life:
        result = await life.broadcast.append(message("a", "b", "c", "d"))
        await life.broadcast.abort(result.broadcast_id, "changed my mind")
        aborts = world.in_logs().aborts
        assert aborts == {(result.broadcast_id, name): 1 for name in "abcd"}
        await life.broadcast.append(message("a"))
        with pytest.raises(InvalidArgumentError, match="not known"):
            await life.broadcast.abort(17, "")
        await life.broadcast.abort(result.broadcast_id, "again")


async def test_waiting_calls_get_the_keys_in_turn() -> None:
    async with Life(World()) as life:
        first = await life.broadcast.append(message("a"))
        second = asyncio.create_task(life.broadcast.append(message("b"), wait=True))
        third = asyncio.create_task(life.broadcast.append(message("c"), wait=True))
        while life.broadcast.statistics().waiting < 2:
            await asyncio.sleep(0)
        await life.broadcast.ack(first.broadcast_id, "a")
        result = await second
        assert not third.done()
        await life.broadcast.ack(result.broadcast_id, "b")
        assert (await third).broadcast_id > result.broadcast_id
