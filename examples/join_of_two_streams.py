"""A join of two message streams by a flow graph, whose result is in a log exactly once, also after a failure in the middle.

    python -m examples.join_of_two_streams [directory]      (default: data/join_of_two_streams/)

Sensors send temperatures on two channels and humidities on a third one; every second ends with a time tick. The graph pairs the readings of
a room within a second, and writes the pairs to a log. The first graph fails in the middle. The second graph gets the unfinished seconds of
the first one again, and writes nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from wal import WALAccesser, open_wal
from wal.streams.flowgraph import TimeTickedFlowGraph
from wal.streams.flowgraph.nodes import FunctionNode, MsgStreamNode, WalSinkNode
from wal.streams.msgstream import InsertMsg, MsgPack, MsgStream, TimeTickMsg, TtMsgStream
from wal.streams.msgstream.media.rocksmq import RocksMQMedium

SECONDS = 50
ROOMS = 8
SECOND = 1000 << 18
"""A second in time ticks, whose upper 46 bits are milliseconds."""


async def main(directory: str = "data/join_of_two_streams/") -> None:
    medium = RocksMQMedium(Path(directory) / "mq")
    await produce(medium, ["temperatures-0", "temperatures-1"], value=20)
    await produce(medium, ["humidities"], value=50)
    async with open_wal(Path(directory) / "log") as log:
        failing = Join(fail_at=SECONDS // 2)
        print(f"the first graph: {await run(medium, log, failing)}")
        print(f"pairs in the log: {len(await pairs(log))}")
        print(f"the second graph: {await run(medium, log, Join())}")
        joined = await pairs(log)
        print(f"pairs in the log: {len(joined)}, each once: {len(set(joined)) == len(joined) == SECONDS * ROOMS}")
        print(joined[0], "…", joined[-1])
    await medium.close()


async def produce(medium: RocksMQMedium, channels: list[str], *, value: int) -> None:
    """Sends a reading of each room in each second, then the tick that ends the second."""
    async with MsgStream(medium) as stream:
        await stream.as_producer(channels)
        for second in range(1, SECONDS + 1):
            rooms = range(ROOMS)
            readings = InsertMsg(
                timestamps=[second * SECOND - room for room in rooms],
                row_ids=list(rooms),
                row_data=[b"%d" % (value + (second + room) % 5) for room in rooms],
                hash_keys=list(rooms),  # each row goes to the channel of its room
            )
            await stream.produce(MsgPack([readings]))
            await stream.broadcast(MsgPack([TimeTickMsg(timestamp=second * SECOND)]))


class Join:
    """Pairs the temperature and the humidity of each room. With `fails` it raises once."""

    def __init__(self, fail_at: int = 0) -> None:
        self.fail_at = fail_at
        self.finished = asyncio.Event()

    def __call__(self, tick: int, temperatures: Sequence[InsertMsg], humidities: Sequence[InsertMsg]) -> list[bytes]:
        if tick == self.fail_at * SECOND:
            raise RuntimeError("a bug, or a service that did not answer")
        if tick == SECONDS * SECOND:
            self.finished.set()
        humidity = rows(humidities)
        return [
            b"second %d, room %d: %s degrees, %s percent" % (tick // SECOND, room, degrees, humidity[room])
            for room, degrees in sorted(rows(temperatures).items())
        ]


def rows(messages: Sequence[InsertMsg]) -> dict[int, bytes]:
    """Returns the reading of each room."""
    return {room: data for message in messages for room, data in zip(message.row_ids, message.row_data, strict=True)}


async def run(medium: RocksMQMedium, log: WALAccesser, join: Join) -> str:
    """Runs a graph until the last second was joined, or a node has failed; returns the outcome."""
    async with TtMsgStream(medium, auto_ack=False) as temperatures, TtMsgStream(medium, auto_ack=False) as humidities:
        await temperatures.as_consumer(["temperatures-0", "temperatures-1"], "join")
        await humidities.as_consumer(["humidities"], "join")
        sink = WalSinkNode("pairs", log, "pairs")
        graph = TimeTickedFlowGraph()
        graph.add_node(MsgStreamNode("temperatures", temperatures))
        graph.add_node(MsgStreamNode("humidities", humidities))
        graph.add_node(FunctionNode("join", join))
        graph.add_node(sink)
        graph.set_edges("temperatures", out=["join"])
        graph.set_edges("humidities", out=["join"])
        graph.set_edges("join", in_=["temperatures", "humidities"], out=["pairs"])
        graph.set_edges("pairs", in_=["join"])
        async with graph:
            over = [asyncio.create_task(waiting) for waiting in (join.finished.wait(), graph.done())]
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
            for task in over:
                task.cancel()
        if graph.error is None:
            print(graph.to_mermaid())  # all messages of the streams have passed the sink
        counts = sink.statistics()
        what = "ended" if graph.error is None else f"failed: {graph.error}"
        return f"{what}; wrote {counts.ticks} seconds, {counts.duplicate_ticks} were there"


async def pairs(log: WALAccesser) -> list[str]:
    async with log.read("pairs", follow=False) as scanner:
        return [body.payload.decode() async for message in scanner for body in message.bodies()]


if __name__ == "__main__":
    logging.getLogger("wal.flowgraph").setLevel(logging.CRITICAL)  # the failure is part of the example
    asyncio.run(main(*sys.argv[1:]))
