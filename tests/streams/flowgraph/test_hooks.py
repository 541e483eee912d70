"""A graph calls more of its nodes than `operate`: the recorded tick of a sink, and `close` at the end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.streams.flowgraph.graphs import FailingError, Item
from wal.streams.flowgraph import BaseNode, Msg, NodeFailedError, TimeTickedFlowGraph


class Source(BaseNode):
    """Returns ticks until it is closed; records commits."""

    def __init__(self, name: str, ticks: int) -> None:
        super().__init__(name)
        self.left = [*range(ticks, 0, -1)]
        self.committed: list[int] = []
        self.closed = 0

    async def operate(self, msgs: list[Msg]) -> list[Msg]:
        if not self.left:
            await asyncio.Event().wait()
        return [Item(self.left.pop())]

    async def commit(self, tick: int) -> None:
        assert not self.closed
        self.committed.append(tick)

    async def close(self) -> None:
        self.closed += 1


class Sink(BaseNode):
    """Records every third tick."""

    recorded_tick: int | None = None
    passed = 0
    fails_at = 0

    def operate(self, msgs: list[Msg]) -> None:
        self.passed = msgs[0].time_tick
        if self.passed == self.fails_at:
            raise FailingError
        if self.passed % 3 == 0:
            self.recorded_tick = self.passed


def graph_of(source: Source, *sinks: BaseNode) -> TimeTickedFlowGraph:
    graph = TimeTickedFlowGraph()
    for node in (source, *sinks):
        graph.add_node(node)
    graph.set_edges(source.name, out=[sink.name for sink in sinks])
    for sink in sinks:
        graph.set_edges(sink.name, in_=[source.name])
    return graph


async def until_passed(sink: Sink, tick: int) -> None:
    async with asyncio.timeout(60):
        while sink.passed < tick:
            await asyncio.sleep(0)


@pytest.mark.parametrize(("ticks", "committed"), [(2, []), (3, [3]), (11, [3, 6, 9])])
async def test_only_what_a_sink_has_recorded_is_committed(ticks: int, committed: list[int]) -> None:
    source, sink = Source("source", ticks), Sink("sink")
    async with graph_of(source, sink):
        await until_passed(sink, ticks)
    assert set(source.committed) <= set(committed), "ticks between may be left out"
    assert source.committed[-1:] == committed[-1:]


async def test_slowest_recording_counts() -> None:
    class Slower(Sink):
        def operate(self, msgs: list[Msg]) -> None:
            self.passed = msgs[0].time_tick
            if self.passed == 4:
                self.recorded_tick = 4

    class Plain(BaseNode):
        def operate(self, msgs: list[Msg]) -> None: ...

    source, sink = Source("source", 10), Sink("sink")
    async with graph_of(source, sink, Slower("slower"), Plain("plain")):
        await until_passed(sink, 10)
    assert source.committed[-1:] == [4]


@pytest.mark.parametrize("fails_at", [0, 5])
async def test_nodes_are_closed_once_at_any_end(fails_at: int) -> None:
    source, sink = Source("source", 10), Sink("sink")
    sink.fails_at = fails_at
    graph = graph_of(source, sink)
    try:
        async with graph:
            await until_passed(sink, fails_at or 10)
            assert not source.closed
    except NodeFailedError:
        assert fails_at
    await graph.close()
    assert source.closed == 1


class Closing(Sink):
    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_cancellation_in_a_close_stays_in_the_node(caplog: pytest.LogCaptureFixture) -> None:
    class Cancelled(Source):
        async def close(self) -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future

    sink = Closing("sink")
    with caplog.at_level(logging.ERROR, "wal.flowgraph"):
        async with graph_of(Cancelled("source", 1), sink):
            await until_passed(sink, 1)
    assert sink.closed
    assert "node 'source' of a flow graph could not be closed" in caplog.text


async def test_hooks_are_coroutine_functions(caplog: pytest.LogCaptureFixture) -> None:
    class Plain(Source):
        def commit(self, tick: int) -> None:  # type: ignore[override]
            self.committed.append(tick)

        def close(self) -> None:  # type: ignore[override]
            self.closed += 1

    source, sink = Plain("source", 3), Sink("sink")
    graph = graph_of(source, sink)
    with caplog.at_level(logging.ERROR, "wal.flowgraph"):
        async with graph:
            await graph.done()
    assert str(graph.error).endswith("TypeError: commit() must be a coroutine function: async def commit(self, tick)")
    assert "close() must be a coroutine function: async def close(self)" in caplog.text


async def test_failing_close_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Source):
        async def close(self) -> None:
            raise FailingError("the file is gone")

    sink = Closing("sink")
    with caplog.at_level(logging.ERROR, "wal.flowgraph"):
        async with graph_of(Stuck("source", 1), sink):
            await until_passed(sink, 1)
    assert sink.closed
    assert "node 'source' of a flow graph could not be closed: the file is gone" in caplog.text
