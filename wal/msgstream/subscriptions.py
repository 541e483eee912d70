"""Subscriptions: the channels that a stream consumes, and the system of their actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from actors import ActorSystem
from wal.errors import InvalidArgumentError
from wal.msgstream.acker import Ack
from wal.msgstream.delivered import DeliveredPack
from wal.msgstream.medium import Medium
from wal.msgstream.page import Decoder
from wal.msgstream.position import MsgPosition
from wal.msgstream.refused import OnRefused
from wal.msgstream.subscription import Subscription

__all__ = ["Subscriptions"]


class Subscriptions:
    """The subscriptions of a stream, in the order of the calls that opened them."""

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

    async def open(
        self, channels: Sequence[str], sub_name: str, *, earliest: bool, exclusive: bool, check: Callable[[], None]
    ) -> None:
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

    async def seek(
        self, positions: Sequence[MsgPosition], *, inclusive: bool, failed: Callable[[BaseException], None]
    ) -> None:
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
                self._system,
                decoder,
                pages_max=max(1, buffer_size // len(self)),
                on_refused=on_refused,
                arrived=arrived,
                fail=fail,
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
