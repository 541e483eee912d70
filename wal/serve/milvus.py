"""The reading half of Milvus' protocol, for clients that were generated from its files: Consume, which carries a pchannel's messages.

A stream is written no faster than its client reads: HTTP/2 makes this side wait, with at most a page in memory, and nobody else notices.
It goes message by message: a transaction is its begin, its bodies and its commit, one after the other. TimeTick messages show
that time passes on a quiet log. Without a filter by vchannel the consumer gets the whole pchannel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import grpc.aio

from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, ImmutableTxnMessage, MessageID, MessageType, TimeTickMessage
from wal.message.codec import id_to_wire, to_wire, txn_to_wire
from wal.message.wire_pb2 import Message
from wal.network import Method
from wal.node.node import StreamingNode
from wal.read.options import (
    All,
    DeliverFilter,
    DeliverPolicy,
    EventFilter,
    Latest,
    MessageTypes,
    ReadOptions,
    Selection,
    StartAfter,
    StartFrom,
    TimeTickGT,
    TimeTickGTE,
    WholePChannel,
)
from wal.read.scanner import Scanner
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.converters import id_from_bytes
from wal.rpc.draining import Draining
from wal.rpc.headers import consumer_in
from wal.rpc.methods import CONSUME
from wal.rpc.serving import Handler
from wal.runtime.tasks import end_tasks
from wal.serve.hosted import Hosted
from wal.serve.tail import AllTickRounds, TickRounds
from wal.write.pchannel import PChannel

_BATCH: Final = 256
"""The most messages that are taken before the stream is looked at: its end is noticed after them."""
_WHOLE: Final = ("",)
"""Stands for the vchannels of a read of the whole pchannel: no vchannel has this name."""


class ConsumeService:
    """Serves the streams that read the messages of the pchannels that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining, rounds: AllTickRounds) -> None:
        self._node = node
        self._hosted = hosted
        self._draining = draining
        self._rounds = rounds

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of Consume."""
        return {CONSUME: self._consume}

    async def _consume(self, context: Any) -> None:
        created = consumer_in(context.invocation_metadata() or ())
        rounds = self._rounds.of(self._hosted.find(created.pchannel))
        await MessageFeed(context, self._node, self._draining, rounds, created).run()
        await context.write(proto.ConsumeResponse(close=proto.CloseConsumerResponse()))


class MessageFeed:
    """Reads `pchannel` for one consumer."""

    def __init__(
        self, context: Any, node: StreamingNode, draining: Draining, rounds: TickRounds, created: proto.CreateConsumerRequest
    ) -> None:
        """Raises InvalidArgumentError for a policy or a filter that is not set, and for vchannels of another pchannel."""
        self._context = context
        self._node = node
        self._draining = draining
        self._rounds = rounds
        self._pchannel = pchannel = rounds.pchannel
        self._wake = asyncio.Event()
        policy = policy_from_proto(created.deliver_policy)
        vchannels, filters = filters_from_proto(created.deliver_filters)
        for name in vchannels:
            if (place := node.routes.known.pchannel_of(name)) != pchannel.channel:
                raise InvalidArgumentError(
                    f"vchannel {name!r} is on pchannel {place}, and this consumer reads {pchannel.channel}: create one for {place}"
                )
        options = ReadOptions(vchannels or _WHOLE, policy, EventFilter.of(filters), include_time_ticks=True)
        self._writing = asyncio.Lock()
        self._scanner = Scanner(options, attach=node.routes.attach if vchannels else self._attach_whole)

    async def run(self) -> None:
        """Serves the stream until the client closes it. Raises the error with which it ends."""
        reader = asyncio.get_running_loop().create_task(self._read(), name=f"consume {self._pchannel.channel}")
        try:
            async with self._scanner:
                await self._context.write(proto.ConsumeResponse(create=proto.CreateConsumerResponse()))
                sender = asyncio.get_running_loop().create_task(self._send(), name=f"feed {self._pchannel.channel}")
                try:
                    await asyncio.wait((reader, sender), return_when=asyncio.FIRST_COMPLETED)
                    if reader.done() and not sender.done() and reader.exception() is None:
                        # gRPC's writes must not overlap, and a cancelled write continues: the answer to the close comes after it.
                        async with self._writing:
                            sender.cancel()
                finally:
                    await end_tasks(sender)
            if not sender.cancelled():
                sender.result()
        finally:
            await self._context.end(reader)
        reader.result()

    async def _send(self) -> None:
        tail = self._pchannel.tail
        with self._rounds.calling(self._wake.set):
            async for page in self._scanner.batches(_BATCH):
                end = tail.durable_end
                self._wake.clear()
                for message in page:
                    await self._send_message(message)
                if isinstance(page[-1], TimeTickMessage) and tail.durable_end == end:
                    await self._idle()

    async def _idle(self) -> None:
        """Waits for data, or for this stream's turn to get the next tick."""
        waiter = self._pchannel.tail.waiter(ticks=False)
        waiter.add_done_callback(self._moved)
        try:
            if self._pchannel.tail.failure is None:
                await self._wake.wait()
        finally:
            waiter.remove_done_callback(self._moved)
            waiter.cancel()

    def _moved(self, _waiter: object) -> None:
        self._wake.set()

    async def _send_message(self, message: ImmutableMessage) -> None:
        parts: Sequence[tuple[MessageID | None, Message]] = (
            txn_to_wire(message) if isinstance(message, ImmutableTxnMessage) else ((message.message_id, to_wire(message)),)
        )
        for message_id, wire in parts:
            shown = None if message_id is None else id_to_wire(message_id)  # a TimeTick before any event has none
            response = proto.ConsumeMessageReponse(id=shown, message=wire)
            async with self._writing:
                self._pchannel.check_lease()
                await self._context.write(proto.ConsumeResponse(consume=response))

    async def _read(self) -> None:
        """Returns when the client closes the stream. Raises for any other request."""
        with self._draining.ending():
            request = await self._context.read()
            if request is not grpc.aio.EOF and not request.HasField("close"):
                raise InvalidArgumentError("a ConsumeRequest has no request of this version: set close")

    async def _attach_whole(self, _names: tuple[str, ...]) -> tuple[PChannel, Selection, Any]:
        return self._pchannel, WholePChannel(), self._node.spawn


def policy_from_proto(policy: proto.DeliverPolicy) -> DeliverPolicy:
    """Returns the policy of a proto. Raises InvalidArgumentError for a missing policy or an invalid id."""
    match policy.WhichOneof("policy"):
        case "all":
            return All()
        case "latest":
            return Latest()
        case "start_from":
            return StartFrom(id_from_bytes("deliver_policy.start_from", policy.start_from.id))
        case "start_after":
            return StartAfter(id_from_bytes("deliver_policy.start_after", policy.start_after.id))
        case _:
            raise InvalidArgumentError("deliver_policy is not set: set all, latest, start_from or start_after")


def filters_from_proto(filters: Iterable[proto.DeliverFilter]) -> tuple[tuple[str, ...], list[DeliverFilter]]:
    """Returns the vchannels that filters name, each once, and the other filters.

    Milvus puts the vchannel among the filters; here it is the argument of a read. Without one a consumer gets the whole pchannel.
    Raises InvalidArgumentError for a filter that is not set, an empty name, or a type that cannot be filtered for.
    """
    vchannels: dict[str, None] = {}
    others: list[DeliverFilter] = []
    for one in filters:
        match one.WhichOneof("filter"):
            case "time_tick_gt":
                others.append(TimeTickGT(one.time_tick_gt.time_tick))
            case "time_tick_gte":
                others.append(TimeTickGTE(one.time_tick_gte.time_tick))
            case "vchannel":
                if not one.vchannel.vchannel:
                    raise InvalidArgumentError("a filter by vchannel names none: name it, or leave the filter out for the whole pchannel")
                vchannels[one.vchannel.vchannel] = None
            case "message_types":
                others.append(MessageTypes(*map(_type, one.message_types.types)))
            case _:
                raise InvalidArgumentError(
                    "a deliver filter is not set, or not known to this version: set time_tick_gt, time_tick_gte, vchannel or message_types"
                )
    return tuple(vchannels), others


def _type(number: int) -> MessageType:
    try:
        return MessageType(number)
    except ValueError:
        raise InvalidArgumentError(f"message type {number} is unknown: this version has {sorted(map(int, MessageType))}") from None
