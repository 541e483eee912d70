from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from actors import ActorFailedError, ActorRef, ActorStoppedError, ActorSystem, InboxFullError, VirtualClock, WrongLoopError
from tests.actors.recording import Bang, RecordingActor, until


def gate() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def spawn_held(system: ActorSystem, *, name: str = "a", inbox_max: int = 1_024) -> tuple[ActorRef, list[Any], asyncio.Future[None]]:
    """Returns an actor that handles one message and awaits the gate; its record is empty."""
    seen: list[Any] = []
    ref = system.spawn(RecordingActor(name, seen), name=name, inbox_max=inbox_max)
    held = gate()
    ref.tell(held)
    await until(lambda: len(seen) == 2)
    assert seen[0] == (name, "started")
    seen.clear()
    return ref, seen, held


async def test_batches_are_drained_whole_after_the_control_lane() -> None:
    async with ActorSystem("system") as system:
        ref, seen, held = await spawn_held(system)
        ref.tell(1)
        ref.tell(2)
        ref.tell_control("c1")
        ref.tell(3)
        ref.tell_control("c2")
        assert ref.pending == 6
        held.set_result(None)
        await until(lambda: not ref.pending)
        assert seen == [("a", "control", "c1"), ("a", "control", "c2"), ("a", [1, 2, 3])]


async def test_cancelled_ask_affects_no_other() -> None:
    async with ActorSystem("system") as system:
        ref, _, held = await spawn_held(system)
        impatient: asyncio.Future[Any] = asyncio.ensure_future(ref.ask(lambda reply: ("ask", reply)))
        patient: asyncio.Future[Any] = asyncio.ensure_future(ref.ask(lambda reply: ("ask", reply)))
        await until(lambda: ref.pending == 3)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        held.set_result(None)
        assert await patient == 42
        assert ref.failure is None


async def test_failure_poisons_asks_inbox_and_later_calls(caplog: pytest.LogCaptureFixture) -> None:
    async with ActorSystem("system") as system:
        ref, seen, held = await spawn_held(system, inbox_max=4)
        bang = Bang("broken")
        asks: list[asyncio.Future[Any]] = [asyncio.ensure_future(ref.ask(lambda reply: reply)) for _ in range(3)]
        await until(lambda: ref.pending == 4)
        ref.tell(1)
        parked = asyncio.ensure_future(ref.tell_wait(2))
        asks[0].cancel()
        ref.tell_control("c")
        await until(lambda: asks[0].done())
        held.set_exception(bang)
        for waiting in (asks[1], asks[2], parked):
            with pytest.raises(ActorFailedError, match="'a' failed") as failed:
                await waiting
            assert failed.value.cause is bang
        _, what, cause, unhandled = seen[0]
        assert (what, cause) == ("poisoned", bang)
        assert unhandled[0] is held
        assert unhandled[1] == "c"
        assert unhandled[-1] == 1
        assert len(unhandled) == 6
        assert ref.failure is bang
        for call in (ref.tell, ref.tell_control):
            with pytest.raises(ActorFailedError):
                call(3)
        with pytest.raises(ActorFailedError):
            await ref.tell_wait(3)
        with pytest.raises(ActorFailedError):
            await ref.ask(lambda reply: reply)
        with pytest.raises(ActorFailedError):
            await ref.wait_started()
        gc.collect()
        assert "never retrieved" not in caplog.text  # the error for the asker that was cancelled


async def test_cancelled_future_is_an_ordinary_failure() -> None:
    async with ActorSystem("system") as system:
        ref, _, held = await spawn_held(system)
        neighbour = system.spawn(RecordingActor("n", []), name="n")
        held.cancel()
        await until(lambda: ref.failure)
        assert isinstance(ref.failure, asyncio.CancelledError)
        assert await neighbour.ask(lambda reply: ("ask", reply)) == 42


async def test_failure_in_started_is_raised_by_wait_started() -> None:
    class Unfit(RecordingActor):
        async def started(self) -> None:
            raise Bang("unfit")

    async with ActorSystem("system") as system:
        seen: list[Any] = []
        ref = system.spawn(Unfit("u", seen), name="u")
        ref.tell(1)
        with pytest.raises(ActorFailedError, match="unfit"):
            await ref.wait_started()
        assert seen[0][1] == "poisoned"
        assert seen[0][3] == [1]
        fit = system.spawn(RecordingActor("f", seen), name="f")
        await fit.wait_started()
        assert seen[-1] == ("f", "started")


async def test_full_inbox_raises_or_waits_in_turn() -> None:
    async with ActorSystem("system") as system:
        ref, seen, held = await spawn_held(system, inbox_max=2)
        ref.tell(1)
        await ref.tell_wait(2)
        with pytest.raises(InboxFullError, match="2 of at most 2"):
            ref.tell(3)
        waiting = [asyncio.ensure_future(ref.tell_wait(number)) for number in range(3, 9)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait([waiting[1]])
        assert not any(one.done() for one in waiting if one is not waiting[1])
        held.set_result(None)
        waiting[3].cancel()  # its task has not run yet when the actor, woken before it, lets others in
        await asyncio.wait(waiting)
        await until(lambda: not ref.pending)
        assert [entry[1] for entry in seen] == [[1, 2], [3, 5], [7, 8]]
        assert [one.cancelled() for one in waiting] == [False, True, False, True, False, False]


async def test_cancelled_callers_leave_nothing_in_memory() -> None:
    async with ActorSystem("system") as system:
        ref, _, held = await spawn_held(system, inbox_max=1)
        ref.tell(1)
        for number in range(50):
            waiting = asyncio.ensure_future(ref.tell_wait(number))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert len(ref._inbox._parked) == 0
        held.set_result(None)


async def test_stop_drains_both_lanes() -> None:
    async with ActorSystem("system") as system:
        ref, seen, held = await spawn_held(system)
        ref.tell(lambda: ref.tell("last"))
        ref.stop_nowait()
        with pytest.raises(ActorStoppedError, match="stopping"):
            ref.tell("too late")
        ref.tell_control("answers still come in")
        stopping = [asyncio.ensure_future(ref.stop()) for _ in range(3)]
        await asyncio.sleep(0)
        stopping[0].cancel()
        held.set_result(None)
        await asyncio.wait(stopping)
        assert [one.cancelled() for one in stopping] == [True, False, False]
        assert [entry[1] for entry in (seen[0], *seen[2:])] == ["control", ["last"], "stopped"]
        await ref.stop()
        with pytest.raises(ActorStoppedError):
            ref.tell_control("too late")
        with pytest.raises(ActorStoppedError):
            await ref.ask(lambda reply: reply)
        system.spawn(RecordingActor("a", []), name="a")  # the name is free again


async def test_unanswered_ask_ends_with_the_actor() -> None:
    async with ActorSystem("system") as system:
        ref = system.spawn(RecordingActor("a", []), name="a")
        asking: asyncio.Future[Any] = asyncio.ensure_future(ref.ask(lambda reply: "forgotten"))
        await until(lambda: ref.statistics().handled == 1)
        await ref.stop()
        with pytest.raises(ActorStoppedError, match="answers none"):
            await asking


async def test_hanging_actor_is_cut_off_after_its_time() -> None:
    clock = VirtualClock()
    async with ActorSystem("system", clock=clock, stop_timeout_s=3.0) as system:
        ref, seen, held = await spawn_held(system)
        ref.tell(1)
        asking: asyncio.Future[Any] = asyncio.ensure_future(ref.ask(lambda reply: reply))
        stopping = asyncio.ensure_future(ref.stop())
        await clock.run(2.9)
        assert not stopping.done()
        await clock.run(0.1)
        await stopping
        assert held.cancelled()
        _, what, cause, unhandled = seen[0]
        assert what == "poisoned"
        assert isinstance(cause, ActorStoppedError)
        assert unhandled[:2] == [held, 1]
        with pytest.raises(ActorStoppedError):
            await asking
        with pytest.raises(ActorStoppedError):
            ref.tell(2)
        assert ref.failure is None
        assert clock.timers == 0


async def test_actor_cannot_await_its_own_end() -> None:
    class Leaver(RecordingActor):
        async def receive(self, batch: list[Any]) -> None:
            with pytest.raises(RuntimeError, match="stop_nowait"):
                await self.ref.stop()

    async with ActorSystem("system") as system:
        seen: list[Any] = []
        ref = system.spawn(Leaver("l", seen), name="l")
        ref.tell(1)
        await until(lambda: seen and seen[-1] == ("l", "stopped"))
        assert ref.failure is None


async def test_calls_from_another_thread_or_loop_are_refused() -> None:
    async with ActorSystem("system") as system:
        ref = system.spawn(RecordingActor("a", []), name="a")
        errors: list[BaseException] = []

        def in_another_thread() -> None:
            for call in (
                lambda: ref.tell(1),
                lambda: ref.tell_control(1),
                lambda: asyncio.run(ref.tell_wait(1)),
                lambda: asyncio.run(ref.stop()),
                lambda: asyncio.run(system.stop()),
                lambda: asyncio.run(system.start()),
                lambda: system.spawn(RecordingActor("b", []), name="b"),
                lambda: system.group("g"),
                lambda: system.statistics(),
            ):
                try:
                    call()
                except WrongLoopError as error:
                    errors.append(error)

        thread = threading.Thread(target=in_another_thread)
        thread.start()
        await until(lambda: not thread.is_alive())
        assert len(errors) == 9
        assert ref.pending == 0
