"""Nodes for tests, and graphs of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from actors import VirtualClock
from tests.streams.flowgraph.graphs import Item
from wal.streams.flowgraph import BaseNode, Msg, Outputs, TimeTickedFlowGraph


class Input(BaseNode):
    """Returns these ticks, and stores the committed ones. After the last one it waits for ever if it is `endless`."""

    def __init__(self, ticks: Iterable[int], *, name: str = "input", endless: bool = False) -> None:
        super().__init__(name)
        self.ticks = iter(ticks)
        self.given: list[int] = []
        self.committed: list[int] = []
        self.endless = endless
        self.cancelled = False

    async def operate(self, msgs: list[Msg]) -> Outputs:
        assert msgs == []
        tick = next(self.ticks, None)
        if tick is None:
            if self.endless:
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.cancelled = True
            return None
        self.given.append(tick)
        return [Item(tick, tick)]

    async def commit(self, tick: int) -> None:
        self.committed.append(tick)


class Silent(Input):
    """Returns nothing, and names what it waits for."""

    def __init__(self, name: str = "silent") -> None:
        super().__init__([], name=name, endless=True)

    @property
    def waits_for(self) -> tuple[str, ...]:
        return ("channel 3",)


class Step(BaseNode):
    """Stores the ticks of its calls, begun and ended, and passes the values on; `does` is awaited with the previous tick."""

    def __init__(self, name: str = "step", does: Callable[[int], Awaitable[Any]] | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        self.does = does
        self.begun: list[int] = []
        self.done: list[int] = []

    async def operate(self, msgs: list[Msg]) -> Outputs:
        tick = msgs[0].time_tick
        self.begun.append(tick)
        if self.does is not None:
            await self.does(tick)
        self.done.append(tick)
        return [Item(tick, next(msg.value for msg in msgs if isinstance(msg, Item)))]


def row(*nodes: BaseNode, clock: VirtualClock | None = None, drain_timeout_s: float = 60.0, start_tick: int = 0) -> TimeTickedFlowGraph:
    """Returns a graph of nodes in a row."""
    graph = TimeTickedFlowGraph(clock=clock, drain_timeout_s=drain_timeout_s, start_tick=start_tick)
    names = [node.name for node in nodes]
    for index, node in enumerate(nodes):
        graph.add_node(node)
        graph.set_edges(node.name, in_=names[max(0, index - 1) : index], out=names[index + 1 : index + 2])
    return graph


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)
