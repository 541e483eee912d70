"""MsgStream: packs of messages, produced to some channels and consumed from others.

Owns the producers and the subscriptions, with two actors for each subscription, and the medium if `owns_medium`. It guarantees that
messages are durable when `produce` and `broadcast` return. A pack is acknowledged only by `ack` or by the request for the next one, and a
cancelled `consume` loses nothing. At most `buffer_size` packs wait, beside a page that each channel receives. An error of the medium ends
the stream: every later call raises it.

The statistics of a stream are frozen structs, created on request; its options and their checks are `StreamOptions`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Self, TypedDict

import msgspec

from wal.errors import ClosedError, InvalidArgumentError
from wal.runtime.async_only import AsyncOnly
from wal.runtime.tasks import AsyncClosing
from wal.streams.msgstream.checks import check_channels, check_name
from wal.streams.msgstream.dispatcher import UnmarshalDispatcher
from wal.streams.msgstream.errors import failure
from wal.streams.msgstream.medium import Medium
from wal.streams.msgstream.page import Decoder, OnRefused
from wal.streams.msgstream.producers import RepackFunc, StreamProducers
from wal.streams.msgstream.subscription import DeliveredPack, Subscription, Subscriptions
from wal.streams.msgstream.ts_msg import MsgPack, MsgPosition, TsMsg


class ChannelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a channel that a stream consumes, in messages since the stream was created."""

    channel_name: str
    sub_name: str
    received: int
    """Received messages, including waiting ones and time ticks."""
    delivered: int
    """Messages in the consumed packs."""
    undecodable: int
    late: int
    """Messages at or below an earlier tick of their channel; only streams with time ticks refuse them."""
    repeated: int
    """Messages that were sent twice, and delivered once; only streams with time ticks recognise them."""
    acked: int
    """Messages whose acknowledgement is recorded."""
    packs_waiting: int
    """Packs that were received and not consumed yet."""
    tick: int
    """The newest tick of the channel; 0 before the first one, and in a stream without time ticks."""


class MsgStreamStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a stream."""

    packs: int
    """The number of consumed packs."""
    channels: tuple[ChannelStatistics, ...]
    """The channels that the stream consumes, in the order of their subscriptions."""
    waits_for: tuple[str, ...]
    """The channels that hold the next pack back, and from which nothing has arrived. In a stream with time ticks they have sent no newer
    tick. In another stream they are all channels, or none if a pack waits.
    """


BUFFER_SIZE = 4
"""The default of `buffer_size`: enough to receive and decode while a pack is handled."""


class MsgStream(AsyncOnly, AsyncClosing):
    """A stream over a medium: `async with MsgStream(medium) as stream`, or await `close` at the end. One event loop uses it.

    A pack has up to 1,024 messages of one channel, in its order. Several streams can share a subscription, if the medium can.

    `buffer_size` is the number of received packs that may wait to be consumed, over all channels; each channel has at least one.
    `dispatcher` decodes the messages, and `on_refused` gets every skipped message. With `auto_ack` False only `ack` acknowledges a
    pack. With `owns_medium` the stream closes the medium at its own close.
    """

    _with_form = "async with MsgStream(medium) as stream: …"
    _exclusive: ClassVar[bool] = False

    def __init__(
        self,
        medium: Medium,
        *,
        buffer_size: int = BUFFER_SIZE,
        dispatcher: Decoder | None = None,
        on_refused: OnRefused | None = None,
        auto_ack: bool = True,
        owns_medium: bool = False,
    ) -> None:
        check_options(medium, buffer_size=buffer_size, dispatcher=dispatcher, on_refused=on_refused, auto_ack=auto_ack)
        self._medium = medium
        self._auto_ack = auto_ack
        self._owns_medium = owns_medium
        self._setup = asyncio.Lock()
        self._producers = StreamProducers(medium)
        self._subscriptions = Subscriptions(
            medium,
            dispatcher or UnmarshalDispatcher(),
            buffer_size=buffer_size,
            on_refused=on_refused,
            arrived=self._page_arrived,
            fail=self._fail,
        )
        self._waiting: deque[Subscription] = deque()
        self._news = asyncio.Event()
        self._handed: DeliveredPack | None = None
        self._packs = 0
        self._failure: BaseException | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def auto_ack(self) -> bool:
        """Whether a request for the next pack acknowledges the previous one."""
        return self._auto_ack

    async def as_producer(self, channels: Sequence[str]) -> None:
        """Adds these channels to the targets of the stream; bucket i is the i-th of all. Present channels are skipped.

        When it raises, no channel was added.
        """
        names = check_channels(channels)
        async with self._setup:
            self._check()
            opened = {}
            try:
                for name in names:
                    if name not in self._producers:
                        opened[name] = await self._medium.producer(name)
                self._check()
            except BaseException:
                for producer in opened.values():
                    await producer.close()
                raise
            self._producers.add(opened)

    async def as_consumer(self, channels: Sequence[str], sub_name: str, *, earliest: bool = True) -> None:
        """Subscribes to these channels; present channels are skipped. It must be called before the stream receives.

        A new subscription begins at the earliest message, or after the last one if `earliest` is False. An existing one continues after its
        acknowledged messages. When it raises, no channel was added.
        """
        names = check_channels(channels)
        check_name("sub_name", sub_name)
        async with self._setup:
            self._check()
            self._check_not_started("as_consumer()")
            await self._subscriptions.open(names, sub_name, earliest=earliest, exclusive=self._exclusive, check=self._check)

    def set_repack_func(self, repack_func: RepackFunc | None) -> None:
        """Sets the function that distributes messages; None distributes them by their types."""
        if repack_func is not None and not callable(repack_func):
            raise TypeError(f"repack_func must be a function(msgs, buckets) or None, not {repack_func!r}")
        self._producers.repack_func = repack_func

    async def produce(self, pack: MsgPack) -> dict[str, list[MsgPosition]]:
        """Sends each message to the channel of its hash keys, and returns the positions by channel; all are durable then.

        Rows of inserts and deletes are distributed one by one. An empty pack is sent nowhere. All checks run before anything is sent; a
        failure while it sends raises ProduceError. A cancelled call may have sent any part.
        """
        self._check()
        return await self._producers.produce(pack) if _msgs(pack) else {}

    async def broadcast(self, pack: MsgPack) -> dict[str, list[MsgPosition]]:
        """Sends all messages to all channels; otherwise as `produce`."""
        self._check()
        return await self._producers.broadcast(pack) if _msgs(pack) else {}

    async def seek(self, *positions: MsgPosition, inclusive: bool = False) -> None:
        """Continues after these positions, one a channel; with `inclusive`, at them. Other channels stay where they are.

        `seek(*pack.end_positions)` continues exactly after the pack. It must be called before the stream receives, and moves all channels
        or none: an unusable position raises InvalidArgumentError or TruncatedError.
        """
        await self._seek(positions, inclusive=inclusive)

    async def start(self) -> None:
        """Starts receiving, if there are channels to consume; `consume` does so too. Idempotent."""
        async with self._setup:
            self._check()
            self._start()

    async def consume(self) -> MsgPack | None:
        """Waits for the next pack and returns it; None once the stream is closed. The previous pack is acknowledged now.

        Calls must not overlap. An error of the medium is raised after the packs that were received before it.
        """
        if not self._subscriptions.started:
            async with self._setup:
                if self._closing is None:
                    self._check()
                    if not self._subscriptions:
                        raise InvalidArgumentError("the stream has no consumers: call as_consumer([channel, …], sub_name) first")
                    self._start()
        if (handed := self._handed) is not None:
            await self._subscriptions.ack_room(handed)
            if self._closing is None:
                self._subscriptions.begin_ack(handed, reply=False)
                self._handed = None
        while self._closing is None:
            pack = self._take()
            if pack is not None:
                self._handed = pack if self._auto_ack else None
                self._packs += 1
                return pack
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            self._news.clear()
            await self._news.wait()
        return None

    async def ack(self, pack: MsgPack) -> None:
        """Acknowledges a consumed pack; returns when the medium has recorded it. A second call does nothing."""
        if not isinstance(pack, DeliveredPack) or not self._subscriptions.received_here(pack):
            raise InvalidArgumentError(f"{type(pack).__name__} was not consumed from this stream: give a pack of consume()")
        self._check()
        await self._subscriptions.ack_room(pack)
        self._check()
        replies = self._subscriptions.begin_ack(pack, reply=True)
        if replies:
            await asyncio.gather(*replies)

    def chan(self) -> Self:
        """Returns the packs as an asynchronous iterator, which ends when the stream is closed."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MsgPack:
        pack = await self.consume()
        if pack is None:
            raise StopAsyncIteration
        return pack

    def statistics(self) -> MsgStreamStatistics:
        """Returns the counts since the stream was created, by channel."""
        return MsgStreamStatistics(
            packs=self._packs, channels=tuple(self._channel_statistics(one) for one in self._subscriptions), waits_for=self._waits_for()
        )

    async def close(self) -> None:
        """Finishes the acknowledgements and the running calls, and ends the stream. Idempotent; cancelling a call does not abort the close.

        The last consumed pack is not acknowledged, unless `ack` was called: the subscription's next consumer gets it again.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
            self._news.set()
        await asyncio.shield(self._closing)

    async def _seek(self, positions: Sequence[MsgPosition], *, inclusive: bool) -> None:
        async with self._setup:
            self._check()
            self._check_not_started("seek()")
            await self._subscriptions.seek(positions, inclusive=inclusive, failed=self._seek_failed)
            self._sought(positions)

    def _take(self) -> DeliveredPack | None:
        """Returns the next pack, or None if none was received."""
        if not self._waiting:
            return None
        subscription = self._waiting.popleft()
        page = subscription.take_page()
        subscription.delivered += len(page.msgs)
        return DeliveredPack(
            page.msgs,
            page.begin_ts,
            max(page.ends),
            start_positions=[page.start],
            end_positions=[page.end],
            to_ack={subscription: page.msg_ids},
        )

    def _begin(self) -> None:
        """A hook that runs before the subscriptions begin to receive."""

    def _page_arrived(self, subscription: Subscription) -> None:
        self._waiting.append(subscription)
        self._news.set()

    def _sought(self, positions: Sequence[MsgPosition]) -> None:
        """A hook that runs when the subscriptions have moved."""

    def _waits_for(self) -> tuple[str, ...]:
        return () if self._waiting else tuple(one.channel for one in self._subscriptions)

    def _channel_statistics(self, one: Subscription) -> ChannelStatistics:
        return ChannelStatistics(
            channel_name=one.channel,
            sub_name=one.sub_name,
            received=one.received,
            delivered=one.delivered,
            undecodable=one.undecodable,
            late=0,
            repeated=0,
            acked=one.acker.acked,
            packs_waiting=len(one.pages),
            tick=0,
        )

    def _start(self) -> None:
        if self._subscriptions and not self._subscriptions.started:
            self._begin()
            self._subscriptions.start()

    def _check(self) -> None:
        if self._closing is not None:
            raise ClosedError(f"this message stream on {self._medium.name} was closed: open another one")
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_not_started(self, call: str) -> None:
        if self._subscriptions.started:
            raise InvalidArgumentError(f"the stream receives already: call {call} before start() and the first consume()")

    def _seek_failed(self, cause: BaseException) -> None:
        if not isinstance(cause, Exception):
            cause = ClosedError("a seek was cancelled when some channels had moved: open another stream")
        self._fail(cause)

    def _fail(self, cause: BaseException) -> None:
        if self._failure is None and self._closing is None:
            self._failure = failure(cause)
            self._news.set()

    async def _close(self) -> None:
        async with self._setup:
            steps: list[Callable[[], Awaitable[object]]] = [self._subscriptions.drain, self._subscriptions.close, self._producers.close]
            if self._owns_medium:
                steps.append(self._medium.close)
            failures: list[Exception] = []
            for step in steps:
                try:
                    await step()
                except Exception as error:
                    failures.append(error)
            if failures:
                raise failures[0]


def _msgs(pack: MsgPack) -> Sequence[TsMsg]:
    """Returns the messages of a pack to send; raises TypeError if `pack` is not a MsgPack."""
    if not isinstance(pack, MsgPack):
        raise TypeError(f"a stream sends a MsgPack, not {pack!r}")
    for msg in pack.msgs:
        if not isinstance(msg, TsMsg):
            raise TypeError(f"a pack has TsMsgs, not {msg!r}")
    return pack.msgs


class StreamOptions(TypedDict, total=False):
    """The keywords of every stream; the defaults are those of MsgStream."""

    buffer_size: int
    dispatcher: Decoder | None
    on_refused: OnRefused | None
    auto_ack: bool


class TtStreamOptions(StreamOptions, total=False):
    """The keywords of every stream with time ticks; the defaults are those of TtMsgStream."""

    tick_bytes_max: int


def check_options(medium: object, *, buffer_size: object, dispatcher: object, on_refused: object, auto_ack: object) -> None:
    """Raises TypeError or InvalidArgumentError unless a stream can be created over this medium with these options."""
    if not callable(getattr(medium, "consumer", None)):
        raise TypeError(f"a message stream needs a medium, such as MemoryMedium(), not {medium!r}")
    if dispatcher is not None and not callable(getattr(dispatcher, "unmarshal", None)):
        raise TypeError(f"dispatcher must be an UnmarshalDispatcher or None, not {dispatcher!r}")
    if on_refused is not None and not callable(on_refused):
        raise TypeError(f"on_refused must be a function(refused) or None, not {on_refused!r}")
    if not isinstance(auto_ack, bool):
        raise TypeError(f"auto_ack must be a bool, not {auto_ack!r}")
    if not isinstance(buffer_size, int) or buffer_size < 1:
        raise InvalidArgumentError(f"buffer_size={buffer_size!r} is out of range: give at least 1 pack")
