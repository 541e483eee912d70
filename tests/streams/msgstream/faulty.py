"""FaultyMedium: the medium in memory, with calls that fail or wait on the test's request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from wal.streams.msgstream import Outgoing, Received, send_to_each
from wal.streams.msgstream.media.memory import MemoryConsumer, MemoryMedium, MemoryProducer

Hook = Callable[..., Awaitable[None]]


class FaultyMedium:
    """`before["receive"]` and the like are awaited with the channel and the arguments of a call before it is executed."""

    name = "faulty"

    def __init__(self) -> None:
        self.memory = MemoryMedium()
        self.before: dict[str, Hook] = {}
        self.acks: list[int] = []
        """The number of messages in each call of `ack`."""

    def fail(self, call: str, error: Exception, *, channel: str | None = None) -> None:
        """Makes the call raise this error from now on, on this channel or on all."""

        async def raise_error(called: str, *_: Any) -> None:
            if channel in (None, called):
                raise error

        self.before[call] = raise_error

    def block(self, call: str) -> asyncio.Event:
        """Makes the call wait until the returned event is set."""
        event = asyncio.Event()

        async def wait(*_: Any) -> None:
            await event.wait()

        self.before[call] = wait
        return event

    async def call(self, name: str, *args: Any) -> None:
        if (hook := self.before.get(name)) is not None:
            await hook(*args)

    async def producer(self, channel: str) -> FaultyProducer:
        await self.call("producer", channel)
        return FaultyProducer(self, channel, await self.memory.producer(channel))

    async def consumer(self, channel: str, sub_name: str, *, earliest: bool = True, exclusive: bool = False) -> FaultyConsumer:
        await self.call("consumer", channel)
        consumer = await self.memory.consumer(channel, sub_name, earliest=earliest, exclusive=exclusive)
        return FaultyConsumer(self, channel, consumer)

    async def broadcast(self, producers: Mapping[str, Any], messages: Sequence[Outgoing]) -> Mapping[str, list[bytes]]:
        return await send_to_each(producers, messages)

    async def close(self) -> None:
        await self.call("close", "")
        await self.memory.close()


class FaultyProducer:
    def __init__(self, medium: FaultyMedium, channel: str, inner: MemoryProducer) -> None:
        self._medium = medium
        self._channel = channel
        self._inner = inner

    async def send(self, messages: Sequence[Outgoing]) -> list[bytes]:
        await self._medium.call("send", self._channel, messages)
        return await self._inner.send(messages)

    async def close(self) -> None:
        await self._medium.call("close_producer", self._channel)
        await self._inner.close()


class FaultyConsumer:
    def __init__(self, medium: FaultyMedium, channel: str, inner: MemoryConsumer) -> None:
        self._medium = medium
        self._channel = channel
        self._inner = inner

    async def receive(self, count_max: int) -> list[Received]:
        await self._medium.call("receive", self._channel)
        return await self._inner.receive(count_max)

    async def ack(self, msg_ids: Sequence[bytes]) -> None:
        await self._medium.call("ack", self._channel, msg_ids)
        self._medium.acks.append(len(msg_ids))
        await self._inner.ack(msg_ids)

    async def check(self, msg_id: bytes) -> None:
        await self._medium.call("check", self._channel)
        await self._inner.check(msg_id)

    async def seek(self, msg_id: bytes, *, inclusive: bool) -> None:
        await self._medium.call("seek", self._channel)
        await self._inner.seek(msg_id, inclusive=inclusive)

    async def close(self) -> None:
        await self._medium.call("close_consumer", self._channel)
        await self._inner.close()
