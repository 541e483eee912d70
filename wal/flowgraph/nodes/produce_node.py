"""ProduceNode: a sink that produces the messages of each tick into a message stream."""

from __future__ import annotations

from wal.flowgraph.msg import Msg
from wal.flowgraph.node import MAX_QUEUE_LENGTH, BaseNode
from wal.flowgraph.nodes.batch_msg import batch_of
from wal.msgstream import MsgPack, MsgStream, TimeTickMsg, TsMsg

__all__ = ["ProduceNode"]


class ProduceNode(BaseNode):
    """Produces the messages of a tick as one pack. With `time_ticks=True` it broadcasts a TimeTickMsg after each, for a TtMsgStream.

    A tick that is replayed after a crash is produced again: at least once. A TtMsgStream still gives each message once, if no
    message has a timestamp above its tick, and each has an `id` that is not 0 and the same at every replay: the stream drops repeats
    within a tick, and what comes after its tick. The stream belongs to the caller, who closes it after the graph.
    """

    is_input = False

    def __init__(
        self,
        name: str,
        stream: MsgStream,
        *,
        time_ticks: bool = False,
        max_queue_length: int = MAX_QUEUE_LENGTH,
    ) -> None:
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
                raise TypeError(
                    f"node {self.name!r} produces TsMsg, not {type(message).__name__}: make one of it in a FunctionNode"
                )
        if messages:
            await self._stream.produce(MsgPack(messages))
        if self._time_ticks:
            await self._stream.broadcast(MsgPack([TimeTickMsg(timestamp=tick)]))
