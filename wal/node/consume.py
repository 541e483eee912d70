"""Consume: the streams on which clients read a pchannel, as messages in the protocol's own form, or as frames in ours.

A stream is written no faster than its client reads: HTTP/2 makes this side wait, with at most a page in memory, and nobody else notices.

`MessageFeed` sends message by message: a transaction as its begin, its bodies and its commit, one after the other. TimeTick messages show
that time passes on a quiet log. Without a filter by vchannel the consumer gets the whole pchannel.

`FrameFeed` feeds a remote pchannel. It sends the frames that the client wants, page by page, and with the last of them the tail; then it
waits for the log, or for a request. Our own client reads the tail by it (`tail_only`), and pages by ReadFrames, which its reader can hold
back; the pages here, and the requests that change their names, are for clients in other languages that want one stream for both.

`TickRounds` tells idle streams that the promised tick has moved. One task waits for ticks on behalf of all of them, which themselves wait
for data only. At most `STREAMS_A_TURN` are woken every `TURN_S` seconds: up to 400 streams hear of the tick every 0.2 s, as it moves by
default, and 8,000 every 4 s. If each waited by itself, 8,000 would keep most of a core busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import grpc.aio

from actors import Actor, ActorRef
from wal.errors import InvalidArgumentError, InvalidRequestSeqError, TruncatedError, WALError
from wal.message import ImmutableMessage, ImmutableTxnMessage, MessageID, MessageType, TimeTickMessage
from wal.message.codec import id_to_wire, to_wire, txn_to_wire
from wal.message.wire_pb2 import Message
from wal.network import Method
from wal.node.hosted import Hosted, identity_of, tail_of
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
from wal.read.pchannel import ReadablePChannel
from wal.read.scanner import Scanner
from wal.rpc.api import frames_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.api.pchannel_pb2 import TailState, VChannelState
from wal.rpc.converters import id_from_bytes, position_from_proto, vchannel_to_proto
from wal.rpc.frame_pages import frame_to_proto, page_to_proto, wanted_extents
from wal.rpc.headers import client_in, consumer_in
from wal.rpc.methods import CONSUME
from wal.rpc.serving import NAMES_MAX, Draining, Handler, checked_names, sliced
from wal.settings import ServerBounds
from wal.storage.base import FramePage
from wal.write.pchannel import PChannel

_BATCH: Final = 256
"""The most messages that are taken before the stream is looked at: its end is noticed after them."""
_WHOLE: Final = ("",)
"""Stands for the vchannels of a read of the whole pchannel: no vchannel has this name."""


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
                        # gRPC takes one write at a time, and one that is cancelled goes on: the answer to the close comes after it.
                        async with self._writing:
                            sender.cancel()
                finally:
                    sender.cancel()
                    await asyncio.wait((sender,))
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
        """Waits for data, or for this stream's turn to hear of the next tick."""
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
                raise InvalidArgumentError("a ConsumeRequest has no request that this version knows for a consumer of messages: set close")

    async def _attach_whole(self, _names: tuple[str, ...]) -> tuple[PChannel, Selection, Any]:
        return self._pchannel, WholePChannel(), self._spawn

    def _spawn(self, actor: Actor, name: str) -> ActorRef:
        return self._node.spawn(actor, name)


class ConsumeService:
    """Serves the streams that read the pchannels that are `hosted` here."""

    def __init__(self, node: StreamingNode, hosted: Hosted, draining: Draining, bounds: ServerBounds) -> None:
        self._node = node
        self._hosted = hosted
        self._draining = draining
        self._grace_s = bounds.consumer_grace_s
        self._rounds: dict[str, TickRounds] = {}

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of Consume."""
        return {CONSUME: self._consume}

    async def _consume(self, context: Any) -> None:
        metadata = context.invocation_metadata() or ()
        created, client = consumer_in(metadata), client_in(metadata)
        with self._node.claims.connected(client, self._grace_s) if client else contextlib.nullcontext():
            await self._serve(context, created)

    async def _serve(self, context: Any, created: proto.CreateConsumerRequest) -> None:
        pchannel = self._hosted.find(created.pchannel)
        rounds = self._rounds.get(pchannel.channel)
        if rounds is None or rounds.pchannel is not pchannel:
            rounds = self._rounds[pchannel.channel] = TickRounds(pchannel)
        if created.HasField("frames"):
            await FrameFeed(context, self._node, self._draining, rounds, created.frames).run()
        else:
            await MessageFeed(context, self._node, self._draining, rounds, created).run()
        await context.write(proto.ConsumeResponse(close=proto.CloseConsumerResponse()))


STREAMS_A_TURN: Final = 100
TURN_S: Final = 0.05
"""2,000 streams a second take about a third of a core."""


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


PAGE_BYTES: Final = 1 << 20
PAGE_BYTES_MAX: Final = 4 << 20
"""The largest page, about the largest frame."""
_FRAMES_A_TURN: Final = 128
"""How many frames are converted before other tasks get their turn: about a millisecond."""


class FrameFeed:
    """A `Reader` of the pchannel: it is told of the vchannels that are created and dropped."""

    def __init__(
        self, context: Any, node: StreamingNode, draining: Draining, rounds: TickRounds, selection: frames_pb2.FrameSelection
    ) -> None:
        self._context = context
        self._node = node
        self._draining = draining
        self._rounds = rounds
        self._pchannel = rounds.pchannel
        self._selection = selection
        self._names: set[str] | None = None
        """The vchannels that are wanted; None: all of the pchannel."""
        self._names_since = False
        """Whether the next page is the first one with other names."""
        self._at = 0
        """Where the next page begins."""
        self._changed: set[str] = set()
        """The vchannels of which the client has to be told."""
        self._sent_tail: TailState | None = None
        self._awaited_tick = 0
        self._wake = asyncio.Event()

    # -- as the pchannel sees it, see `Reader`

    @property
    def vchannels(self) -> tuple[str, ...]:
        return ()

    def incarnation(self, vchannel: str) -> int | None:
        return None

    def ended_by(self, vchannel: str, error: WALError) -> None:
        self._note(vchannel)

    def created(self, vchannel: str, pchannel: ReadablePChannel, *, incarnation: int | None = None) -> None:
        # Its record is not saved yet: the client is told when it is, so that no crash takes back what a client knows.
        asyncio.get_running_loop().call_soon(self._note_when_saved, vchannel)

    def _note_when_saved(self, vchannel: str) -> None:
        saving = self._node.routes.known.saving.get(vchannel)
        if saving is None:
            self._note(vchannel)
        else:
            saving.add_done_callback(lambda _: self._note(vchannel))

    def _note(self, vchannel: str) -> None:
        if self._names is None or vchannel in self._names:
            self._changed.add(vchannel)
            self._wake.set()

    # -- the stream

    async def run(self) -> None:
        """Serves the stream until the client closes it. Raises the error with which it ends."""
        await self._begin()
        tail = self._sent_tail = tail_of(self._pchannel)
        self._pchannel.readers.add(self)  # before the states are read, so that no change of one is missed
        try:
            states = await self._states(self._names or ())
        except BaseException:
            self._pchannel.readers.discard(self)
            raise
        created = proto.CreateConsumerResponse(log=identity_of(self._pchannel), tail=tail, vchannels=states)
        reader = asyncio.get_running_loop().create_task(self._read(), name=f"consume {self._pchannel.channel}")
        reader.add_done_callback(lambda _: self._wake.set())
        try:
            await self._context.write(proto.ConsumeResponse(create=created))
            with self._rounds.calling(self._wake.set):
                while not reader.done():
                    await self._feed(reader)
        finally:
            self._pchannel.readers.discard(self)
            await self._context.end(reader)
        reader.result()

    async def _begin(self) -> None:
        """Checks the selection. Raises InvalidArgumentError for one that cannot be served."""
        selection, log, tail = self._selection, self._pchannel.log, self._pchannel.tail
        if selection.incarnation not in (0, log.incarnation):
            raise InvalidArgumentError(
                f"pchannel {self._pchannel.channel!r} has a log of incarnation {log.incarnation:x}, not {selection.incarnation:x}: the "
                "positions are of another log"
            )
        if selection.page_bytes > PAGE_BYTES_MAX:
            raise InvalidArgumentError(f"page_bytes={selection.page_bytes} is above {PAGE_BYTES_MAX}: ask for smaller pages")
        if selection.HasField("names"):
            self._names = await _checked(selection.names.names)
        self._at = position_from_proto(selection.start) if selection.HasField("start") else tail.durable_end
        if self._at > tail.durable_end:
            raise InvalidArgumentError(
                f"position {self._at} is above the durable end {tail.durable_end} of {self._pchannel.channel}: start at or below it"
            )

    async def _feed(self, reader: asyncio.Task[None]) -> None:
        """Sends what is new, then waits for more."""
        pchannel, tail = self._pchannel, self._pchannel.tail
        self._wake.clear()
        if tail.failure is not None:
            raise tail.failure
        if self._awaited_tick > tail.promised_tick:
            pchannel.advance_for(self._awaited_tick)
        waiter = tail.waiter(ticks=self._awaited_tick > tail.promised_tick)
        waiter.add_done_callback(self._moved)
        try:
            state, end = tail_of(pchannel), tail.durable_end
            update = frames_pb2.FrameUpdate()
            while not self._selection.tail_only and self._at < end:
                async with self._context.room(self._selection.page_bytes or PAGE_BYTES):
                    page = await self._page(end)
                    if self._at >= end:
                        update.page.CopyFrom(page)
                    else:
                        pchannel.check_lease()
                        await self._context.write(proto.ConsumeResponse(frames=frames_pb2.FrameUpdate(page=page)))
                if reader.done():
                    return
            changed, self._changed = self._changed, set()
            update.vchannels.extend(await self._states(changed))
            if state != self._sent_tail:
                update.tail.CopyFrom(state)
            if update.ByteSize():
                pchannel.check_lease()
                await self._context.write(proto.ConsumeResponse(frames=update))
                self._sent_tail = state
            await self._wake.wait()
        finally:
            waiter.remove_done_callback(self._moved)  # cancelling the waiter would wake the stream once more
            waiter.cancel()

    def _moved(self, _waiter: object) -> None:
        self._wake.set()

    async def _page(self, end: int) -> frames_pb2.FramePage:
        """Returns the next page, and moves on to its end."""
        pchannel, start = self._pchannel, self._at
        names = None if self._names is None else frozenset(self._names)
        since, self._names_since = self._names_since, False
        bytes_max = self._selection.page_bytes or PAGE_BYTES
        page: FramePage | None = None
        if start >= pchannel.log.earliest[0]:
            page = pchannel.recent.page(start, end, names=names, bytes_max=bytes_max)
        if page is None:
            try:
                page = await pchannel.log.read(start, names=names, bytes_max=bytes_max, end=end)
            except TruncatedError as error:
                raise await pchannel.overtaken(start) from error
        frames = []
        for frame in page.frames:
            view = frame.view
            extents = wanted_extents(view, names)
            frames.append(frame_to_proto(frame.position, frame.next_position, view.head, view.stored, extents))
            if len(frames) % _FRAMES_A_TURN == 0:
                await asyncio.sleep(0)
        self._at = page.next_position
        message = page_to_proto(page, start=start, frames=frames)
        message.names_since = since
        return message

    async def _read(self) -> None:
        """Executes the requests; returns when the client closes the stream. Raises for a request that ends it."""
        with self._draining.ending():
            while (request := await self._context.read()) is not grpc.aio.EOF:
                match request.WhichOneof("request"):
                    case "close":
                        return
                    case "await_tick":
                        self._awaited_tick = request.await_tick.time_tick
                    case "change_names":
                        await self._change(request.change_names)
                    case _:
                        raise InvalidArgumentError(
                            "a ConsumeRequest has no request that this version knows: set close, change_names or await_tick"
                        )
                self._wake.set()

    async def _change(self, request: frames_pb2.ChangeNamesRequest) -> None:
        if self._names is None:
            raise InvalidRequestSeqError(
                "change_names is for a consumer with names, and this one reads the whole pchannel: create one with names"
            )
        added, removed = await _checked(request.added), set(request.removed)
        names = (self._names | added) - removed
        if len(names) > NAMES_MAX:
            raise _too_many(len(names))
        self._changed |= added - self._names
        self._names, self._names_since = names, True

    async def _states(self, names: Collection[str]) -> list[VChannelState]:
        return [self._state(name) async for name in sliced(sorted(names))]

    def _state(self, name: str) -> VChannelState:
        known = self._node.routes.known
        info = known.records.get(name)
        if info is not None and name not in known.saving:
            return vchannel_to_proto(info)
        return VChannelState(name=name, pchannel=known.pchannel_of(name), incarnation=known.next_incarnation)


async def _checked(names: Any) -> set[str]:
    if len(names) > NAMES_MAX:
        raise _too_many(len(names))
    return set(await checked_names(names))


def _too_many(count: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"a consumer reads {count} vchannels, and {NAMES_MAX} are accepted: read the whole pchannel, without names")


def policy_from_proto(policy: proto.DeliverPolicy) -> DeliverPolicy:
    """Returns the policy of a message. Raises InvalidArgumentError for one that is not set, or whose id is none."""
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
        raise InvalidArgumentError(f"message type {number} is not one that this version knows: {sorted(map(int, MessageType))}") from None
