"""Watchdog: silence and failures lead to one clean-up and one restart, for each component separately."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import VirtualClock
from wal.errors import InvalidArgumentError
from wal.streams.watchdog import Status, TargetState, Watchdog


class Beat:
    def __init__(self, id_: str, status: Status = Status.HEALTHY, text: str = "") -> None:
        self.id = id_
        self.status = status
        self._text = text

    def serialize(self) -> str:
        return self._text


class Component:
    """Records the calls; `clean` waits for `cleaned` if it is set, and raises `failure`."""

    def __init__(self, id_: str, status: Status = Status.HEALTHY) -> None:
        self.id = id_
        self.told = status
        self.done: list[str] = []
        self.cleaned: asyncio.Event | None = None
        self.failure: BaseException | None = None
        self.restart_failure: BaseException | None = None
        self.status_failure: BaseException | None = None

    @property
    def status(self) -> Status:
        if self.status_failure is not None:
            raise self.status_failure
        return self.told

    async def clean(self) -> Status:
        self.done.append("clean")
        if self.cleaned is not None:
            await self.cleaned.wait()
        if self.failure is not None:
            raise self.failure
        return Status.INITIALIZING

    async def restart(self) -> Status:
        self.done.append("restart")
        if self.restart_failure is not None:
            raise self.restart_failure
        return Status.HEALTHY


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def dog(clock: VirtualClock) -> AsyncIterator[Watchdog]:
    async with Watchdog(timeout_s=5.0, action_timeout_s=60.0, clock=clock) as dog:
        yield dog
    assert clock.timers == 0


async def test_silent_component_is_restarted_once_an_episode(dog: Watchdog, clock: VirtualClock) -> None:
    component = Component("importer")
    dog.register(component)
    for _ in range(3):
        await clock.run(4.0)
        dog.put_heartbeat(Beat("importer"))
    await clock.run(4.9)
    assert component.done == []
    await clock.run(0.2)
    assert component.done == ["clean", "restart"]
    await clock.run(100.0)
    assert component.done == ["clean", "restart"]
    assert dog.statistics()[0].failing
    dog.put_heartbeat(Beat("importer", Status.ABNORMAL))
    await clock.run(100.0)
    assert component.done == ["clean", "restart"]
    dog.put_heartbeat(Beat("importer"))
    await clock.run(4.9)
    assert not dog.statistics()[0].failing
    await clock.run(0.2)
    assert component.done == ["clean", "restart"] * 2
    assert dog.statistics()[0].episodes == 2


async def test_component_that_never_sent_a_heartbeat(dog: Watchdog, clock: VirtualClock) -> None:
    component = Component("importer", Status.INITIALIZING)
    dog.register(component, timeout_s=30.0)
    await clock.run(29.9)
    assert component.done == []
    await clock.run(0.2)
    assert component.done == ["clean", "restart"]


async def test_abnormal_heartbeat_needs_no_silence(dog: Watchdog, clock: VirtualClock) -> None:
    component = Component("importer")
    dog.register(component)
    for _ in range(3):
        dog.put_heartbeat(Beat("importer", Status.ABNORMAL))
    await clock.run(0.0)
    assert component.done == ["clean", "restart"]


@pytest.mark.parametrize("told_by", ["heartbeat", "status"])
async def test_component_that_stops_in_order_is_left_alone(dog: Watchdog, clock: VirtualClock, told_by: str) -> None:
    component = Component("importer")
    dog.register(component)
    if told_by == "heartbeat":
        dog.put_heartbeat(Beat("importer", Status.STOPPING))
    else:
        component.told = Status.STOPPING
    await clock.run(100.0)
    assert (component.done, dog.statistics()[0].status, dog.statistics()[0].episodes) == ([], Status.STOPPING, 0)


async def test_slow_component_holds_up_no_other(dog: Watchdog, clock: VirtualClock) -> None:
    slow, other = Component("slow"), Component("other")
    slow.cleaned = asyncio.Event()
    for component in (slow, other):
        dog.register(component)
    await clock.run(6.0)
    assert (slow.done, other.done) == (["clean"], ["clean", "restart"])
    dog.put_heartbeat(Beat("slow"))  # it was sent before the restart, and proves nothing
    slow.cleaned.set()
    await clock.run(0.0)
    assert slow.done == ["clean", "restart"]
    assert dog.statistics()[0].failing


@pytest.mark.parametrize("what", ["clean raises", "clean is slow"])
async def test_restart_that_fails_is_not_repeated(dog: Watchdog, clock: VirtualClock, what: str, caplog: pytest.LogCaptureFixture) -> None:
    component = Component("importer")
    if what == "clean raises":
        component.failure = OSError("no disk")
    else:
        component.cleaned = asyncio.Event()
    dog.register(component)
    await clock.run(200.0)
    assert component.done == ["clean"]
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert ("no disk" in str(error.exc_info)) if what == "clean raises" else ("within 60.0 s" in error.message)
    component.failure = component.cleaned = None
    dog.put_heartbeat(Beat("importer"))
    await clock.run(6.0)
    assert component.done == ["clean", "clean", "restart"]


async def test_status_that_raises_counts_as_abnormal(dog: Watchdog, clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    component = Component("importer")
    dog.register(component)
    component.status_failure = RuntimeError("gone")
    await clock.run(6.0)
    assert component.done == ["clean", "restart"]
    assert "does not tell its status" in caplog.text


@pytest.mark.parametrize("kind", ["CancelledError", "Panic", "StopIteration"])
@pytest.mark.parametrize("step", ["status", "clean", "restart"])
async def test_component_that_raises_anything_stays_watched(
    dog: Watchdog, clock: VirtualClock, step: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    failures: dict[str, type[BaseException]] = {"CancelledError": asyncio.CancelledError, "Panic": Panic, "StopIteration": StopIteration}
    component = Component("importer")
    dog.register(component)
    for _ in range(2):
        match step:
            case "status":
                component.status_failure = failures[kind]()
            case "clean":
                component.failure = failures[kind]()
            case "restart":
                component.restart_failure = failures[kind]()
        await clock.run(6.0)
        dog.put_heartbeat(Beat("importer"))
    attempt = ["clean"] if step == "clean" else ["clean", "restart"]
    assert component.done == attempt * 2
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2
    component.status_failure = component.failure = component.restart_failure = None
    dog.put_heartbeat(Beat("importer"))
    await clock.run(6.0)
    assert component.done == [*attempt * 2, "clean", "restart"]


class Stubborn(Component):
    """Ignores the cancellations of `clean` until `cleaned` is set, and counts them."""

    def __init__(self, id_: str) -> None:
        super().__init__(id_)
        self.cleaned = asyncio.Event()
        self.cancellations = 0

    async def clean(self) -> Status:
        self.done.append("clean")
        assert self.cleaned is not None
        while not self.cleaned.is_set():
            try:
                await self.cleaned.wait()
            except asyncio.CancelledError:
                self.cancellations += 1
        return Status.INITIALIZING


async def test_component_that_ignores_its_cancellation(dog: Watchdog, clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    stubborn, other = Stubborn("stubborn"), Component("other")
    dog.register(stubborn)
    dog.register(other)
    await clock.run(1_000.0)
    assert stubborn.cancellations == 1  # a loop that cancels again in each turn is never idle
    assert (stubborn.done, other.done) == (["clean"], ["clean", "restart"])
    (error,) = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert "not cleaned and restarted within 60.0 s" in error
    dog.put_heartbeat(Beat("stubborn"))
    await clock.run(1_000.0)
    assert stubborn.done == ["clean"]  # two attempts never overlap
    assert stubborn.cleaned is not None
    stubborn.cleaned.set()
    await clock.run(0.0)
    dog.put_heartbeat(Beat("stubborn"))
    await clock.run(6.0)
    assert stubborn.done == ["clean", "restart", "clean", "restart"]


async def test_block_ends_beside_stubborn_components(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    stubborn = [Stubborn(f"stubborn {n}") for n in range(20)]
    dog = Watchdog(timeout_s=5.0, clock=clock)
    await dog.__aenter__()
    for component in stubborn:
        dog.register(component)
    await clock.run(6.0)
    leaving = asyncio.ensure_future(dog.__aexit__(None, None, None))
    await clock.run(9.9)
    assert not leaving.done()
    await clock.run(0.2)
    assert leaving.done()
    await leaving
    assert [component.cancellations for component in stubborn] == [1] * 20
    assert "'stubborn 19' is left while it is cleaned and restarted" in caplog.text
    for component in stubborn:
        assert component.cleaned is not None
        component.cleaned.set()
    await clock.run(0.0)
    assert clock.timers == 0


async def test_status_of_another_type_counts_as_failure(dog: Watchdog, clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    component = Component("importer")
    dog.register(component)
    component.told = 7  # type: ignore[assignment]
    for _ in range(2):
        await clock.run(6.0)
        dog.put_heartbeat(Beat("importer"))
    assert component.done == ["clean", "restart"] * 2
    assert "is 7: it must be a wal.streams.watchdog.Status" in caplog.text


class Panic(BaseException):
    """An exception of an extension in Rust; it has no text either."""

    def __str__(self) -> str:
        raise KeyError("text")


@pytest.mark.parametrize("failure", [RuntimeError("no text"), asyncio.CancelledError(), Panic(), StopIteration()], ids=repr)
async def test_heartbeat_that_cannot_be_serialized_counts(
    dog: Watchdog, clock: VirtualClock, failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    class Mute(Beat):
        def serialize(self) -> str:
            raise failure

    component = Component("a")
    dog.register(component)
    for beat in (Mute("a"), Beat("a", text="\ud800")):
        await clock.run(4.0)
        dog.put_heartbeat(beat)
    await clock.run(4.0)
    assert (component.done, dog.statistics()[0].heartbeats) == ([], 2)
    assert caplog.text.count("counts, but cannot be written") == 2


@pytest.mark.parametrize("wall_s", [-1e12, 1e12, 1e20])
async def test_heartbeat_outside_of_all_years(wall_s: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wal.watchdog")
    async with Watchdog(timeout_s=5.0, clock=VirtualClock(start_wall=wall_s)) as dog:
        dog.register(Component("a"))
        dog.put_heartbeat(Beat("a", text="alive"))
    (line,) = [json.loads(record.message) for record in caplog.records]
    expected: tuple[Any, str] = (pytest.approx(wall_s), "alive")
    assert (float(line["time"]), line["heartbeat"]) == expected


async def test_heartbeats_are_lines_of_json_in_order(dog: Watchdog, clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "wal.watchdog")
    dog.register(Component("a"))
    dog.register(Component("b"))
    for n in range(50):
        dog.put_heartbeat(Beat("ab"[n % 2], Status.STAND_BY, f'"{n}"\n'))
        await clock.run(0.1)
    lines = [json.loads(record.message) for record in caplog.records]
    assert [line["heartbeat"] for line in lines] == [f'"{n}"\n' for n in range(50)]
    assert [line["id"] for line in lines] == ["a", "b"] * 25
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert {line["status"] for line in lines} == {"STAND_BY"}
    assert all("\n" not in record.message for record in caplog.records)


async def test_wrong_calls_are_refused(dog: Watchdog, clock: VirtualClock) -> None:
    dog.register(Component("a"))
    with pytest.raises(InvalidArgumentError, match=r"'b' is not registered \('a'\)"):
        dog.put_heartbeat(Beat("b"))
    with pytest.raises(InvalidArgumentError, match="'a' is registered already"):
        dog.register(Component("a"))
    with pytest.raises(TypeError, match=r"is 7: it must be a wal\.streams\.watchdog\.Status"):
        dog.put_heartbeat(Beat("a", 7))  # type: ignore[arg-type]
    for wrong in (0, -1.0, float("nan"), float("inf"), 10**400, 10**5_000, -(10**400)):
        with pytest.raises(InvalidArgumentError, match="more than 0 seconds and at most 1000000000"):
            dog.register(Component("c"), timeout_s=wrong)
        with pytest.raises(InvalidArgumentError, match=r"action_timeout_s=.* is out of range"):
            Watchdog(timeout_s=1.0, action_timeout_s=wrong)
    await dog.unregister("a")
    with pytest.raises(InvalidArgumentError, match=r"'a' is not registered \(none is\)"):
        await dog.unregister("a")
    dog.register(Component("a"))
    assert [found.heartbeats for found in dog.statistics()] == [0]


async def test_unregistering_finishes_the_restart_that_has_begun(dog: Watchdog, clock: VirtualClock) -> None:
    component = Component("a")
    component.cleaned = asyncio.Event()
    dog.register(component)
    await clock.run(6.0)
    leaving = asyncio.ensure_future(dog.unregister("a"))
    await clock.run(1.0)
    assert not leaving.done()
    component.cleaned.set()
    await clock.run(0.0)
    await leaving
    assert component.done == ["clean", "restart"]


STEPS = st.lists(st.one_of(st.sampled_from(Status), st.floats(0.0, 3.0), st.sampled_from(["restart ends", "guard looks"])), max_size=60)


@given(STEPS)
def test_component_is_restarted_once_an_episode(steps: list[Status | float | str]) -> None:
    """The watchdog behaves as a model that reads the whole history at each step."""
    now = 100.0
    state = TargetState("a", Status.HEALTHY, timeout_s=2.0, now=now)
    history: list[tuple[float, Any]] = [(now, Status.HEALTHY)]

    def fails() -> bool:
        """Returns whether a restart is due: none since the last good heartbeat after the previous restart, and bad or silent now."""
        failing = restarting = False
        heard, status = history[0][0], Status.HEALTHY
        for at, what in history[1:]:
            if what == "restart begins":
                failing = restarting = True
            elif what == "restart ends":
                restarting, heard, status = False, at, Status.HEALTHY
            else:
                heard, status = at, Status(what)
                failing = failing and (restarting or status is Status.ABNORMAL)
        return not failing and status is not Status.STOPPING and (status is Status.ABNORMAL or max(0.0, heard + 2.0 - now) == 0)

    restarting = False
    for step in steps:
        if isinstance(step, Status):
            state.heartbeat(step, now)
            history.append((now, step))
        elif isinstance(step, float):
            now += step
        elif step == "restart ends":
            if restarting:
                state.end_restart(Status.HEALTHY, now)
                history.append((now, step))
                restarting = False
        elif state.needs_restart(now):
            assert state.begin_restart(state.status)
            history.append((now, "restart begins"))
            restarting = True
        assert state.needs_restart(now) == fails()
    episodes = sum(what == "restart begins" for _, what in history)
    assert state.statistics(now).episodes == episodes
