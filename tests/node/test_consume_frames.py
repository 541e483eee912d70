"""Consume in the form of frames: what feeds a remote pchannel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.node.servers import Serving
from tests.node.test_produce import assigned
from wal.errors import ClosedError, InvalidArgumentError, InvalidRequestSeqError, TruncatedError, WALError
from wal.message import Message, Origin
from wal.read.assembly import assemble
from wal.read.options import EventFilter, WholePChannel
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.api.frames_pb2 import AwaitTickRequest, ChangeNamesRequest, FramePage, FrameSelection, FrameUpdate, VChannelNames
from wal.rpc.api.pchannel_pb2 import PChannelInfo, Position, TailState, VChannelState
from wal.rpc.connection import Connection
from wal.rpc.converters import identity_from_proto, position_from_proto, position_to_proto
from wal.rpc.frame_pages import page_from_proto
from wal.rpc.headers import consumer_header
from wal.rpc.methods import CONSUME

BEGINNING = Position()


class Feed:
    """One stream in the form of frames, and what it has sent so far."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.log: Origin
        self.tail: TailState
        self.vchannels: list[VChannelState]
        self.pages: list[FramePage] = []

    @classmethod
    async def open(cls, connection: Connection, *, info: PChannelInfo | None = None, **selection: Any) -> Feed:
        created = proto.CreateConsumerRequest(pchannel=info or await assigned(connection), frames=FrameSelection(**selection))
        feed = cls(await connection.stream(CONSUME, "feeding", headers=[consumer_header(created)]))
        first = await feed.stream.read()
        assert first.HasField("create")
        feed.log, feed.tail = identity_from_proto(first.create.log), first.create.tail
        feed.vchannels = list(first.create.vchannels)
        return feed

    async def update(self) -> FrameUpdate:
        response = await self.stream.read()
        assert response is not None
        update: FrameUpdate = response.frames
        if update.HasField("page"):
            self.pages.append(update.page)
        if update.HasField("tail"):
            self.tail = update.tail
        return update

    async def payloads(self, count: int) -> list[bytes]:
        """Returns the payloads of the frames, once so many have come."""
        while len(found := self.delivered()) < count:
            await self.update()
        return found

    def delivered(self) -> list[bytes]:
        found: list[bytes] = []
        for page in self.pages:
            for frame in page_from_proto(page).frames:
                found += [one.payload for one in assemble(frame, self.log, WholePChannel(), EventFilter())]
        return found


async def put(served: Serving, *messages: Message) -> None:
    for message in messages:
        await served.log.appends.append_waiting(message, 0)


def names(*given: str) -> VChannelNames:
    return VChannelNames(names=given)


async def test_pages_follow_each_other_without_a_gap(served: Serving, connection: Connection) -> None:
    expected = [b"%d" % number for number in range(200)]
    await put(served, *[Message("orders", payload) for payload in expected[:100]])
    feed = await Feed.open(connection, start=BEGINNING, page_bytes=2000)
    writing = asyncio.ensure_future(put(served, *[Message("orders", payload) for payload in expected[100:]]))
    assert await feed.payloads(200) == expected
    await writing
    at = 0
    for page in feed.pages:
        assert position_from_proto(page.start) == at
        at = position_from_proto(page.next_position)
    assert len(feed.pages) > 5
    (pchannel,) = served.log.node.pchannels.values()
    while position_from_proto(feed.tail.durable_end) < pchannel.tail.durable_end:
        await feed.update()
    assert feed.tail.promised_tick <= pchannel.tail.promised_tick


async def test_old_frames_are_read_from_the_log(served: Serving, connection: Connection) -> None:
    await put(served, *[Message("orders", b"%d" % number) for number in range(50)])
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.recent.restart(pchannel.tail.durable_end)
    feed = await Feed.open(connection, start=BEGINNING)
    assert await feed.payloads(50) == [b"%d" % number for number in range(50)]


async def test_without_a_start_only_what_follows_is_sent(served: Serving, connection: Connection) -> None:
    await put(served, Message("orders", b"before"))
    feed = await Feed.open(connection)
    await put(served, Message("orders", b"after"))
    assert await feed.payloads(1) == [b"after"]


async def test_only_wanted_vchannels_are_sent_and_they_can_change(served: Serving, connection: Connection) -> None:
    await put(served, Message("a", b"a1"), Message("b", b"b1"))
    feed = await Feed.open(connection, start=BEGINNING, names=names("a"))
    assert [(state.name, state.state) for state in feed.vchannels] == [("a", VChannelState.EXISTS)]
    assert await feed.payloads(1) == [b"a1"]
    change = ChangeNamesRequest(added=["b", "later"], removed=["a"])
    await feed.stream.write(proto.ConsumeRequest(change_names=change))
    while not (states := {state.name: state for state in (await feed.update()).vchannels}):
        pass
    assert {name: state.state for name, state in states.items()} == {"b": VChannelState.EXISTS, "later": VChannelState.UNKNOWN}
    await put(served, Message("a", b"a2"), Message("b", b"b2"))
    assert await feed.payloads(2) == [b"a1", b"b2"]
    since = [page for page in feed.pages if page.names_since]
    assert len(since) == 1
    with pytest.raises(InvalidRequestSeqError, match="this one reads the whole pchannel"):
        whole = await Feed.open(connection)
        await whole.stream.write(proto.ConsumeRequest(change_names=change))
        while True:
            await whole.update()


async def test_feed_of_the_tail_sends_no_frames(served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection, start=BEGINNING, tail_only=True)
    before = position_from_proto(feed.tail.durable_end)
    await put(served, Message("orders", b"x"))
    while position_from_proto(feed.tail.durable_end) == before:
        await feed.update()
    assert feed.pages == []
    assert feed.tail.HasField("newest")


async def test_vchannels_that_are_created_and_dropped_are_told(served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection, names=names("orders"), tail_only=True)
    assert [state.state for state in feed.vchannels] == [VChannelState.UNKNOWN]

    async def told() -> VChannelState:
        while not (update := await feed.update()).vchannels:
            pass
        (state,) = update.vchannels
        return state

    await put(served, Message("orders", b"x"), Message("others", b"y"))
    created = await told()
    assert (created.name, created.state) == ("orders", VChannelState.EXISTS)
    await served.log.drop_vchannel("orders")
    dropped = await told()
    assert (dropped.name, dropped.state) == ("orders", VChannelState.UNKNOWN)
    assert dropped.incarnation > created.incarnation


async def test_awaited_tick_is_promised_at_once(served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection, tail_only=True)
    for _ in range(3):
        await put(served, Message("orders", b"x"))
        tick = await served.log.allocate_time_tick()
        await feed.stream.write(proto.ConsumeRequest(await_tick=AwaitTickRequest(time_tick=tick)))
        while feed.tail.promised_tick < tick:
            await feed.update()


async def test_close_handshake(connection: Connection) -> None:
    feed = await Feed.open(connection)
    await feed.stream.write(proto.ConsumeRequest(close=proto.CloseConsumerRequest()))
    responses = []
    while (response := await feed.stream.read()) is not None:
        responses.append(response.WhichOneof("response"))
    assert responses[-1] == "close"


async def test_slow_reader_gets_everything(served: Serving, connection: Connection) -> None:
    slow = await Feed.open(connection, start=BEGINNING)
    await asyncio.gather(*[served.log.appends.append_waiting(Message("orders", bytes(10_000)), 0) for _ in range(2000)])
    assert len(await slow.payloads(2000)) == 2000


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"incarnation": 5}, "are of another log"),
        ({"start": Position(low=1 << 40)}, "is above the durable end"),
        ({"page_bytes": 5 << 20}, "page_bytes=5242880 is above 4194304"),
        ({"names": VChannelNames(names=[""])}, "vchannel"),
    ],
)
async def test_wrong_selection_is_an_error(connection: Connection, selection: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        await Feed.open(connection, **selection)


async def test_truncated_start_names_the_earliest_event(served: Serving, connection: Connection) -> None:
    results = [await served.log.appends.append_waiting(Message("orders", b"%d" % n), 0) for n in range(3)]
    assert results[1].message_id is not None
    await served.log.truncate(results[1].message_id)
    feed = await Feed.open(connection, start=position_to_proto(0))
    with pytest.raises(TruncatedError) as error:
        while True:
            await feed.update()
    assert error.value.earliest == results[2].message_id


async def test_end_of_the_log_and_of_the_node_end_the_feed(served: Serving, connection: Connection) -> None:
    failed = await Feed.open(connection)
    (pchannel,) = served.log.node.pchannels.values()
    pchannel.fail(ClosedError("this log was closed in the middle"))
    with pytest.raises(ClosedError, match="in the middle"):
        while True:
            await failed.update()


async def test_stopping_node_ends_the_feed(served: Serving, connection: Connection) -> None:
    feed = await Feed.open(connection)
    await served.node.close()
    with pytest.raises(WALError, match="is being stopped"):
        while True:
            await feed.update()
    (pchannel,) = served.log.node.pchannels.values()
    assert not pchannel.readers
