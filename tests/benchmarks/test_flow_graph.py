"""The benchmark of the flow graph computes the right sums, and a slow node does not make a graph grow."""

from __future__ import annotations

from benchmarks import flow_graph


async def test_graph_and_bare_chain_do_equal_work() -> None:
    expected = 50 * sum(value + flow_graph.NODES - 2 for value in range(10))
    assert await flow_graph.in_actors(50, 10) == expected
    assert await flow_graph.in_graph(50, 10) == expected
    assert await flow_graph.in_graph(50, 10, flow_graph.AddWaiting) == expected


async def test_memory_stays_flat_before_a_slow_node(soak: int) -> None:
    assert await flow_graph.grow(100_000 * soak) <= flow_graph.GROWTH_MAX_BYTES
