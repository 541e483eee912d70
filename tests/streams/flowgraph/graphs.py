"""Random graphs: their plans, their runs in a TimeTickedFlowGraph, and the results of a sequential run."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from wal.streams.flowgraph import BaseNode, Msg, Outputs, TimeTickedFlowGraph


class FailingError(Exception):
    """Raised by a node that has to fail."""


class Item(msgspec.Struct, frozen=True):
    """A message with a value."""

    time_tick: int
    value: Any = None
    down_stream_node_idx: int = -1
    skip_this_tick: bool = False


class NodePlan(msgspec.Struct, kw_only=True):
    """One node. `mode` is sync, async or thread; `slowness` the share of its ticks at which it waits."""

    name: str
    in_: list[str]
    out: list[str]
    ticks: list[int]
    mode: str
    slowness: float
    max_queue_length: int
    max_parallelism: int


class Plan(msgspec.Struct, kw_only=True):
    """A graph whose input nodes give their ticks; without `endless` they end after them, else they wait for ever."""

    seed: int
    nodes: list[NodePlan]
    endless: bool = False

    def node(self, name: str) -> NodePlan:
        return next(node for node in self.nodes if node.name == name)

    def reached(self, name: str) -> set[str]:
        """Returns the node and all nodes after it."""
        return {name}.union(*(self.reached(other) for other in self.node(name).out))

    def connected(self, name: str) -> set[str]:
        """Returns all nodes that edges connect with this one, in whatever direction."""
        found, waiting = {name}, [name]
        while waiting:
            node = self.node(waiting.pop())
            waiting += {*node.in_, *node.out} - found
            found.update(node.in_, node.out)
        return found

    def sinks(self, name: str) -> set[str]:
        return {other for other in self.reached(name) if not self.node(other).out}


def random_plan(seed: int, *, nodes_max: int = 12, ticks_max: int = 30) -> Plan:
    """Returns a random graph: every node has an edge, and edges lead from lower to higher numbers."""
    rng = random.Random(seed)
    count = rng.randint(2, nodes_max)
    density = rng.choice([0.1, 0.2, 0.4, 0.8])
    edges = {(a, b) for b in range(count) for a in range(b) if rng.random() < density}
    for number in range(count):
        if not any(number in edge for edge in edges):
            other = rng.choice([one for one in range(count) if one != number])
            edges.add((min(number, other), max(number, other)))
    shuffled = rng.sample(sorted(edges), len(edges))
    nodes = []
    for number in range(count):
        ins = [f"n{a}" for a, b in shuffled if b == number]
        nodes.append(
            NodePlan(
                name=f"n{number}",
                in_=ins,
                out=[f"n{b}" for a, b in shuffled if a == number],
                ticks=[] if ins else sorted(rng.sample(range(1, 2 * ticks_max), rng.randint(0, ticks_max))),
                mode=rng.choices(["sync", "async", "thread"], [5, 4, 1])[0],
                slowness=rng.choice([0.0, 0.0, 0.1, 0.3]),
                max_queue_length=rng.choice([1, 1, 2, 5]),
                max_parallelism=rng.choice([1, 1, 2, 4]),
            )
        )
    return Plan(seed=seed, nodes=nodes)


def outputs_of(plan: Plan, node: NodePlan, tick: int, values: Sequence[Any]) -> list[Item]:
    """Returns the results of a node: for all edges, some edges, one edge, none, or a message that skips the tick."""
    value = zlib.crc32(repr((plan.seed, node.name, tick, values)).encode())
    rng = random.Random(value)
    kind = rng.randrange(5)
    if kind == 0 or not node.out:
        return [Item(tick, value)]
    if kind == 1:
        return [Item(tick, value, skip_this_tick=True)]
    if kind == 2 and node.in_:
        return []
    edges = rng.sample(range(len(node.out)), rng.randint(1, len(node.out)))
    return [Item(tick, value + edge, edge) for edge in edges[: 1 if kind == 3 else None]]


Calls = dict[str, list[tuple[int, list[Any]]]]
"""By node, the calls of `operate` in order: the tick, and the value on each in-edge, None where it skips."""


def sequential(plan: Plan) -> Calls:
    """Runs a plan node by node."""
    streams: dict[tuple[str, str], dict[int, Any]] = {}
    calls: Calls = {}
    for node in plan.nodes:
        ins = [streams[other, node.name] for other in node.in_]
        outs: list[dict[int, Any]] = [{} for _ in node.out]
        calls[node.name] = []
        for tick in sorted(set().union(*ins)) if ins else node.ticks:
            values = [stream.get(tick) for stream in ins]
            for stream in outs:
                stream[tick] = None
            if ins and all(value is None for value in values):
                continue
            calls[node.name].append((tick, values))
            for item in outputs_of(plan, node, tick, values):
                for edge, stream in enumerate(outs):
                    if item.down_stream_node_idx in (-1, edge) and not item.skip_this_tick:
                        stream[tick] = item.value
        streams.update({(node.name, other): stream for other, stream in zip(node.out, outs, strict=True)})
    return calls


class Watched(BaseNode):
    """A node of a plan, which records its calls and checks their maximum number."""

    def __init__(self, plan: Plan, node: NodePlan, fails: Callable[[str, int], bool]) -> None:
        super().__init__(
            node.name, max_queue_length=node.max_queue_length, max_parallelism=node.max_parallelism, in_thread=node.mode == "thread"
        )
        self.plan, self.of, self.fails = plan, node, fails
        self.begun: list[tuple[int, list[Any]]] = []
        self.finished: set[int] = set()
        self.committed: list[int] = []
        self.exhausted = False
        self.active = 0
        self._counting = threading.Lock()
        self.nodes: dict[str, Watched] = {}
        self._next = iter(node.ticks)
        if node.mode == "async":
            self.operate = self._waiting  # type: ignore[method-assign]

    def operate(self, msgs: list[Msg]) -> Outputs | Awaitable[Outputs]:
        tick, values = self._begin(msgs)
        if tick is None:
            return self._for_ever() if self.plan.endless and not self.in_thread else None
        if self.in_thread and self._slow(tick):
            time.sleep(0.001)
        return self._end(tick, values)

    async def _waiting(self, msgs: list[Msg]) -> Outputs:
        tick, values = self._begin(msgs)
        try:
            if tick is None:
                return await self._for_ever() if self.plan.endless else None
            for _ in range(zlib.crc32(f"{self.name}{tick}".encode()) % 4):
                await asyncio.sleep(0)
            if self._slow(tick):
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            assert not self.of.in_, "only a call of an input node is cancelled"
            if tick is not None:
                self.active -= 1
                self.begun.pop()
            raise
        return self._end(tick, values)

    async def commit(self, tick: int) -> None:
        assert not self.of.in_
        assert tick in self.of.ticks
        assert not self.committed or tick > self.committed[-1]
        for sink in self.plan.sinks(self.name):
            assert self.nodes[sink].passed(tick), (self.name, sink, tick)
        self.committed.append(tick)
        await asyncio.sleep(0)

    @property
    def calls(self) -> list[tuple[int, list[Any]]]:
        """The calls in the order of ticks. Calls in threads may have begun in another order."""
        return sorted(self.begun) if self.in_thread else self.begun

    def passed(self, tick: int) -> bool:
        """Returns whether all calls up to a tick have ended."""
        return all(begun in self.finished for begun, _ in self.begun if begun <= tick)

    async def _for_ever(self) -> Outputs:
        await asyncio.get_running_loop().create_future()
        return None

    def _begin(self, msgs: list[Msg]) -> tuple[int | None, list[Any]]:
        assert len(msgs) == len(self.of.in_)
        tick = msgs[0].time_tick if msgs else next(self._next, None)
        assert {msg.time_tick for msg in msgs} <= {tick}
        if tick is None:
            self.exhausted = not self.plan.endless or self.in_thread
            return None, []
        values = [None if msg.skip_this_tick else msg.value for msg in msgs]  # type: ignore[attr-defined]
        with self._counting:
            self.active += 1
            assert self.active <= (self.of.max_parallelism if self.of.in_ else 1), "too many calls at once"
            assert self.in_thread or not self.begun or tick > self.begun[-1][0], "ticks must ascend"
            self.begun.append((tick, values))
        return tick, values

    def _slow(self, tick: int) -> bool:
        return zlib.crc32(f"{tick}{self.name}".encode()) % 100 < 100 * self.of.slowness

    def _end(self, tick: int, values: list[Any]) -> Outputs:
        with self._counting:
            self.active -= 1
        if self.fails(self.name, tick):
            raise FailingError(f"{self.name} at {tick}")
        self.finished.add(tick)
        return outputs_of(self.plan, self.of, tick, values)


def graph_of(plan: Plan, fails: Callable[[str, int], bool] = lambda name, tick: False) -> tuple[TimeTickedFlowGraph, dict[str, Watched]]:
    """Returns the graph of a plan, and its nodes."""
    graph = TimeTickedFlowGraph()
    nodes = {node.name: Watched(plan, node, fails) for node in plan.nodes}
    for node in plan.nodes:
        nodes[node.name].nodes = nodes
        graph.add_node(nodes[node.name])
        graph.set_edges(node.name, in_=node.in_, out=node.out)
    return graph, nodes
