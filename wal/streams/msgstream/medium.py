"""The interface between message streams and the systems that carry their messages.

A stream handles payloads, ids as bytes and channels by name. A medium sends, delivers, acknowledges and seeks them in its system. The
conformance suite in tests/streams/msgstream checks every medium. Names (of channels, subscriptions) arrive checked: non-empty `str`.

Ids are opaque to the stream. An id must identify its channel, because `check` rejects a foreign id, and it must stay valid across restarts
for as long as its message exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from wal.runtime.tasks import AsyncClosing
from wal.streams.msgstream.errors import PartialSendError, cause_of


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """An encoded message on its way to a channel. Its type and its trace are in the payload too, in field 1, `base`."""

    payload: bytes
    msg_type: int
    """The number of its MsgType, for media that store or filter by it."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message that a consumer received, or a tick that the medium itself promises."""

    msg_id: bytes
    """Not empty; unique in its channel. `seek` and `ack` take it."""
    payload: bytes
    timestamp: int = 0
    """The medium's own timestamp of the message, which replaces those in the payload; 0 if the medium has none."""
    is_tick: bool = False
    """True for a tick of the medium (no payload): all messages of the channel with a timestamp ≤ `timestamp` came before it. Only an
    exclusive consumer gets ticks. A message of type TIME_TICK is an ordinary message here.
    """


class MediumProducer(Protocol):
    """Writes to one channel."""

    async def send(self, messages: Sequence[Outgoing]) -> list[bytes]:
        """Sends the messages (at least one), in order, and returns their ids. On return all are durable, as far as the medium is durable.

        Raises InvalidArgumentError, with nothing sent, for a message that the medium never accepts, such as a too large one. When some
        messages are durable and others are not, it raises PartialSendError from the cause; when none is, the cause. A cancelled call may
        have sent any part of them. Several calls may be in flight.
        """
        ...

    async def close(self) -> None:
        """Ends the producer after the calls in flight. Idempotent."""
        ...


class MediumConsumer(Protocol):
    """Reads one channel under one subscription. Calls of `receive` must not overlap; `ack` and `close` may come at any time."""

    async def receive(self, count_max: int) -> list[Received]:
        """Returns the next messages in the channel's order: at least one, at most `count_max`. Waits until there is one.

        A cancelled call has taken nothing. Raises ClosedError when the consumer is closed meanwhile, and the cause if the medium fails.
        """
        ...

    async def ack(self, msg_ids: Sequence[bytes]) -> None:
        """Marks these received messages and ticks as handled: this subscription never delivers them again, also after a restart.

        Ids come in any order, and once each. A medium with one position for a subscription moves it to just below the first unhandled id.
        Messages without an ack are redelivered to the subscription's next consumer, in order.
        """
        ...

    async def check(self, msg_id: bytes) -> None:
        """Returns if `seek` to this id can succeed, and moves nothing.

        Raises InvalidArgumentError for an id that is malformed or belongs to another channel or system, TruncatedError for an id whose
        message is deleted. `msg_id` is not empty.
        """
        ...

    async def seek(self, msg_id: bytes, *, inclusive: bool) -> None:
        """Moves the subscription after the message of this id, or to it if `inclusive`.

        The stream calls it after `check` and before the first `receive`. It discards acknowledged positions, even above the id.
        """
        ...

    async def close(self) -> None:
        """Ends the consumer; a waiting `receive` raises ClosedError. Earlier acks stay recorded. Idempotent."""
        ...


class Medium(Protocol):
    """A system that carries messages. It connects at its first use, and restores a lost connection by itself where possible."""

    name: str
    """The name in errors and log lines, such as `pulsar`."""

    async def producer(self, channel: str) -> MediumProducer:
        """Opens a producer of the channel, which is created if it does not exist."""
        ...

    async def consumer(self, channel: str, sub_name: str, *, earliest: bool = True, exclusive: bool = False) -> MediumConsumer:
        """Opens a consumer of the channel, which is created if it does not exist.

        An existing subscription continues after its acknowledged messages. A new one begins before the channel's first message, or after
        its last one if `earliest` is False. Subscriptions are independent: each gets all messages.

        Consumers of one subscription share its messages. An exclusive consumer excludes all others: it raises LockedError if the
        subscription has a consumer, and so does any other consumer while it is open. Media that cannot share a subscription treat every
        consumer as exclusive. An exclusive consumer also gets the ticks of the medium, if it has any.
        """
        ...

    async def broadcast(self, producers: Mapping[str, MediumProducer], messages: Sequence[Outgoing]) -> Mapping[str, list[bytes]]:
        """Sends all messages to each of these channels (the medium's own producers) and returns their ids by channel.

        Media without a broadcast of their own use `wal.streams.msgstream.send_to_each`. Raises as `MediumProducer.send` does.
        """
        ...

    async def close(self) -> None:
        """Closes the resources that the producers and consumers share; they are closed before. Idempotent."""
        ...


class BaseMedium(AsyncClosing):
    """The base of the media here: `async with` closes a medium, and a broadcast sends to each channel."""

    async def broadcast(self, producers: Mapping[str, MediumProducer], messages: Sequence[Outgoing]) -> Mapping[str, list[bytes]]:
        return await send_to_each(producers, messages)

    async def close(self) -> None:
        raise NotImplementedError


async def send_to_each(producers: Mapping[str, MediumProducer], messages: Sequence[Outgoing]) -> dict[str, list[bytes]]:
    """Sends the messages to all channels at once: the broadcast of a medium without its own. Raises as `send_parts` does."""
    return await send_parts({channel: (producer, messages) for channel, producer in producers.items()})


async def send_parts(parts: Mapping[str, tuple[MediumProducer, Sequence[Outgoing]]]) -> dict[str, list[bytes]]:
    """Sends to each channel its messages, all channels at once, and returns the ids by channel.

    It waits for every channel. If one fails, and any message is durable on any channel, it raises PartialSendError from the first failure.
    If no message is durable, it raises the first failure itself.
    """
    if len(parts) == 1:
        ((channel, (producer, messages)),) = parts.items()
        return {channel: await producer.send(messages)}
    calls = [producer.send(messages) for producer, messages in parts.values()]
    outcomes = dict(zip(parts, await asyncio.gather(*calls, return_exceptions=True), strict=True))
    ids = {channel: outcome for channel, outcome in outcomes.items() if not isinstance(outcome, BaseException)}
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, BaseException)]
    if not failures:
        return ids
    durable: dict[str, Sequence[bytes | None]] = dict(ids)
    for failure in failures:
        if isinstance(failure, PartialSendError):
            durable.update(failure.durable)
    first = failures[0]
    if not durable or not isinstance(first, Exception):
        raise first
    cause = cause_of(first)
    raise PartialSendError(str(cause), durable=durable) from cause
