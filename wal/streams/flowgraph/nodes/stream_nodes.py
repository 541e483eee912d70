"""Nodes over message streams: MsgStreamNode consumes a stream, and ProduceNode produces the messages of each tick into one."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence

from wal.errors import ClosedError, InvalidArgumentError
from wal.streams.flowgraph.node import MAX_QUEUE_LENGTH, BaseNode, Msg
from wal.streams.flowgraph.nodes.function_node import BatchMsg, batch_of
from wal.streams.msgstream import MsgPack, MsgStream, TimeTickMsg, TsMsg, TtMsgStream


class MsgStreamNode(BaseNode):
    """An input node that consumes a time-ticked message stream, and acknowledges a pack once it has passed every sink.

    Each pack is the tick at which it ends. Unacknowledged packs are consumed again after a crash, as the same ticks. The node must be the
    stream's only consumer. The stream belongs to the caller, who closes it after the graph.
    """

    is_input: bool | None = True

    def __init__(self, name: str, stream: TtMsgStream) -> None:
        super().__init__(name)
        if not isinstance(stream, TtMsgStream):
            raise TypeError(f"node {name!r} consumes a TtMsgStream, whose packs are ticks, not {type(stream).__name__}")
        if stream.auto_ack:
            raise InvalidArgumentError(
                f"node {name!r} acknowledges packs once they have passed every sink, and its stream would do so before: create it "
                "with auto_ack=False"
            )
        self._stream = stream
        self._sent_packs: deque[MsgPack] = deque()

    @property
    def waits_for(self) -> Sequence[str]:
        """The channels whose next tick the stream waits for."""
        return self._stream.statistics().waits_for

    async def operate(self, msgs: list[Msg]) -> Sequence[Msg]:
        """Returns the messages of the next pack; empty after the stream was closed."""
        pack = await self._stream.consume()
        if pack is None:
            return ()
        msg = BatchMsg(pack.end_ts, pack.msgs)
        pack.msgs = []  # a pack that is acknowledged late must not hold its messages
        self._sent_packs.append(pack)
        return (msg,)

    async def commit(self, tick: int) -> None:
        """Acknowledges the packs up to this tick, one after the other. If the stream was closed before, the rest is redelivered."""
        while self._sent_packs and self._sent_packs[0].end_ts <= tick:
            with contextlib.suppress(ClosedError):
                await self._stream.ack(self._sent_packs[0])
            self._sent_packs.popleft()


class ProduceNode(BaseNode):
    """Produces the messages of a tick as one pack. With `time_ticks=True` it broadcasts a TimeTickMsg after each, for a TtMsgStream.

    A tick that is replayed after a crash is produced again: at least once. A TtMsgStream still delivers each message once under two
    conditions. No message has a timestamp above its tick, and each has an `id` that is not 0 and the same at every replay. The stream drops
    duplicates within a tick, and messages that come after their tick. The stream belongs to the caller, who closes it after the graph.
    """

    is_input: bool | None = False

    def __init__(self, name: str, stream: MsgStream, *, time_ticks: bool = False, max_queue_length: int = MAX_QUEUE_LENGTH) -> None:
        super().__init__(name, max_queue_length=max_queue_length)
        if not isinstance(stream, MsgStream):
            raise TypeError(f"node {name!r} produces into a MsgStream, not into {type(stream).__name__}")
        self._stream = stream
        self._time_ticks = time_ticks

    async def operate(self, msgs: list[Msg]) -> None:
        tick = msgs[0].time_tick
        messages: list[TsMsg] = []
        for msg in msgs:
            messages += batch_of(msg, self.name)
        for message in messages:
            if not isinstance(message, TsMsg):
                raise TypeError(f"node {self.name!r} produces TsMsg, not {type(message).__name__}: make one of it in a FunctionNode")
        if messages:
            await self._stream.produce(MsgPack(messages))
        if self._time_ticks:
            await self._stream.broadcast(MsgPack([TimeTickMsg(timestamp=tick)]))
