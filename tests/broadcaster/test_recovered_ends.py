"""A broadcast that was finished when the process was killed stays finished at the next opening: it is not listed and its keys are free.

The first run is cut at every point at which all copies and acks are durable and the done mark is not. In the next run the metadata saves
nothing until a gate is opened, so that the first calls cannot be answered by the end of a save.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broadcaster import BroadcastMessage, BroadcastState, Content
from broadcaster.records import encode_task, read_records, task_key
from tests.broadcaster.world import Cut, Life, World, until
from wal.errors import InvalidArgumentError
from wal.message import BroadcastHeader, ResourceKey

PLACES = {"a0": "p0", "a1": "p0", "b0": "p1"}
CUTS = 40
"""More points than any of the scripts has."""
KEY = ResourceKey("test", "key")

Script = Callable[[Life], Awaitable[None]]


def message(*vchannels: str, needs_ack: bool) -> BroadcastMessage:
    return BroadcastMessage(vchannels=vchannels, payload=b"x", resource_keys=[KEY], needs_ack=needs_ack)


async def spanning(life: Life) -> None:
    await life.broadcast.append(message("a0", "b0", needs_ack=False))


async def dropped(life: Life) -> None:
    result = await life.broadcast.append(message("a0", "b0", needs_ack=True))
    await life.broadcast.ack(result.broadcast_id, "a0")
    life.dropped_since.add("b0")  # the record is gone, and the process dies before the broadcaster gets the notice
    life.cut.dead.set()


async def aborted(life: Life) -> None:
    result = await life.broadcast.append(message("a0", "b0", needs_ack=True))
    await life.broadcast.abort(result.broadcast_id, "no more")


@asynccontextmanager
async def next_life(world: World, before: Life) -> AsyncIterator[tuple[Life, asyncio.Event]]:
    """Opens a run whose metadata saves nothing before the event is set."""
    life, gate = Life(world), asyncio.Event()
    life.dropped_since = before.dropped_since
    save = life.kv.multi_save_and_remove

    async def gated(*args: Any, **more: Any) -> None:
        await gate.wait()
        await save(*args, **more)

    life.kv.multi_save_and_remove = gated  # type: ignore[method-assign]
    await life.open()
    try:
        yield life, gate
    finally:
        gate.set()
        await life.close()


async def cut_at(script: Script, at: int) -> tuple[World, Life, bool]:
    """Returns the world after a run that was cut at this point, that run, and whether it was cut at all."""
    world = World(vchannels=PLACES)
    life = Life(world, Cut(at))
    await life.open()
    work = asyncio.ensure_future(script(life))
    cut = asyncio.create_task(life.cut.dead.wait())
    await asyncio.wait([work, cut], return_when=asyncio.FIRST_COMPLETED)
    happened = life.cut.dead.is_set()
    if happened:
        life.kill()
    for task in (work, cut):
        task.cancel()
    await asyncio.gather(work, cut, return_exceptions=True)
    await life.close()
    return world, life, happened


@pytest.mark.parametrize("script", [spanning, dropped, aborted])
async def test_finished_broadcast_is_known_from_the_start(script: Script) -> None:
    unfinished = (BroadcastState.PENDING, BroadcastState.WAIT_ACK, BroadcastState.ABORTING)
    ends = 0
    for at in range(1, CUTS):
        world, before, happened = await cut_at(script, at)
        if not happened:
            break
        stored = read_records(*await world.kv.load_with_prefix(""))
        async with next_life(world, before) as (life, gate):
            listed = await life.broadcast.tasks()
            assert [task.state for task in listed if task.state not in unfinished] == []
            if not listed:
                # The broadcast is finished, or never began: its key is free at once, without a save.
                ends += not stored.done and bool(world.in_logs().copies)
                second = await life.broadcast.append(
                    BroadcastMessage(vchannels=["a1"], payload=b"next", resource_keys=[KEY], needs_ack=True)
                )
                assert [task.broadcast_id for task in await life.broadcast.tasks()] == [second.broadcast_id]
                gate.set()
        # Whatever was saved by then, the next opening finds at most one holder of the key.
        async with Life(world) as life:
            assert len(await life.broadcast.tasks()) <= 1
    assert ends > 0, "no cut fell between what finished the broadcast and its done mark"


async def test_late_abort_of_a_finished_broadcast_is_refused() -> None:
    for at in range(1, CUTS):
        world, before, happened = await cut_at(spanning, at)
        assert happened
        copies = world.in_logs().copies
        if len(copies) == 2 and not read_records(*await world.kv.load_with_prefix("")).done:
            break
    ((broadcast_id, _), _) = sorted(copies)
    async with next_life(world, before) as (life, _):
        with pytest.raises(InvalidArgumentError, match="is over already \\(DONE\\)"):
            await life.broadcast.abort(broadcast_id, "too late")
        assert life.broadcast.statistics().finished == 1


async def test_done_mark_is_saved_after_the_opening() -> None:
    for at in range(1, CUTS):
        world, before, _ = await cut_at(spanning, at)
        if len(world.in_logs().copies) == 2 and not read_records(*await world.kv.load_with_prefix("")).done:
            break
    async with next_life(world, before) as (life, gate):
        gate.set()
        async with asyncio.timeout(60):
            while not read_records(*await world.kv.load_with_prefix("")).done:
                await asyncio.sleep(0)
        assert read_records(*await world.kv.load_with_prefix("")).tasks == {}
        await until(lambda: not any(life.state.values()))  # the logs list its copies only until then


async def test_record_of_a_smaller_copy_ends() -> None:
    """The record of a broadcast to several pchannels may name one, in a log that was copied onto it: it is removed all the same."""
    world = World(vchannels={"a0": "p0", "a1": "p0"})
    async with Life(world) as life:
        broadcast_id = (await life.broadcast.append(message("a0", "a1", needs_ack=False))).broadcast_id
    header = BroadcastHeader(broadcast_id, ("a0", "a1"), (KEY,), False)
    await world.kv.save(task_key(broadcast_id), encode_task(header, Content(b"x", 2), {"p0": ["a0", "a1"]}))
    for _ in range(3):  # the first checkpoint without the copies is followed by one more opening
        async with Life(world) as life:
            assert await life.broadcast.tasks() == []
            await until(lambda: not any(life.state.values()))
    assert read_records(*await world.kv.load_with_prefix("")).tasks == {}
    assert list(world.in_logs().copies.values()) == [1, 1]
