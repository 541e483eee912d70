"""Subscription: a channel that a stream consumes: its consumer, the actors that read and acknowledge, and the pages that wait."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

from actors import Actor, ActorSystem
from wal.errors import InvalidArgumentError
from wal.msgstream.errors import failure
from wal.msgstream.medium import Medium, MediumConsumer
from wal.msgstream.page import Decoder, OnRefused, Page, decode
from wal.msgstream.ts_msg import MsgPack, MsgPosition, Unread

PENDING_MAX: Final = 64
"""The most packs that wait for their acknowledgement in a channel; then `room` waits."""


class Ack(msgspec.Struct):
    """Acknowledge these messages. `reply` is None if nobody waits for it."""

    msg_ids: list[bytes]
    reply: asyncio.Future[None] | None = None


class Acker(Actor):
    """The actor that acknowledges the messages of one channel; one call to the medium covers all that waited.

    Takes `Ack`s. An error ends it: it goes to `fail`, and to everybody who waits for a reply.
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
"""The most messages in a page, and so in a pack of a stream without time ticks."""
CREDIT: Final = None
"""The message to the actor: receive one page more."""


class ChannelReader(Actor):
    """The actor that receives and decodes the pages of one channel, one for each credit.

    An error ends it and goes to `fail`; a page goes to `arrived`.
    """

    def __init__(
        self,
        channel: str,
        sub_name: str,
        consumer: MediumConsumer,
        acker: Acker,
        decoder: Decoder,
        *,
        on_refused: OnRefused | None,
        arrived: Callable[[Page], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.received: int = 0
        self.refused: int = 0
        self._channel = channel
        self._sub_name = sub_name
        self._consumer = consumer
        self._acker = acker
        self._decoder = decoder
        self._on_refused = on_refused
        self._arrived = arrived
        self._fail = fail
        self._ended = False

    async def receive(self, batch: list[Any]) -> None:
        for _ in batch:
            if self._ended:
                return
            try:
                page = await self._receive_page()
            except Exception as error:
                self._ended = True
                self._fail(error)
            else:
                self._arrived(page)

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        self._fail(cause)

    async def _receive_page(self) -> Page:
        """Returns the next page with a message; one of refused messages alone is acknowledged here."""
        while True:
            received = await self._consumer.receive(PACK_MESSAGES_MAX)
            page = decode(received, self._channel, self._sub_name, self._decoder)
            self.received += len(received)
            if page.refused:
                self._refuse(page)
            if page.msgs:
                return page
            await self._acker.room()
            self._acker.ref.tell(Ack(page.msg_ids))

    def _refuse(self, page: Page) -> None:
        self.refused += len(page.refused)
        first = page.refused[0]
        _log.warning(
            "skipped %d messages of channel %r; the first one, %s: %s", len(page.refused), self._channel, first.msg_id.hex(), first.reason
        )
        if self._on_refused is not None:
            for refused in page.refused:
                self._on_refused(refused)


class Subscription:
    """One channel of a consuming stream. At most `pages_max` pages wait here, and one more is being received."""

    def __init__(self, channel: str, sub_name: str, consumer: MediumConsumer) -> None:
        self.channel: Final = channel
        self.sub_name: Final = sub_name
        self.consumer: Final = consumer
        self.pages: Final[deque[Page]] = deque()
        self.delivered: int = 0
        """The messages in the packs that were consumed."""
        self._reader: ChannelReader | None = None
        self._acker: Acker | None = None
        self._pages_max = 1
        self._paused = False

    @property
    def received(self) -> int:
        """The messages that were received, including those that still wait."""
        return 0 if self._reader is None else self._reader.received

    @property
    def undecodable(self) -> int:
        """The messages that were skipped because they could not be decoded."""
        return 0 if self._reader is None else self._reader.refused

    @property
    def acked(self) -> int:
        """The messages that the medium knows to be handled."""
        return 0 if self._acker is None else self._acker.acked

    def start(
        self,
        system: ActorSystem,
        decoder: Decoder,
        *,
        pages_max: int,
        on_refused: OnRefused | None,
        arrived: Callable[[Subscription], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Begins to receive. `arrived` is called after a page was added to `pages`."""

        def add(page: Page) -> None:
            self.pages.append(page)
            self._resume(paused=True)
            arrived(self)

        self._pages_max = pages_max
        self._acker = Acker(self.consumer, fail=fail)
        self._reader = ChannelReader(
            self.channel, self.sub_name, self.consumer, self._acker, decoder, on_refused=on_refused, arrived=add, fail=fail
        )
        system.spawn(self._acker, name=f"acks of {self.channel}")
        system.spawn(self._reader, name=f"reader of {self.channel}").tell(CREDIT)

    def take_page(self) -> Page:
        """Removes and returns the oldest page; there must be one."""
        page = self.pages.popleft()
        self._resume(paused=self._paused)
        return page

    async def ack_room(self) -> None:
        """Returns when `ack` may be called."""
        if self._acker is not None:
            await self._acker.room()

    def ack(self, ack: Ack) -> None:
        """Begins to acknowledge these messages."""
        if self._acker is not None:
            self._acker.ref.tell(ack)

    async def drain(self) -> None:
        """Ends the acknowledging, after what was asked for."""
        if self._acker is not None:
            await self._acker.ref.stop()

    def cut_off(self) -> None:
        """Ends the reading, whatever it waits for."""
        if self._reader is not None:
            self._reader.ref.cut_off()

    def _resume(self, *, paused: bool) -> None:
        """Has the next page received if there is room for it, and none is being received."""
        self._paused = paused
        if paused and self._reader is not None and len(self.pages) < self._pages_max:
            self._paused = False
            self._reader.ref.tell(CREDIT)


class DeliveredPack(Unread, MsgPack):
    """A pack that a stream handed over, with what an acknowledgement of it acknowledges.

    A program may change its messages: the acknowledgement covers what was received.

    Its trace is that of its first message with one. It is looked for when it is first read, because that reads every message.
    """

    to_ack: dict[Subscription, list[bytes]] = msgspec.field(default_factory=dict)
    """The ids that `ack` acknowledges; empty once that was done."""

    _READERS = {"trace_ctx": lambda pack: next((msg.trace_ctx for msg in pack.msgs if msg.trace_ctx), {})}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        del self.trace_ctx

    def take_ids(self) -> dict[Subscription, list[bytes]]:
        """Returns the ids to acknowledge, the first time; afterwards none."""
        ids, self.to_ack = self.to_ack, {}
        return ids


class Subscriptions:
    """The channels that a stream consumes, and the system of their actors."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium
        self._system = ActorSystem(f"message stream on {medium.name}")
        self._by_channel: dict[str, Subscription] = {}

    def __len__(self) -> int:
        return len(self._by_channel)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_channel.values())

    def __getitem__(self, channel: str) -> Subscription:
        return self._by_channel[channel]

    async def open(self, channels: Sequence[str], sub_name: str, *, earliest: bool, exclusive: bool, check: Callable[[], None]) -> None:
        """Opens the channels that are not open, all or none. `check` raises if that is not wanted any more."""
        await self._system.start()
        opened: dict[str, Subscription] = {}
        try:
            for channel in channels:
                if channel not in self._by_channel:
                    consumer = await self._medium.consumer(channel, sub_name, earliest=earliest, exclusive=exclusive)
                    opened[channel] = Subscription(channel, sub_name, consumer)
            check()
        except BaseException:
            for subscription in opened.values():
                await subscription.consumer.close()
            raise
        self._by_channel.update(opened)

    async def seek(self, positions: Sequence[MsgPosition], *, inclusive: bool, failed: Callable[[BaseException], None]) -> None:
        """Moves all subscriptions or none; `failed` is called if it went wrong when some may have moved."""
        targets = self._targets(positions)
        for subscription, position in targets:
            await subscription.consumer.check(position.msg_id)
        try:
            for subscription, position in targets:
                await subscription.consumer.seek(position.msg_id, inclusive=inclusive)
        except BaseException as error:
            failed(error)
            raise

    def start(
        self,
        decoder: Decoder,
        *,
        buffer_size: int,
        on_refused: OnRefused | None,
        arrived: Callable[[Subscription], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Begins to receive. `buffer_size`: the pages that may wait in all of them, and at least one in each."""
        for subscription in self:
            subscription.start(
                self._system, decoder, pages_max=max(1, buffer_size // len(self)), on_refused=on_refused, arrived=arrived, fail=fail
            )

    def received_here(self, pack: DeliveredPack) -> bool:
        """Returns whether the messages of this pack may come from these subscriptions."""
        return all(self._by_channel.get(subscription.channel) is subscription for subscription in pack.to_ack)

    async def ack_room(self, pack: DeliveredPack) -> None:
        """Returns when `begin_ack` may be called for this pack."""
        for subscription in list(pack.to_ack):
            await subscription.ack_room()

    def begin_ack(self, pack: DeliveredPack, *, reply: bool) -> list[asyncio.Future[None]]:
        """Begins to acknowledge a pack, the first time it is called for it; returns the replies of the actors if they are wanted."""
        replies = []
        for subscription, msg_ids in pack.take_ids().items():
            ack = Ack(msg_ids, asyncio.get_running_loop().create_future() if reply else None)
            subscription.ack(ack)
            if ack.reply is not None:
                replies.append(ack.reply)
        return replies

    async def drain(self) -> None:
        """Ends the acknowledging, after what was asked for."""
        await asyncio.gather(*(subscription.drain() for subscription in self))

    async def close(self) -> None:
        """Closes the consumers, which ends the actors that wait for them; raises the first failure after that."""
        failures: list[Exception] = []
        for subscription in self:
            try:
                await subscription.consumer.close()
            except Exception as error:
                failures.append(error)
                subscription.cut_off()
        await self._system.stop()
        if failures:
            raise failures[0]

    def _targets(self, positions: Sequence[MsgPosition]) -> list[tuple[Subscription, MsgPosition]]:
        """Returns the positions with their subscriptions; raises TypeError or InvalidArgumentError if there is one to refuse."""
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
                    f"the position in channel {channel!r} has an empty msg_id: without a seek, as_consumer() says where it begins"
                )
            if channel in targets:
                raise InvalidArgumentError(f"there are two positions in channel {channel!r}: give one a channel")
            targets[channel] = self._by_channel[channel], position
        if not targets:
            raise InvalidArgumentError("seek got no position: give one a channel, such as *pack.end_positions")
        return list(targets.values())
