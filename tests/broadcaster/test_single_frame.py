"""Single-frame broadcasts: no record is saved for them, and a caller that looks one up finds it like any other."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping, Sequence

import pytest

from broadcaster import BroadcastAppendResult, BroadcastMessage, BroadcastState
from tests.broadcaster.world import Life, World, until
from wal.errors import (
    ClosedError,
    InvalidArgumentError,
    NoSpaceError,
    ResourceAcquiredError,
    UnknownOutcomeError,
    UnrecoverableError,
    WALError,
    WouldBlockError,
)
from wal.message import AppendResult, MessageID, Origin, ResourceKey
from wal.write.copy_writes import PlacedCopies

PLACES = {"a0": "p0", "a1": "p0", "b0": "p1"}
KEY = ResourceKey("collection", "orders")


def message(*vchannels: str) -> BroadcastMessage:
    return BroadcastMessage(vchannels=vchannels, payload=b"change", resource_keys=[KEY], needs_ack=False)


async def under_way(life: Life) -> asyncio.Task[BroadcastAppendResult]:
    """Returns a call whose frame is in the log, and which returns once its gate is opened."""
    life.gates["p0"] = asyncio.Event()
    call = asyncio.create_task(life.broadcast.append(message("a0", "a1")))
    await until(lambda: life.handed)
    return call


async def close_begun(life: Life) -> None:
    """Returns once the broadcaster begins no more broadcasts. It tries an append, which looks for no broadcast in progress."""
    with pytest.raises(ClosedError):
        while True:
            with pytest.raises(ResourceAcquiredError):
                await life.broadcast.append(message("a0"))
            await asyncio.sleep(0)
    for _ in range(2):  # the actor was woken in the turn that refused the call
        await asyncio.sleep(0)


async def test_single_frame_broadcast_saves_no_record() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        for _ in range(100):
            await life.broadcast.append(message("a0", "a1"))
        statistics = life.broadcast.statistics()
        assert (statistics.saves, statistics.tasks, statistics.frames, statistics.bytes_held) == (0, 0, 0, 0)
        assert (statistics.appended, statistics.finished, statistics.done_marks) == (100, 100, 0)
        assert life.kv.bytes_written == 0
        assert not life.state["p0"]
    assert set(world.in_logs().copies.values()) == {1}


async def test_key_goes_to_the_next_waiter() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        call = await under_way(life)
        with pytest.raises(ResourceAcquiredError) as refused:
            await life.broadcast.append(message("b0"))
        waiting = [asyncio.create_task(life.broadcast.append(message("b0"), wait=True)) for _ in range(3)]
        await until(lambda: life.broadcast.statistics().waiting == 3)
        assert life.frames == 0
        life.gates["p0"].set()
        first = await call
        assert refused.value.holder == first.broadcast_id
        ids = [(await one).broadcast_id for one in waiting]
        assert [first.broadcast_id, *ids] == sorted({first.broadcast_id, *ids})


async def test_single_frame_broadcast_is_listed_and_watched() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        call = await under_way(life)
        watching = asyncio.create_task(life.broadcast.block_until_resource_key_ack_all(KEY))
        (task,) = await life.broadcast.tasks()
        assert (task.state, task.missing_appends, task.resource_keys) == (BroadcastState.PENDING, ("a0", "a1"), (KEY,))
        assert life.broadcast.statistics().tasks == 1
        with pytest.raises(InvalidArgumentError, match="'b0' is not in broadcast"):
            await life.broadcast.ack(task.broadcast_id, "b0")
        assert not watching.done()
        life.gates["p0"].set()
        assert list((await call).append_results) == ["a0", "a1"]
        await watching
        assert await life.broadcast.tasks() == []
        assert life.asked_again == 0


async def test_single_frame_broadcast_can_be_aborted() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        call = await under_way(life)
        with pytest.raises(ResourceAcquiredError) as held:
            await life.broadcast.append(message("a0"))
        broadcast_id = held.value.holder
        abort = asyncio.create_task(life.broadcast.abort(broadcast_id, "no"))
        await asyncio.sleep(0)  # the abort is in the inbox, and finds the broadcast
        (task,) = await life.broadcast.tasks()
        assert task.state is BroadcastState.ABORTING
        life.gates["p0"].set()
        await abort
        with pytest.raises(UnrecoverableError, match="was aborted: no"):
            await call
        assert world.in_logs().aborts == {(broadcast_id, name): 1 for name in ("a0", "a1")}


@pytest.mark.parametrize("error", [WouldBlockError("busy"), UnknownOutcomeError("lost")], ids=lambda error: type(error).__name__)
async def test_failed_frame_is_retried_like_any_other(error: WALError) -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        errors = [error]
        life.refuse = lambda pchannel, vchannels: errors.pop() if errors else None
        async with asyncio.timeout(60):
            assert list((await life.broadcast.append(message("a0", "a1"))).append_results) == ["a0", "a1"]
        assert set(world.in_logs().copies.values()) == {1}


@pytest.mark.parametrize("needs_ack", [False, True])
async def test_full_log_refuses_and_leaves_no_record(needs_ack: bool) -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life, asyncio.timeout(60):
        life.refuse = lambda pchannel, vchannels: NoSpaceError("full")
        for _ in range(2):
            with pytest.raises(NoSpaceError, match="full"):
                await life.broadcast.append(
                    BroadcastMessage(vchannels=("a0", "a1"), payload=b"change", resource_keys=[KEY], needs_ack=needs_ack)
                )
        assert await life.broadcast.tasks() == []
        life.refuse = lambda pchannel, vchannels: None
        await life.broadcast.append(message("a0"))
    async with Life(world) as life:
        assert await life.broadcast.tasks() == []
    assert len(world.in_logs().copies) == 1


async def test_cancelled_caller_changes_nothing_of_it() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        call = await under_way(life)
        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled()
        with pytest.raises(ResourceAcquiredError):
            await life.broadcast.append(message("a0"))
        life.gates["p0"].set()
        await life.broadcast.block_until_resource_key_ack_all(KEY)
    assert set(world.in_logs().copies.values()) == {1}


async def test_close_waits_for_it_and_begins_no_other() -> None:
    world = World(vchannels=PLACES)
    life = Life(world)
    await life.open()
    call = await under_way(life)
    waiting = asyncio.create_task(life.broadcast.append(message("a0"), wait=True))
    await until(lambda: life.broadcast.statistics().waiting)
    closing = asyncio.create_task(life.close())
    await close_begun(life)
    assert not closing.done()
    life.gates["p0"].set()
    await closing
    assert list((await call).append_results) == ["a0", "a1"]
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await life.broadcast.append(message("a0"))
    assert len(world.in_logs().copies) == 2


async def test_broadcast_creating_vchannels_can_be_aborted() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        made, places = asyncio.Event(), life.places

        async def slow(vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
            await made.wait()
            return await places(vchannels)

        life.places = slow  # type: ignore[method-assign]
        first = asyncio.create_task(life.broadcast.append(message("a0", "new")))
        await until(lambda: life.broadcast.statistics().tasks)
        (task,) = await life.broadcast.tasks()
        assert (task.state, task.missing_appends) == (BroadcastState.PENDING, ("a0", "new"))
        with pytest.raises(ResourceAcquiredError) as refused:
            await life.broadcast.append(message("b0"))
        assert refused.value.holder == task.broadcast_id
        await life.broadcast.abort(task.broadcast_id, "too slow")
        with pytest.raises(UnrecoverableError, match="was aborted: too slow"):
            await first
        second = asyncio.create_task(life.broadcast.append(message("a0", "new")))
        await until(lambda: life.broadcast.statistics().tasks)
        made.set()
        result = await second
        assert list(result.append_results) == ["a0", "new"]
    assert world.in_logs().copies == {(result.broadcast_id, name): 1 for name in ("a0", "new")}


async def test_close_begins_no_broadcast() -> None:
    world = World(vchannels=PLACES)
    life = Life(world)
    await life.open()
    made, places = asyncio.Event(), life.places

    async def slow(vchannels: Sequence[str]) -> Mapping[str, Sequence[str]]:
        await made.wait()
        return await places(vchannels)

    life.places = slow  # type: ignore[method-assign]
    call = asyncio.create_task(life.broadcast.append(message("a0", "b0", "new")))
    await until(lambda: life.broadcast.statistics().tasks)
    closing = asyncio.create_task(life.close())
    await close_begun(life)
    made.set()
    await closing
    with pytest.raises(ClosedError, match="before anything of this broadcast was in it"):
        await call
    assert await world.contents() == {}
    assert not world.in_logs().copies


async def test_drop_acks_only_a_durable_copy() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        life.gates["p1"] = asyncio.Event()
        append = asyncio.create_task(
            life.broadcast.append(BroadcastMessage(vchannels=["a0", "a1", "b0"], payload=b"", resource_keys=[KEY]))
        )
        await until(lambda: life.frames == 1)
        life.drop("a1")
        (task,) = await life.broadcast.tasks()
        assert (task.state, task.missing_acks) == (BroadcastState.PENDING, ("a0", "a1", "b0"))
        life.gates["p1"].set()
        broadcast_id = (await append).broadcast_id
        (task,) = await life.broadcast.tasks()
        assert (task.state, task.missing_acks) == (BroadcastState.WAIT_ACK, ("a0", "b0"))
    async with Life(world) as life:
        life.dropped_since |= {"a1", "b0"}  # the second of them at the moment of the crash
        await life.broadcast.ack(broadcast_id, "a0")
        life.drop("b0")
        await life.broadcast.block_until_resource_key_ack_all(KEY)
        assert await life.broadcast.tasks() == []


async def test_defect_fails_every_caller() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        first = await under_way(life)
        waiting = asyncio.create_task(life.broadcast.append(message("a0"), wait=True))
        await until(lambda: life.broadcast.statistics().waiting)

        def broken(vchannels: object) -> None:
            raise RuntimeError("broken")

        life.places_nowait = broken  # type: ignore[method-assign]
        calls = [first, waiting]
        calls.append(asyncio.create_task(life.broadcast.append(BroadcastMessage(vchannels=["a1"], payload=b""))))
        for call in calls:
            with pytest.raises(UnrecoverableError, match=r"failed and takes no more calls.*broken") as refused:
                await call
            assert refused.value.outcome_unknown
        with pytest.raises(UnrecoverableError):
            await life.broadcast.append(message("a1"))


def result(at: int) -> AppendResult:
    message_id = MessageID("p0", 7, 99, at)
    return AppendResult(message_id, 1000 + at, message_id)


def test_placed_copies_equal_their_results() -> None:
    placed = PlacedCopies(Origin("p0", 7, 99), first=3, tick=1003, count=4)
    wanted = [result(at) for at in range(3, 7)]
    assert len(placed) == 4
    assert list(placed) == wanted
    assert placed == wanted
    assert placed != wanted[1:]
    assert placed != 4
    assert (placed[0], placed[-1], placed[1:3]) == (wanted[0], wanted[-1], wanted[1:3])
    assert repr(wanted) in repr(placed)
    with pytest.raises(IndexError):
        placed[4]


def test_result_is_equal_with_or_without_a_dict() -> None:
    names = ("a", "b", "c")
    placed = PlacedCopies(Origin("p0", 7, 99), first=0, tick=1000, count=2)
    refused = [UnknownOutcomeError("no"), result(0)]
    made = BroadcastAppendResult.of(5, names, [(("c", "a"), placed), (("a", "b"), refused)])  # type: ignore[list-item]
    plain = BroadcastAppendResult(5, {"a": result(1), "b": result(0), "c": result(0)})
    assert made == plain
    assert made != BroadcastAppendResult(6, plain.append_results)
    assert made != 5
    assert type(made.append_results) is dict
    assert made.append_results is made.append_results
    assert list(made.append_results) == ["a", "b", "c"]
    assert repr(made) == repr(plain)
    assert (
        pickle.loads(pickle.dumps(BroadcastAppendResult.of(5, names, [(("c", "a"), placed), (("b",), refused[1:])])))  # type: ignore[list-item]
        == plain
    )
    match made:
        case BroadcastAppendResult(broadcast_id, append_results):
            assert (broadcast_id, append_results) == (5, plain.append_results)
    with pytest.raises(AttributeError):
        made.broadcast_id = 6  # type: ignore[misc]
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)
