"""Idle streams get promised ticks in rounds; data, an awaited tick and the end of a stream wait for none."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import pytest

from tests.serve.foreign import Foreign
from tests.serve.servers import Serving
from tests.serve.test_consume_messages import TIME_TICK, put, reader
from tests.serve.test_tail import Feed
from wal.message import Message
from wal.read.pchannel import Tail
from wal.requests.vchannels import AllocateTimeTicks
from wal.rpc.api.frames_pb2 import FollowTailRequest
from wal.rpc.connection import Connection
from wal.rpc.converters import position_from_proto
from wal.serve import tail as tick_rounds
from wal.serve.tail import STREAMS_A_TURN, TickRounds
from wal.write.pchannel import PChannel


@pytest.fixture
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the round of each stream were far away."""
    monkeypatch.setattr(TickRounds, "_run", _never)


async def _never(_: TickRounds) -> None:
    await asyncio.Event().wait()


async def test_so_many_streams_are_woken_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def turns() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    pauses: list[asyncio.Future[None]] = []

    async def pause(seconds: float) -> None:
        assert seconds == tick_rounds.TURN_S
        pauses.append(asyncio.get_running_loop().create_future())
        await pauses[-1]

    monkeypatch.setattr(tick_rounds, "asyncio", SimpleNamespace(get_running_loop=asyncio.get_running_loop, sleep=pause))
    tail = Tail(durable_end=0, promised_tick=1, newest=None)
    rounds = TickRounds(cast("PChannel", SimpleNamespace(tail=tail, channel="p0")))
    count, woken = 2 * STREAMS_A_TURN + 1, list[int]()
    wakes = [lambda number=number: woken.append(number) for number in range(count)]
    blocks = [rounds.calling(wake) for wake in wakes]
    for block in blocks:
        block.__enter__()
    for tick in (2, 3):
        await turns()
        assert woken == []
        tail.tick_moved(tick)
        for so_many in (STREAMS_A_TURN, 2 * STREAMS_A_TURN, count):
            await turns()
            assert len(woken) == so_many
            pauses[-1].set_result(None)
        assert woken == list(range(count))
        woken.clear()
    for block in blocks:
        block.__exit__(None, None, None)
    await turns()
    tail.tick_moved(4)
    await turns()
    assert woken == []
    assert not tail.is_awaited()


async def test_each_kind_of_stream_hears_of_ticks(served: Serving, connection: Connection, foreign: Foreign) -> None:
    feed = await Feed.open(connection)
    one = await reader(foreign)
    before = feed.tail.promised_tick
    while feed.tail.promised_tick <= before:
        await feed.update()
    for _ in range(3):
        assert (await one.next(ticks=True)).message.properties["_t"] == TIME_TICK
    feed.stream.cancel()
    one.call.cancel()


async def test_data_waits_for_no_round(no_rounds: None, served: Serving, connection: Connection, foreign: Foreign) -> None:
    feed = await Feed.open(connection)
    one = await reader(foreign)
    (pchannel,) = served.log.node.pchannels.values()
    for number in range(3):
        await put(served, Message("orders", b"%d" % number))
        while position_from_proto(feed.tail.durable_end) < pchannel.tail.durable_end:
            await feed.update()
        assert (await one.next()).message.payload == b"%d" % number
    feed.stream.cancel()
    one.call.cancel()


async def test_awaited_tick_waits_for_no_round(no_rounds: None, served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection)
    tick = (await served.log.submit(AllocateTimeTicks())).first
    await feed.stream.write(FollowTailRequest(await_tick=tick))
    while feed.tail.promised_tick < tick:
        await feed.update()
    feed.stream.cancel()


async def test_end_of_a_stream_waits_for_no_round(no_rounds: None, served: Serving, foreign: Foreign) -> None:
    one = await reader(foreign)
    await one.next(ticks=True)
    await one.call.write(foreign.kind("ConsumeRequest")(close=foreign.kind("CloseConsumerRequest")()))
    last: Any = None
    while (response := await one.call.read()) is not grpc.aio.EOF:
        last = response
    assert last.WhichOneof("response") == "close"
