from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import ActorStoppedError, ActorSystem, VirtualClock
from tests.actors.recording import Bang, RecordingActor, RecordingMember, until


async def test_start_and_stop_allow_different_tasks() -> None:
    system = ActorSystem("system")
    loop = asyncio.get_running_loop()
    await loop.create_task(system.start())
    await loop.create_task(system.start())
    seen: list[Any] = []
    ref = system.spawn(RecordingActor("a", seen), name="a")
    ref.tell(1)
    before = asyncio.all_tasks()
    await asyncio.gather(*(loop.create_task(system.stop()) for _ in range(3)))
    assert seen == [("a", "started"), ("a", [1]), ("a", "stopped")]
    assert len(before) == 3  # this one, the host and the actor
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await system.stop()
    with pytest.raises(ActorStoppedError, match="runs only once"):
        await system.start()
    with pytest.raises(ActorStoppedError, match="starts no more actors"):
        system.spawn(RecordingActor("b", seen), name="b")


async def test_unstarted_system_stays_stopped() -> None:
    system = ActorSystem("system")
    with pytest.raises(ActorStoppedError, match="start\\(\\) first"):
        system.group("g")
    await system.stop()
    with pytest.raises(ActorStoppedError):
        await system.start()


async def test_system_stops_in_reverse_order() -> None:
    seen: list[Any] = []
    async with ActorSystem("system") as system:
        sink = system.spawn(RecordingActor("sink", seen), name="sink")
        staged: list[Any] = []

        def end() -> None:
            sink.tell(list(staged))
            staged.clear()

        group = system.group("group", on_turn_end=end)
        members = [RecordingMember(label, seen) for label in ("m1", "m2")]
        for member in members:
            group.join(member, name=member.label)
        source = system.spawn(RecordingActor("source", seen), name="source")
        await source.wait_started()
        for number in range(100):
            source.tell(lambda number=number: group.tell(members[number % 2], lambda: staged.append(number)))
    endings = [entry[:2] for entry in seen if entry[1] == "stopped"]
    assert endings == [("source", "stopped"), ("m2", "stopped"), ("m1", "stopped"), ("sink", "stopped")]
    delivered = [number for entry in seen if entry[0] == "sink" and entry[1] not in ("started", "stopped") for number in entry[1]]
    assert [number for batch in delivered for number in batch] == list(range(100))


async def test_stop_under_load_drains_all_that_was_accepted() -> None:
    system = ActorSystem("system")
    await system.start()
    seen: list[Any] = []
    ref = system.spawn(RecordingActor("a", seen), name="a", inbox_max=16)
    group = system.group("g", inbox_max=64)
    member = RecordingMember("m", seen)
    group.join(member, name="m")
    accepted: dict[str, list[Any]] = {"a": [], "m": []}

    async def press(number: int) -> None:
        at = 0
        while True:
            at += 1
            try:
                await ref.tell_wait((number, at))
            except ActorStoppedError:
                return
            accepted["a"].append((number, at))
            try:
                group.tell(member, (number, at))
            except ActorStoppedError:
                continue
            accepted["m"].append((number, at))
            await asyncio.sleep(0)

    writers = [asyncio.ensure_future(press(number)) for number in range(8)]
    await until(lambda: len(accepted["a"]) > 200)
    await system.stop()
    await asyncio.gather(*writers)
    for label in ("a", "m"):
        handled = [message for entry in seen if entry[0] == label and isinstance(entry[1], list) for message in entry[1]]
        for number in range(8):
            of_writer = [message for message in handled if message[0] == number]
            assert of_writer == [message for message in accepted[label] if message[0] == number]


async def test_hanging_actor_does_not_delay_others() -> None:
    clock = VirtualClock()
    system = ActorSystem("system", clock=clock, stop_timeout_s=2.0)
    await system.start()
    seen: list[Any] = []
    system.spawn(RecordingActor("first", seen), name="first")
    hanging = system.spawn(RecordingActor("hanging", seen), name="hanging")
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    hanging.tell(held)
    await until(lambda: len(seen) == 3)
    stopping = asyncio.ensure_future(system.stop())
    await clock.run(1.9)
    assert not stopping.done()
    assert len(seen) == 3
    await clock.run(0.1)
    await stopping
    assert [entry[:2] for entry in seen[3:]] == [("hanging", "poisoned"), ("first", "stopped")]
    assert clock.timers == 0


async def test_stop_whose_caller_is_cancelled_goes_on() -> None:
    system = ActorSystem("system")
    await system.start()
    seen: list[Any] = []
    ref = system.spawn(RecordingActor("a", seen), name="a")
    held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ref.tell(held)
    await until(lambda: len(seen) == 2)
    stopping = asyncio.ensure_future(system.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    with pytest.raises(ActorStoppedError):
        system.group("g")
    held.set_result(None)
    await until(lambda: seen[-1] == ("a", "stopped"))
    await system.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_start_whose_caller_is_cancelled_leaves_nothing_behind() -> None:
    system = ActorSystem("system")
    starting = asyncio.ensure_future(system.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await system.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_end_of_the_loop_cuts_off_all_actors() -> None:
    """As at the end of `asyncio.run`, every task is cancelled."""
    system = ActorSystem("system")
    await system.start()
    seen: list[Any] = []
    group = system.group("g")
    member = RecordingMember("m", seen)
    group.join(member, name="m")
    group.pause()
    group.tell(member, "waits")
    running = system.spawn(RecordingActor("running", seen), name="running")
    await running.wait_started()
    asking: asyncio.Future[Any] = asyncio.ensure_future(running.ask(lambda reply: "forgotten"))
    await until(lambda: running.statistics().handled)
    unborn = system.spawn(RecordingActor("unborn", seen), name="unborn")
    unborn.tell(1)
    for task in asyncio.all_tasks() - {asyncio.current_task(), asking}:
        task.cancel()
    await system.stop()
    with pytest.raises(ActorStoppedError):
        await asking
    assert {entry[0]: entry[-1] for entry in seen if entry[1] == "poisoned"} == {"m": ["waits"], "running": [], "unborn": [1]}
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_system_cancelled_at_once_can_be_stopped() -> None:
    system = ActorSystem("system")
    starting = asyncio.ensure_future(system.start())
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task(), starting}:
        task.cancel()
    with pytest.raises(ActorStoppedError, match="before it ran"):
        await starting
    await system.stop()


async def test_failure_does_not_affect_other_actors() -> None:
    seen: list[Any] = []
    async with ActorSystem("system") as system:
        broken = system.spawn(RecordingActor("broken", seen), name="broken")
        neighbour = system.spawn(RecordingActor("neighbour", seen), name="neighbour")
        broken.tell(Bang("broken"))
        await until(lambda: broken.failure)
        assert await neighbour.ask(lambda reply: ("ask", reply)) == 42
        with pytest.raises(ValueError, match="another name"):
            system.spawn(RecordingActor("x", seen), name="broken")
        assert [actor.failure for actor in system.statistics().actors] == ["Bang: broken", None]
        await broken.stop()
        assert [actor.name for actor in system.statistics().actors] == ["neighbour"]
    assert seen[-1] == ("neighbour", "stopped")


async def test_actor_is_spawned_once_and_is_an_actor() -> None:
    async with ActorSystem("system") as system:
        actor = RecordingActor("a", [])
        system.spawn(actor, name="a")
        with pytest.raises(ValueError, match="spawned before"):
            system.spawn(actor, name="b")
        with pytest.raises(TypeError, match="subclass"):
            system.spawn(object(), name="c")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="inbox_max is 0"):
            system.spawn(RecordingActor("d", []), name="d", inbox_max=0)
        assert [one.name for one in system.statistics().actors] == ["a"]
    with pytest.raises(ValueError, match="stall_s is -1"):
        ActorSystem("system", stall_s=-1)


async def test_actor_cannot_await_its_systems_end() -> None:
    class Ender(RecordingActor):
        async def receive(self, batch: list[Any]) -> None:
            with pytest.raises(RuntimeError, match="stop_nowait"):
                await batch[0].stop()

    system = ActorSystem("system")
    await system.start()
    seen: list[Any] = []
    system.spawn(Ender("e", seen), name="e").tell(system)
    await until(lambda: seen and seen[-1] == ("e", "stopped"))
    await system.stop()


async def test_statistics_name_stalled_actors() -> None:
    clock = VirtualClock()
    async with ActorSystem("system", clock=clock, stall_s=5.0) as system:
        seen: list[Any] = []
        hanging = system.spawn(RecordingActor("hanging", seen), name="hanging")
        system.spawn(RecordingActor("idle", seen), name="idle")
        group = system.group("paused")
        member, other = RecordingMember("m", seen), RecordingMember("o", seen)
        group.join(member, name="m")
        group.join(other, name="o")
        clock.advance(100.0)  # being idle is not stalling
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        hanging.tell(held)
        await until(lambda: len(seen) == 3)
        clock.advance(3.0)
        group.pause()
        group.tell(member, 1)
        clock.advance(2.0)
        assert system.statistics().stalled == ()
        clock.advance(0.5)
        assert system.statistics().stalled == ("hanging",)
        group.tell(other, 2)  # a waiting message does not count as progress
        hanging.tell(2)
        clock.advance(3.0)
        statistics = system.statistics()
        assert statistics.stalled == ("hanging", "paused")
        assert statistics.actors[0].pending == 2
        assert statistics.groups[0].pending == 2
        held.set_result(None)
        group.resume()
        await until(lambda: not group.pending and not hanging.pending)
        statistics = system.statistics()
        assert statistics.stalled == ()
        assert (statistics.actors[0].handled, statistics.actors[0].turns) == (2, 2)
        assert [one.handled for one in statistics.groups[0].members] == [1, 1]
