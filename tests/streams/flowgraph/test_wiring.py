"""Wrong edges and wrong nodes are rejected before anything starts, and wrong results fail the graph; each text names the problem."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.streams.flowgraph.graphs import Item
from wal.errors import ClosedError, InvalidArgumentError
from wal.streams.flowgraph import BaseNode, Msg, NodeFailedError, Outputs, TimeTickedFlowGraph


class Giving(BaseNode):
    """An input node that returns these results one after the other."""

    def __init__(self, name: str, *results: Any) -> None:
        super().__init__(name)
        self.results = iter(results)
        self.calls = 0

    def operate(self, msgs: list[Msg]) -> Outputs:
        self.calls += 1
        return next(self.results, None)


class Answering(BaseNode):
    """A node that returns these results."""

    def __init__(self, name: str, answers: dict[int, Any] | None = None) -> None:
        super().__init__(name)
        self.answers = answers or {}
        self.ticks: list[int] = []

    def operate(self, msgs: list[Msg]) -> Outputs:
        self.ticks.append(msgs[0].time_tick)
        answer: Outputs = self.answers.get(msgs[0].time_tick)
        return answer


async def test_wrong_edges(subtests: pytest.Subtests) -> None:
    Edges = dict[str, tuple[Sequence[str], Sequence[str]]]
    cases: list[tuple[Edges, str]] = [
        ({}, "no nodes"),
        ({"a": ((), ())}, "node 'a' has no edges"),
        ({"a": ((), ["b"])}, "set_edges('a') names 'b' in out, which is not a node of the graph ('a')"),
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
    ]
    for edges, text in cases:
        with subtests.test(repr(edges)):
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


def test_text_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match=r"out of set_edges\('a'\) is 'bc': give a list of names"):
        TimeTickedFlowGraph().set_edges("a", out="bc")
    with pytest.raises(TypeError, match=r"in_ of set_edges\('a'\) is None: give a list of names"):
        TimeTickedFlowGraph().set_edges("a", in_=None)  # type: ignore[arg-type]


def test_names_are_unique() -> None:
    graph = TimeTickedFlowGraph()
    graph.add_node(Giving("a"))
    with pytest.raises(InvalidArgumentError, match="has a node 'a' already"):
        graph.add_node(Answering("a"))


def test_lengths_are_positive() -> None:
    for name in ("max_queue_length", "max_parallelism"):
        with pytest.raises(InvalidArgumentError, match=f"{name} of node 'a' is 0: it must be 1 to 65536"):
            BaseNode("a", **{name: 0})  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=f"{name} of node 'a' is 65537: it must be 1 to 65536"):
            BaseNode("a", **{name: 65_537})  # type: ignore[arg-type]
        for value in (2.5, "3", None, True, float("nan")):
            with pytest.raises(TypeError, match=f"{name} of node 'a' is {value!r}: it must be a whole number"):
                BaseNode("a", **{name: value})  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=f"{name} of node 'a' is -1"):
            getattr(BaseNode("a"), f"set_{name}")(-1)

    class Foreign(Giving):
        max_parallelism = 0

    with pytest.raises(InvalidArgumentError, match="max_parallelism of node 'a' is 0"):
        TimeTickedFlowGraph().add_node(Foreign("a"))
    with pytest.raises(InvalidArgumentError, match="drain_timeout_s is -1"):
        TimeTickedFlowGraph(drain_timeout_s=-1)
    with pytest.raises(InvalidArgumentError, match="start_tick is -1: it must be at least 0"):
        TimeTickedFlowGraph(start_tick=-1)
    wrong: list[dict[str, Any]] = [{"start_tick": "5"}, {"start_tick": 1.5}, {"drain_timeout_s": None}]
    for values in wrong:
        with pytest.raises(TypeError, match="give a time tick, and a number of seconds"):
            TimeTickedFlowGraph(**values)


def test_coroutine_function_does_not_run_in_a_thread() -> None:
    class Both(BaseNode):
        async def operate(self, msgs: list[Msg]) -> Outputs:
            return None

    with pytest.raises(InvalidArgumentError, match="node 'a' has in_thread, but its operate"):
        TimeTickedFlowGraph().add_node(Both("a", in_thread=True))


async def test_graph_runs_once() -> None:
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


async def test_graph_that_was_closed_before_its_start() -> None:
    graph = pair(Giving("a"), Answering("b"))
    await graph.close()
    await graph.done()
    with pytest.raises(ClosedError, match="was closed"):
        await graph.start()


async def test_wrong_results_of_an_input_node(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Any], int | None, str]] = [
        ([[Item(3)], [Item(3)]], 3, "it gave tick 3 after tick 3"),
        ([[Item(3)], [Item(2)]], 3, "it gave tick 2 after tick 3"),
        ([[Item(1)]], None, "it gave tick 1: the graph starts at tick 2"),
        ([[Item(2), Item(3)]], None, "it gave a message of tick 3 at tick 2"),
        ([[Item(2, down_stream_node_idx=1)]], None, "for out-edge 1 at tick 2: it has 1 out-edges"),
        ([[Item(2, down_stream_node_idx=-2)]], None, "for out-edge -2 at tick 2"),
        ([[Item(2), Item(2)]], None, "it gave two messages for the edge to 'b' at tick 2"),
        (["text"], None, "it gave 'text': operate() gives a list of messages, or None"),
        ([["text"]], None, "it gave 'text', which is no message of a flow graph"),
        ([[Item(2), None]], None, "it gave None, which is no message of a flow graph"),
        ([Item(2)], None, "operate() gives a list of messages, or None"),
        ([{}], None, "it gave {}: operate() gives a list of messages, or None"),
        ([0], None, "it gave 0: operate() gives a list of messages, or None"),
        ([[Item("2")]], None, "it gave tick '2': a tick is an int"),  # type: ignore[arg-type]
        ([[Item(2.5)]], None, "it gave tick 2.5: a tick is an int"),  # type: ignore[arg-type]
        ([[Item(2, down_stream_node_idx="0")]], None, "which is no message of a flow graph"),  # type: ignore[arg-type]
        ([[Item(2, down_stream_node_idx=0.0)]], None, "which is no message of a flow graph"),  # type: ignore[arg-type]
    ]
    for results, tick, text in cases:
        with subtests.test(repr(results)):
            last = Answering("b")
            error = await failure(pair(Giving("a", *results), last, start_tick=2))
            assert (error.node, error.tick) == ("a", tick)
            assert text in str(error)
            assert "node 'a'" in str(error)
            assert last.ticks == ([] if tick is None else [tick])


async def test_wrong_results_of_a_node(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        ([Item(4)], "it gave a message of tick 4 at tick 5"),
        ([Item(6)], "it gave a message of tick 6 at tick 5"),
        ([Item(5), Item(5, down_stream_node_idx=0)], "it gave two messages for the edge to 'c' at tick 5"),
        ([Item(5, down_stream_node_idx=2)], "for out-edge 2 at tick 5: it has 2 out-edges"),
        (7, "it gave 7: operate() gives a list of messages, or None"),
        ([7], "it gave 7, which is no message of a flow graph ('int' object has no attribute 'time_tick')"),
    ]
    for answer, text in cases:
        with subtests.test(repr(answer)):
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


async def test_unskippable_result_is_reported_with_its_node() -> None:
    class Half(msgspec.Struct):
        time_tick: int = 1
        down_stream_node_idx: int = -1

    error = await failure(pair(Giving("a", [Half()]), Answering("b")))
    assert "of node 'a': it gave" in str(error)
    assert "has no attribute 'skip_this_tick'" in str(error)
    assert isinstance(error.__cause__, TypeError)


@pytest.mark.parametrize("thing", [None, 5, Giving, BaseNode(7)], ids=["none", "a number", "a class", "no name"])  # type: ignore[arg-type]
def test_invalid_nodes_are_refused(thing: Any) -> None:
    with pytest.raises(TypeError, match="is not a node of a flow graph: give an object with a name and operate"):
        TimeTickedFlowGraph().add_node(thing)


async def test_node_says_whether_it_needs_in_edges() -> None:
    class Needing(Answering):
        is_input = False

    class First(Giving):
        is_input = True

    last = Answering("b")
    graph = pair(Needing("a"), last)
    with pytest.raises(InvalidArgumentError, match=r"node 'a' has no in-edges.*set_edges\('a', in_=\[…\]\)"):
        await graph.start()
    await graph.close()
    assert last.graph_states is None
    with pytest.raises(InvalidArgumentError, match=r"node 'b' has in-edges from 'a', and is an input node"):
        await pair(Giving("a"), First("b")).start()
    async with pair(First("a", [Item(1)]), Needing("b")) as graph:
        await graph.done()
    assert graph.error is None


async def test_node_is_of_one_graph() -> None:
    shared = Answering("b")
    async with pair(Giving("a"), shared):
        other = pair(Giving("a"), shared)
        with pytest.raises(InvalidArgumentError, match="node 'b' belongs to another flow graph"):
            await other.start()
    await other.close()


async def test_sink_sends_to_its_edges_only() -> None:
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
