"""The end of a graph: by itself, by a close, a failure or a cancellation; nothing remains, and no caller waits for ever."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actors import VirtualClock
from tests.streams.flowgraph.graphs import FailingError, Item
from tests.streams.flowgraph.steps import Input, Silent, Step, row, until
from wal.errors import UnknownError
from wal.streams.flowgraph import BaseNode, FlowGraphStates, Msg, NodeFailedError, Outputs, TimeTickedFlowGraph
from wal.streams.flowgraph.context import Edge


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    yield
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("flow graph")] == []


def failing_at(tick: int, error: BaseException | None = None) -> Step:
    async def does(at: int) -> None:
        if at == tick:
            raise error or FailingError(f"at {at}")

    return Step("failing", does)


async def test_input_that_waits_is_cancelled_by_a_close() -> None:
    silent, last = Input([1, 2], endless=True), Step("last")
    async with row(silent, last):
        await until(lambda: last.done == [1, 2])
        assert not silent.cancelled
    assert silent.cancelled
    assert silent.committed[-1] == 2


async def test_unused_input_is_stopped_too() -> None:
    graph = row(Silent(), Step())
    starting = asyncio.create_task(graph.start())
    await asyncio.sleep(0)
    await graph.close()
    await starting
    assert graph.error is None


async def test_input_call_in_a_thread_is_awaited() -> None:
    gate = threading.Event()

    class InThread(BaseNode):
        def operate(self, msgs: list[Msg]) -> Outputs:
            gate.wait(30)
            return [Item(1)]

    last = Step("last")
    graph = row(InThread("input", in_thread=True), last)
    await graph.start()
    await until(lambda: graph.statistics().nodes[0].active == 1)
    closing = asyncio.create_task(graph.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    gate.set()
    await closing
    assert last.done == [1]


async def test_ticks_before_a_failure_pass() -> None:
    numbers, last = Input(itertools.count(1)), Step("last", lambda tick: asyncio.sleep(0.001))
    graph = row(numbers, Step("first"), failing_at(5), last)
    with pytest.raises(NodeFailedError, match="node 'failing' failed at tick 5: FailingError: at 5") as raised:
        async with graph:
            await until(lambda: graph.statistics().nodes[-1].ended)
    assert (raised.value.node, raised.value.tick) == ("failing", 5)
    assert raised.value is graph.error
    assert isinstance(raised.value.__cause__, FailingError)
    assert last.done == [1, 2, 3, 4]
    assert numbers.committed[-1] == 4


async def test_work_that_runs_at_a_failure_ends() -> None:
    gate = asyncio.Event()
    slow = Step("slow", lambda tick: gate.wait())
    graph = TimeTickedFlowGraph()
    numbers = Input(itertools.count(1))
    for node in (numbers, slow, failing_at(2)):
        graph.add_node(node)
    graph.set_edges("input", out=["slow", "failing"])
    graph.set_edges("slow", in_=["input"])
    graph.set_edges("failing", in_=["input"])
    async with graph:
        await until(lambda: graph.statistics().nodes[2].ended)
        done = asyncio.create_task(graph.done())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not done.done()
        assert slow.done == []
        gate.set()
        await done
    assert slow.done == numbers.given
    assert numbers.committed == [1]


async def test_lowest_concurrent_failure_is_reported() -> None:
    gate = asyncio.Event()

    async def does(tick: int) -> None:
        if tick == 2:
            await gate.wait()
        if tick >= 2:
            raise FailingError(str(tick))

    step, last = Step("step", does, max_parallelism=4), Step("last")
    async with row(Input(itertools.count(1)), step, last) as graph:
        await until(lambda: len(step.begun) == 5)
        gate.set()
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    assert graph.error.tick == 2
    assert last.done == [1]


async def test_failed_commit_fails_the_graph() -> None:
    class Failing(Input):
        async def commit(self, tick: int) -> None:
            raise FailingError("no commit")

    async with row(Failing(itertools.count(3)), Step()) as graph:
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    assert graph.error.node == "input"
    assert isinstance(graph.error.__cause__, FailingError)


async def test_foreign_cancellation_is_a_failure() -> None:
    async def does(tick: int) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with row(Input([1]), Step("step", does)) as graph:
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    assert isinstance(graph.error.__cause__, asyncio.CancelledError)


class OddError(BaseException):
    """An exception of a program that does not want it caught."""


class MuteError(Exception):
    """An exception whose `str` raises."""

    def __str__(self) -> str:
        raise KeyError("message")


ODD_ERRORS = [
    OddError("odd"),
    asyncio.CancelledError("odd"),
    StopIteration("odd"),
    SystemExit("odd"),
    KeyboardInterrupt("odd"),
    GeneratorExit("odd"),
    MuteError(),
]


@pytest.mark.parametrize("kind", ["plain", "in_thread", "coroutine"])
async def test_whatever_operate_raises_is_a_failure(kind: str) -> None:
    class Raising(BaseNode):
        def operate(self, msgs: list[Msg]) -> Outputs:
            if msgs[0].time_tick == 3:
                raise error
            return None

    class RaisingLater(Raising):
        async def operate(self, msgs: list[Msg]) -> Outputs:  # type: ignore[override]
            await asyncio.sleep(0)
            return super().operate(msgs)

    for error in ODD_ERRORS:
        node = RaisingLater("raising") if kind == "coroutine" else Raising("raising", in_thread=kind == "in_thread")
        graph = row(Input([1, 2, 3], endless=True), node)
        async with graph, asyncio.timeout(60):  # less than drain_timeout_s
            await graph.done()
        assert isinstance(graph.error, NodeFailedError)
        assert (graph.error.node, graph.error.tick) == ("raising", 3)
        assert type(error) in (type(graph.error.__cause__), type(getattr(graph.error.__cause__, "__cause__", None)))
        assert graph.statistics().nodes[1].active == 0


async def test_whatever_commit_and_close_raise_ends_the_graph() -> None:
    closed: list[str] = []

    class Closing(Step):
        async def close(self) -> None:
            closed.append(self.name)

    class Failing(Input):
        async def commit(self, tick: int) -> None:
            raise error

        async def close(self) -> None:
            raise error

    for error in ODD_ERRORS:
        if isinstance(error, GeneratorExit):  # as a coroutine that is destroyed
            continue
        async with row(Failing(itertools.count(3)), Closing()) as graph, asyncio.timeout(60):
            await graph.done()
        assert isinstance(graph.error, NodeFailedError)
        assert graph.error.node == "input"
        assert closed.pop() == "step"


@pytest.mark.parametrize("waits", [True, False])
async def test_message_that_breaks_its_reader_is_a_failure(waits: bool) -> None:
    class Broken:
        down_stream_node_idx = -1

        def __init__(self, tick: int) -> None:
            self.time_tick = tick

        @property
        def skip_this_tick(self) -> bool:
            raise FailingError("broken")

    class Breaking(Step):
        async def operate(self, msgs: list[Msg]) -> Outputs:
            return [Broken(msgs[0].time_tick)] if msgs[0].time_tick == 2 else [Item(msgs[0].time_tick)]

    class Plain(BaseNode):
        def operate(self, msgs: list[Msg]) -> Outputs:
            return None

    async with row(Input(range(1, 9)), Breaking("breaking"), Step("last") if waits else Plain("last")) as graph:
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    assert isinstance(graph.error.__cause__, FailingError)


async def test_failure_is_logged_once_and_raised_once(caplog: pytest.LogCaptureFixture) -> None:
    graph = row(Input([1]), failing_at(1))
    with pytest.raises(NodeFailedError):
        async with graph:
            await until(lambda: graph.statistics().nodes[-1].ended)
    await graph.close()
    (record,) = [record for record in caplog.records if record.name == "wal.flowgraph"]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], FailingError)
    assert [record for record in caplog.records if record.name == "actors"] == []


async def test_failure_that_was_read_is_not_raised() -> None:
    async with row(Input([1]), failing_at(1)) as graph:
        assert graph.error is None
        await until(lambda: graph.error)


async def test_failure_does_not_hide_the_blocks_error() -> None:
    graph = row(Input([1]), failing_at(1))
    with pytest.raises(ZeroDivisionError):
        async with graph:
            await until(lambda: graph.statistics().nodes[-1].ended)
            raise ZeroDivisionError


async def test_node_cannot_wait_for_its_graph() -> None:
    graph: TimeTickedFlowGraph
    step = Step("step", lambda tick: graph.close())
    graph = row(Input([1]), step)
    async with graph:
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    assert isinstance(graph.error.__cause__, RuntimeError)
    assert "close() from another task" in str(graph.error)


async def test_node_cannot_wait_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    class Closing(Input):
        async def commit(self, tick: int) -> None:
            await graph.close()

        async def close(self) -> None:
            await graph.close()

    graph = row(Closing([1]), Step())
    async with graph, asyncio.timeout(60):
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    assert isinstance(graph.error.__cause__, RuntimeError)
    assert "node 'input' of a flow graph could not be closed: a node cannot wait" in caplog.text


async def test_slow_commit_is_cancelled() -> None:
    class Hanging(Input):
        async def commit(self, tick: int) -> None:
            await asyncio.get_running_loop().create_future()

    graph = row(Hanging([1]), Step(), drain_timeout_s=0.01)
    async with graph:
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    assert isinstance(graph.error.__cause__, TimeoutError)
    assert "commit() was cancelled" in str(graph.error)


async def test_node_that_does_not_end_is_cancelled() -> None:
    clock = VirtualClock()
    numbers = Input([1, 2], endless=True)

    async def hangs(tick: int) -> None:
        if tick == 2:
            await asyncio.get_running_loop().create_future()

    graph = row(numbers, Step("hanging", hangs), clock=clock, drain_timeout_s=20.0)
    await graph.start()
    await until(lambda: numbers.committed == [1])
    closing = asyncio.create_task(graph.close())
    await until(lambda: clock.timers)
    await clock.run(19.9)
    assert not closing.done()
    await clock.run(0.2)
    await closing
    assert isinstance(graph.error, NodeFailedError)
    assert (graph.error.node, graph.error.tick) == ("hanging", 2)
    assert isinstance(graph.error.__cause__, TimeoutError)
    assert "20.0 s after" in str(graph.error)
    assert numbers.committed == [1]
    assert clock.timers == 0


async def test_commit_that_hangs_is_cancelled() -> None:
    clock = VirtualClock()

    class Hanging(Input):
        async def commit(self, tick: int) -> None:
            await asyncio.get_running_loop().create_future()

    last = Step("last")
    graph = row(Hanging([1], endless=True), last, clock=clock, drain_timeout_s=20.0)
    await graph.start()
    await until(lambda: last.done)
    closing = asyncio.create_task(graph.close())
    await until(lambda: clock.timers)
    while not closing.done():
        await clock.run(20.1)
    assert isinstance(graph.error, NodeFailedError)
    assert graph.error.node == "input"
    assert clock.timers == 0


async def test_graph_that_cannot_move_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would be a defect: here a node is not woken when there is room again."""

    class Endless(BaseNode):
        tick = 0

        def operate(self, msgs: list[Msg]) -> Outputs:
            self.tick += 1
            return [Item(self.tick)]

    monkeypatch.setattr(Edge, "taken", lambda edge: None)
    with pytest.raises(UnknownError, match=r"has stalled: nothing runs, but nodes 'input', 'last' have not ended"):
        async with row(Endless("input"), Step("last")) as graph:
            await until(lambda: graph.statistics().nodes[-1].ended)


async def test_cancelled_done_ends_nothing() -> None:
    gate = asyncio.Event()
    last = Step("last", lambda tick: gate.wait())
    async with row(Input([1]), last) as graph:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await graph.done()
        gate.set()
        await graph.done()
    assert last.done == [1]


async def test_cancelled_close_goes_on() -> None:
    gate = asyncio.Event()
    last = Step("last", lambda tick: gate.wait())
    graph = row(Input([1], endless=True), last)
    await graph.start()
    await until(lambda: last.begun)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await graph.close()
    gate.set()
    await graph.done()
    assert last.done == [1]


async def test_block_that_is_cancelled_closes_its_graph() -> None:
    last = Step("last")
    graph = row(Input(itertools.count(1)), last)

    async def run() -> None:
        async with graph:
            await graph.done()

    running = asyncio.create_task(run())
    await until(lambda: last.done)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await graph.close()
    assert graph.error is None


@pytest.mark.parametrize("steps", range(6))
async def test_cancelled_start_closes_the_graph(steps: int) -> None:
    numbers = Input(itertools.count(1))
    graph = row(numbers, Step())
    starting = asyncio.create_task(graph.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await graph.close()
    assert graph.error is None


async def test_states_that_a_node_refuses_start_nothing() -> None:
    class Refusing(Step):
        def set_pipeline_states(self, states: FlowGraphStates) -> None:
            raise FailingError

    numbers = Input([1])
    graph = row(numbers, Refusing())
    with pytest.raises(FailingError):
        await graph.start()
    assert numbers.given == []


def test_loop_that_ends_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The loop cancels all tasks of a graph that was not closed."""
    seen: list[Any] = []

    async def main() -> None:
        graph = row(Input(itertools.count(1)), Step("first", max_parallelism=3), Step("last"))
        await graph.start()
        await asyncio.sleep(0.01)
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context))

    asyncio.run(main())
    assert seen == []
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_error_travels() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(NodeFailedError("a", 3, ValueError("x"))))
    assert (error.node, error.tick, str(error)) == ("a", 3, "node 'a' failed at tick 3: ValueError: x")
    assert isinstance(error.__cause__, ValueError)
