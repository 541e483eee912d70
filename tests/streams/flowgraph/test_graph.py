"""A running graph: its queues are bounded, it works on ticks in parallel, commits them in order, and reports figures."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from typing import Any

import pytest

from tests.streams.flowgraph.graphs import Item
from tests.streams.flowgraph.steps import Input, Silent, Step, row, until
from wal.streams.flowgraph import BaseNode, FlowGraphStatistics, Msg, NodeStatistics, Outputs, TimeTickedFlowGraph


def node_of(graph: TimeTickedFlowGraph, name: str) -> NodeStatistics:
    return next(node for node in graph.statistics().nodes if node.name == name)


async def test_backpressure_reaches_the_input() -> None:
    gate = asyncio.Event()
    numbers, slow = Input(itertools.count(1)), Step("slow", lambda tick: gate.wait(), max_queue_length=2)
    steps = [Step(f"step {index}", max_queue_length=3) for index in range(3)]
    async with row(numbers, *steps, slow) as graph:
        await until(lambda: node_of(graph, "input").waits_for == ("step 0",))
        held = (1 + 2) + 3 * (1 + 3) + 1  # a tick in every node, and those on the edges before it
        for _ in range(100):
            await asyncio.sleep(0)
        assert numbers.given == list(range(1, held + 1))
        assert [(edge.pending, edge.capacity) for edge in graph.statistics().edges] == [(3, 3), (3, 3), (3, 3), (2, 2)]
        assert [node.waits_for for node in graph.statistics().nodes] == [("step 0",), ("step 1",), ("step 2",), ("slow",), ()]
        assert all(node.blocked_s > 0 for node in graph.statistics().nodes if node.name != "slow")
        assert node_of(graph, "slow").working_s > 0
        assert numbers.committed == []
        gate.set()
    assert all(node.blocked_s > 0 for node in graph.statistics().nodes if node.name != "slow")
    assert slow.done == numbers.given[: len(slow.done)]
    assert len(slow.done) >= held
    assert numbers.committed[-1] == slow.done[-1] == numbers.given[-1]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
async def test_ticks_at_once_in_order(parallelism: int) -> None:
    gates = {tick: asyncio.Event() for tick in range(1, 21)}
    step = Step("step", lambda tick: gates[tick].wait(), max_parallelism=parallelism)
    last = Step("last")
    async with row(Input(gates), step, last) as graph:
        for first in range(1, 21, parallelism):
            group = list(range(first, min(first + parallelism, 21)))
            await until(lambda: step.begun[-1:] == group[-1:])  # noqa: B023
            for _ in range(20):
                await asyncio.sleep(0)
            assert step.begun == list(range(1, group[-1] + 1)), "one more has begun, or in another order"
            assert node_of(graph, "step").active == len(group)
            for tick in reversed(group[1:]):
                gates[tick].set()
                await until(lambda: tick in step.done)  # noqa: B023
                assert last.begun == list(range(1, first))
            gates[first].set()
        workers = [task for task in asyncio.all_tasks() if re.fullmatch(r"flow graph: worker \d+: step", task.get_name())]
        assert len(workers) <= parallelism
        await graph.done()
    assert last.begun == list(range(1, 21))


async def test_threads_run_beside_the_loop_and_each_other() -> None:
    together = threading.Barrier(3)

    class InThread(BaseNode):
        def operate(self, msgs: list[Msg]) -> Outputs:
            assert threading.current_thread() is not threading.main_thread()
            together.wait(10)
            return msgs

    last = Step("last")
    async with row(Input(range(1, 31)), InThread("first", in_thread=True, max_parallelism=3, max_queue_length=9), last) as graph:
        await graph.done()
    assert graph.error is None
    assert last.begun == list(range(1, 31))
    await until(lambda: not [one for one in threading.enumerate() if one.name.startswith("flow graph")])


async def test_plain_function_may_return_an_awaitable() -> None:
    class Sometimes(BaseNode):
        def operate(self, msgs: list[Msg]) -> Any:
            return asyncio.sleep(0, msgs) if msgs[0].time_tick % 2 else msgs

    last = Step("last")
    async with row(Input(range(10)), Sometimes("sometimes"), last) as graph:
        await graph.done()
    assert last.begun == list(range(10))


async def test_router_and_a_join() -> None:
    got: list[tuple[int, list[int | None]]] = []

    class Router(BaseNode):
        def operate(self, msgs: list[Msg]) -> Outputs:
            tick = msgs[0].time_tick
            return [] if tick % 4 == 3 else [Item(tick, tick, tick % 4 - 1)]

    class Join(BaseNode):
        def operate(self, msgs: list[Msg]) -> Outputs:
            got.append((msgs[0].time_tick, [msg.value if isinstance(msg, Item) else None for msg in msgs]))
            return None

    numbers = Input(range(1, 101))
    branches = [Step(name, max_queue_length=1) for name in ("0", "1")]
    graph = TimeTickedFlowGraph()
    for node in (numbers, Router("router"), *branches, Join("join")):
        graph.add_node(node)
    graph.set_edges("input", out=["router"])
    graph.set_edges("router", in_=["input"], out=["0", "1"])
    for branch in branches:
        graph.set_edges(branch.name, in_=["router"], out=["join"])
    graph.set_edges("join", in_=["1", "0"])
    async with graph:
        await graph.done()
    assert graph.error is None
    # A tick with remainder 0 goes to both branches, one with remainder 3 to none.
    values: dict[int, list[int]] = {0: [1, 1], 1: [0, 1], 2: [1, 0]}
    assert got == [(tick, [tick if there else None for there in values[tick % 4]]) for tick in range(1, 101) if tick % 4 != 3]
    assert branches[0].begun == [tick for tick in range(1, 101) if tick % 4 in (0, 1)]
    assert numbers.committed[-1] == 100
    assert node_of(graph, "join").completed == 75


async def test_join_names_whom_it_waits_for() -> None:
    graph = TimeTickedFlowGraph()
    for node in (Input(range(1, 4)), Silent(), Step("join")):
        graph.add_node(node)
    graph.set_edges("input", out=["join"])
    graph.set_edges("silent", out=["join"])
    graph.set_edges("join", in_=["input", "silent"])
    async with graph:
        await until(lambda: node_of(graph, "input").ended)
        assert node_of(graph, "join").waits_for == ("silent",)
        assert node_of(graph, "silent").waits_for == ("channel 3",)
        assert [edge.tick for edge in graph.statistics().edges] == [3, None]
        assert "waits for channel 3" in graph.to_mermaid()


async def test_commits_are_serial_and_cumulative() -> None:
    gate = asyncio.Event()

    class Slowly(Input):
        active = 0

        async def commit(self, tick: int) -> None:
            self.active += 1
            assert self.active == 1
            await gate.wait()
            await super().commit(tick)
            self.active -= 1

    numbers, last = Slowly(range(1, 51), endless=True), Step("last")
    async with row(numbers, last):
        await until(lambda: len(last.done) == 50)
        gate.set()
    assert numbers.committed[-1] == 50
    assert numbers.committed == sorted(set(numbers.committed))
    assert len(numbers.committed) < 50


async def test_input_is_committed_when_every_sink_has_passed() -> None:
    gate = asyncio.Event()
    numbers, fast, slow = Input(range(1, 5), endless=True), Step("fast"), Step("slow", lambda tick: gate.wait())
    graph = TimeTickedFlowGraph()
    for node in (numbers, fast, slow):
        graph.add_node(node)
    graph.set_edges("input", out=["fast", "slow"])
    graph.set_edges("fast", in_=["input"])
    graph.set_edges("slow", in_=["input"])
    async with graph:
        await until(lambda: len(fast.done) == 4)
        assert numbers.committed == []
        gate.set()
        await until(lambda: numbers.committed[-1:] == [4])


async def test_ticks_without_anything_are_committed_and_not_operated() -> None:
    class Skips(Input):
        async def operate(self, msgs: list[Msg]) -> Outputs:
            given = await super().operate(msgs)
            return given and [Item(given[0].time_tick, skip_this_tick=True)]

    numbers, last = Skips(range(1, 5)), Step("last")
    async with row(numbers, last) as graph:
        await graph.done()
    assert last.begun == []
    assert numbers.committed[-1] == 4
    assert node_of(graph, "last").completed == 0
    assert node_of(graph, "last").tick == 4


async def test_nodes_see_the_states_of_the_graph() -> None:
    seen = []

    class Sees(Step):
        async def operate(self, msgs: list[Msg]) -> Outputs:
            states = self.graph_states
            assert states is not None
            seen.append((states.num_active_tasks["step"], states.num_completed_tasks["step"], states.start_tick))
            return await super().operate(msgs)

    step = Sees()
    async with row(Input(range(7, 10)), step, start_tick=7) as graph:
        await graph.done()
    assert seen == [(1, 0, 7), (1, 1, 7), (1, 2, 7)]
    assert step.graph_states is not None
    assert step.graph_states.num_active_tasks == {"input": 0, "step": 0}
    assert step.graph_states.num_completed_tasks == {"input": 3, "step": 3}


async def test_figures_before_and_after() -> None:
    graph = row(Input(range(1, 4)), Step())
    assert graph.statistics() == FlowGraphStatistics(nodes=(), edges=())
    async with graph:
        await graph.done()
    nodes = graph.statistics().nodes
    assert [(node.name, node.tick, node.active, node.completed, node.ended) for node in nodes] == [
        ("input", 3, 0, 3, True),
        ("step", 3, 0, 3, True),
    ]


async def test_flowchart_of_any_names() -> None:
    names = ['quoted "name"', "<b>&#35;", "a|b]--> x\ny", "end", "`code` \\n"]
    graph = row(Input([1, 2], name=names[0]), *(Step(name) for name in names[1:]))
    async with graph:
        await graph.done()
        text = graph.to_mermaid()
    head, *lines = text.splitlines()
    assert head == "flowchart LR"
    label = r'"(?:[^"<>&`\\#]|#\d+;|<br/>)*"'
    nodes = [match for line in lines if (match := re.fullmatch(rf"    (n\d+)\[({label})\]", line))]
    edges = [match for line in lines if (match := re.fullmatch(rf"    (n\d+) -->\|({label})\| (n\d+)", line))]
    assert len(nodes) + len(edges) == len(lines)
    assert [match[1] for match in nodes] == ["n0", "n1", "n2", "n3", "n4"]
    assert [(match[1], match[3]) for match in edges] == list(itertools.pairwise(["n0", "n1", "n2", "n3", "n4"]))
    shown = [re.sub(r"#(\d+);", lambda code: chr(int(code[1])), match[2][1:-1].split("<br/>")[0]) for match in nodes]
    assert shown == [name.replace("\n", " ") for name in names]
    assert "tick 2, 0 active, 2 completed" in nodes[-1][2]
    assert "0 of 8 pending, tick 2" in edges[-1][2]
