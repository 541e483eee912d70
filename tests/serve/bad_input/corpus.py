"""A valid request for every call that a server has. What the calls change is on vchannels, cursors and channels of their own."""

from __future__ import annotations

import base64
from collections.abc import Callable
from random import Random
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty

from broadcaster.message import BroadcastMessage
from tests.serve.columns import columns_of, request_of
from wal.channels.owners import OwnerDescription
from wal.message import Message, MessageID, MessageType, ResourceKey
from wal.message.wire_pb2 import BeginTxnHeader, TxnContext
from wal.message.wire_pb2 import Message as Wire
from wal.message.wire_pb2 import MessageID as WireID
from wal.network import Method
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.requests.broadcasts import AbortBroadcast, AckBroadcast, AppendBroadcast, AwaitResourceKey, BroadcastCounts, ListBroadcasts
from wal.requests.cluster import DrainNode, GetClusterStatus, PauseBalancer
from wal.requests.cursors import DeleteCursors, ListCursors, LoadCursor, SaveCursor
from wal.requests.log import DescribeLog
from wal.requests.pchannels import ForgetProducer, LastEvent, LatestTick, ListProducers, Retention, Statistics, Truncate
from wal.requests.reads import CountBytes, FindEventBelow, FindTick, GetMoment, NewestTick, WeighFrames
from wal.requests.request import Request
from wal.requests.schedule import CancelMessage, ListScheduled, ScheduleMessage
from wal.requests.vchannels import (
    AllocateIds,
    AllocateTimeTicks,
    CreateChannels,
    CreateVChannel,
    DescribeChannels,
    DestroyChannels,
    DropVChannel,
    ListVChannels,
    LocateVChannels,
)
from wal.rpc import methods as m
from wal.rpc.api import append_pb2, cluster_pb2, component_pb2, error_pb2, frames_pb2, pchannel_pb2
from wal.rpc.api import streaming_pb2 as streaming
from wal.rpc.converter import REQUESTS, request_to_proto
from wal.rpc.converters import position_to_proto
from wal.write.idempotency.keys import ProducerKey, key_ext

NAMES: Final = ("fuzz-a", "fuzz-b", "fuzz-c")
FIELDS: Final = (
    "append", "append_txn", "begin_txn", "keep_txn", "commit_txn", "rollback_txn", "withdraw", "close",
)  # fmt: skip


class World:
    """The pchannel of a log, some ids in it, and its newest tick, in a client's view."""

    def __init__(self, log: pchannel_pb2.LogIdentity) -> None:
        self.log = log
        self.info = pchannel_pb2.PChannelInfo(name=log.pchannel.name, term=log.pchannel.term)
        self.old: MessageID
        """The newest event that is truncated."""
        self.kept: MessageID
        """The beginning of the extents that are read."""
        self.newest: MessageID
        self.tick = 0
        self.txns: list[append_pb2.BegunTxn] = []
        """Some transactions that were begun; most are over."""


def unary(method: Method[Any, Any], world: World, tag: bytes, chance: Random) -> Any:
    """Returns a valid request of a call that has one request. `tag` is in every payload that it writes."""
    return _UNARY[method](world, tag, chance)


def methods() -> list[Method[Any, Any]]:
    """Returns the calls that have one request, SUBMIT as often as there are requests."""
    return [*_UNARY, *[m.SUBMIT] * (len(REQUESTS) - 1)]


def discover(world: World, chance: Random) -> list[Any]:
    """Returns the requests of a stream of AssignmentDiscover."""
    error = error_pb2.StreamingError(code=error_pb2.STREAMING_CODE_CHANNEL_FENCED, cause="fenced")
    report = streaming.ReportAssignmentErrorRequest(pchannel=world.info, err=error)
    requests = [streaming.AssignmentDiscoverRequest(report_error=report)] * chance.randint(0, 2)
    return [*requests, streaming.AssignmentDiscoverRequest(close=streaming.CloseAssignmentDiscoverRequest())]


def milvus_producer(world: World) -> Any:
    """Returns the message that creates a producer in Milvus' form."""
    return streaming.CreateProducerRequest(pchannel=world.info)


def milvus_produced(world: World, tag: bytes, chance: Random) -> list[Any]:
    """Returns the requests of a Produce stream in Milvus' form, up to its close."""
    messages = [streaming.ProduceMessageRequest(request_id=number, message=_contract_form(world, tag, chance)) for number in range(3)]
    requests = [streaming.ProduceRequest(produce=message) for message in messages[: chance.randint(1, 3)]]
    return [*requests, streaming.ProduceRequest(close=streaming.CloseProducerRequest())]


def produced(world: World, tag: bytes, chance: Random) -> list[Any]:
    """Returns the requests of a Produce stream, from its open to its close."""
    requests = [append_pb2.ProducerRequest(open=append_pb2.OpenProducer(pchannel=world.info))]
    for number in range(chance.randint(1, 4)):
        name = chance.choice(FIELDS[:-1])
        requests.append(_produce(name, world, 100 * number, tag, chance))
    return [*requests, _produce("close", world, 0, tag, chance)]


def consumer(world: World, chance: Random) -> Any:
    """Returns the message that creates a consumer."""
    request = streaming.CreateConsumerRequest(pchannel=world.info)
    start = WireID(id=bytes(world.newest))
    policy = streaming.DeliverPolicy
    request.deliver_policy.CopyFrom(chance.choice((policy(latest=Empty()), policy(start_from=start), policy(start_after=start))))
    filters = [
        streaming.DeliverFilter(time_tick_gt=streaming.DeliverFilterTimeTickGT(time_tick=world.tick)),
        streaming.DeliverFilter(time_tick_gte=streaming.DeliverFilterTimeTickGTE(time_tick=world.tick)),
        streaming.DeliverFilter(vchannel=streaming.DeliverFilterVChannel(vchannel=chance.choice(NAMES))),
        streaming.DeliverFilter(message_types=streaming.DeliverFilterMessageTypes(types=[2, 3])),
    ]
    request.deliver_filters.extend(chance.sample(filters, chance.randint(0, 3)))
    return request


def consumed() -> list[Any]:
    """Returns the requests of a Consume stream, up to its close."""
    return [streaming.ConsumeRequest(close=streaming.CloseConsumerRequest())]


def followed(world: World, chance: Random) -> list[Any]:
    """Returns the requests of a FollowTail stream."""
    first = frames_pb2.FollowTailRequest(pchannel=world.info, incarnation=world.log.incarnation)
    return [first, *[frames_pb2.FollowTailRequest(await_tick=world.tick)] * chance.randint(0, 2)]


def _messages(tag: bytes, chance: Random) -> list[Message]:
    return [
        Message(chance.choice(NAMES), tag, properties={"who": "me"} if chance.random() < 0.3 else {}) for _ in range(chance.randint(1, 3))
    ]


def _wire(tag: bytes, **properties: str) -> Wire:
    return Wire(payload=tag, properties={"_v": "2", "_t": "2", "_vc": "fuzz-a", **properties})


def _contract_form(world: World, tag: bytes, chance: Random) -> Wire:
    """Returns a message in Milvus' form: mostly a plain one, else one of a transaction."""
    context = world.txns[-1].context if world.txns else TxnContext(txn_id=1)
    txn = base64.b64encode(context.SerializeToString()).decode()
    header = base64.b64encode(BeginTxnHeader(keepalive_milliseconds=200).SerializeToString()).decode()
    return chance.choice(
        (
            _wire(tag, who="me"),
            _wire(tag, _t="3"),
            _wire(b"", _t="900", _h=header),
            _wire(tag, _tx=txn),
            _wire(b"", _t="901", _tx=txn),
            _wire(b"", _t="902", _tx=txn),
        )
    )


def _produce(name: str, world: World, number: int, tag: bytes, chance: Random) -> Any:
    txn = world.txns[-1] if world.txns else append_pb2.BegunTxn()
    bodies = columns_of([Message("fuzz-a", tag), Message("fuzz-b", tag)])
    match name:
        case "append":
            keys = (None, None, tag.decode(), ProducerKey("fuzz", int(tag.rpartition(b"-")[2])))
            appends = [(message, 0, chance.choice(keys)) for message in _messages(tag, chance)]
            request: Any = request_of(number, appends).append
        case "append_txn":
            request = append_pb2.AppendTxn(vchannels=["fuzz-a", "fuzz-b"], bodies=bodies)
        case "begin_txn":
            request = append_pb2.BeginTxn(vchannels=["fuzz-a", "fuzz-b"], keepalive_s=0.2)
        case "keep_txn":
            request = append_pb2.KeepTxn(txn_id=txn.context.txn_id, bodies=2, bytes=200)
        case "commit_txn":
            request = append_pb2.CommitTxn(
                txn=txn, vchannels=["fuzz-a", "fuzz-b"], bodies=bodies, options=append_pb2.WriteOptions(key=key_ext(tag.decode()))
            )
        case "rollback_txn":
            request = append_pb2.RollbackTxn(txn_id=txn.context.txn_id)
        case "withdraw":
            request = append_pb2.Withdraw(withdrawn_ids=range(max(0, number - 100), number))
        case _:
            request = Empty()
    return append_pb2.ProducerRequest(request_id=number, seen_time_tick=world.tick, **{name: request})


def _cursor(world: World) -> Cursor:
    at = (world.newest.position, 0)
    return Cursor(CursorKey("fuzz", ("fuzz-a",)), (1,), world.info.name, world.log.incarnation, at, at, world.tick, 0.0, world.log.form)


def _extent(world: World) -> dict[str, Any]:
    return {"pchannel": world.info, "start": position_to_proto(world.kept.position), "end": position_to_proto(world.newest.position)}


Make = Callable[[World, bytes, Random], Any]


def _submitted(world: World, tag: bytes, chance: Random) -> Any:
    keys = [ResourceKey("fuzz", tag.decode())] if chance.random() < 0.5 else []
    broadcast = BroadcastMessage(vchannels=NAMES[: chance.randint(1, 3)], payload=tag, message_type=MessageType(5), resource_keys=keys)
    number, pchannel, start, end = chance.randint(1, 50), world.info.name, world.kept.position, world.newest.position
    requests: tuple[Request[Any], ...] = (
        LatestTick("fuzz-a"), LastEvent("fuzz-a"), Truncate(world.old), Retention(), Statistics(), ListProducers(), ForgetProducer("fuzz"),
        DescribeLog(), LocateVChannels(NAMES, together=True), CreateVChannel("fuzz-new", world.info.name), DropVChannel("fuzz-new"),
        ListVChannels(), CreateChannels(OwnerDescription("fuzz", "here", "for the test")), DestroyChannels(("fuzz-no-channel",)),
        DescribeChannels(), AllocateTimeTicks(3, world.tick), AllocateIds(3), AppendBroadcast(broadcast), AckBroadcast(number, "fuzz-a"),
        AwaitResourceKey(ResourceKey("fuzz", "x")), ListBroadcasts(), AbortBroadcast(number, "fuzz"), BroadcastCounts(),
        GetClusterStatus(), DrainNode(1), PauseBalancer(),
        LoadCursor(_cursor(world).key, world.info.name), SaveCursor(_cursor(world)), ListCursors(), DeleteCursors("fuzz"),
        ScheduleMessage("fuzz-a", tag, {}, chance.choice((0, 1 << 41)), tag.decode(), chance.random() < 0.5),
        ListScheduled("fuzz-a"), CancelMessage("fuzz-a", tag.decode()),
        GetMoment(pchannel), NewestTick(pchannel), FindTick(pchannel, world.tick, start, end), CountBytes(pchannel, start, end),
        WeighFrames(pchannel, start, end, frozenset(NAMES), chance.choice((None, 10))), FindEventBelow(pchannel, (start, 0), (end, 0)),
    )  # fmt: skip
    return request_to_proto(chance.choice(requests), world.info)


_UNARY: Final[dict[Method[Any, Any], Make]] = {
    m.COORDINATOR_STATES: lambda w, t, c: component_pb2.GetComponentStatesRequest(),
    m.NODE_STATES: lambda w, t, c: component_pb2.GetComponentStatesRequest(),
    m.WATCH_VCHANNELS: lambda w, t, c: cluster_pb2.WatchVChannelsRequest(),
    m.SUBMIT: _submitted,
    m.READ_FRAMES: lambda w, t, c: frames_pb2.ReadFramesRequest(**_extent(w), incarnation=w.log.incarnation, page_bytes=4096, pages_max=2),
}
