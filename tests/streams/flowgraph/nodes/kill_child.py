"""A process that copies RocksMQ to a log by a flow graph: `python -m tests.streams.flowgraph.nodes.kill_child DIRECTORY NAME [LAST]`.

NAME is that of the subscription and of the vchannel. Without LAST it also produces, and runs until it is killed. With LAST it ends when
that tick has passed the sink; 0 is a tick that it produces itself. It prints a line for each tick that has passed: the tick, and the number
of ticks that were in the log already.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from wal import open_wal
from wal.streams.flowgraph import Msg, TimeTickedFlowGraph
from wal.streams.flowgraph.nodes import FunctionNode, MsgStreamNode, WalSinkNode
from wal.streams.msgstream import MsgPack, MsgStream, MsgType, OpaqueMsg, TimeTickMsg, TsMsg, TtMsgStream
from wal.streams.msgstream.media.rocksmq import RocksMQMedium

CHANNELS: Final = {"left": ("a", "b"), "right": ("c",)}
TICKS_MAX: Final = 200
"""The most ticks that a process produces for each channel, since another process has to copy the remaining ones."""
TICK_NS: Final = 2_000_000
"""Ticks are multiples of it, so that the streams have some ticks in common."""
SPAN: Final = 3 * TICK_NS
"""Messages are up to so many ns ahead of their time."""

_last = 0


def now() -> int:
    """Returns a timestamp above all earlier ones, including those of earlier processes."""
    global _last
    _last = max(_last + 1, time.time_ns())
    return _last


class ReportingSink(WalSinkNode):
    """A WalSinkNode that prints the ticks that have passed it."""

    last = 0
    """The tick that ends the process."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.finished = asyncio.Event()

    async def operate(self, msgs: list[Msg]) -> None:
        await super().operate(msgs)
        tick = msgs[0].time_tick
        os.write(1, b"%d %d\n" % (tick, self.statistics().duplicate_ticks))  # whole, or this process is dead
        if tick == self.last:
            self.finished.set()


def unmatched(tick: int, left: Sequence[TsMsg], right: Sequence[TsMsg]) -> list[TsMsg]:
    """Returns nothing where both have messages: a part that is replayed would look like something new."""
    assert all(message.end_ts <= tick for message in (*left, *right))
    return [] if left and right else [*left, *right]


async def produce(stream: MsgStream, channel: str) -> None:
    """Sends messages out of order, also beyond the next tick, and ticks; `stream` has no other channel."""
    await stream.as_producer([channel])
    ticks = set[int]()
    while len(ticks) < TICKS_MAX:  # a fast machine sends some of them several times
        messages = [
            OpaqueMsg(MsgType.FLUSH, b"%d" % random.getrandbits(60), timestamp=now() + random.randrange(SPAN))
            for _ in range(random.choice([0, 0, 1, 3]))
        ]
        await stream.broadcast(MsgPack(list[TsMsg](messages)))
        tick = now() // TICK_NS * TICK_NS
        await stream.broadcast(MsgPack([TimeTickMsg(timestamp=tick)]))
        ticks.add(tick)


async def run(directory: Path, name: str, last: int | None) -> None:
    os.write(1, b"opening\n")
    medium = RocksMQMedium(directory / "mq")
    async with open_wal(directory / "log") as log, asyncio.TaskGroup() as group:
        graph = TimeTickedFlowGraph()
        sink = ReportingSink("sink", log, name)
        for source, channels in CHANNELS.items():
            stream = TtMsgStream(medium, auto_ack=False)
            await stream.as_consumer(channels, name)
            graph.add_node(MsgStreamNode(source, stream))
            graph.set_edges(source, out=["unmatched"])
        graph.add_node(FunctionNode("unmatched", unmatched))
        graph.add_node(sink)
        graph.set_edges("unmatched", in_=[*CHANNELS], out=["sink"])
        graph.set_edges("sink", in_=["unmatched"])
        everywhere = [channel for channels in CHANNELS.values() for channel in channels]
        if last is None:
            for channel in everywhere:
                group.create_task(produce(MsgStream(medium), channel))
        elif last == 0:
            last = now() + SPAN
            async with MsgStream(medium) as sender:
                await sender.as_producer(everywhere)
                await sender.broadcast(MsgPack([TimeTickMsg(timestamp=last)]))
        sink.last = last or 0
        async with graph:
            waiting = [group.create_task(one) for one in (sink.finished.wait(), graph.done())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
        if graph.error is not None:
            raise graph.error
    await medium.close()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if sys.argv[3:] else None))
