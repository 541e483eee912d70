"""A log as a medium: a channel is a vchannel, a subscription is a cursor.

The timestamps of messages are the log's ticks; the writer's own timestamps stay in the payload. The log promises its own ticks, so the
producer drops TIME_TICK messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final, Unpack

import msgspec

from broadcaster.message import BroadcastMessage
from wal.api.accesser import WALAccesser
from wal.errors import ChannelExistError, ClosedError, InvalidArgumentError
from wal.message import Message, MessageType
from wal.read.options import Latest
from wal.streams.msgstream.errors import PartialSendError
from wal.streams.msgstream.media.wal_consumer import TickGrid, WalConsumer
from wal.streams.msgstream.media.wal_ids import WalId
from wal.streams.msgstream.medium import BaseMedium, MediumProducer, Outgoing
from wal.streams.msgstream.stream import MsgStream, StreamOptions, TtStreamOptions
from wal.streams.msgstream.tt_stream import TtMsgStream
from wal.streams.msgstream.types import MsgType

MSG_TYPE: Final = "msg_type"
"""The property of a log's message with the number of the stream message's type."""
TICK_INTERVAL_S: Final = 0.2
"""The default of `tick_interval_s`: the default interval of a log's promised ticks (`time_tick_interval_s`)."""


class WalMedium(BaseMedium):
    """The vchannels of an open log, local or remote; its owner closes it.

    `tick_interval_s`: time-ticked streams are cut at multiples of it. Packs with messages are the same in every run.
    """

    name: str = "wal"

    def __init__(self, log: WALAccesser, *, tick_interval_s: float = TICK_INTERVAL_S) -> None:
        if not isinstance(log, WALAccesser):
            raise TypeError(f"a WalMedium takes an open log, as open_wal(…) gives it, not {log!r}")
        TickGrid(tick_interval_s)
        self._log = log
        self._interval_s = tick_interval_s
        self._closed = False

    async def producer(self, channel: str) -> WalProducer:
        """Opens a producer of the vchannel, which is created if it does not exist."""
        self._check()
        await self._create(channel)
        return WalProducer(self._log, channel)

    async def consumer(self, channel: str, sub_name: str, *, earliest: bool = True, exclusive: bool = False) -> WalConsumer:
        """Opens a consumer of the vchannel under the cursor `sub_name`. A process has at most one consumer with this cursor.

        In a log that is open with `read_only=True` a missing vchannel reads as empty.
        """
        self._check()
        if self._is_writable():
            await self._create(channel)
        grid = TickGrid(self._interval_s) if exclusive else None
        return await WalConsumer.open(self._log, channel, sub_name, earliest=earliest, grid=grid)

    async def broadcast(self, producers: Mapping[str, MediumProducer], messages: Sequence[Outgoing]) -> dict[str, list[bytes]]:
        """Broadcasts each message to all channels: after any crash either all of them get the message, or no channel does."""
        broadcast = self._log.broadcast()
        copies = [
            None
            if message.msg_type == MsgType.TIME_TICK
            else BroadcastMessage(
                vchannels=[*producers],
                payload=message.payload,
                message_type=stored_type(message.msg_type),
                properties={MSG_TYPE: str(message.msg_type)},
                needs_ack=False,
            )
            for message in messages
        ]
        for copy in copies:
            if copy is not None:
                await broadcast.check(copy)
        ids_by_channel: dict[str, list[bytes]] = {channel: [] for channel in producers}
        for number, copy in enumerate(copies):
            try:
                if copy is None:
                    for channel, ids in ids_by_channel.items():
                        ids.append(ids[-1] if ids else await _latest(self._log, channel))
                    continue
                results = (await broadcast.append(copy)).append_results
            except Exception as error:
                if not any(copies[:number]):
                    raise
                missing = [None] * (len(messages) - number)
                durable = {channel: [*ids, *missing] for channel, ids in ids_by_channel.items()}
                raise PartialSendError(str(error), durable=durable) from error
            for channel, ids in ids_by_channel.items():
                ids.append(bytes(WalId(channel, results[channel].message_id)))
        return ids_by_channel

    async def close(self) -> None:
        """Ends the use of the log, which stays open."""
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("this medium was closed: create another one")

    def _is_writable(self) -> bool:
        try:
            self._log.broadcast()
        except InvalidArgumentError:
            return False
        return True

    async def _create(self, channel: str) -> None:
        with contextlib.suppress(ChannelExistError):
            await self._log.create_vchannel(channel)


class WalProducer:
    """Writes to one vchannel."""

    def __init__(self, log: WALAccesser, channel: str) -> None:
        self._log = log
        self._channel = channel
        self._closed = False

    async def send(self, messages: Sequence[Outgoing]) -> list[bytes]:
        """Sends the messages as one transaction. A dropped tick has the id of the message before it."""
        if self._closed:
            raise ClosedError(f"the producer of channel {self._channel!r} was closed: open another one")
        bodies = [
            Message(
                self._channel, message.payload, message_type=stored_type(message.msg_type), properties={MSG_TYPE: str(message.msg_type)}
            )
            for message in messages
            if message.msg_type != MsgType.TIME_TICK
        ]
        before = b""
        if messages[0].msg_type == MsgType.TIME_TICK:
            before = await _latest(self._log, self._channel)
        if not bodies:
            return [before] * len(messages)
        if len(bodies) == 1:
            result = await self._log.raw_append(bodies[0])
        else:
            result = await self._log.append_txn(self._channel, bodies)
        event, remaining = result.message_id, len(bodies)
        ids = []
        for message in messages:
            if message.msg_type != MsgType.TIME_TICK:
                index = event.index - remaining if remaining > 1 else event.index
                remaining -= 1
                before = bytes(WalId(self._channel, msgspec.structs.replace(event, index=index)))
            ids.append(before)
        return ids

    async def close(self) -> None:
        """Ends the producer; the log finishes the appends in flight."""
        self._closed = True


class WalMsgStream(MsgStream):
    """A MsgStream over an open log."""

    def __init__(self, log: WALAccesser, **options: Unpack[StreamOptions]) -> None:
        super().__init__(WalMedium(log), owns_medium=True, **options)


class WalTtMsgStream(TtMsgStream):
    """A TtMsgStream over an open log, whose packs end at multiples of `tick_interval_s`."""

    def __init__(self, log: WALAccesser, *, tick_interval_s: float = TICK_INTERVAL_S, **options: Unpack[TtStreamOptions]) -> None:
        super().__init__(WalMedium(log, tick_interval_s=tick_interval_s), owns_medium=True, **options)


def stored_type(msg_type: int) -> MessageType:
    """Returns the type of the log's message that carries a stream message of this type: the log's own DDL types fail transactions."""
    return MessageType.DELETE if msg_type == MsgType.DELETE else MessageType.INSERT


async def _latest(log: WALAccesser, channel: str) -> bytes:
    """Returns the id after which the next message of the vchannel follows, for a dropped tick."""
    async with log.read(channel, deliver_policy=Latest()) as scanner:
        position = scanner.position
    if position is None:
        return bytes(WalId(channel, None, 0))
    return bytes(WalId(channel, position.message_id, position.time_tick))
