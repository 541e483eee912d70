"""FollowTail: the streams that feed the remote pchannels of our clients with the tail of a log, whenever that moves.

A client reads the frames by ReadFrames, at the pace of its readers.

`TickRounds` sends a moved promised tick to idle streams. One task waits for ticks on behalf of all streams, which themselves wait for data
only. At most `STREAMS_A_TURN` are woken every `TURN_S` seconds: up to 400 streams get the tick every 0.2 s, its default interval, and 8,000
every 4 s. If each waited by itself, 8,000 would keep most of a core busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc.aio

from wal.errors import InvalidArgumentError
from wal.network import Method
from wal.node.node import StreamingNode
from wal.rpc.api import frames_pb2 as proto
from wal.rpc.draining import Draining
from wal.rpc.headers import client_in
from wal.rpc.methods import FOLLOW_TAIL
from wal.rpc.serving import Handler
from wal.serve.hosted import Hosted, identity_of, tail_of
from wal.settings import ServerBounds
from wal.write.pchannel import PChannel

STREAMS_A_TURN: Final = 100
TURN_S: Final = 0.05
"""2,000 streams a second take about a third of a core."""


class TailService:
    """Serves the tails of the pchannels that are `hosted` here. A client with such a stream is connected: it keeps its cursors."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining, bounds: ServerBounds, rounds: AllTickRounds) -> None:
        self._node = node
        self._hosted = hosted
        self._draining = draining
        self._grace_s = bounds.consumer_grace_s
        self._rounds = rounds

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of FollowTail."""
        return {FOLLOW_TAIL: self._follow}

    async def _follow(self, context: Any) -> None:
        client = client_in(context.invocation_metadata() or ())
        with self._node.claims.connected(client, self._grace_s) if client else contextlib.nullcontext():
            with self._draining.ending():
                first = await context.read()
            if first is grpc.aio.EOF:
                return
            rounds = self._rounds.of(self._hosted.find(first.pchannel))
            await TailFeed(context, self._draining, rounds, first).run()


class TailFeed:
    """Sends the tail of the pchannel whenever it moves."""

    def __init__(self, context: Any, draining: Draining, rounds: TickRounds, first: proto.FollowTailRequest) -> None:
        """Raises InvalidArgumentError for the tail of another log."""
        self._context = context
        self._draining = draining
        self._rounds = rounds
        self._pchannel = pchannel = rounds.pchannel
        self._sent_tail = tail_of(pchannel)
        self._awaited_tick = first.await_tick
        self._wake = asyncio.Event()
        if first.incarnation not in (0, pchannel.log.incarnation):
            raise InvalidArgumentError(
                f"pchannel {pchannel.channel!r} has a log of incarnation {pchannel.log.incarnation:x}, not {first.incarnation:x}: the "
                "positions are of another log"
            )

    async def run(self) -> None:
        """Serves the stream until the client closes it. Raises the error with which it ends."""
        first = proto.TailUpdate(log=identity_of(self._pchannel), tail=self._sent_tail)
        reader = asyncio.get_running_loop().create_task(self._read(), name=f"follow the tail of {self._pchannel.channel}")
        reader.add_done_callback(self._moved)
        try:
            await self._context.write(first)
            with self._rounds.calling(self._wake.set):
                while not reader.done():
                    await self._feed()
        finally:
            await self._context.end(reader)
        reader.result()

    async def _feed(self) -> None:
        """Sends the tail if it has moved, then waits until it moves."""
        pchannel, tail = self._pchannel, self._pchannel.tail
        self._wake.clear()
        if tail.failure is not None:
            raise tail.failure
        if self._awaited_tick > tail.promised_tick:
            pchannel.advance_for(self._awaited_tick)
        waiter = tail.waiter(ticks=self._awaited_tick > tail.promised_tick)
        waiter.add_done_callback(self._moved)
        try:
            if (state := tail_of(pchannel)) != self._sent_tail:
                pchannel.check_lease()
                await self._context.write(proto.TailUpdate(tail=state))
                self._sent_tail = state
            await self._wake.wait()
        finally:
            waiter.remove_done_callback(self._moved)  # cancelling the waiter would wake the stream once more
            waiter.cancel()

    def _moved(self, _ended: object) -> None:
        self._wake.set()

    async def _read(self) -> None:
        """Takes the ticks that readers wait for, until the client ends the stream. Raises for a request that names none."""
        with self._draining.ending():
            while (request := await self._context.read()) is not grpc.aio.EOF:
                if not request.await_tick:
                    raise InvalidArgumentError("a FollowTailRequest after the first one names no tick to wait for: set await_tick")
                self._awaited_tick = request.await_tick
                self._wake.set()


class AllTickRounds:
    """The rounds of the pchannels here, for streams of every kind."""

    def __init__(self) -> None:
        self._rounds: dict[str, TickRounds] = {}

    def of(self, pchannel: PChannel) -> TickRounds:
        """Returns the rounds of a pchannel in its term."""
        rounds = self._rounds.get(pchannel.channel)
        if rounds is None or rounds.pchannel is not pchannel:
            rounds = self._rounds[pchannel.channel] = TickRounds(pchannel)
        return rounds


class TickRounds:
    """The rounds of one pchannel."""

    def __init__(self, pchannel: PChannel) -> None:
        self.pchannel: PChannel = pchannel
        self._wakes: dict[Callable[[], object], None] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def calling(self, wake: Callable[[], object]) -> Iterator[None]:
        """A block in which `wake` is called in each round."""
        self._wakes[wake] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"ticks of {self.pchannel.channel}")
        try:
            yield
        finally:
            del self._wakes[wake]
            if not self._wakes:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        while True:
            waiter = self.pchannel.tail.waiter(ticks=True)
            try:
                await waiter
            finally:
                waiter.cancel()
            wakes = list(self._wakes)
            for first in range(0, len(wakes), STREAMS_A_TURN):
                for wake in wakes[first : first + STREAMS_A_TURN]:
                    wake()
                await asyncio.sleep(TURN_S)
