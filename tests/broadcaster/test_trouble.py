"""Appends and saves that fail, dropped vchannels, bounds, callers that leave, and a close in the middle."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Mapping, Sequence

import msgspec
import pytest

from actors import VirtualClock
from broadcaster import BroadcastAppendResult, BroadcasterLimits, BroadcastMessage, BroadcastState, BroadcastTask, Content
from broadcaster.records import encode_task, task_key
from broadcaster.single_frame import FRAMES_MAX
from tests.broadcaster.world import Life, World, until
from wal import errors
from wal.message import BroadcastHeader, ResourceKey
from wal.storage.kv import KVBatch

PLACES = {"a0": "p0", "a1": "p0", "b0": "p1", "b1": "p1", "c0": "p2"}
KEY = ResourceKey("collection", "orders")
SHARED = ResourceKey("collection", "orders", shared=True)


def message(*vchannels: str, key: ResourceKey | None = KEY, needs_ack: bool = True) -> BroadcastMessage:
    keys = () if key is None else (key,)
    return BroadcastMessage(vchannels=vchannels, payload=b"change", resource_keys=keys, needs_ack=needs_ack)


async def the_task(life: Life) -> BroadcastTask:
    (task,) = await life.broadcast.tasks()
    return task


async def in_state(life: Life, state: BroadcastState) -> BroadcastTask:
    async with asyncio.timeout(60):
        while True:
            tasks = await life.broadcast.tasks()
            if tasks and tasks[0].state is state:
                return tasks[0]
            await asyncio.sleep(0)


async def test_full_pchannel_is_retried_beside_others() -> None:
    """The caller learns at once that the broadcast will be completed, so that it does not retry it."""
    clock = VirtualClock()
    world = World(vchannels=PLACES)
    async with Life(world, clock=clock) as life:
        full = True
        tried: list[float] = []

        def refuse(pchannel: str, vchannels: Sequence[str]) -> errors.WALError | None:
            if pchannel != "p1" or not full:
                return None
            tried.append(clock.monotonic())
            return errors.NoSpaceError("the disk is full")

        life.refuse = refuse
        append = asyncio.create_task(life.broadcast.append(message("a0", "b0", "b1", "c0")))
        await until(lambda: tried and life.frames == 2)
        with pytest.raises(errors.UnknownOutcomeError, match=r"2 of its vchannels.*'b0'.*the disk is full.*do not repeat it") as caught:
            await append
        assert isinstance(caught.value.__cause__, errors.NoSpaceError)
        await clock.run(25.0)
        task = await the_task(life)
        assert task.state is BroadcastState.PENDING
        assert task.missing_appends == ("b0", "b1")
        assert task.last_error == "NoSpaceError: the disk is full"
        with pytest.raises(errors.ResourceAcquiredError):
            await life.broadcast.append(message("a1"))
        delays = [later - earlier for earlier, later in itertools.pairwise(tried)]
        assert delays[:3] == pytest.approx([0.01, 0.02, 0.04])
        assert max(delays) == pytest.approx(10.0)
        full = False
        await clock.run(10.0)
        assert (await the_task(life)).state is BroadcastState.WAIT_ACK
        assert (await the_task(life)).last_error is None
        assert life.frames == 3
        assert life.asked_again == 0


@pytest.mark.parametrize("slow", ["p0", "p1", "p2"])
async def test_broadcast_without_room_leaves_nothing(slow: str) -> None:
    """Any pchannel may answer last; an answered pchannel is not retried before the others have answered."""
    world = World(vchannels=PLACES)
    clock = VirtualClock()
    async with Life(world, clock=clock) as life, asyncio.timeout(60):
        tried: list[str] = []

        def refuse(pchannel: str, vchannels: Sequence[str]) -> errors.WALError | None:
            tried.append(pchannel)
            return errors.NoSpaceError("the disk is full")

        life.refuse = refuse
        life.gates[slow] = asyncio.Event()
        append = asyncio.create_task(life.broadcast.append(message("a0", "b0", "c0")))
        await until(lambda: len(tried) == 2)
        await clock.run(30.0)
        assert len(tried) == 2
        assert not append.done()
        life.gates[slow].set()
        with pytest.raises(errors.NoSpaceError, match="the disk is full"):
            await append
        assert sorted(tried) == ["p0", "p1", "p2"]
        assert await life.broadcast.tasks() == []
        life.refuse = lambda pchannel, vchannels: None
        await life.broadcast.append(message("a0", needs_ack=False))
    async with Life(world) as life:
        assert await life.broadcast.tasks() == []
    assert {name for _, name in world.in_logs().copies} == {"a0"}


async def test_broadcast_to_a_dropped_vchannel_is_stuck() -> None:
    world = World(vchannels=PLACES)
    async with Life(world, clock=VirtualClock()) as life, asyncio.timeout(60):  # no time passes: an abort waits for no backoff
        life.refused.add("a1")
        with pytest.raises(errors.UnrecoverableError, match=r"is stuck: 1 of its vchannels.*'a1'.*abort") as caught:
            await life.broadcast.append(message("a0", "a1", "b0"))
        assert isinstance(caught.value.__cause__, errors.ChannelNotExistError)
        task = await the_task(life)
        assert task.state is BroadcastState.STUCK
        assert task.missing_appends == ("a1",)
        assert task.missing_acks == ("a0", "a1", "b0")
        assert "ChannelNotExistError" in str(task.last_error)
        with pytest.raises(errors.ResourceAcquiredError):
            await life.broadcast.append(message("c0"))
        await life.broadcast.ack(task.broadcast_id, "a0")
        assert (await the_task(life)).missing_acks == ("a1", "b0")
        await life.broadcast.abort(task.broadcast_id, "a1 is gone")
        assert await life.broadcast.tasks() == []
        logs = world.in_logs()
        assert logs.aborts == logs.copies == {(task.broadcast_id, name): 1 for name in ("a0", "b0")}
        await life.broadcast.append(message("c0"))


async def test_drop_counts_once_the_pchannels_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pchannels may be on other machines: a question that they cannot answer is asked again."""
    clock, asked = VirtualClock(), 0
    async with Life(World(vchannels=PLACES), clock=clock) as life:
        await life.broadcast.append(message("a0", "a1"))
        task = await the_task(life)
        answer = life.dropped

        async def away(broadcast_ids: Collection[int]) -> Mapping[int, Collection[str]]:
            nonlocal asked
            asked += 1
            if asked < 3:
                raise errors.UnavailableError("p0 is on no node")
            return await answer(broadcast_ids)

        monkeypatch.setattr(life, "dropped", away)
        life.drop("a1")
        await clock.run(0.5)
        assert (asked, (await the_task(life)).missing_acks) == (1, ("a0", "a1"))
        await clock.run(5.0)
        assert (asked, (await the_task(life)).missing_acks) == (3, ("a0",))
        await life.broadcast.ack(task.broadcast_id, "a0")
        assert await life.broadcast.tasks() == []


async def test_stuck_broadcast_continues_with_its_vchannel() -> None:
    clock = VirtualClock()
    world = World(vchannels=PLACES)
    async with Life(world, clock=clock) as life:
        life.refused.add("a1")
        with pytest.raises(errors.UnrecoverableError):
            await life.broadcast.append(message("a0", "a1"))
        life.refused.clear()
        await clock.run(10.0)
        assert (await the_task(life)).state is BroadcastState.WAIT_ACK
        assert set(world.in_logs().copies.values()) == {1}


async def test_stuck_broadcast_is_stuck_after_a_restart() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        life.refused.add("a1")
        with pytest.raises(errors.UnrecoverableError):
            await life.broadcast.append(message("a0", "a1"))
    life = Life(world, clock=VirtualClock())
    life.refused.add("a1")
    async with life, asyncio.timeout(60):
        task = await in_state(life, BroadcastState.STUCK)
        assert task.missing_appends == ("a1",)
        assert task.missing_acks == ("a0", "a1")
        await life.broadcast.abort(task.broadcast_id, "still gone")
    assert len(world.in_logs().aborts) == 1


async def test_broadcast_that_no_vchannel_can_take_leaves_nothing() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        life.refuse = lambda pchannel, vchannels: errors.InvalidArgumentError("too large for a frame")
        for vchannels in (("a0", "a1"), ("a0", "b0", "c0")):
            with pytest.raises(errors.InvalidArgumentError, match="too large for a frame"):
                await life.broadcast.append(message(*vchannels))
        assert await life.broadcast.tasks() == []
        assert await world.contents() == {}
        life.refuse = lambda pchannel, vchannels: None
        await life.broadcast.append(message("a0", "b0"))
        life.create_vchannels = False
        with pytest.raises(errors.ChannelNotExistError, match="new"):
            await life.broadcast.append(message("a1", "new", key=None))
        assert len(await life.broadcast.tasks()) == 1


@pytest.mark.parametrize("aborted", [False, True])
async def test_unanswered_frame_is_not_appended_twice(aborted: bool) -> None:
    clock = VirtualClock()
    world = World(vchannels=PLACES)
    async with Life(world, clock=clock) as life:
        life.lose_answers.add("p1")
        append = asyncio.create_task(life.broadcast.append(message("a0", "b0", "b1")))
        await until(lambda: life.frames == 2)
        task = await the_task(life)
        await until(lambda: not life.lose_answers)
        if aborted:
            # It is unknown whether b0 and b1 have their copies: the logs are asked before an abort is appended.
            abort = asyncio.create_task(life.broadcast.abort(task.broadcast_id, "no"))
            await clock.run(1.0)
            await abort
            with pytest.raises(errors.UnrecoverableError, match="aborted: no"):
                await append
            assert world.in_logs().aborts == world.in_logs().copies
            assert len(world.in_logs().aborts) == 3
        else:
            await clock.run(1.0)
            assert set((await append).append_results) == {"a0", "b0", "b1"}
        assert set(world.in_logs().copies.values()) == {1}
        assert life.asked_again == 2


async def test_abort_waits_for_the_frame_under_way() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        life.gates["p1"] = asyncio.Event()
        append = asyncio.create_task(life.broadcast.append(message("a0", "b0")))
        await until(lambda: life.frames == 1)
        task = await the_task(life)
        abort = asyncio.create_task(life.broadcast.abort(task.broadcast_id, "no"))
        again = asyncio.create_task(life.broadcast.abort(task.broadcast_id, "no, really"))
        task = await in_state(life, BroadcastState.ABORTING)
        await life.broadcast.ack(task.broadcast_id, "a0")  # without an effect or an error after the end
        assert not abort.done()
        with pytest.raises(errors.ResourceAcquiredError):
            await life.broadcast.append(message("c0"))
        life.gates["p1"].set()
        await asyncio.gather(abort, again)
        with pytest.raises(errors.UnrecoverableError, match=r"was aborted: no$"):
            await append
        assert world.in_logs().aborts == {(task.broadcast_id, name): 1 for name in ("a0", "b0")}
        with pytest.raises(errors.InvalidArgumentError, match="not known"):
            await life.broadcast.abort(1, "no")
        done = await life.broadcast.append(message("a0", needs_ack=False))
        with pytest.raises(errors.InvalidArgumentError, match=r"is over already \(DONE\)"):
            await life.broadcast.abort(done.broadcast_id, "late")


async def test_abort_does_not_wait_for_a_backoff() -> None:
    clock = VirtualClock()
    async with Life(World(vchannels=PLACES), clock=clock) as life:
        life.gates["p0"] = asyncio.Event()
        life.refused.add("a1")
        append = asyncio.create_task(life.broadcast.append(message("a0", "a1")))
        task = await in_state(life, BroadcastState.PENDING)
        abort = asyncio.create_task(life.broadcast.abort(task.broadcast_id, "no"))
        await in_state(life, BroadcastState.ABORTING)
        before = clock.monotonic()
        life.gates["p0"].set()
        async with asyncio.timeout(60):
            await abort
        assert clock.monotonic() == before
        with pytest.raises(errors.UnrecoverableError, match=r"was aborted: no$"):
            await append


async def test_waiting_call_begins_without_a_fresh_id() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        first = await life.broadcast.append(message("a0"))
        waiting = [asyncio.create_task(life.broadcast.append(message("a0"), wait=True)) for _ in range(2)]
        await until(lambda: life.broadcast.statistics().waiting == 2)
        without_ids(life)
        held = first.broadcast_id
        for one in waiting:
            await life.broadcast.ack(held, "a0")
            held = (await one).broadcast_id
        assert len({(await one).broadcast_id for one in waiting} | {first.broadcast_id}) == 3
        with pytest.raises(errors.WouldBlockError):
            await life.broadcast.append(message("b0", key=None))


async def test_waiting_calls_are_refused_one_by_one() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        first = await life.broadcast.append(message("a0"))
        waiting = [asyncio.create_task(life.broadcast.append(message("a0"), wait=True)) for _ in range(2000)]
        await until(lambda: life.broadcast.statistics().waiting == 2000)
        without_ids(life, errors.ClosedError("another writer gives the ticks"))
        await life.broadcast.ack(first.broadcast_id, "a0")
        for one in waiting:
            with pytest.raises(errors.ClosedError):
                await one
        assert life.broadcast.statistics().bytes_held == 0
        assert await life.broadcast.tasks() == []


def without_ids(life: Life, error: errors.WALError | None = None) -> None:
    def allocate_id() -> int:
        raise error or errors.WouldBlockError("no tick is saved ahead")

    life.allocate_id = allocate_id  # type: ignore[method-assign]


@pytest.mark.parametrize("vchannels", [("a0", "a1"), ("a0", "b0")], ids=["one pchannel", "two pchannels"])
async def test_failed_write_has_an_unknown_outcome(vchannels: tuple[str, ...]) -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        life.refuse = lambda pchannel, names: errors.StorageError("the sync failed", outcome_unknown=True) if pchannel == "p0" else None
        with pytest.raises(errors.StorageError, match=r"may or may not be in the log .*: open the log again") as refused:
            await life.broadcast.append(message(*vchannels))
        assert refused.value.outcome_unknown
        assert (await the_task(life)).state is BroadcastState.STUCK


async def test_unknown_and_repeated_acks_do_nothing() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        await life.broadcast.ack(123, "a0")
        result = await life.broadcast.append(message("a0", "b0"))
        with pytest.raises(errors.InvalidArgumentError, match="'c0' is not in broadcast"):
            await life.broadcast.ack(result.broadcast_id, "c0")
        await life.broadcast.ack(result.broadcast_id, "a0")
        written = life.kv.bytes_written
        await life.broadcast.ack(result.broadcast_id, "a0")
        assert life.kv.bytes_written == written
        await life.broadcast.ack(result.broadcast_id, "b0")
        await life.broadcast.ack(result.broadcast_id, "b0")
        free = await life.broadcast.append(message("a0", "b0", needs_ack=False))
        await life.broadcast.ack(free.broadcast_id, "a0")


async def test_ack_may_precede_the_last_durable_copy() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        life.gates["p1"] = asyncio.Event()
        append = asyncio.create_task(life.broadcast.append(message("a0", "b0")))
        await until(lambda: life.frames == 1)
        task = await the_task(life)
        await life.broadcast.ack(task.broadcast_id, "a0")
        await life.broadcast.ack(task.broadcast_id, "b0")
        task = await the_task(life)
        assert (task.state, task.missing_acks) == (BroadcastState.PENDING, ())
        is_full = True

        def fail(batch: KVBatch) -> None:
            if is_full:
                raise errors.NoSpaceError("the KV is full")

        life.kv.on_commit = fail  # the mark of its end cannot be saved now
        life.gates["p1"].set()
        assert set((await append).append_results) == {"a0", "b0"}
        assert await life.broadcast.tasks() == []  # the acks have returned, and the copies are durable
        await life.broadcast.block_until_resource_key_ack_all(KEY)
        is_full = False
        await life.broadcast.append(message("a0", "b0"))
    async with Life(life.world) as life:
        assert [each.broadcast_id > task.broadcast_id for each in await life.broadcast.tasks()] == [True]


async def test_acks_of_one_turn_are_one_save() -> None:
    names = [f"v{number}" for number in range(200)]
    world = World(vchannels=dict.fromkeys(names, "p0"))
    async with Life(world) as life:
        result = await life.broadcast.append(message(*names))
        saves = life.broadcast.statistics().saves
        await asyncio.gather(*[life.broadcast.ack(result.broadcast_id, name) for name in names[:-1]])
        assert life.broadcast.statistics().saves == saves + 1
        assert (await the_task(life)).missing_acks == (names[-1],)


async def test_blocking_until_holders_are_acked() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        broadcast = life.broadcast
        await broadcast.block_until_resource_key_ack_once(KEY)
        await broadcast.block_until_resource_key_ack_all(KEY)
        first = await broadcast.append(message("a0", "b0", key=SHARED))
        second = await broadcast.append(message("a1", "b1", key=SHARED))
        once = asyncio.create_task(broadcast.block_until_resource_key_ack_once(KEY))
        everywhere = asyncio.create_task(broadcast.block_until_resource_key_ack_all(SHARED))
        left = asyncio.create_task(broadcast.block_until_resource_key_ack_all(SHARED))
        await broadcast.tasks()
        left.cancel()
        await broadcast.ack(first.broadcast_id, "a0")
        await broadcast.tasks()
        assert not once.done()
        await broadcast.ack(second.broadcast_id, "b1")
        await once
        await broadcast.block_until_resource_key_ack_once(KEY)
        third = await broadcast.append(message("c0", key=SHARED))  # it came later: no call waits for it
        await broadcast.ack(first.broadcast_id, "b0")
        await broadcast.tasks()
        assert not everywhere.done()
        await broadcast.abort(second.broadcast_id, "enough")
        await everywhere
        assert [task.broadcast_id for task in await broadcast.tasks()] == [third.broadcast_id]
        assert left.cancelled()


async def test_cancelled_call_does_not_end_a_broadcast() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        life.gates["p0"] = asyncio.Event()
        began = asyncio.create_task(life.broadcast.append(message("a0", "b0")))
        await until(lambda: life.frames == 1)
        waits = asyncio.create_task(life.broadcast.append(message("a1"), wait=True))
        later = asyncio.create_task(life.broadcast.append(message("c0", key=SHARED), wait=True))
        await until(lambda: life.broadcast.statistics().waiting == 2)
        began.cancel()
        waits.cancel()
        await asyncio.gather(began, waits, return_exceptions=True)
        assert began.cancelled()
        assert waits.cancelled()
        await until(lambda: life.broadcast.statistics().waiting == 1)
        life.gates["p0"].set()
        task = await in_state(life, BroadcastState.WAIT_ACK)
        for vchannel in ("a0", "b0"):
            await life.broadcast.ack(task.broadcast_id, vchannel)
        await later
        assert not any(vchannel == "a1" for _, vchannel in world.in_logs().copies)


async def test_cancelled_call_never_waits_for_keys() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        held = await life.broadcast.append(message("a0"))
        for steps in range(8):
            waits = asyncio.create_task(life.broadcast.append(message("a1"), wait=True))
            for _ in range(steps):
                await asyncio.sleep(0)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            await life.broadcast.tasks()
            assert life.broadcast.statistics().waiting == 0
            assert life.broadcast.statistics().bytes_held == 0
        await life.broadcast.ack(held.broadcast_id, "a0")
        assert await life.broadcast.tasks() == []
        await life.broadcast.append(message("a1"))


async def test_calls_over_a_limit_are_refused_early() -> None:
    limits = BroadcasterLimits(tasks_max=2, vchannels_max=3, bytes_max=600, done_marks_max=4)
    world = World(vchannels=PLACES)
    async with Life(world, limits=limits) as life:
        with pytest.raises(errors.InvalidArgumentError, match="4 vchannels exceeds broadcast_vchannels_max=3"):
            await life.broadcast.append(message("a0", "a1", "b0", "b1"))
        life.gates["p0"] = asyncio.Event()
        large = BroadcastMessage(vchannels=["a0"], payload=bytes(500))
        first = asyncio.create_task(life.broadcast.append(large))
        await until(lambda: life.broadcast.statistics().bytes_held > 500)
        with pytest.raises(errors.WouldBlockError, match="of 600 bytes"):
            await life.broadcast.append(large)
        life.gates["p0"].set()
        one = await first
        two = await life.broadcast.append(large)
        assert life.broadcast.statistics().bytes_held == 0
        with pytest.raises(errors.WouldBlockError, match="broadcast_tasks_max"):
            await life.broadcast.append(message("a1"))
        for result in (one, two):
            await life.broadcast.ack(result.broadcast_id, "a0")
        assert life.requests == 1
        for _ in range(2):
            result = await life.broadcast.append(large)
            await life.broadcast.ack(result.broadcast_id, "a0")
        with pytest.raises(errors.WouldBlockError, match="4 finished broadcasts await a checkpoint \\(limit 4\\)"):
            await life.broadcast.append(large)
        assert life.requests == 1
        await life.checkpoint("p0")
        await life.broadcast.tasks()
        assert life.broadcast.statistics().done_marks == 0
        await life.broadcast.append(large)


async def test_broadcast_whose_record_has_no_room_is_refused() -> None:
    """Other changes that are saved at the same time are retried until there is room."""
    clock = VirtualClock()
    world = World(vchannels=PLACES)
    async with Life(world, clock=clock) as life, asyncio.timeout(60):
        there = await life.broadcast.append(message("a1", key=None))
        full = True

        def fail(batch: KVBatch) -> None:
            if full:
                raise errors.NoSpaceError("the KV is full")

        life.kv.on_commit = fail
        first, second = (asyncio.create_task(life.broadcast.append(message("a0", name, key=None))) for name in ("b0", "b1"))
        ack = asyncio.create_task(life.broadcast.ack(there.broadcast_id, "a1"))
        for refused in (first, second):
            with pytest.raises(errors.NoSpaceError, match="the KV is full"):
                await refused
        assert [task.broadcast_id for task in await life.broadcast.tasks()] == [there.broadcast_id]
        assert not ack.done()
        full = False
        await clock.run(1.0)
        await ack
        await life.broadcast.append(message("a0", "b0"))
    async with Life(world) as life:
        assert len(await life.broadcast.tasks()) == 1


async def test_end_without_room_is_saved_later() -> None:
    clock = VirtualClock()
    world = World(vchannels=PLACES)
    async with Life(world, clock=clock) as life, asyncio.timeout(60):
        saved = 0

        def fail(batch: KVBatch) -> None:
            nonlocal saved
            saved += 1
            if 1 < saved < 5:
                raise errors.NoSpaceError("the KV is full")

        life.kv.on_commit = fail
        with pytest.raises(errors.UnknownOutcomeError, match=r"the end of .* \(DONE\) could not be saved.*the KV is full.*do not repeat"):
            await life.broadcast.append(message("a0", "b0", needs_ack=False))
        assert (await the_task(life)).last_error == "NoSpaceError: the KV is full"
        await clock.run(10.0)
        assert await life.broadcast.tasks() == []
    assert set(world.in_logs().copies.values()) == {1}


async def test_save_is_retried_while_the_metadata_is_unavailable() -> None:
    clock = VirtualClock()
    world = World(vchannels=PLACES)
    async with Life(world, clock=clock) as life:
        failures = 3

        def fail(batch: KVBatch) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise errors.UnavailableError("the KV is away")

        life.kv.on_commit = fail
        append = asyncio.create_task(life.broadcast.append(message("a0", "b0")))
        await clock.run(0.065)
        assert not append.done()
        assert life.frames == 0
        assert (await the_task(life)).last_error == "UnavailableError: the KV is away"
        await clock.run(0.01)
        await append
        assert (await the_task(life)).last_error is None


async def test_failed_save_ends_the_broadcaster_alone() -> None:
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        whole = await life.broadcast.append(message("a0", "b0", key=None))
        waits = asyncio.create_task(life.broadcast.block_until_resource_key_ack_all(KEY))
        await waits

        def fail(batch: KVBatch) -> None:
            raise errors.StorageError("the disk is broken")

        life.kv.on_commit = fail
        with pytest.raises(errors.StorageError, match=r"broadcaster failed.*the disk is broken") as caught:
            await life.broadcast.ack(whole.broadcast_id, "a0")
        assert caught.value.outcome_unknown
        for call in (life.broadcast.append(message("a0")), life.broadcast.tasks(), life.broadcast.abort(1, "")):
            with pytest.raises(errors.StorageError, match="reopen the log"):
                await call
    async with Life(world) as life:
        assert [task.missing_acks for task in await life.broadcast.tasks()] == [("a0", "b0")]


async def test_broadcaster_that_another_process_fenced_hands_calls_on() -> None:
    """A leader whose lease is lost cannot save: what may be repeated is asked of the next one, and a broadcast may have begun."""
    world = World(vchannels=PLACES)
    async with Life(world) as life:
        whole = await life.broadcast.append(message("a0", "b0", key=None))

        def fail(batch: KVBatch) -> None:
            raise errors.ChannelFencedError("another process leads")

        life.kv.on_commit = fail
        with pytest.raises(errors.UnknownOutcomeError, match="has taken over"):
            await life.broadcast.append(message("a0", "b0"))
        for call in (life.broadcast.ack(whole.broadcast_id, "a0"), life.broadcast.append(message("a0")), life.broadcast.tasks()):
            with pytest.raises(errors.ChannelFencedError, match="another process leads"):
                await call


async def test_close_waits_for_frames_and_answers_calls() -> None:
    world = World(vchannels=PLACES)
    life = Life(world)
    await life.open()
    broadcast = life.broadcast
    life.gates["p0"] = asyncio.Event()
    lands = asyncio.create_task(broadcast.append(message("a0", key=None)))
    life.refuse = lambda pchannel, vchannels: errors.UnavailableError("away") if pchannel == "p2" else None
    backs_off = asyncio.create_task(broadcast.append(message("b0", "c0")))
    await until(lambda: life.frames == 1)
    waits = asyncio.create_task(broadcast.append(message("b1"), wait=True))
    watches = asyncio.create_task(broadcast.block_until_resource_key_ack_all(KEY))
    await until(lambda: broadcast.statistics().waiting == 1 and broadcast.statistics().frames == 1)
    nowhere = asyncio.create_task(broadcast.append(message("c0", key=None)))
    crowd = [asyncio.create_task(broadcast.append(message("a1", key=None))) for _ in range(FRAMES_MAX + 5)]
    await until(lambda: broadcast.statistics().frames == FRAMES_MAX)
    close = asyncio.create_task(broadcast.close())
    await asyncio.sleep(0)
    life.gates["p0"].set()
    await close
    assert len((await lands).append_results) == 1
    with pytest.raises(errors.ClosedError, match="before anything of this broadcast was in it"):
        await nowhere
    answers = await asyncio.gather(*crowd, return_exceptions=True)
    landed = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert {type(answer) for answer in answers} == {BroadcastAppendResult, errors.ClosedError}
    with pytest.raises(errors.UnknownOutcomeError, match="the next opening completes it"):
        await backs_off
    for call in (waits, watches, broadcast.append(message("a0")), broadcast.tasks(), broadcast.ack(1, "a0")):
        with pytest.raises(errors.ClosedError):
            await call
    await broadcast.close()
    await life.close()
    async with Life(world) as life:
        tasks = await life.broadcast.tasks()
        assert {task.missing_acks for task in tasks} == {("a0",), ("b0", "c0"), ("a1",)}
        assert len(tasks) == 2 + len(landed)
        async with asyncio.timeout(60):
            while any(task.missing_appends for task in await life.broadcast.tasks()):
                await asyncio.sleep(0)
        assert not any(vchannel == "b1" for _, vchannel in world.in_logs().copies)


async def test_wrong_arguments_are_explained() -> None:
    async with Life(World(vchannels=PLACES)) as life:
        broadcast = life.broadcast
        for wrong in (
            lambda: broadcast.append(b"x"),  # type: ignore[arg-type]
            lambda: broadcast.append(message("a0"), wait=1),  # type: ignore[arg-type]
            lambda: broadcast.ack("1", "a0"),  # type: ignore[arg-type]
            lambda: broadcast.ack(1),
            lambda: broadcast.abort(True, "why"),
            lambda: broadcast.abort(1, b"why"),  # type: ignore[arg-type]
            lambda: broadcast.block_until_resource_key_ack_once("key"),  # type: ignore[arg-type]
        ):
            with pytest.raises(TypeError):
                await wrong()
        with pytest.raises(errors.InvalidArgumentError, match="at most 4096"):
            await broadcast.abort(1, "x" * 5000)
        with pytest.raises(errors.InvalidArgumentError, match="vchannel is empty"):
            await broadcast.append(message(""))
        assert await broadcast.tasks() == []


async def test_broadcaster_does_not_start_over_unreadable_records() -> None:
    world = World(vchannels=PLACES)
    await world.kv.save("task/0000000000000005", "junk")
    life = Life(world)
    with pytest.raises(errors.CorruptionError, match="task/0000000000000005"):
        await life.open()
    await life.close()
    await world.kv.remove("task/0000000000000005")
    async with Life(world) as life:
        assert await life.broadcast.tasks() == []


async def test_two_holders_of_a_key_are_damage() -> None:
    world = World(vchannels=PLACES)
    header = BroadcastHeader(5, ("a0", "b0"), (KEY,))
    for broadcast_id in (5, 6):
        header = msgspec.structs.replace(header, broadcast_id=broadcast_id)
        record = encode_task(header, Content(b"", 2), {"p0": ["a0"], "p1": ["b0"]})
        await world.kv.save(task_key(broadcast_id), record)
    life = Life(world)
    with pytest.raises(errors.CorruptionError, match="broadcasts 5 and 6 both hold"):
        await life.open()
    await life.close()
    assert not world.in_logs().copies


async def test_task_reports_age_and_keys_after_restart() -> None:
    world = World(vchannels=PLACES)
    clock = VirtualClock(start_wall=1_700_000_000.0)
    async with Life(world, clock=clock) as life:
        result = await life.broadcast.append(message("a0"))
    await clock.run(90.0)
    async with Life(world, clock=clock) as life:
        task = await the_task(life)
        assert (task.broadcast_id, task.resource_keys) == (result.broadcast_id, (KEY,))
        assert task.age_s == pytest.approx(90.0)


async def test_too_many_vchannels_for_a_save_are_refused() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="at most 65536"):
        BroadcasterLimits(vchannels_max=65_537)
