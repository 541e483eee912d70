"""NodeContext: the actor of one node. It takes ticks, has the node operate on them, and hands the results on.

It is a member of the group of its graph, so it never waits: operations that wait are tasks, and whatever it waits for wakes it. Its only
message is the wake-up. It guarantees that ticks are handed on in ascending order, that every out-edge gets one message for each tick (a
SkipTickMsg where the node gave none), and that a tick is handed on only when every out-edge has room.

A graph cannot stall, whatever the lengths of its queues. A node that lacks an input for tick t waits for a node that has handed on less
than t; a node that lacks room for its result waits for a node whose oldest input is a tick that was handed on before. So the ticks descend
along every chain of waiting nodes, and no chain is a circle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from types import NoneType
from typing import Any, Final, cast

from actors import Member
from wal.errors import InvalidArgumentError
from wal.flowgraph.edge import Edge
from wal.flowgraph.errors import NodeFailedError
from wal.flowgraph.inputs import InputAligner
from wal.flowgraph.msg import Msg, SkipTickMsg
from wal.flowgraph.node import Node, Outputs
from wal.flowgraph.operations import Operations, Waiting
from wal.flowgraph.states import FlowGraphStates
from wal.flowgraph.statistics import NodeStatistics

__all__ = ["NodeContext"]


_RESULTS: Final = (list, tuple, NoneType, Sequence)
"""What `operate` may give; the usual types come first, because asking an abstract one costs more."""


class _Work:
    """One tick that a node works on; the tick of an input node is not known before the node has given it."""

    __slots__ = ("addressed", "began", "done", "error", "outputs", "skipped", "tick", "waiting")

    def __init__(self, tick: int) -> None:
        self.tick = tick
        self.began = 0.0
        self.done = False
        self.skipped = False
        self.outputs: Outputs = None
        self.error: BaseException | None = None
        self.waiting: Waiting | None = None
        self.addressed: list[Msg] | None = None


class NodeContext(Member):
    """The actor of `node`; `connect` it before the first `wake`."""

    __slots__ = (
        "_active", "_begun", "_blocked_s", "_blocked_since", "_completed", "_failed", "_in_thread", "_inputs", "_operations",
        "_parallelism", "_states", "_stopping", "_tell", "_woken", "_working_s", "ended", "given", "ins", "node", "outs", "tick",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        *,
        inputs: InputAligner,
        operations: Operations,
        states: FlowGraphStates,
        tell: Callable[[Member, object], None],
        failed: Callable[[NodeFailedError], None],
    ) -> None:
        self.node: Node = node
        self.ins: list[Edge] = []
        self.outs: list[Edge] = []
        self.given: deque[int] = deque()
        """Of an input node, the ticks that it has given and that are not committed."""
        self.tick: int | None = None
        """The last tick that was handed on; of a sink, the last one that has passed it."""
        self.ended: bool = False
        """Whether it takes nothing more: its input has ended, or it has failed."""
        self._inputs = inputs
        self._operations = operations
        self._states = states
        self._tell = tell
        self._failed = failed
        self._in_thread = bool(getattr(node, "in_thread", False))
        self._parallelism = 1
        self._begun: deque[_Work] = deque()  # in the order of ticks
        self._stopping = False
        self._woken = False
        self._active = self._completed = 0
        self._working_s = self._blocked_s = 0.0
        self._blocked_since: float | None = None
        states.num_active_tasks[node.name] = states.num_completed_tasks[node.name] = 0

    def connect(self, ins: list[Edge], outs: list[Edge]) -> None:
        """Gives the actor its edges. An input node works on one tick at a time, since it is the node that says which one."""
        self.ins, self.outs = ins, outs
        if ins:
            self._parallelism = self.node.max_parallelism

    def wake(self) -> None:
        """Has the actor look at what it can do now."""
        if not self._woken and not self.ended:
            self._woken = True
            self._tell(self, None)

    def stop_input(self) -> None:
        """Ends the input of an input node; a call of `operate` that waits is cancelled, unless it runs in a thread."""
        self._stopping = True
        for work in self._begun:
            if work.waiting is not None and not self._in_thread:
                work.waiting.cancel()
        self.wake()

    def cut_off(self, cause: BaseException) -> None:
        """Takes nothing more; a tick that it works on fails for this cause."""
        if not self.ended:
            self.ended = True
            if self._active:
                self._failed(NodeFailedError(self.node.name, self._begun[0].tick, cause))

    def receive(self, batch: list[Any]) -> None:
        self._woken = False
        while not self.ended:
            if self._begun:
                self._hand_on()
            if len(self._begun) >= self._parallelism or self.ended or not self._begin_next():
                return

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._fail(self._begun[0].tick if self._begun else self.tick, cause)

    def statistics(self) -> NodeStatistics:
        """Returns the counts and times until now."""
        now = perf_counter()
        running = sum(now - work.began for work in self._begun if not work.done)
        blocked = 0.0 if self._blocked_since is None else now - self._blocked_since
        return NodeStatistics(
            name=self.node.name,
            tick=self.tick,
            active=self._active,
            completed=self._completed,
            working_s=self._working_s + running,
            blocked_s=self._blocked_s + blocked,
            waits_for=self._waits_for(),
            ended=self.ended,
        )

    def _waits_for(self) -> tuple[str, ...]:
        if self.ended:
            return ()
        if self._blocked_since is not None:
            return tuple(edge.target for edge in self.outs if edge.full)
        if self._active:
            return tuple(getattr(self.node, "waits_for", ()))
        return tuple(self.ins[index].source for index in self._inputs.missing)

    def _begin_next(self) -> bool:
        """Begins to work on the next tick, if there is one; ends if there will be none."""
        if not self.ins:
            if self._stopping:
                # Its edges do not end: a join must not take the silence of an input that was stopped for empty ticks.
                self.ended = True
                return False
            self._begin(self.tick or 0, [])
            return True
        taken = self._inputs.take()
        if taken is None:
            if not self._begun and self._inputs.ended:
                self._end()
            return False
        tick, msgs = taken
        for edge in self.ins:
            edge.taken()
        for msg in msgs:
            if not msg.skip_this_tick:
                self._begin(tick, msgs)
                return True
        work = _Work(tick)
        work.done = work.skipped = True
        self._begun.append(work)
        return True

    def _begin(self, tick: int, msgs: list[Msg]) -> None:
        work = _Work(tick)
        self._begun.append(work)
        self._active += 1
        self._states.num_active_tasks[self.node.name] = self._active
        work.began = perf_counter()
        try:
            if self._in_thread:
                operate = cast("Callable[[list[Msg]], Outputs]", self.node.operate)
                result: Outputs | Awaitable[Outputs] = self._operations.in_thread(operate, msgs)
            else:
                result = self.node.operate(msgs)
            if isinstance(result, _RESULTS) or not isinstance(result, Awaitable):
                self._finish(work, result, None)
            else:
                work.waiting = self._operations.start(result, lambda waiting: self._returned(work, waiting))
        except Exception as cause:
            self._finish(work, None, cause)

    def _returned(self, work: _Work, waiting: Waiting) -> None:
        """Takes the result of an operation that has waited."""
        if waiting.cancelled():
            self._finish(work, None, asyncio.CancelledError("operate() was cancelled"))
            if self._stopping and not self.ins:
                self._begun.clear()
        elif (error := waiting.exception()) is not None:
            self._finish(work, None, error)
        else:
            self._finish(work, waiting.result(), None)
        self.wake()

    def _finish(self, work: _Work, outputs: Outputs, error: BaseException | None) -> None:
        self._working_s += perf_counter() - work.began
        self._active -= 1
        self._states.num_active_tasks[self.node.name] = self._active
        work.done, work.outputs, work.error = True, outputs, error

    def _hand_on(self) -> None:
        """Hands on what is finished, in the order of ticks, while there is room."""
        begun, outs = self._begun, self.outs
        while begun and (work := begun[0]).done:
            if work.addressed is None:
                self._address(work)
                if work.addressed is None:
                    return
            if any([edge.full for edge in outs]):  # noqa: C419 - a list costs less than a generator
                if self._blocked_since is None:
                    self._blocked_since = perf_counter()
                for edge in outs:
                    edge.want_room()
                return
            if self._blocked_since is not None:
                self._blocked_s += perf_counter() - self._blocked_since
                self._blocked_since = None
            begun.popleft()
            self.tick = work.tick
            if not self.ins:
                self.given.append(work.tick)
            for edge, msg in zip(outs, work.addressed, strict=True):
                edge.put(msg)
            if not work.skipped:
                self._completed += 1
                self._states.num_completed_tasks[self.node.name] = self._completed

    def _address(self, work: _Work) -> None:
        """Finds out where the results of a tick go, unless the node ends or fails instead."""
        error = work.error
        if error is None:
            if not self.ins and not work.outputs:
                self._begun.clear()
                self._end()
                return
            try:
                if not isinstance(work.outputs, _RESULTS):
                    raise TypeError(f"it gave {work.outputs!r:.200}: operate() gives a list of messages, or None")
                if work.outputs and not self.ins:
                    work.tick = self._next_tick(work.outputs)
                work.addressed = self._addressed(work.tick, work.outputs)
                return
            except Exception as cause:
                error = cause
        self._fail(work.tick if self.ins else self.tick, error)

    def _next_tick(self, outputs: Sequence[Msg]) -> int:
        """Returns the tick that an input node has given."""
        tick, earlier = outputs[0].time_tick, self.tick
        if earlier is not None and tick <= earlier:
            raise InvalidArgumentError(f"it gave tick {tick} after tick {earlier}: ticks of an input node must ascend")
        if tick < self._states.start_tick:
            raise InvalidArgumentError(f"it gave tick {tick}: the graph starts at tick {self._states.start_tick}")
        return tick

    def _addressed(self, tick: int, outputs: Outputs) -> list[Msg]:
        """Returns the message for each out-edge."""
        outs = self.outs
        addressed: list[Msg | None] = [None] * len(outs)
        for msg in outputs or ():
            if msg.time_tick != tick:
                raise InvalidArgumentError(
                    f"it gave a message of tick {msg.time_tick} at tick {tick}: all messages of a call have its tick"
                )
            index = msg.down_stream_node_idx
            if not -1 <= index < len(outs):
                raise InvalidArgumentError(
                    f"it gave a message for out-edge {index} at tick {tick}: it has {len(outs)} out-edges, "
                    "counted from 0; -1 means all of them"
                )
            for edge in range(len(outs)) if index == -1 else (index,):
                if addressed[edge] is not None:
                    raise InvalidArgumentError(
                        f"it gave two messages for the edge to {outs[edge].target!r} at tick {tick}: "
                        "an edge carries one message a tick, so put everything into one"
                    )
                addressed[edge] = msg
        return [SkipTickMsg(tick) if msg is None else msg for msg in addressed]

    def _end(self) -> None:
        self.ended = True
        for edge in self.outs:
            edge.end()

    def _fail(self, tick: int | None, cause: BaseException) -> None:
        """Takes nothing more. Its edges do not end, as those of an input that is stopped."""
        self.ended = True
        self._failed(NodeFailedError(self.node.name, tick, cause))
