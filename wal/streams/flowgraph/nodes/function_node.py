"""FunctionNode: a node that calls a function with the messages of each tick."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from wal.errors import InvalidArgumentError
from wal.streams.flowgraph.node import MAX_QUEUE_LENGTH, BaseNode, Msg, Outputs, SkipTickMsg


class BatchMsg(msgspec.Struct, frozen=True):
    """The messages of one tick, in order, on their way from one node to another. A batch without messages only moves the time.

    Nodes on several branches get the same sequence, so a node must not change it. `MsgStreamNode` sends `TsMsg`s, `ScannerNode` sends
    `ImmutableMessage`s, and a `FunctionNode` sends the results of its function.
    """

    time_tick: int
    messages: Sequence[Any]
    down_stream_node_idx: int = -1

    @property
    def skip_this_tick(self) -> bool:
        """Always False."""
        return False


def batch_of(msg: Msg, node: str) -> Sequence[Any]:
    """Returns the messages that a node received on an in-edge; empty for a SkipTickMsg. Raises TypeError for another kind of Msg."""
    if isinstance(msg, BatchMsg):
        return msg.messages
    if isinstance(msg, SkipTickMsg):
        return ()
    raise TypeError(f"node {node!r} takes BatchMsg, not {type(msg).__name__}: have the node before it send BatchMsg(tick, messages)")


Result: TypeAlias = Iterable[Any] | Mapping[int, Iterable[Any]] | None
"""The result of the function: messages for all out-edges, messages by the index of an out-edge, or None for nothing."""


class FunctionNode(BaseNode):
    """Calls `function(tick, *inputs)` for each tick, with one sequence of messages for each in-edge, in the order of `set_edges(in_=…)`.

    An input is empty where its edge has nothing at this tick. The function is called at each tick of any in-edge, even if all inputs are
    empty, so it can follow the time. A coroutine function is awaited; `in_thread=True` runs a plain one in a thread. With `max_parallelism`
    above 1 it is called for later ticks before it has returned for earlier ones. State of the function is lost with the process.
    """

    is_input: bool | None = False

    def __init__(
        self,
        name: str,
        function: Callable[..., Result | Awaitable[Result]],
        *,
        max_queue_length: int = MAX_QUEUE_LENGTH,
        max_parallelism: int = 1,
        in_thread: bool = False,
    ) -> None:
        super().__init__(name, max_queue_length=max_queue_length, max_parallelism=max_parallelism, in_thread=in_thread)
        if not callable(function):
            raise TypeError(f"node {name!r} calls a function(tick, *inputs), not {function!r}")
        if in_thread and (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
            raise InvalidArgumentError(
                f"node {name!r}: in_thread=True runs a plain function, and a coroutine function runs on the event loop: give one of them"
            )
        self._function = function

    def operate(self, msgs: list[Msg]) -> Outputs | Awaitable[Outputs]:
        tick = msgs[0].time_tick
        result = self._function(tick, *[batch_of(msg, self.name) for msg in msgs])
        if isinstance(result, Awaitable):
            return self._awaited(tick, result)
        return self._outputs(tick, result)

    async def _awaited(self, tick: int, result: Awaitable[Result]) -> Outputs:
        return self._outputs(tick, await result)

    def _outputs(self, tick: int, result: Result) -> Outputs:
        if result is None:
            return None
        results = result if isinstance(result, Mapping) else {-1: result}
        for messages in results.values():
            if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
                raise TypeError(
                    f"the function of node {self.name!r} returned {result!r}: return messages, as in [message], messages by the index of "
                    "an out-edge, or None"
                )
        return [
            BatchMsg(tick, messages if isinstance(messages, list | tuple) else list(messages), index) for index, messages in results.items()
        ]
