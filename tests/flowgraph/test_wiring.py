"""Wrong edges and wrong nodes are refused before anything starts, and wrong results fail the graph; each text says what is wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.flowgraph.graphs import Item
from wal.errors import ClosedError, InvalidArgumentError
from wal.flowgraph import BaseNode, Msg, NodeFailedError, Outputs, TimeTickedFlowGraph

Edges = dict[str, tuple[Sequence[str], Sequence[str]]]


class Giving(BaseNode):
    """An input node that gives these results one after the other."""

    def __init__(self, name: str, *results: Any) -> None:
        super().__init__(name)
        self.results = iter(results)
        self.calls = 0

    def operate(self, msgs: list[Msg]) -> Outputs:
        self.calls += 1
        return next(self.results, None)


class Answering(BaseNode):
    """A node that answers with these results."""

    def __init__(self, name: str, answers: dict[int, Any] | None = None) -> None:
        super().__init__(name)
        self.answers = answers or {}
        self.ticks: list[int] = []

    def operate(self, msgs: list[Msg]) -> Outputs:
        self.ticks.append(msgs[0].time_tick)
        answer: Outputs = self.answers.get(msgs[0].time_tick)
        return answer


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        ({}, "no nodes"),
        ({"a": ((), ())}, "node 'a' has no edges"),
        ({"a": ((), ["b"])}, "set_edges('a') names 'b' in out, which is no node of the graph ('a')"),
        ({"a": ((), ["b"]), "b": ((), ())}, "set_edges('b') does not name 'a' in in_: name the edge on both sides"),
        ({"a": ((), ["b"]), "b": (["a"], ()), "c": ((), ())}, "node 'c' has no edges"),
        (
            {"a": ((), ["b"]), "b": ((), ["c"]), "c": (["b"], ())},
            "set_edges('a') names 'b' in out, but set_edges('b') does not name 'a' in in_",
        ),
        (
            {"a": ((), ["b"]), "b": (["a", "c"], ()), "c": ((), ["d"]), "d": (["c"], ())},
            "set_edges('b') names 'c' in in_, but set_edges('c') does not name 'b' in out",
        ),
        ({"a": ((), ["b", "b"]), "b": (["a"], ())}, "names 'b' more than once in out"),
        ({"a": ((), ["b"]), "b": (["a", "a"], ())}, "names 'a' more than once in in_"),
        ({"a": (["a"], ["a"])}, "the edges 'a' → 'a' are a cycle"),
        ({"a": ((), ["b"]), "b": (["a", "d"], ["c"]), "c": (["b"], ["d"]), "d": (["c"], ["b"])}, "are a cycle"),
    ],
)
async def test_wrong_edges(edges: Edges, text: str) -> None:
    graph = TimeTickedFlowGraph()
    nodes = [Giving(name) for name in edges]
    for node in nodes:
        graph.add_node(node)
        graph.set_edges(node.name, *edges[node.name])
    with pytest.raises(InvalidArgumentError, match=re.escape(text)):
        await graph.start()
    assert all(node.calls == 0 and node.graph_states is None for node in nodes)
    await graph.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_edges_of_a_node_that_was_not_added() -> None:
    graph = pair(Giving("a"), Answering("b"))
    graph.set_edges("c", in_=["b"])
    with pytest.raises(InvalidArgumentError, match=r"set_edges\('c'\) is about no node of the graph \('a', 'b'\)"):
        await graph.start()


async def test_wrong_edges_can_be_set_right() -> None:
    graph = pair(Giving("a"), Answering("b"))
    graph.set_edges("b", in_=["a"], out=["c"])
    with pytest.raises(InvalidArgumentError):
        await graph.start()
    graph.set_edges("b", in_=["a"])
    async with graph:
        await graph.done()
    assert graph.error is None


def test_a_text_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match=r"out of set_edges\('a'\) is the text 'bc'"):
        TimeTickedFlowGraph().set_edges("a", out="bc")


def test_names_are_unique() -> None:
    graph = TimeTickedFlowGraph()
    graph.add_node(Giving("a"))
    with pytest.raises(InvalidArgumentError, match="has a node 'a' already"):
        graph.add_node(Answering("a"))


def test_lengths_are_positive() -> None:
    for name in ("max_queue_length", "max_parallelism"):
        with pytest.raises(InvalidArgumentError, match=f"{name} of node 'a' is 0: it must be at least 1"):
            BaseNode("a", **{name: 0})  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=f"{name} of node 'a' is -1"):
            getattr(BaseNode("a"), f"set_{name}")(-1)

    class Foreign(Giving):
        max_parallelism = 0

    with pytest.raises(InvalidArgumentError, match="max_parallelism of node 'a' is 0"):
        TimeTickedFlowGraph().add_node(Foreign("a"))
    with pytest.raises(InvalidArgumentError, match="drain_timeout_s is -1"):
        TimeTickedFlowGraph(drain_timeout_s=-1)


def test_a_coroutine_function_does_not_run_in_a_thread() -> None:
    class Both(BaseNode):
        async def operate(self, msgs: list[Msg]) -> Outputs:
            return None

    with pytest.raises(InvalidArgumentError, match="node 'a' has in_thread, but its operate"):
        TimeTickedFlowGraph().add_node(Both("a", in_thread=True))


async def test_a_graph_runs_once() -> None:
    graph = pair(Giving("a"), Answering("b"))
    async with graph:
        with pytest.raises(InvalidArgumentError, match="was started already"):
            graph.add_node(Giving("c"))
        with pytest.raises(InvalidArgumentError, match="was started already"):
            graph.set_edges("a")
        with pytest.raises(InvalidArgumentError, match="was started already"):
            await graph.start()
    with pytest.raises(ClosedError, match="was closed"):
        await graph.start()


async def test_a_graph_that_was_closed_before_its_start() -> None:
    graph = pair(Giving("a"), Answering("b"))
    await graph.close()
    await graph.done()
    with pytest.raises(ClosedError, match="was closed"):
        await graph.start()


@pytest.mark.parametrize(
    ("results", "tick", "text"),
    [
        ([[Item(3)], [Item(3)]], 3, "it gave tick 3 after tick 3"),
        ([[Item(3)], [Item(2)]], 3, "it gave tick 2 after tick 3"),
        ([[Item(1)]], None, "it gave tick 1: the graph starts at tick 2"),
        ([[Item(2), Item(3)]], None, "it gave a message of tick 3 at tick 2"),
        ([[Item(2, down_stream_node_idx=1)]], None, "for out-edge 1 at tick 2: it has 1 out-edges"),
        ([[Item(2, down_stream_node_idx=-2)]], None, "for out-edge -2 at tick 2"),
        ([[Item(2), Item(2)]], None, "it gave two messages for the edge to 'b' at tick 2"),
        ([["text"]], None, "'str' object has no attribute 'time_tick'"),
        ([Item(2)], None, "operate() gives a list of messages, or None"),
    ],
)
async def test_wrong_results_of_an_input_node(results: list[Any], tick: int | None, text: str) -> None:
    last = Answering("b")
    error = await failure(pair(Giving("a", *results), last, start_tick=2))
    assert (error.node, error.tick) == ("a", tick)
    assert text in str(error)
    assert "node 'a'" in str(error)
    assert last.ticks == ([] if tick is None else [tick])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([Item(4)], "it gave a message of tick 4 at tick 5"),
        ([Item(6)], "it gave a message of tick 6 at tick 5"),
        ([Item(5), Item(5, down_stream_node_idx=0)], "it gave two messages for the edge to 'c' at tick 5"),
        ([Item(5, down_stream_node_idx=2)], "for out-edge 2 at tick 5: it has 2 out-edges"),
        (7, "it gave 7: operate() gives a list of messages, or None"),
    ],
)
async def test_wrong_results_of_a_node(answer: Any, text: str) -> None:
    graph = TimeTickedFlowGraph()
    for node in (Giving("a", [Item(5)], [Item(6)]), Answering("b", {5: answer}), Answering("c"), Answering("d")):
        graph.add_node(node)
    graph.set_edges("a", out=["b"])
    graph.set_edges("b", in_=["a"], out=["c", "d"])
    graph.set_edges("c", in_=["b"])
    graph.set_edges("d", in_=["b"])
    error = await failure(graph)
    assert (error.node, error.tick) == ("b", 5)
    assert text in str(error)


async def test_a_sink_may_give_messages_for_all_edges_and_for_no_other() -> None:
    async with pair(Giving("a", [Item(1)]), Answering("b", {1: [Item(1), Item(1)]})) as graph:
        await graph.done()
    assert graph.error is None
    error = await failure(pair(Giving("a", [Item(1)]), Answering("b", {1: [Item(1, down_stream_node_idx=0)]})))
    assert "it has 0 out-edges" in str(error)


def pair(first: BaseNode, last: BaseNode, start_tick: int = 0) -> TimeTickedFlowGraph:
    graph = TimeTickedFlowGraph(start_tick=start_tick)
    graph.add_node(first)
    graph.add_node(last)
    graph.set_edges(first.name, out=[last.name])
    graph.set_edges(last.name, in_=[first.name])
    return graph


async def failure(graph: TimeTickedFlowGraph) -> NodeFailedError:
    async with graph:
        await graph.done()
    assert isinstance(graph.error, NodeFailedError)
    return graph.error
