"""Subscription: a channel that a stream consumes: its consumer, the actors that read and acknowledge, and the waiting pages."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from actors import Actor, ActorSystem
from wal.errors import InvalidArgumentError
from wal.streams.msgstream.errors import failure
from wal.streams.msgstream.medium import Medium, MediumConsumer
from wal.streams.msgstream.page import Decoder, OnRefused, Page, decode
from wal.streams.msgstream.ts_msg import LazyFields, MsgPack, MsgPosition

PENDING_MAX: Final = 64
"""The maximum number of a channel's packs that wait for their acknowledgement; above it `room` waits."""


class Ack(msgspec.Struct):
    """Acknowledges these messages. `reply` awaits the answer, if a caller waits for one."""

    msg_ids: list[bytes]
    reply: asyncio.Future[None] | None = None


class Acker(Actor):
    """The actor that acknowledges the messages of one channel; one call to the medium covers all waiting messages.

    Takes `Ack`s. An error ends it; `fail` and all waiting replies get the error.
    """

    def __init__(self, consumer: MediumConsumer, *, fail: Callable[[BaseException], None]) -> None:
        self.acked: int = 0
        self._consumer = consumer
        self._fail = fail
        self._failure: BaseException | None = None
        self._went_on = asyncio.Event()

    async def room(self) -> None:
        """Returns when there is room for an `Ack`, or when the actor has ended."""
        while self.ref.pending >= PENDING_MAX and self._failure is None:
            self._went_on.clear()
            await self._went_on.wait()

    async def receive(self, batch: list[Any]) -> None:
        acks: list[Ack] = list(batch)
        msg_ids = acks[0].msg_ids if len(acks) == 1 else [msg_id for ack in acks for msg_id in ack.msg_ids]
        if self._failure is None:
            try:
                await self._consumer.ack(msg_ids)
                self.acked += len(msg_ids)
            except Exception as error:
                self._end(error)
        for ack in acks:
            if ack.reply is not None and not ack.reply.done():
                if self._failure is None:
                    ack.reply.set_result(None)
                else:
                    ack.reply.set_exception(self._failure)
        batch.clear()
        self._went_on.set()

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._end(cause)
        for ack in unhandled:
            if ack.reply is not None and not ack.reply.done():
                ack.reply.set_exception(failure(cause))

    def _end(self, cause: BaseException) -> None:
        self._failure = failure(cause)
        self._fail(self._failure)
        self._went_on.set()


_log: Final = logging.getLogger("wal.msgstream")

PACK_MESSAGES_MAX: Final = 1_024
"""The maximum number of messages in a page, and so in a pack of a stream without time ticks."""
CREDIT: Final = None
"""The message to the actor: receive one page more."""


class Subscription(Actor):
    """One channel of a consuming stream: the actor that receives and decodes its pages, one for each credit.

    At most `Subscriptions.pages_max` pages wait here, and one more is being received. An error ends the actor and the stream.
    """

    def __init__(self, channel: str, sub_name: str, consumer: MediumConsumer, stream: Subscriptions) -> None:
        self.channel: Final = channel
        self.sub_name: Final = sub_name
        self.consumer: Final = consumer
        self.acker: Final = Acker(consumer, fail=stream.fail)
        self.pages: Final[deque[Page]] = deque()
        self.received: int = 0
        """The received messages, including those that still wait."""
        self.undecodable: int = 0
        """The messages that were skipped as undecodable."""
        self.delivered: int = 0
        """The messages in the packs that were consumed."""
        self._stream = stream
        self._paused = False
        self._ended = False

    async def receive(self, batch: list[Any]) -> None:
        for _ in batch:
            if self._ended:
                return
            try:
                page = await self._receive_page()
            except Exception as error:
                self._ended = True
                self._stream.fail(error)
            else:
                self.pages.append(page)
                self._resume(paused=True)
                self._stream.arrived(self)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._stream.fail(cause)

    def take_page(self) -> Page:
        """Removes and returns the oldest page; there must be one."""
        page = self.pages.popleft()
        self._resume(paused=self._paused)
        return page

    def _resume(self, *, paused: bool) -> None:
        """Requests the next page if there is room for it, and no other is being received."""
        self._paused = paused and len(self.pages) >= self._stream.pages_max
        if paused and not self._paused:
            self.ref.tell(CREDIT)

    async def _receive_page(self) -> Page:
        """Returns the next page with a message. A page of refused messages alone is acknowledged here."""
        while True:
            received = await self.consumer.receive(PACK_MESSAGES_MAX)
            page = decode(received, self.channel, self.sub_name, self._stream.decoder)
            self.received += len(received)
            if page.refused:
                self._refuse(page)
            if page.msgs:
                return page
            await self.acker.room()
            self.acker.ref.tell(Ack(page.msg_ids))

    def _refuse(self, page: Page) -> None:
        self.undecodable += len(page.refused)
        first = page.refused[0]
        _log.warning(
            "skipped %d messages of channel %r; the first one, %s: %s", len(page.refused), self.channel, first.msg_id.hex(), first.reason
        )
        if (on_refused := self._stream.on_refused) is not None:
            for refused in page.refused:
                on_refused(refused)


class DeliveredPack(LazyFields, MsgPack):
    """A pack that a stream delivered, with the ids that its acknowledgement covers.

    A program may change its messages: the acknowledgement covers the received ones.

    Its trace is that of its first message with one. It is computed at the first read, because that reads every message.
    """

    to_ack: dict[Subscription, list[bytes]] = msgspec.field(default_factory=dict)
    """The ids that `ack` acknowledges; empty afterwards."""

    _READERS = {"trace_ctx": lambda pack: next((msg.trace_ctx for msg in pack.msgs if msg.trace_ctx), {})}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        del self.trace_ctx

    def take_ids(self) -> dict[Subscription, list[bytes]]:
        """Returns the ids to acknowledge at the first call; empty afterwards."""
        ids, self.to_ack = self.to_ack, {}
        return ids


class Subscriptions:
    """The channels that a stream consumes, and the system of their actors."""

    def __init__(
        self,
        medium: Medium,
        decoder: Decoder,
        *,
        buffer_size: int,
        on_refused: OnRefused | None,
        arrived: Callable[[Subscription], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`buffer_size` bounds the waiting pages of all subscriptions; each has at least one. `arrived` is called after a page was
        added.
        """
        self.decoder: Final = decoder
        self.on_refused: Final = on_refused
        self.arrived: Final = arrived
        self.fail: Final = fail
        self.started: bool = False
        self._medium = medium
        self._buffer_size = buffer_size
        self._system = ActorSystem(f"message stream on {medium.name}")
        self._by_channel: dict[str, Subscription] = {}

    @property
    def pages_max(self) -> int:
        """The maximum number of waiting pages of one subscription."""
        return max(1, self._buffer_size // len(self))

    def __len__(self) -> int:
        return len(self._by_channel)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_channel.values())

    def __getitem__(self, channel: str) -> Subscription:
        return self._by_channel[channel]

    async def open(self, channels: Sequence[str], sub_name: str, *, earliest: bool, exclusive: bool, check: Callable[[], None]) -> None:
        """Opens the channels that are not open, all or none. `check` raises if the opening is obsolete."""
        await self._system.start()
        opened: dict[str, Subscription] = {}
        try:
            for channel in channels:
                if channel not in self._by_channel:
                    consumer = await self._medium.consumer(channel, sub_name, earliest=earliest, exclusive=exclusive)
                    opened[channel] = Subscription(channel, sub_name, consumer, self)
            check()
        except BaseException:
            for subscription in opened.values():
                await subscription.consumer.close()
            raise
        self._by_channel.update(opened)

    async def seek(self, positions: Sequence[MsgPosition], *, inclusive: bool, failed: Callable[[BaseException], None]) -> None:
        """Moves all subscriptions or none. `failed` is called for a failure after which some may have moved."""
        targets = self._targets(positions)
        for subscription, position in targets:
            await subscription.consumer.check(position.msg_id)
        try:
            for subscription, position in targets:
                await subscription.consumer.seek(position.msg_id, inclusive=inclusive)
        except BaseException as error:
            failed(error)
            raise

    def start(self) -> None:
        """Starts receiving."""
        self.started = True
        for subscription in self:
            self._system.spawn(subscription.acker, name=f"acks of {subscription.channel}")
            self._system.spawn(subscription, name=f"reader of {subscription.channel}").tell(CREDIT)

    def received_here(self, pack: DeliveredPack) -> bool:
        """Returns whether the messages of this pack may come from these subscriptions."""
        return all(self._by_channel.get(subscription.channel) is subscription for subscription in pack.to_ack)

    async def ack_room(self, pack: DeliveredPack) -> None:
        """Waits until `begin_ack` may be called for this pack."""
        for subscription in list(pack.to_ack):
            await subscription.acker.room()

    def begin_ack(self, pack: DeliveredPack, *, reply: bool) -> list[asyncio.Future[None]]:
        """Begins to acknowledge a pack at the first call for it; returns the replies of the actors if requested."""
        replies = []
        for subscription, msg_ids in pack.take_ids().items():
            ack = Ack(msg_ids, asyncio.get_running_loop().create_future() if reply else None)
            subscription.acker.ref.tell(ack)
            if ack.reply is not None:
                replies.append(ack.reply)
        return replies

    async def drain(self) -> None:
        """Ends the acknowledging, after all requested acknowledgements."""
        if self.started:
            await asyncio.gather(*(subscription.acker.ref.stop() for subscription in self))

    async def close(self) -> None:
        """Closes the consumers, which ends the actors that wait for them; raises the first failure after that."""
        failures: list[Exception] = []
        for subscription in self:
            try:
                await subscription.consumer.close()
            except Exception as error:
                failures.append(error)
                if self.started:
                    subscription.ref.cut_off()
        await self._system.stop()
        if failures:
            raise failures[0]

    def _targets(self, positions: Sequence[MsgPosition]) -> list[tuple[Subscription, MsgPosition]]:
        """Returns the positions with their subscriptions; raises TypeError or InvalidArgumentError for an unusable position."""
        targets: dict[str, tuple[Subscription, MsgPosition]] = {}
        for position in positions:
            if not isinstance(position, MsgPosition):
                raise TypeError(f"seek takes MsgPositions, not {position!r}")
            channel = position.channel_name
            if channel not in self._by_channel:
                raise InvalidArgumentError(
                    f"the stream does not consume channel {channel!r} but {', '.join(map(repr, self._by_channel)) or 'none'}: call "
                    "as_consumer() first, or give a position of these"
                )
            if not position.msg_id:
                raise InvalidArgumentError(
                    f"the position in channel {channel!r} has an empty msg_id: omit the seek to begin where as_consumer() does"
                )
            if channel in targets:
                raise InvalidArgumentError(f"there are two positions in channel {channel!r}: give one a channel")
            targets[channel] = self._by_channel[channel], position
        if not targets:
            raise InvalidArgumentError("seek got no position: give one a channel, such as *pack.end_positions")
        return list(targets.values())
