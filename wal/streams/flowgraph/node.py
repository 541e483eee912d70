"""Node: the interface between a flow graph and its nodes: messages, states, statistics.

A node gets and returns one `Msg` on each edge for each tick, or a `SkipTickMsg`. `BaseNode` implements everything but `operate`.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from wal.errors import InvalidArgumentError, WALError
from wal.runtime.user_code import described


class Msg(Protocol):
    """One message on one edge. An edge carries at most one message a tick, so a message holds everything of its tick."""

    @property
    def time_tick(self) -> int:
        """The tick, which ascends on every edge."""

    @property
    def skip_this_tick(self) -> bool:
        """Whether the message is empty at this tick. Such a message only lets a join continue; `operate` is not called if all inputs
        skip.
        """

    @property
    def down_stream_node_idx(self) -> int:
        """The index of the out-edge that the message goes to, in the order of `set_edges(out=…)`; -1 for all of them.

        The index is that of an edge of the node that returns the message. A node that passes on a router's message must address it again.
        """


class SkipTickMsg(msgspec.Struct, frozen=True):
    """A message without content at this tick. The graph sends it on every out-edge that a node left empty."""

    time_tick: int

    @property
    def skip_this_tick(self) -> bool:
        """Always True."""
        return True

    @property
    def down_stream_node_idx(self) -> int:
        """Always -1."""
        return -1


class FlowGraphStates(msgspec.Struct, kw_only=True):
    """The states of one graph, which every node gets before the start. The graph changes them; nodes only read them."""

    start_tick: int = 0
    """The lowest tick that the graph takes from an input node."""
    num_active_tasks: dict[str, int] = {}
    """By node, the number of ticks that the node works on now."""
    num_completed_tasks: dict[str, int] = {}
    """By node, the number of finished ticks whose results are on the out-edges."""


class NodeFailedError(WALError):
    """A node of a flow graph raised, or returned an invalid result; `__cause__` is that error.

    `node` is its name. `tick` is the tick that the node worked on. For an input node it is the highest tick so far, or None before the
    first.
    """

    def __init__(self, node: str, tick: int | None, cause: BaseException) -> None:
        what = "its first tick" if tick is None else f"tick {tick}"
        super().__init__(f"node {node!r} failed at {what}: {described(cause)}")
        self.node = node
        self.tick = tick
        self.__cause__ = cause

    def __reduce__(self) -> tuple[object, ...]:
        return NodeFailedError, (self.node, self.tick, self.__cause__)


class NodeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The state and the counts of one node."""

    name: str
    tick: int | None
    """The last tick whose results are on the out-edges; None before the first."""
    active: int
    """The ticks that the node works on."""
    completed: int
    """The finished ticks whose results are on the out-edges. Ticks at which all inputs skip are not counted."""
    working_s: float
    """The sum of the durations of its calls of `operate`, in seconds; two calls at once count twice."""
    blocked_s: float
    """The seconds for which a result waited for room on an out-edge."""
    waits_for: tuple[str, ...]
    """The nodes that it waits for: later nodes whose queues are full, or earlier nodes whose next tick it needs.

    While the node works, the names that its `waits_for` returns (`BaseNode.waits_for`). Empty when the node has ended.
    """
    ended: bool
    """Whether the node takes nothing more."""


class EdgeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The messages on the way from one node to another."""

    source: str
    target: str
    pending: int
    """The messages that wait for the target."""
    capacity: int
    """The highest value of `pending`: the `max_queue_length` of the target."""
    tick: int | None
    """The tick of the last message from the source; None before the first."""


class FlowGraphStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes in the order of `add_node`, and all edges in the order of their sources."""

    nodes: tuple[NodeStatistics, ...]
    edges: tuple[EdgeStatistics, ...]


MAX_QUEUE_LENGTH: Final = 8
"""The default of `max_queue_length`. A message holds a whole tick, so this number determines the memory of a graph. Twice as many make a
tick of one message 7 % cheaper, half as many make it 11 % dearer (`python -m benchmarks.flow_graph`).
"""
COUNT_MAX: Final = 65_536
"""The highest `max_queue_length` and `max_parallelism`: a larger number would not bound the memory of a graph."""

Outputs: TypeAlias = Sequence[Msg] | None
"""The result of `operate`: at most one message for each out-edge, all of the tick that it was called for. None is the same as empty."""


class Node(Protocol):
    """A node of a flow graph. A node without in-edges is an input node.

    A node may also have `in_thread`, `is_input`, `waits_for`, `commit` and `close`, which BaseNode has. A sink may have `recorded_tick`:
    the tick up to which a replay would change nothing. Input nodes commit no later tick, although it has passed.
    """

    @property
    def name(self) -> str:
        """The name, unique in its graph."""

    @property
    def max_queue_length(self) -> int:
        """The maximum number of messages that wait for this node on each of its in-edges."""

    @property
    def max_parallelism(self) -> int:
        """The maximum number of ticks that the node works on at once. Calls of `operate` of an input node never overlap."""

    def set_pipeline_states(self, states: FlowGraphStates) -> None:
        """Called once, before the graph starts."""

    def operate(self, msgs: list[Msg]) -> Outputs | Awaitable[Outputs]:
        """Works on one tick: `msgs` has one message for each in-edge, in the order of `set_edges(in_=…)`, a SkipTickMsg where it has none.

        All of them have the same tick, and so must the results. It may be a coroutine function. A plain function runs on the event loop,
        and must not block it, unless `in_thread` is True. Results are sent on in the order of ticks. An exception fails the graph.

        For an input node it is called with an empty list whenever the out-edges have room, and returns the messages of the next tick, which
        is above all earlier ones. An empty result ends the input. When the graph closes, a waiting call is cancelled: a restart must be
        able to read again whatever the call had taken.
        """


class BaseNode:
    """A node that only lacks `operate`."""

    is_input: bool | None = None
    """True if the node must have no in-edges, since it ignores their messages; False if it needs some; None if it works with both."""

    def __init__(self, name: str, *, max_queue_length: int = MAX_QUEUE_LENGTH, max_parallelism: int = 1, in_thread: bool = False) -> None:
        self._name = name
        self.graph_states: FlowGraphStates | None = None
        """The states of the graph; None before its start."""
        self.in_thread: bool = in_thread
        """Whether `operate` runs in a thread; it must be a plain function then."""
        self.set_max_queue_length(max_queue_length)
        self.set_max_parallelism(max_parallelism)

    @property
    def name(self) -> str:
        """The name, unique in its graph."""
        return self._name

    @property
    def max_queue_length(self) -> int:
        """The messages that wait for this node on each of its in-edges, at most."""
        return self._max_queue_length

    @property
    def max_parallelism(self) -> int:
        """The maximum number of ticks that the node works on at once."""
        return self._max_parallelism

    @property
    def waits_for(self) -> Sequence[str]:
        """The names that a running call of `operate` waits for, such as silent channels, for the statistics; empty if not available."""
        return ()

    def set_max_queue_length(self, n: int) -> None:
        """Sets the length of the queues; without effect after the start of the graph."""
        self._max_queue_length = _count("max_queue_length", n, self._name)

    def set_max_parallelism(self, n: int) -> None:
        """Sets the parallelism; without effect after the start of the graph."""
        self._max_parallelism = _count("max_parallelism", n, self._name)

    def set_pipeline_states(self, states: FlowGraphStates) -> None:
        """Stores the states of the graph. Raises InvalidArgumentError if the node has those of another graph."""
        if self.graph_states is not None and self.graph_states is not states:
            raise InvalidArgumentError(f"node {self._name!r} belongs to another flow graph: create a node of its own for each graph")
        self.graph_states = states

    def operate(self, msgs: list[Msg]) -> Outputs | Awaitable[Outputs]:
        """Works on one tick; see Node."""
        raise NotImplementedError(f"{type(self).__name__} has no operate(): implement it")

    async def commit(self, tick: int) -> None:
        """Called for an input node when all its messages up to this tick have passed every sink that it leads to.

        Ticks ascend, and some may be left out, because a call stands for all ticks up to its own. Calls never overlap with each other, but
        may overlap with `operate`. An exception fails the graph.
        """

    async def close(self) -> None:
        """Called once, after the graph has ended: releases what `operate` opened."""


def check_node(node: Node) -> None:
    """Raises TypeError for an object that is not a node, and InvalidArgumentError for a node with invalid values."""
    name = getattr(node, "name", None)
    if not isinstance(name, str) or not callable(getattr(node, "operate", None)):
        raise TypeError(
            f"{node!r:.200} is not a node of a flow graph: give an object with a name and operate(), such as one of a subclass of BaseNode"
        )
    if getattr(node, "in_thread", False) and inspect.iscoroutinefunction(node.operate):
        raise InvalidArgumentError(
            f"node {name!r} has in_thread, but its operate() is a coroutine function: make it a plain function, or leave out in_thread"
        )
    _count("max_queue_length", node.max_queue_length, name)
    _count("max_parallelism", node.max_parallelism, name)


def _count(what: str, value: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} of node {name!r} is {value!r}: it must be a whole number from 1 to {COUNT_MAX}")
    if not 1 <= value <= COUNT_MAX:
        raise InvalidArgumentError(f"{what} of node {name!r} is {value}: it must be 1 to {COUNT_MAX}")
    return value


class InputAligner:
    """Joins the messages on the in-edges of one node by tick. An edge is named by its index. Pure.

    Owns the messages that wait for the node. It guarantees that ticks come out in ascending order, each once, with all messages of a tick
    at the same time. Nothing waits for an edge that has ended or already has a later tick. The order is that of the *smallest* tick:
    aligning to the largest one would have to drop the inputs below it.
    """

    __slots__ = ("_open", "queues")

    def __init__(self, edges: int) -> None:
        self.queues: list[deque[Msg]] = [deque() for _ in range(edges)]
        """The messages that wait on each edge. Invariant: ticks ascend in each queue; the caller that adds a message ensures it."""
        self._open = [True] * edges

    @property
    def ended(self) -> bool:
        """Whether every edge has ended and no message remains."""
        return not any(self._open) and not any(self.queues)

    @property
    def missing(self) -> list[int]:
        """The edges that determine the next tick: they have not ended, and no message waits on them."""
        return [edge for edge, queue in enumerate(self.queues) if not queue and self._open[edge]]

    def end(self, edge: int) -> None:
        """Ends an edge: no more messages come on it."""
        self._open[edge] = False

    def take(self) -> tuple[int, list[Msg]] | None:
        """Removes and returns the smallest tick and its messages, one for each edge, a SkipTickMsg where an edge has none.

        Returns None if the next tick is not determined yet, or does not exist.
        """
        queues = self.queues
        if len(queues) == 1:
            if not queues[0]:
                return None
            msg = queues[0].popleft()
            return msg.time_tick, [msg]
        tick: int | None = None
        for edge, queue in enumerate(queues):
            if queue:
                first = queue[0].time_tick
                if tick is None or first < tick:
                    tick = first
            elif self._open[edge]:
                return None
        if tick is None:
            return None
        return tick, [queue.popleft() if queue and queue[0].time_tick == tick else SkipTickMsg(tick) for queue in queues]
