"""NodeContext: the actor of one node. It takes ticks, has the node operate on them, and sends the results on.

It is a member of the group of its graph, so it never waits: workers await the calls that wait, and every completion wakes it. Its only
message is the wake-up. It guarantees that calls begin, and results are sent, in the order of ticks. Every out-edge gets one message for
each tick (a SkipTickMsg where the node returned none), and a tick is sent only when every out-edge has room.

A graph cannot stall, whatever the lengths of its queues. A node that lacks an input for tick t waits for a node that has sent less than t.
A node that lacks room for its result waits for a node whose oldest input is an earlier tick. So the ticks descend along every chain of
waiting nodes, and no chain is a circle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Executor
from time import perf_counter
from types import NoneType
from typing import Any, Final, TypeAlias

from actors import Member
from wal.errors import InvalidArgumentError
from wal.runtime.user_code import called
from wal.streams.flowgraph.node import FlowGraphStates, InputAligner, Msg, Node, NodeFailedError, NodeStatistics, Outputs, SkipTickMsg


class Edge:
    """Carries the messages of node `source` to node `target`, and bounds them. `index` is the edge's index in the target's `inputs`.

    Owns the credits of the edge: `capacity`, the target's `max_queue_length`, less the messages that wait there. A credit returns when the
    target takes the message for `operate`. Every edge has credits of its own: if the in-edges of a join shared them, the faster edge would
    use them all, and the join would wait for the slower one for ever. `wake_source` and `wake_target` wake these nodes.
    """

    __slots__ = (
        "_index", "_inputs", "_queue", "_source_waits", "_wake_source", "_wake_target", "capacity", "source", "target", "tick",
    )  # fmt: skip

    def __init__(
        self,
        source: str,
        target: str,
        *,
        capacity: int,
        inputs: InputAligner,
        index: int,
        wake_source: Callable[[], None],
        wake_target: Callable[[], None],
    ) -> None:
        self.source: str = source
        self.target: str = target
        self.capacity: int = capacity
        self.tick: int | None = None
        """The tick of the last message; None before the first."""
        self._inputs = inputs
        self._index = index
        self._queue: deque[Msg] = inputs.queues[index]
        self._wake_source = wake_source
        self._wake_target = wake_target
        self._source_waits = False

    def __repr__(self) -> str:
        return repr(self.target)

    @property
    def pending(self) -> int:
        """The number of messages that wait for the target."""
        return len(self._queue)

    def has_room(self) -> bool:
        """Returns whether there is a credit; if not, the next credit wakes the source."""
        if len(self._queue) < self.capacity:
            return True
        self._source_waits = True
        return False

    def put(self, tick: int, msg: Msg) -> None:
        """Adds a message; there must be room."""
        self.tick = tick
        self._queue.append(msg)
        self._wake_target()

    def taken(self) -> None:
        """Frees credits after the target may have taken a message."""
        if self._source_waits and len(self._queue) < self.capacity:
            self._source_waits = False
            self._wake_source()

    def end(self) -> None:
        """Ends the edge: no more messages come."""
        self._inputs.end(self._index)
        self._wake_target()


class Work:
    """One tick that a node works on, from its call of `operate` until its results are on the out-edges. Pure."""

    __slots__ = ("awaitable", "began", "done", "error", "limit", "outputs", "routed", "skipped", "stopped", "tick")

    def __init__(self, tick: int) -> None:
        self.tick: int = tick
        """The tick. For an input node, the last tick until it has returned the next."""
        self.began: float = 0.0
        self.awaitable: Awaitable[Outputs]
        """The call, if it waits."""
        self.limit: asyncio.Timeout | None = None
        """The timeout that stops a waiting call of an input node."""
        self.stopped: bool = False
        """Whether the call of an input node was stopped."""
        self.skipped: bool = False
        """Whether all inputs skip, so that there is no call."""
        self.done: bool = False
        self.outputs: Outputs = None
        self.error: BaseException | None = None
        self.routed: list[Msg] | None = None
        """The message for each out-edge."""


RESULTS: Final = (list, tuple, NoneType, Sequence)
"""The types that `operate` may return. The usual types come first, because a check of an abstract one costs more."""


def route(tick: int, outputs: Outputs, targets: Sequence[object]) -> list[Msg]:
    """Returns the message for each out-edge, in their order, a SkipTickMsg where the node returned none. Errors contain the names in
    `targets`.

    Raises InvalidArgumentError for a message of another tick, a message for an edge that does not exist, or a second message for an edge.
    Raises TypeError for results that are not a list of messages.
    """
    if type(outputs) is not list:  # the usual type: the call costs more than this check
        check_results(outputs)
    routed: list[Msg | None] = [None] * len(targets)
    for msg in outputs or ():
        try:
            if msg.time_tick != tick:
                raise InvalidArgumentError(
                    f"it gave a message of tick {msg.time_tick} at tick {tick}: all messages of a call have its tick"
                )
            index = msg.down_stream_node_idx
            if not -1 <= index < len(routed):
                raise InvalidArgumentError(
                    f"it gave a message for out-edge {index} at tick {tick}: it has {len(routed)} out-edges, "
                    "counted from 0; -1 means all of them"
                )
            for edge in range(len(routed)) if index == -1 else (index,):
                if routed[edge] is not None:
                    raise InvalidArgumentError(
                        f"it gave two messages for the edge to {targets[edge]} at tick {tick}: "
                        "an edge carries one message a tick, so put everything into one"
                    )
                routed[edge] = msg
        except (AttributeError, TypeError) as error:
            raise TypeError(no_message(msg, error)) from error
    return [SkipTickMsg(tick) if msg is None else msg for msg in routed]


def check_results(outputs: object) -> None:
    """Raises TypeError for results that are not a list of messages."""
    if not isinstance(outputs, RESULTS) or isinstance(outputs, str | bytes):
        raise TypeError(f"it gave {outputs!r:.200}: operate() gives a list of messages, or None")


def tick_of(outputs: Sequence[Msg]) -> int:
    """Returns the tick of the results of an input node. Raises TypeError without results."""
    try:
        tick: int = outputs[0].time_tick
    except AttributeError as error:
        raise TypeError(no_message(outputs[0], error)) from error
    if not isinstance(tick, int):
        raise TypeError(f"it gave tick {tick!r}: a tick is an int")
    return tick


def no_message(msg: object, error: Exception) -> str:
    """Returns the error text for an object that is not a message."""
    return (
        f"it gave {msg!r:.200}, which is no message of a flow graph ({error}): operate() gives objects with time_tick, skip_this_tick and "
        "down_stream_node_idx, such as BatchMsg(tick, messages)"
    )


Call: TypeAlias = Callable[[], None]
"""Wakes a worker, which then calls `next_call`."""


class NodeContext(Member):
    """The actor of `node`. Call `connect` before the first `wake`."""

    __slots__ = (
        "_active", "_begun", "_blocked_s", "_blocked_since", "_completed", "_executor", "_failed", "_hire", "_inputs", "_node",
        "_parallelism", "_ready", "_records", "_resting", "_start_tick", "_tell", "_woken", "_workers", "_working_s",
        "ended", "given", "ins", "may_cancel", "node_name", "outs", "stopping", "tick",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        *,
        inputs: InputAligner,
        states: FlowGraphStates,
        tell: Callable[[Member, object], None],
        hire: Callable[[NodeContext], Call],
        executor: Executor | None,
        failed: Callable[[NodeFailedError], None],
    ) -> None:
        self.node_name: str = node.name
        self.ins: list[Edge] = []
        self.outs: list[Edge] = []
        self.given: deque[int] = deque()
        """For an input node, the ticks that it has returned and not committed yet."""
        self.tick: int | None = None
        """The last tick on the out-edges; for a sink, the last tick that has passed it."""
        self.ended: bool = False
        """Whether the actor takes nothing more: its input has ended, or it has failed."""
        self.may_cancel: bool = False
        """Whether a closing graph may cancel the call: True for a call of an input node, unless it runs in a thread."""
        self.stopping: bool = False
        """Whether an input node was stopped."""
        self._node = node
        self._inputs = inputs
        self._start_tick = states.start_tick
        self._tell = tell
        self._hire = hire
        self._executor = executor
        self._failed = failed
        self._records = hasattr(node, "recorded_tick")
        self._parallelism = 1
        self._begun: deque[Work] = deque()  # in the order of ticks
        self._ready: deque[Work] = deque()  # the works of _begun whose calls wait and are not awaited yet
        self._resting: list[Call] = []
        self._workers = 0
        self._woken = False
        self._active = states.num_active_tasks
        self._completed = states.num_completed_tasks
        self._active[node.name] = self._completed[node.name] = 0
        self._working_s = self._blocked_s = 0.0
        self._blocked_since: float | None = None

    @property
    def active(self) -> int:
        """The number of calls of `operate` that have not ended."""
        return self._active[self.node_name]

    def connect(self, ins: list[Edge], outs: list[Edge]) -> None:
        """Connects the actor to its edges. An input node works on a single tick, since the node itself chooses the tick."""
        self.ins, self.outs = ins, outs
        if ins:
            self._parallelism = self._node.max_parallelism
        else:
            self.may_cancel = self._executor is None

    def wake(self) -> None:
        """Schedules a turn in which the actor does what is possible now."""
        if not self._woken and self._group is not None:
            self._woken = True
            self._tell(self, None)

    def stop_input(self) -> None:
        """Ends the input of an input node."""
        self.stopping = True
        for work in self._begun:
            if work.limit is not None:
                work.limit.reschedule(0.0)
        self.wake()

    def cut_off(self, cause: BaseException) -> None:
        """Takes nothing more; a tick that the node works on fails for this cause."""
        for work in self._begun:
            if not self.ended and not work.done:
                self._fail(work.tick if self.ins else self.tick, cause)
        self.release()

    def release(self) -> None:
        """Takes nothing more, and drops the calls that no worker awaits."""
        self.ended = True
        for work in self._ready:
            if isinstance(work.awaitable, Coroutine):
                work.awaitable.close()
        self._ready.clear()

    def receive(self, batch: list[Any]) -> None:
        self._woken = False
        self._advance()
        self._call_workers()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        if not self.ended:
            self._fail(self._begun[0].tick if self._begun else self.tick, cause)
        self.wake()

    @property
    def recorded(self) -> int | None:
        """For a sink, the tick up to which sources may commit; None before any."""
        tick = self.tick
        if tick is None or not self._records:
            return tick
        recorded: int | None = getattr(self._node, "recorded_tick")  # noqa: B009 - not every node has it
        return None if recorded is None else min(tick, recorded)

    def finish(self, work: Work, outputs: Outputs, error: BaseException | None) -> None:
        """Records the result of a call."""
        self._working_s += perf_counter() - work.began
        self._active[self.node_name] -= 1
        work.done, work.outputs, work.error = True, outputs, error

    def next_call(self) -> Work | None:
        """Sends and begins what is possible, and returns the next call to await; None if the calling worker may rest."""
        self._advance()
        work = self._ready.popleft() if self._ready else None
        self._call_workers()
        if not self.outs:
            self.wake()  # at the end of its turn the group checks which ticks have passed the sinks
        return work

    def rest(self, call: Call) -> None:
        """Stores an idle worker until there is a call for it."""
        self._resting.append(call)
        self.wake()  # at the end of its turn the group checks whether work remains

    def statistics(self) -> NodeStatistics:
        """Returns the counts and times until now."""
        now = perf_counter()
        running = sum(now - work.began for work in self._begun if not work.done)
        blocked = 0.0 if self._blocked_since is None else now - self._blocked_since
        return NodeStatistics(
            name=self.node_name,
            tick=self.tick,
            active=self.active,
            completed=self._completed[self.node_name],
            working_s=self._working_s + running,
            blocked_s=self._blocked_s + blocked,
            waits_for=self._waits_for(),
            ended=self.ended,
        )

    def _waits_for(self) -> tuple[str, ...]:
        if self.ended:
            return ()
        if self._blocked_since is not None:
            return tuple(edge.target for edge in self.outs if edge.pending >= edge.capacity)
        if self.active:
            return tuple(getattr(self._node, "waits_for", ()))
        return tuple(self.ins[index].source for index in self._inputs.missing)

    def _call_workers(self) -> None:
        """Wakes or creates workers so that every ready call has one, up to the parallelism."""
        for _ in self._ready:
            if self._resting:
                self._resting.pop()()
            elif self._workers < self._parallelism:
                self._workers += 1
                self._hire(self)()

    def _advance(self) -> None:
        """Sends and begins ticks until nothing more is possible."""
        begun = self._begun
        while not self.ended:
            if begun:
                self._hand_on()
            if len(begun) >= self._parallelism or self.ended:
                return
            work = self._begin()
            if work is None:
                return
            begun.append(work)
            if not work.done:
                self._ready.append(work)

    def _begin(self) -> Work | None:
        """Begins to work on the next tick, if there is one; ends if there will not be another."""
        if not self.ins:
            if not self.stopping:
                return self._operate(Work(self.tick or 0), [])
            # The out-edges do not end: a join must not mistake the silence of a stopped input for empty ticks.
            self.ended = True
            return None
        aligned = self._inputs.take()
        if aligned is None:
            if not self._begun and self._inputs.ended:
                self._end()
            return None
        tick, msgs = aligned
        work = Work(tick)
        for edge in self.ins:
            edge.taken()
        for msg in msgs:
            try:
                skipped = msg.skip_this_tick
            except AttributeError as error:
                source = next(edge.source for edge, one in zip(self.ins, msgs, strict=True) if one is msg)
                work.done, work.error = True, TypeError(f"of node {source!r}: {no_message(msg, error)}")
                return work
            if not skipped:
                return self._operate(work, msgs)
        work.done = work.skipped = True
        return work

    def _operate(self, work: Work, msgs: list[Msg]) -> Work:
        self._active[self.node_name] += 1
        work.began = perf_counter()
        try:
            result: Any
            if self._executor is None:
                result = self._node.operate(msgs)
            else:
                result = asyncio.get_running_loop().run_in_executor(self._executor, called, self._node.operate, msgs)
            if not isinstance(result, RESULTS) and isinstance(result, Awaitable):
                work.awaitable = result
                return work
        except BaseException as cause:  # also a CancelledError, which a plain function may raise without any cancellation
            self.finish(work, None, cause)
        else:
            self.finish(work, result, None)
        return work

    def _hand_on(self) -> None:
        """Sends finished results in the order of ticks, while there is room."""
        begun, outs = self._begun, self.outs
        while begun and (work := begun[0]).done:
            routed = work.routed
            if routed is None:
                routed = self._route(work)
                if routed is None:
                    return
            room = True
            for edge in outs:
                room &= edge.has_room()
            if not room:
                if self._blocked_since is None:
                    self._blocked_since = perf_counter()
                return
            if self._blocked_since is not None:
                self._blocked_s += perf_counter() - self._blocked_since
                self._blocked_since = None
            begun.popleft()
            self.tick = tick = work.tick
            if not self.ins:
                self.given.append(tick)
            for edge, msg in zip(outs, routed):  # noqa: B905 - equal by construction; strict costs
                edge.put(tick, msg)
            if not work.skipped:
                self._completed[self.node_name] += 1

    def _route(self, work: Work) -> list[Msg] | None:
        """Returns the messages for the out-edges of a tick; None if the node ends or fails instead."""
        error = work.error
        if error is None:
            try:
                if not self.ins:
                    if type(work.outputs) is not list:  # as in route
                        check_results(work.outputs)
                    if not work.outputs:
                        self._begun.clear()
                        if not work.stopped:
                            self._end()
                        return None
                    work.tick = self._next_tick(work.outputs)
                work.routed = route(work.tick, work.outputs, self.outs)
                return work.routed
            except Exception as cause:
                error = cause
        self._fail(work.tick if self.ins else self.tick, error)
        return None

    def _next_tick(self, outputs: Any) -> int:
        """Returns the tick that an input node has returned."""
        tick = tick_of(outputs)
        if self.tick is not None and tick <= self.tick:
            raise InvalidArgumentError(f"it gave tick {tick} after tick {self.tick}: ticks of an input node must ascend")
        if tick < self._start_tick:
            raise InvalidArgumentError(f"it gave tick {tick}: the graph starts at tick {self._start_tick}")
        return tick

    def _end(self) -> None:
        self.ended = True
        for edge in self.outs:
            edge.end()

    def _fail(self, tick: int | None, cause: BaseException) -> None:
        """Takes nothing more. The out-edges do not end, as for a stopped input."""
        self.ended = True
        self._failed(NodeFailedError(self.node_name, tick, cause))
