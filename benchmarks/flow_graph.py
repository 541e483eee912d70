"""A flow graph compared with a chain of bare actors: `python -m benchmarks.flow_graph [--quick]`.

Six nodes in a row, an input node, four that add 1 to every message, and a sink that sums them, are compared with six actors. These do the
same work and pass the ticks with `tell_wait`, with inboxes as long as the queues of the graph. The rounds alternate; the output is medians,
and the ratio of the processor times of a tick. Target: 0.4 of the bare chain.

Then one million messages of 200 bytes go through a graph of six nodes whose last one takes 10 ms for a tick of 1,000. Target: the memory of
the process grows by at most 32 MiB. The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from actors import Actor, ActorRef, ActorSystem
from wal.streams.flowgraph import BaseNode, Msg, Outputs, TimeTickedFlowGraph
from wal.streams.flowgraph.node import MAX_QUEUE_LENGTH

NODES: Final = 6
TARGET: Final = 0.4
GROWTH_MAX_BYTES: Final = 32 << 20
SLOW_S: Final = 0.01
MIDDLE: Final = range(NODES - 2)


class Tick(msgspec.Struct, frozen=True):
    """One tick with its messages, for all out-edges."""

    time_tick: int
    values: list[Any]
    skip_this_tick: bool = False
    down_stream_node_idx: int = -1


class Numbers(BaseNode):
    """Returns a number of ticks with the same number of messages each."""

    def __init__(self, ticks: int, size: int) -> None:
        super().__init__("numbers")
        self._ticks, self._values, self._tick = ticks, list(range(size)), 0

    def operate(self, msgs: list[Msg]) -> Outputs:
        self._tick += 1
        return [Tick(self._tick, list(self._values))] if self._tick <= self._ticks else None


class Add(BaseNode):
    """Adds 1 to every number."""

    def operate(self, msgs: list[Msg]) -> Outputs:
        (tick,) = msgs
        assert isinstance(tick, Tick)
        return [Tick(tick.time_tick, [value + 1 for value in tick.values])]


class AddWaiting(Add):
    """An Add with a coroutine function, like the nodes that write to a log."""

    async def operate(self, msgs: list[Msg]) -> Outputs:  # type: ignore[override]
        return super().operate(msgs)


class Sum(BaseNode):
    """Sums the numbers."""

    total = 0

    def operate(self, msgs: list[Msg]) -> Outputs:
        (tick,) = msgs
        assert isinstance(tick, Tick)
        self.total += sum(tick.values)
        return None


class Payloads(BaseNode):
    """Returns a number of ticks of 1,000 payloads of 200 bytes."""

    def __init__(self, ticks: int) -> None:
        super().__init__("payloads")
        self._ticks, self._tick = ticks, 0

    def operate(self, msgs: list[Msg]) -> Outputs:
        self._tick += 1
        return [Tick(self._tick, [bytes(200) for _ in range(1_000)])] if self._tick <= self._ticks else None


class PassOn(BaseNode):
    """Returns the messages unchanged."""

    def operate(self, msgs: list[Msg]) -> Outputs:
        return msgs


class Slow(BaseNode):
    """Takes SLOW_S for a tick."""

    messages = 0

    async def operate(self, msgs: list[Msg]) -> Outputs:
        await asyncio.sleep(SLOW_S)
        (tick,) = msgs
        assert isinstance(tick, Tick)
        self.messages += len(tick.values)
        return None


def chain(*nodes: BaseNode) -> TimeTickedFlowGraph:
    """Returns a graph of these nodes in a row."""
    graph = TimeTickedFlowGraph()
    names = [node.name for node in nodes]
    for index, node in enumerate(nodes):
        graph.add_node(node)
        graph.set_edges(node.name, in_=names[max(0, index - 1) : index], out=names[index + 1 : index + 2])
    return graph


async def in_graph(ticks: int, size: int, add: type[BaseNode] = Add) -> int:
    """Runs the work in a graph, and returns the sum."""
    total = Sum("sum")
    graph = chain(Numbers(ticks, size), *(add(f"add {index}") for index in MIDDLE), total)
    async with graph:
        await graph.done()
    assert graph.error is None, graph.error
    return total.total


class Input(Actor):
    """An actor that sends all ticks of an input node at the start message."""

    def __init__(self, numbers: Numbers, following: ActorRef) -> None:
        self._numbers, self._following = numbers, following

    async def receive(self, batch: list[Any]) -> None:
        while messages := self._numbers.operate([]):
            await self._following.tell_wait(messages[0])


class Stage(Actor):
    """An actor that has its node operate on a tick, and sends the result on."""

    def __init__(self, work: BaseNode, following: ActorRef | None) -> None:
        self._work, self._following = work, following

    async def receive(self, batch: list[Any]) -> None:
        for tick in batch:
            result = self._work.operate([tick])
            assert not isinstance(result, Awaitable)
            if self._following is not None and result:
                await self._following.tell_wait(result[0])


async def in_actors(ticks: int, size: int) -> int:
    """Runs the work in a chain of actors, and returns the sum."""
    total = Sum("sum")
    async with ActorSystem("chain") as system:
        refs: list[ActorRef] = []
        for number, node in enumerate([total, *(Add(f"add {index}") for index in MIDDLE)]):
            stage = Stage(node, refs[-1] if refs else None)
            refs.append(system.spawn(stage, name=str(number), inbox_max=MAX_QUEUE_LENGTH))
        refs.append(system.spawn(Input(Numbers(ticks, size), refs[-1]), name="numbers"))
        refs[-1].tell(None)
        for ref in reversed(refs):
            await ref.stop()
    return total.total


async def measure(work: Awaitable[int], expected: int) -> float:
    """Returns the processor seconds of the work."""
    began = time.process_time()
    assert await work == expected
    return time.process_time() - began


def compare(rounds: int, seconds: float) -> bool:
    """Prints the cost of a tick in both, and returns whether the target is met."""
    met = True
    for size in (1, 1_000):
        ticks = int(seconds * (40_000 if size == 1 else 6_000))
        expected = ticks * sum(value + NODES - 2 for value in range(size))
        work: dict[str, Callable[[], Awaitable[int]]] = {
            "actors": lambda: in_actors(ticks, size),  # noqa: B023
            "graph": lambda: in_graph(ticks, size),  # noqa: B023
            "waiting": lambda: in_graph(ticks, size, AddWaiting),  # noqa: B023
        }
        costs_by_case: dict[str, list[float]] = {name: [] for name in work}
        for index in range(rounds):
            for name in sorted(work, reverse=bool(index % 2)):
                costs_by_case[name].append(asyncio.run(_measured(work[name], expected)) / ticks)
        ratios = {
            name: statistics.median(bare / ours for bare, ours in zip(costs_by_case["actors"], costs, strict=True))
            for name, costs in costs_by_case.items()
        }
        costs = {name: 1e6 * statistics.median(seconds) for name, seconds in costs_by_case.items()}
        print(
            f"{size:5,} messages a tick: actors {costs['actors']:6.1f} µs a tick   graph {costs['graph']:6.1f} µs, ratio "
            f"{ratios['graph']:.2f} (asked {TARGET})   with coroutines {costs['waiting']:6.1f} µs, ratio {ratios['waiting']:.2f}"
        )
        met = met and ratios["graph"] >= TARGET
    return met


async def _measured(work: Callable[[], Awaitable[int]], expected: int) -> float:
    return await measure(work(), expected)


def rss_bytes() -> int:
    """Returns the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def grow(messages: int) -> int:
    """Returns the largest growth of the process's memory, in bytes, while this many messages pass a slow node."""
    slow = Slow("slow")
    graph = chain(Payloads(messages // 1_000), *(PassOn(f"pass {index}") for index in MIDDLE), slow)
    early, highest = rss_bytes(), 0
    async with graph:
        ended = asyncio.ensure_future(graph.done())
        while not ended.done():
            await asyncio.wait([ended], timeout=0.05)
            highest = max(highest, rss_bytes())
    assert graph.error is None, graph.error
    assert slow.messages == messages
    return highest - early


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flow_graph", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three short rounds, and a tenth of the messages")
    quick = parser.parse_args().quick
    met = compare(3, 0.3) if quick else compare(7, 1.0)
    growth = asyncio.run(grow(100_000 if quick else 1_000_000))
    print(f"a last node that is {1000 * SLOW_S:.0f} ms slow: memory + {growth / (1 << 20):.1f} MiB (at most {GROWTH_MAX_BYTES >> 20})")
    return 0 if met and growth <= GROWTH_MAX_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
