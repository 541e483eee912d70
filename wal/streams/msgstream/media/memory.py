"""MemoryMedium: channels in the memory of this process. Its messages end with the process; otherwise it is a medium like the others.

Streams share channels by sharing the medium. All calls must come from one event loop. A channel keeps its messages until it holds more than
`channel_bytes_max`; then it drops the oldest ones that every subscription has handled.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from wal.errors import ClosedError, InvalidArgumentError, LockedError, TruncatedError, WouldBlockError
from wal.streams.msgstream.medium import BaseMedium, Outgoing, Received

CHANNEL_BYTES_MAX: Final = 64 << 20
"""The default of `channel_bytes_max`: the most that one time tick may have."""
PREFIX_BYTES: Final = 8
"""The length of an id's prefix: random, one value for each channel of each medium. The message's number follows in eight bytes."""


class MemoryChannel:
    """The messages of a channel. Each has a number, from 0 on."""

    def __init__(self, name: str, bytes_max: int) -> None:
        self.name: Final = name
        self.prefix: Final = os.urandom(PREFIX_BYTES)
        self.subscriptions: Final[dict[str, MemorySubscription]] = {}
        self.first: int = 0
        self.messages: Final[deque[Received]] = deque()
        self._bytes_max = bytes_max
        self._bytes = 0

    @property
    def end(self) -> int:
        """The number of the next message."""
        return self.first + len(self.messages)

    def add(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Adds all messages, or raises WouldBlockError and adds none; returns their ids."""
        size = sum(map(len, payloads))
        self._make_room(size)
        self._bytes += size
        added = [Received(self.id_of(number), payload) for number, payload in enumerate(payloads, self.end)]
        self.messages.extend(added)
        for subscription in self.subscriptions.values():
            subscription.wake()
        return [message.msg_id for message in added]

    def id_of(self, number: int) -> bytes:
        return self.prefix + number.to_bytes(8, "big")

    def number_of(self, msg_id: bytes) -> int:
        """Returns the number of the message with this id; raises InvalidArgumentError or TruncatedError if the channel does not have it."""
        if len(msg_id) != PREFIX_BYTES + 8 or not msg_id.startswith(self.prefix):
            raise InvalidArgumentError(
                f"{msg_id.hex()} is not a message id of channel {self.name!r} of this memory medium: use a position from there"
            )
        number = int.from_bytes(msg_id[PREFIX_BYTES:], "big")
        if number >= self.end:
            raise InvalidArgumentError(
                f"message {number} of channel {self.name!r} does not exist, its last one is {self.end - 1}: use a position from there"
            )
        if number < self.first:
            raise TruncatedError(
                f"message {number} of channel {self.name!r} was dropped, the first one is {self.first}: seek to that one",
                earliest=self.id_of(self.first),
            )
        return number

    def _make_room(self, size: int) -> None:
        if self._bytes + size <= self._bytes_max:
            return
        handled = min((subscription.handled for subscription in self.subscriptions.values()), default=self.end)
        dropped = 0
        freed = 0
        while dropped < handled - self.first and self._bytes - freed + size > self._bytes_max:
            freed += len(self.messages[dropped].payload)
            dropped += 1
        if self._bytes - freed + size > self._bytes_max:
            slowest = min(self.subscriptions.values(), key=lambda one: one.handled, default=None)
            raise WouldBlockError(
                f"{size} bytes more exceed channel_bytes_max={self._bytes_max} of channel {self.name!r}, which holds {self._bytes - freed} "
                f"bytes for {'its subscriptions' if slowest is None else f'subscription {slowest.name!r}'}: consume, or raise the bound"
            )
        for _ in range(dropped):
            self.messages.popleft()
        self.first += dropped
        self._bytes -= freed


class MemorySubscription:
    """A subscription: its handled messages, and the delivered ones by consumer."""

    def __init__(self, name: str, channel: MemoryChannel, *, next_number: int) -> None:
        self.name: Final = name
        self.consumers: Final[set[MemoryConsumer]] = set()
        self.exclusive: bool = False
        self._channel = channel
        self._next = next_number
        self._returned: list[int] = []
        """A heap of messages that were delivered to a consumer that closed without an ack."""
        self._in_hand: dict[int, MemoryConsumer] = {}
        self._news = asyncio.Event()
        self.wake: Final = self._news.set

    @property
    def handled(self) -> int:
        """The number up to which all messages are handled, exclusive."""
        return min([self._next, *self._returned[:1], *self._in_hand])

    def take(self, count_max: int, consumer: MemoryConsumer) -> list[Received]:
        """Delivers the next messages to the consumer; returns an empty list if there are none."""
        numbers: list[int] = []
        while self._returned and len(numbers) < count_max:
            numbers.append(heappop(self._returned))
        fresh_end = min(self._channel.end, self._next + count_max - len(numbers))
        numbers.extend(range(self._next, fresh_end))
        self._next = max(self._next, fresh_end)
        self._in_hand.update(dict.fromkeys(numbers, consumer))
        first, messages = self._channel.first, self._channel.messages
        return [messages[number - first] for number in numbers]

    def ack(self, msg_ids: Sequence[bytes]) -> None:
        for msg_id in msg_ids:
            self._in_hand.pop(int.from_bytes(msg_id[PREFIX_BYTES:], "big"), None)

    def seek(self, number: int) -> None:
        self._next = number
        self._returned.clear()
        self._in_hand.clear()
        self.wake()

    def leave(self, consumer: MemoryConsumer) -> None:
        """Returns the consumer's unacknowledged messages to the subscription."""
        self.consumers.discard(consumer)
        for number in [number for number, holder in self._in_hand.items() if holder is consumer]:
            del self._in_hand[number]
            heappush(self._returned, number)
        self.wake()

    async def wait(self) -> None:
        """Returns when there may be a message, or when a consumer has closed."""
        self._news.clear()
        await self._news.wait()


class MemoryProducer:
    """Adds messages to one channel."""

    def __init__(self, medium: MemoryMedium, channel: MemoryChannel) -> None:
        self._medium = medium
        self._channel = channel
        self._closed = False

    async def send(self, messages: Sequence[Outgoing]) -> list[bytes]:
        if self._closed or self._medium.closed:
            raise ClosedError(f"the producer of channel {self._channel.name!r} was closed: open another one")
        return self._channel.add([message.payload for message in messages])

    async def close(self) -> None:
        self._closed = True


class MemoryConsumer:
    """Reads one channel under one subscription."""

    def __init__(self, channel: MemoryChannel, subscription: MemorySubscription) -> None:
        self._channel = channel
        self._subscription = subscription
        self._closed = False

    async def receive(self, count_max: int) -> list[Received]:
        await asyncio.sleep(0)  # waiting messages must not keep other tasks from running
        while not self._closed:
            if received := self._subscription.take(count_max, self):
                return received
            await self._subscription.wait()
        raise ClosedError(f"the consumer of channel {self._channel.name!r} was closed: open another one")

    async def ack(self, msg_ids: Sequence[bytes]) -> None:
        self._subscription.ack(msg_ids)

    async def check(self, msg_id: bytes) -> None:
        self._channel.number_of(msg_id)

    async def seek(self, msg_id: bytes, *, inclusive: bool) -> None:
        number = self._channel.number_of(msg_id)
        self._subscription.seek(number if inclusive else number + 1)

    async def close(self) -> None:
        self._closed = True
        self._subscription.leave(self)


class MemoryMedium(BaseMedium):
    """A medium of this process: `async with MemoryMedium() as medium`, or close it after its streams."""

    def __init__(self, *, channel_bytes_max: int = CHANNEL_BYTES_MAX) -> None:
        if channel_bytes_max < 1:
            raise InvalidArgumentError(f"channel_bytes_max={channel_bytes_max} is out of range: give at least 1")
        self.name: str = "memory"
        self.closed: bool = False
        self._channels: dict[str, MemoryChannel] = {}
        self._channel_bytes_max = channel_bytes_max

    async def producer(self, channel: str) -> MemoryProducer:
        return MemoryProducer(self, self._channel(channel))

    async def consumer(self, channel: str, sub_name: str, *, earliest: bool = True, exclusive: bool = False) -> MemoryConsumer:
        memory_channel = self._channel(channel)
        subscription = memory_channel.subscriptions.get(sub_name)
        if subscription is None:
            subscription = MemorySubscription(
                sub_name, memory_channel, next_number=memory_channel.first if earliest else memory_channel.end
            )
            memory_channel.subscriptions[sub_name] = subscription
        if subscription.consumers and (exclusive or subscription.exclusive):
            raise LockedError(
                f"subscription {sub_name!r} of channel {channel!r} has {len(subscription.consumers)} consumers, and one of them is to be "
                "exclusive: close the other first, or choose another subscription"
            )
        subscription.exclusive = exclusive
        consumer = MemoryConsumer(memory_channel, subscription)
        subscription.consumers.add(consumer)
        return consumer

    async def close(self) -> None:
        """Ends all producers and consumers. The messages are freed with the last stream. Idempotent."""
        self.closed = True
        for channel in self._channels.values():
            for subscription in channel.subscriptions.values():
                for consumer in list(subscription.consumers):
                    await consumer.close()

    def _channel(self, name: str) -> MemoryChannel:
        if self.closed:
            raise ClosedError("the memory medium was closed: make another one")
        return self._channels.setdefault(name, MemoryChannel(name, self._channel_bytes_max))
