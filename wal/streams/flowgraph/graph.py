"""TimeTickedFlowGraph: nodes and edges, started and closed together.

Owns the actors of its nodes, their operations, and the end. The graph ends when every input has ended and all ticks have passed the sinks,
or when a node has failed and nothing can move any more. It guarantees that the first failure is stored, that operations still running at
the end are awaited, and that no task remains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from graphlib import CycleError, TopologicalSorter
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from actors import Actor, ActorRef, ActorStoppedError, ActorSystem, Clock, Group, SystemClock, Timer
from wal.errors import ClosedError, InvalidArgumentError, UnknownError
from wal.runtime.user_code import shielded, text_of
from wal.streams.flowgraph.context import Call, Edge, NodeContext, Work
from wal.streams.flowgraph.node import (
    EdgeStatistics,
    FlowGraphStates,
    FlowGraphStatistics,
    InputAligner,
    Node,
    NodeFailedError,
    NodeStatistics,
    Outputs,
    check_node,
)


class Edges(msgspec.Struct, frozen=True):
    """The arguments of `set_edges` for one node: the names of the nodes before it and after it, in order."""

    in_: tuple[str, ...] = ()
    out: tuple[str, ...] = ()


def check_wiring(wiring: Mapping[str, Edges], is_input: Mapping[str, bool | None]) -> None:
    """Raises InvalidArgumentError unless both nodes of every edge name it, every node has the edges that it needs, and the graph has no
    cycle.

    Both mappings have an entry for every node of the graph. `is_input` is True for a node that must have no in-edges, False for a node that
    needs some, and None for a node that works with both.
    """
    if not wiring:
        raise InvalidArgumentError("the flow graph has no nodes: add some with add_node() and set_edges()")
    for name, edges in wiring.items():
        if not edges.in_ and not edges.out:
            raise InvalidArgumentError(f"node {name!r} has no edges: connect it with set_edges(), or leave it out")
        if is_input[name] is False and not edges.in_:
            raise InvalidArgumentError(
                f"node {name!r} has no in-edges, and works on what they bring: name the nodes before it with set_edges({name!r}, in_=[…])"
            )
        if is_input[name] and edges.in_:
            raise InvalidArgumentError(
                f"node {name!r} has in-edges from {', '.join(map(repr, edges.in_))}, and is an input node, which ignores them: leave out "
                f"in_ in set_edges({name!r})"
            )
        for side, others in (("in_", edges.in_), ("out", edges.out)):
            for other in others:
                if others.count(other) > 1:
                    raise InvalidArgumentError(
                        f"set_edges({name!r}) names {other!r} more than once in {side}: two nodes have at most one edge"
                    )
                if other not in wiring:
                    raise InvalidArgumentError(
                        f"set_edges({name!r}) names {other!r} in {side}, which is not a node of the graph "
                        f"({', '.join(map(repr, wiring))}): add it with add_node()"
                    )
                back, facing = ("out", wiring[other].out) if side == "in_" else ("in_", wiring[other].in_)
                if name not in facing:
                    raise InvalidArgumentError(
                        f"set_edges({name!r}) names {other!r} in {side}, but set_edges({other!r}) does not name {name!r} "
                        f"in {back}: name the edge on both sides"
                    )
    try:
        TopologicalSorter({name: edges.in_ for name, edges in wiring.items()}).prepare()
    except CycleError as error:
        cycle: Sequence[str] = error.args[1]
        raise InvalidArgumentError(
            f"the edges {' → '.join(map(repr, cycle))} are a cycle, in which every node would wait for itself: remove one"
        ) from None


def reachable_sinks(wiring: Mapping[str, Edges], name: str) -> set[str]:
    """Returns the nodes without out-edges that a node leads to; a node without out-edges leads to itself."""
    reached, waiting = {name}, [name]
    while waiting:
        for other in wiring[waiting.pop()].out:
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return {one for one in reached if not wiring[one].out}


_ESCAPED: Final = str.maketrans({char: f"#{ord(char)};" for char in '#"&<>`\\'} | {"\n": " ", "\r": " "})
"""Mermaid writes a character as its number between `#` and `;`. These characters end a text, or have a meaning in one."""


def to_mermaid(statistics: FlowGraphStatistics) -> str:
    """Returns a flowchart with the figures of each node and each edge."""
    ids = {node.name: f"n{number}" for number, node in enumerate(statistics.nodes)}
    lines = ["flowchart LR"]
    lines += [f'    {ids[node.name]}["{_node(node)}"]' for node in statistics.nodes]
    lines += [f'    {ids[edge.source]} -->|"{_edge(edge)}"| {ids[edge.target]}' for edge in statistics.edges]
    return "\n".join(lines) + "\n"


def _node(node: NodeStatistics) -> str:
    parts = [
        node.name.translate(_ESCAPED),
        f"tick {_tick(node.tick)}, {node.active} active, {node.completed} completed",
        f"working {node.working_s:.3f} s, blocked {node.blocked_s:.3f} s",
    ]
    if node.ended:
        parts.append("ended")
    elif node.waits_for:
        parts.append(f"waits for {', '.join(name.translate(_ESCAPED) for name in node.waits_for)}")
    return "<br/>".join(parts)


def _edge(edge: EdgeStatistics) -> str:
    return f"{edge.pending} of {edge.capacity} pending, tick {_tick(edge.tick)}"


def _tick(tick: int | None) -> str:
    return "none" if tick is None else str(tick)


class Worker(Actor):
    """The actor that awaits the waiting calls of `operate` of one node, one after the other.

    A node has up to `max_parallelism` workers, created on demand. After a call the worker has the node continue, and awaits the next call
    if there is one, without a detour over the inbox.
    """

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._work: Work | None = None

    async def receive(self, batch: list[Any]) -> None:
        context = self._context
        while (work := context.next_call()) is not None:
            self._work = work
            try:
                outputs = await (self._input(work) if context.may_cancel else work.awaitable)
            except asyncio.CancelledError as cause:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise  # the worker is stopping; otherwise `operate` has awaited something that was cancelled
                context.finish(work, None, cause)
            except (Exception, SystemExit, KeyboardInterrupt) as cause:  # the last two would end the loop, any other would end the worker
                context.finish(work, None, cause)
            else:
                context.finish(work, outputs, None)
            self._work = None
        context.rest(self.call)

    def call(self) -> None:
        """Wakes the worker."""
        self.ref.tell(None)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        if self._work is not None:
            self._context.finish(self._work, None, cause)
        self._context.poisoned(cause, [])

    async def _input(self, work: Work) -> Outputs:
        """Awaits a call of an input node. If the call is stopped, it returns nothing."""
        try:
            async with asyncio.timeout(0.0 if self._context.stopping else None) as limit:
                work.limit = limit
                return await work.awaitable
        except TimeoutError:
            if not limit.expired():
                raise
            work.stopped = True
            return None
        finally:
            work.limit = None


class Committer(Actor):
    """The actor that commits, at the input node of `context`, the ticks that have passed every sink it leads to.

    Calls of `commit` never overlap, and their ticks ascend. While a call runs, the ticks that pass are collected for the next.
    """

    def __init__(
        self,
        context: NodeContext,
        sinks: Sequence[NodeContext],
        commit: Callable[[int], Awaitable[None]],
        failed: Callable[[NodeFailedError], None],
    ) -> None:
        self._context = context
        self._sinks = sinks
        self._commit = commit
        self._failed = failed
        self._tick: int | None = None
        self._commit_requested = False
        self._over = False

    def look(self) -> None:
        """Schedules a commit of the ticks that have passed every sink since the last call."""
        source_ticks = self._context.given
        if not source_ticks or self._over:
            return
        ticks = [sink.recorded for sink in self._sinks]
        passed = min((tick for tick in ticks if tick is not None), default=None)
        if passed is None or None in ticks or source_ticks[0] > passed:
            return
        while source_ticks and source_ticks[0] <= passed:
            self._tick = source_ticks.popleft()
        if not self._commit_requested:
            self._commit_requested = True
            self.ref.tell(None)

    async def receive(self, batch: list[Any]) -> None:
        self._commit_requested = False
        tick = self._tick
        if tick is None or self._over:
            return
        try:
            committing = self._commit(tick)
            if not isinstance(committing, Awaitable):
                raise TypeError("commit() must be a coroutine function: async def commit(self, tick)")
            await committing
        except (Exception, SystemExit, KeyboardInterrupt) as cause:  # as for `operate`
            self._fail(cause)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        if isinstance(cause, ActorStoppedError):
            cause = TimeoutError("commit() was cancelled, as it did not end within drain_timeout_s after the flow graph")
        self._fail(cause)

    def _fail(self, cause: BaseException) -> None:
        if not self._over:
            self._over = True
            self._failed(NodeFailedError(self._context.node_name, self._tick, cause))


_log: Final = logging.getLogger("wal.flowgraph")


class TimeTickedFlowGraph:
    """A graph that runs once: add nodes and edges, then `async with graph`, or `await start()` and `await close()`.

    `start_tick` is the lowest tick that the graph takes from an input node. `drain_timeout_s` is how long the graph may work after a close
    or a failure. Operations that still run then are cancelled, and ticks that have not passed the sinks are not committed.

    A failure is logged, and raised when the block is left, unless `done()` returned or `error` was read before.
    """

    def __init__(self, *, start_tick: int = 0, drain_timeout_s: float = 60.0, clock: Clock | None = None) -> None:
        if not isinstance(start_tick, int) or not isinstance(drain_timeout_s, int | float):
            raise TypeError(
                f"start_tick is {start_tick!r} and drain_timeout_s is {drain_timeout_s!r}: give a time tick, and a number of seconds"
            )
        if start_tick < 0:
            raise InvalidArgumentError(f"start_tick is {start_tick}: it must be at least 0, as all time ticks are")
        if not drain_timeout_s >= 0:
            raise InvalidArgumentError(f"drain_timeout_s is {drain_timeout_s}: it must be at least 0 s")
        self._states = FlowGraphStates(start_tick=start_tick)
        self._drain_timeout_s = drain_timeout_s
        self._clock: Clock = clock or SystemClock()
        self._nodes: dict[str, Node] = {}
        self._wiring: dict[str, Edges] = {}
        self._contexts: dict[str, NodeContext] = {}
        self._committers: list[Committer] = []
        self._group: Group | None = None
        self._workers: list[ActorRef] = []
        self._executor: ThreadPoolExecutor | None = None
        self._host: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._stopping = False
        self._timer: Timer | None = None
        self._quiet = asyncio.Event()
        self._ended = asyncio.Event()
        self._closed = False
        self._error: Exception | None = None
        self._error_reported = False

    @property
    def error(self) -> Exception | None:
        """The NodeFailedError of the first failure. None while the graph runs, and after an end without failure."""
        self._error_reported = self._error is not None
        return self._error

    def add_node(self, node: Node) -> None:
        """Adds a node. Raises InvalidArgumentError for a name in use, or after the start, and TypeError for an object that is not a
        node.
        """
        self._check_not_started()
        check_node(node)
        name = node.name
        if name in self._nodes:
            raise InvalidArgumentError(f"the flow graph has a node {name!r} already: give this one another name")
        self._nodes[name] = node

    def set_edges(self, name: str, in_: Sequence[str] = (), out: Sequence[str] = ()) -> None:
        """Sets the nodes before and after the node of this name; both nodes must name an edge. A second call replaces the first.

        The order of `in_` is that of the messages that `operate` gets, and the order of `out` is that of `down_stream_node_idx`. `start`
        checks the names.
        """
        self._check_not_started()
        for what, names in (("in_", in_), ("out", out)):
            if isinstance(names, str) or not isinstance(names, Iterable):
                raise TypeError(f"{what} of set_edges({name!r}) is {names!r}: give a list of names")
        self._wiring[name] = Edges(tuple(in_), tuple(out))

    async def start(self) -> None:
        """Starts the graph. If the edges have a cycle or do not match, it raises InvalidArgumentError and starts nothing.

        A cancelled start closes the graph.
        """
        if self._closed:
            raise ClosedError("the flow graph was closed, and runs only once: create a new one")
        self._check_not_started()
        for name in self._wiring:
            if name not in self._nodes:
                raise InvalidArgumentError(
                    f"set_edges({name!r}) is about no node of the graph ({', '.join(map(repr, self._nodes)) or 'it has none'}): "
                    "add it with add_node()"
                )
        wiring = {name: self._wiring.get(name, Edges()) for name in self._nodes}
        check_wiring(wiring, {name: getattr(node, "is_input", None) for name, node in self._nodes.items()})
        for node in self._nodes.values():
            node.set_pipeline_states(self._states)
        self._host = asyncio.get_running_loop().create_task(self._run(wiring), name="flow graph: host")
        self._host.add_done_callback(self._host_ended)
        try:
            await self._started.wait()
        except BaseException:
            self._stop()
            raise

    async def close(self) -> None:
        """Stops the inputs, waits until the messages in the graph have passed the sinks, commits those ticks, and ends the graph.

        A join takes no tick that a stopped input has not reached, exactly as without the close. All ticks that every stopped input has
        reached pass the sinks. Later ticks may remain: they are not committed, and their inputs return them again after a restart.

        Idempotent. There may be any number of callers; cancelling one does not abort the close. Raises RuntimeError in `operate`, `commit`
        or `close` of a node, which would wait for itself.
        """
        actors = [*self._workers, *(committer.ref for committer in self._committers)]
        if asyncio.current_task() in [self._host, *(actor.task for actor in actors)]:
            raise RuntimeError("a node cannot wait for the end of its graph: call close() from another task")
        self._closed = True
        if self._host is None:
            self._ended.set()
            return
        self._stop()
        await self._ended.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with shielded():
            await self.close()
        if kind is None and self._error is not None and not self._error_reported:
            self._error_reported = True
            raise self._error

    async def done(self) -> None:
        """Returns when the graph has ended, for whatever reason. Never raises; `error` has the reason. A cancelled call leaves the graph
        running.
        """
        await self._ended.wait()
        self._error_reported = self._error is not None

    def statistics(self) -> FlowGraphStatistics:
        """Returns the state of every node and every edge; empty before the start."""
        contexts = self._contexts.values()
        return FlowGraphStatistics(
            nodes=tuple(context.statistics() for context in contexts),
            edges=tuple(
                EdgeStatistics(source=edge.source, target=edge.target, pending=edge.pending, capacity=edge.capacity, tick=edge.tick)
                for context in contexts
                for edge in context.outs
            ),
        )

    def to_mermaid(self) -> str:
        """Returns the graph with the figures of `statistics()` as a Mermaid flowchart."""
        return to_mermaid(self.statistics())

    async def _run(self, wiring: dict[str, Edges]) -> None:
        """Runs as the host task, from the start to the end."""
        try:
            system = ActorSystem("flow graph", clock=self._clock, stop_timeout_s=self._drain_timeout_s)
            async with system:
                self._build(system, wiring)
                self._started.set()
                try:
                    await self._quiet.wait()
                finally:
                    self._check_ended()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._executor is not None:
                self._executor.shutdown(wait=False)
            await self._close_nodes()

    async def _close_nodes(self) -> None:
        for node in self._nodes.values():
            if (close := getattr(node, "close", None)) is not None:
                try:
                    closing = close()
                    if not isinstance(closing, Awaitable):
                        raise TypeError("close() must be a coroutine function: async def close(self)")
                    await closing
                except GeneratorExit:
                    raise
                except BaseException as error:
                    if isinstance(error, asyncio.CancelledError) and (host := self._host) is not None and host.cancelling():
                        raise  # the loop ends; otherwise `close` has awaited something that was cancelled
                    _log.error("node %r of a flow graph could not be closed: %s", node.name, text_of(error), exc_info=error)

    def _build(self, system: ActorSystem, wiring: dict[str, Edges]) -> None:
        """Creates the actors and the edges, and wakes every node."""
        self._group = group = system.group("nodes", inbox_max=len(wiring) + 1, on_turn_end=self._turn_ended)

        def hire(context: NodeContext) -> Call:
            """Creates one more worker for a node."""
            worker = Worker(context)
            self._workers.append(system.spawn(worker, name=f"worker {len(self._workers)}: {context.node_name}", inbox_max=1))
            return worker.call

        in_thread = {name for name, node in self._nodes.items() if getattr(node, "in_thread", False)}
        if in_thread:
            threads = sum(self._nodes[name].max_parallelism for name in in_thread)
            self._executor = ThreadPoolExecutor(threads, thread_name_prefix="flow graph")
        inputs = {name: InputAligner(len(edges.in_)) for name, edges in wiring.items()}
        self._contexts = contexts = {
            name: NodeContext(
                node,
                inputs=inputs[name],
                states=self._states,
                tell=group.tell,
                hire=hire,
                executor=self._executor if name in in_thread else None,
                failed=self._failed,
            )
            for name, node in self._nodes.items()
        }
        edges = {
            (source, target): Edge(
                source,
                target,
                capacity=self._nodes[target].max_queue_length,
                inputs=inputs[target],
                index=index,
                wake_source=contexts[source].wake,
                wake_target=contexts[target].wake,
            )
            for target in wiring
            for index, source in enumerate(wiring[target].in_)
        }
        for name, context in contexts.items():
            context.connect([edges[source, name] for source in wiring[name].in_], [edges[name, target] for target in wiring[name].out])
            group.join(context, name=name)
            commit = getattr(self._nodes[name], "commit", None)
            if commit is not None and not context.ins:
                sinks = [contexts[sink] for sink in reachable_sinks(wiring, name)]
                committer = Committer(context, sinks, commit, self._failed)
                system.spawn(committer, name=f"commits of {name}")
                self._committers.append(committer)
        for context in contexts.values():
            context.wake()
        if self._stopping:
            self._stop_inputs()

    def _turn_ended(self) -> None:
        for committer in self._committers:
            committer.look()
        self._look_quiet()

    def _look_quiet(self) -> None:
        """Ends the graph when nothing runs and no work remains."""
        if self._group is None or self._group.pending:
            return
        if not any(context.active for context in self._contexts.values()):
            self._quiet.set()

    def _check_ended(self) -> None:
        """Ends the nodes that have not ended because a failure or a cancellation blocks them."""
        waiting = [name for name, context in self._contexts.items() if not context.ended]
        if waiting and self._quiet.is_set() and not self._stopping:
            self._error = UnknownError(
                f"the flow graph has stalled: nothing runs, but nodes {', '.join(map(repr, waiting))} have not ended; please report it"
            )
        for context in self._contexts.values():
            context.release()

    def _failed(self, error: NodeFailedError) -> None:
        _log.error("a flow graph failed: %s", error, exc_info=error.__cause__)
        if self._error is None:
            self._error = error
        self._stop()

    def _stop(self) -> None:
        """Ends the inputs, and starts the timeout of the rest."""
        if self._stopping:
            return
        self._stopping = True
        self._timer = self._clock.call_later(self._drain_timeout_s, self._cut_off)
        self._stop_inputs()

    def _stop_inputs(self) -> None:
        for context in self._contexts.values():
            if not context.ins:
                context.stop_input()

    def _cut_off(self) -> None:
        """Ends the nodes that have not ended in time."""
        cause = TimeoutError(f"it was cancelled {self._drain_timeout_s} s after the flow graph began to end")
        for context in self._contexts.values():
            context.cut_off(cause)
        for worker in self._workers:
            worker.cut_off()
        self._quiet.set()

    def _host_ended(self, host: asyncio.Task[None]) -> None:
        """Ends the graph, in a callback, since a task that is cancelled before its first step runs no line of `_run`."""
        self._started.set()
        self._ended.set()
        if not host.cancelled() and (error := host.exception()) is not None:
            _log.error("the host of a flow graph failed", exc_info=error)
            if self._error is None and isinstance(error, Exception):
                self._error = error

    def _check_not_started(self) -> None:
        if self._host is not None:
            raise InvalidArgumentError("the flow graph was started already: create a new one")
