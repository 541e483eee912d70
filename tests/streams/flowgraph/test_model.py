"""Random graphs have the results of a sequential run, and never stall; a failure and a close keep the earlier ticks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from tests.streams.flowgraph.graphs import FailingError, Plan, Watched, graph_of, random_plan, sequential
from wal.streams.flowgraph import NodeFailedError, TimeTickedFlowGraph

SEEDS = 40
"""Random graphs a test; ten times as many in a soak."""
STALLED_S = 30.0


@contextmanager
def replayed_by(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"the graph is random_plan({seed})")
        raise


def check_commits(plan: Plan, graph: TimeTickedFlowGraph, nodes: dict[str, Watched]) -> None:
    """Checks that every input node has committed the last tick that has passed the sinks after it."""
    ticks = {node.name: node.tick or 0 for node in graph.statistics().nodes}
    for node in plan.nodes:
        if not node.in_:
            passed = min(ticks[sink] for sink in plan.sinks(node.name))
            given = [tick for tick, _ in nodes[node.name].begun if tick <= passed]
            assert nodes[node.name].committed[-1:] == given[-1:], node.name


def check_over(graph: TimeTickedFlowGraph) -> None:
    """Checks that nothing of the graph remains."""
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(node.ended and node.active == 0 and node.waits_for == () for node in graph.statistics().nodes)


async def test_graphs_equal_a_sequential_run(soak: int) -> None:
    for seed in range(SEEDS * soak):
        with replayed_by(seed):
            plan = random_plan(seed)
            graph, nodes = graph_of(plan)
            async with asyncio.timeout(STALLED_S), graph:
                await graph.done()
            if graph.error is not None:
                raise graph.error
            assert {name: node.calls for name, node in nodes.items()} == sequential(plan)
            for statistics in graph.statistics().nodes:
                assert statistics.completed == len(nodes[statistics.name].begun)
            assert all(edge.pending == 0 for edge in graph.statistics().edges)
            check_commits(plan, graph, nodes)
            assert all(node.committed[-1:] == node.of.ticks[-1:] for node in nodes.values())
            check_over(graph)


async def test_close_lets_given_inputs_pass(soak: int) -> None:
    for seed in range(SEEDS * soak):
        with replayed_by(seed):
            rng = random.Random(seed)
            plan = msgspec.structs.replace(random_plan(seed), endless=True)
            graph, nodes = graph_of(plan)
            async with asyncio.timeout(STALLED_S):
                await graph.start()
                for _ in range(int(2 ** (rng.random() * 9))):
                    await asyncio.sleep(0)
                    assert all(edge.pending <= edge.capacity for edge in graph.statistics().edges)
                closing = [asyncio.create_task(graph.close()) for _ in range(3)]
                for _ in range(rng.randrange(5)):
                    await asyncio.sleep(0)
                closing[0].cancel()
                await asyncio.gather(*closing[1:])
                await graph.close()
                await asyncio.wait(closing)
            assert graph.error is None
            expected = sequential(plan)
            for name, node in nodes.items():
                # No join mistakes the end of an input for empty ticks, so all calls are those of a run without a close.
                assert node.calls == expected[name][: len(node.calls)]
                stopped = [nodes[other] for other in plan.connected(name) if not nodes[other].of.in_]
                lasts = [max((tick for tick, _ in one.begun), default=0) for one in stopped if not one.exhausted]
                known = min(lasts, default=None)
                assert len(node.calls) >= len([1 for tick, _ in expected[name] if known is None or tick <= known])
            check_commits(plan, graph, nodes)
            check_over(graph)


async def test_failure_of_any_node_at_any_tick(soak: int) -> None:
    for seed in range(SEEDS * soak):
        with replayed_by(seed):
            rng = random.Random(seed)
            plan = random_plan(seed)
            expected = sequential(plan)
            name = rng.choice([name for name, calls in expected.items() if calls] or [plan.nodes[0].name])
            if not expected[name]:
                continue
            at = rng.randrange(len(expected[name]))
            tick = expected[name][at][0]
            graph, nodes = graph_of(plan, lambda node, ticked: (node, ticked) == (name, tick))  # noqa: B023
            async with asyncio.timeout(STALLED_S):
                with pytest.raises(NodeFailedError) as raised:
                    async with graph:
                        while not all(node.ended for node in graph.statistics().nodes):
                            await asyncio.sleep(0)
            assert raised.value is graph.error
            assert isinstance(raised.value.__cause__, FailingError)
            assert raised.value.node == name
            if plan.node(name).in_:
                assert raised.value.tick == tick
            else:
                assert raised.value.tick == (expected[name][at - 1][0] if at else None)
            for other, node in nodes.items():
                assert node.calls == expected[other][: len(node.calls)]
            for other in plan.reached(name) - {name}:
                assert all(begun < tick for begun, _ in nodes[other].begun)
            for before in plan.nodes:
                if not before.in_ and name in plan.reached(before.name):
                    assert all(committed < tick for committed in nodes[before.name].committed)
            check_over(graph)
