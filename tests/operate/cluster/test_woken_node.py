"""The incident of milvus#53368: a node that was frozen for longer than its lease, and whose pchannels others have, wakes up.

It has connections, streams and requests from before. It acknowledges, answers and delivers nothing of them, and the messages that were sent
to it are in no log. Clients have moved long before: a scanner within two seconds of the moment at which its pchannel is elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.operate.cluster.processes import TTL_S, Cluster
from tests.operate.cluster.workload import Workload
from tests.processes import eventually
from tests.serve.test_produce import append, opened
from wal import Message, WALAccesser, open_wal
from wal.errors import WALError
from wal.message import AppendResult
from wal.requests.pchannels import LatestTick
from wal.requests.reads import GetMoment
from wal.requests.request import Request
from wal.rpc.api import append_pb2, frames_pb2
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.appends import Outcome, outcomes_from_proto
from wal.rpc.connection import Connection
from wal.rpc.methods import FOLLOW_TAIL
from wal.timestamp import compose


async def test_node_that_wakes_up_answers_nothing(cluster: Cluster) -> None:
    # The connections of the test outlive the time for which the node is frozen.
    patient_s = 300.0
    scanners_s = 2.0

    class Held:
        """Streams to a node, and requests that are unanswered when it stops."""

        def __init__(self, connection: Connection, info: PChannelInfo, vchannel: str) -> None:
            self.produced: list[Outcome] = []
            """The acknowledged messages of the open stream."""
            self.newest_tick = 0
            """The newest tick that was promised on the open stream."""
            self._connection = connection
            self._info = info
            self._vchannel = vchannel
            self._reading: list[asyncio.Task[None]] = []
            self._asking: list[asyncio.Future[Any]] = []

        async def open(self, incarnation: int) -> None:
            self._stream = await opened(self._connection, self._info)
            following = await self._connection.stream(FOLLOW_TAIL, "following")
            await following.write(frames_pb2.FollowTailRequest(pchannel=self._info, incarnation=incarnation))
            self._reading = [asyncio.ensure_future(self._take_outcomes()), asyncio.ensure_future(self._take_tails(following))]
            await eventually(lambda: self.newest_tick)

        async def ask(self) -> None:
            """Sends the requests that the node receives when it wakes up."""
            await self._stream.write(append(1, Message(self._vchannel, b"to the one that stands still")))
            begin = append_pb2.BeginTxn(vchannels=[self._vchannel])
            await self._stream.write(append_pb2.ProducerRequest(request_id=2, begin_txn=begin))
            requests: tuple[Request[Any], ...] = (LatestTick(self._vchannel), GetMoment(self._info.name))
            # Sent once: no other node answers it.
            self._asking = [
                asyncio.ensure_future(self._connection.submit(request, self._info.name, term=self._info.term, timeout_s=patient_s))
                for request in requests
            ]

        async def ended(self) -> list[Any]:
            """Waits until everything has ended, and returns the answers of the calls; the connection is stopped."""
            await asyncio.gather(*self._reading)
            return await asyncio.gather(*self._asking, return_exceptions=True)

        async def _take_outcomes(self) -> None:
            try:
                while (response := await self._stream.read()) is not None:
                    outcomes = [outcome for _, outcome in outcomes_from_proto(response.outcomes)]
                    self.produced += [outcome for outcome in outcomes if isinstance(outcome, AppendResult)]
                    assert not response.outcomes.begun, "it has begun a transaction"
            except WALError:
                pass  # the stream ended with an error

        async def _take_tails(self, stream: Any) -> None:
            try:
                while (update := await stream.read()) is not None:
                    self.newest_tick = max(self.newest_tick, update.tail.promised_tick)
            except WALError:
                pass

    async def next_of(log: WALAccesser, vchannel: str, scanner: Any) -> float:
        """Returns the time from a message's acknowledgement to its delivery by the scanner that followed the vchannel before."""
        result = await log.raw_append(Message(vchannel, b"elsewhere"))
        began = time.monotonic()
        async for message in scanner:
            if message.message_id == result.message_id:
                break
        return time.monotonic() - began

    await cluster.start()
    async with open_wal(cluster.root) as log, log.read("quiet") as scanner:
        work = Workload(log)
        work.start()
        await work.progress()
        first = await log.raw_append(Message("quiet", b"before"))
        assert (await anext(scanner)).message_id == first.message_id
        pchannel = first.message_id.pchannel
        placed = next(each for each in (await cluster.settled())["pchannels"] if each["pchannel"] == pchannel)
        node = await cluster.owner(pchannel)
        connection = await Connection.open([node.address], ping_s=patient_s)
        try:
            held = Held(connection, PChannelInfo(name=pchannel, term=placed["term"]), "quiet")
            await held.open(first.message_id.incarnation)
            await asyncio.to_thread(node.stop)
            frozen_tick = compose(int((time.time() + 1.0) * 1000), 0)  # it is frozen for longer than this second
            await held.ask()
            assert await work.progress() <= TTL_S + 15.0
            await cluster.settled(nodes=2)
            assert await next_of(log, "quiet", scanner) <= scanners_s
            node.cont()
            await eventually(lambda: node.exit_code() is not None or held.newest_tick > frozen_tick)
            assert node.exit_code() == 3
            connection.stop()  # a call that failed at the node's end waits for another node at its address
            for answer in await held.ended():
                assert isinstance(answer, WALError), answer
            assert held.produced == []
            assert 0 < held.newest_tick <= frozen_tick
        finally:
            await connection.close()
        await work.progress()
        await work.stop()
        await work.judge()
        async with log.read("quiet", follow=False) as everything:
            assert [message.payload async for message in everything] == [b"before", b"elsewhere"]
