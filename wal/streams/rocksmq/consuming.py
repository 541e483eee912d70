"""Consuming: the delivery of messages to consumer groups, their positions, and the calls of `consume` that wait.

Owns the calls that wait or are being answered. It is the part of the broker's turn that reads the store, and runs only within that turn. It
guarantees that no message is delivered before the group's position is written, and that a cancelled consumer has taken nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, WALError
from wal.streams.rocksmq.catalog import Catalog
from wal.streams.rocksmq.channel import Channel, ConsumerGroup, ConsumerMessage
from wal.streams.rocksmq.keys import NOTHING, TurnWrites
from wal.streams.rocksmq.requests import ConsumeRequest, Waiting
from wal.streams.rocksmq.store import Store


class Consuming:
    """The consumer groups of a catalog. `run` executes a blocking call on the store's thread."""

    def __init__(self, store: Store, catalog: Catalog, run: Callable[..., Awaitable[Any]], *, bytes_max: int) -> None:
        self.consumed: int = 0
        self.waiting: Waiting = Waiting()
        self.serving: list[ConsumeRequest] = []
        """The calls that had waited and are now being answered: neither an inbox nor a batch holds them."""
        self._store = store
        self._catalog = catalog
        self._run = run
        self._bytes_max = bytes_max

    def destroy(self, name: str, group: str | None, changes: TurnWrites) -> None:
        """Removes a channel, or this group of it. Calls that wait for its messages get an error."""
        channel = self._catalog.channel(name) if group is None else self._catalog.group(group, name)[0]
        if group is None:
            channel.destroy(changes)
            del self._catalog.channels[name]
        else:
            channel.remove_group(group, changes)
        for consume in self.waiting.of(name, group):
            self.waiting.remove(consume)
            if not consume.reply.done():
                what = f"channel {name!r}" if group is None else f"consumer group {group!r}"
                consume.reply.set_exception(ChannelNotExistError(f"{what} was destroyed while this call waited"))

    async def seek(self, group_name: str, channel_name: str, message_id: int | None, changes: TurnWrites, *, inclusive: bool) -> None:
        """Moves the group after this id, or before it if `inclusive`; None moves it after everything."""
        channel, group = self._catalog.group(group_name, channel_name)
        if message_id is None:
            position = channel.last_id
        elif message_id == NOTHING:
            position = self._beginning(channel)
        else:
            position = await self._found(channel, message_id)
            if not inclusive:
                position = message_id
        # Messages that were delivered before the seek are not returned.
        group = channel.groups[group.name] = ConsumerGroup(group.name)
        channel.move(group, position, changes)

    async def ack(self, group_name: str, channel_name: str, message_id: int, changes: TurnWrites) -> None:
        """Marks everything up to this id as consumed by the group."""
        channel, group = self._delivered(group_name, channel_name, message_id, "acknowledge what was consumed")
        channel.ack(group, message_id, changes, first_returned=await self._first_returned(channel, group))

    async def give_back(self, group_name: str, channel_name: str, messages: Sequence[ConsumerMessage], changes: TurnWrites) -> None:
        """Returns delivered messages to the group: its next call gets them."""
        last = max((message.message_id for message in messages), default=NOTHING)
        channel, group = self._delivered(group_name, channel_name, last, "give back what was consumed")
        returned = {message.message_id: message for message in (*group.returned, *messages)}
        group.returned = [returned[message_id] for message_id in sorted(returned)]
        channel.ack(group, group.acked_id, changes, first_returned=await self._first_returned(channel, group))

    async def find(self, channel_name: str, message_id: int, _changes: TurnWrites) -> None:
        """Checks that the message of this id exists, and changes nothing."""
        await self._found(self._catalog.channel(channel_name), message_id)

    def _delivered(self, group_name: str, channel_name: str, message_id: int, remedy: str) -> tuple[Channel, ConsumerGroup]:
        """Returns the channel and the group; raises InvalidArgumentError if this message was not delivered to the group."""
        channel, group = self._catalog.group(group_name, channel_name)
        if message_id > group.read_id:
            raise InvalidArgumentError(
                f"group {group.name!r} was handed messages of {channel.name!r} up to {group.read_id}, not {message_id}: {remedy}"
            )
        return channel, group

    async def consume(self, consumes: list[ConsumeRequest]) -> None:
        """Answers the calls for which there are messages; the others wait. Positions are written once, unsynced, before the answers."""
        while consumes:
            self.serving = consumes
            changes = TurnWrites()
            answers: list[tuple[ConsumeRequest, list[ConsumerMessage]]] = []
            for consume in consumes:
                if not consume.reply.done():
                    try:
                        messages = await self._serve(consume, changes)
                    except WALError as error:
                        if not consume.reply.done():
                            consume.reply.set_exception(error)
                        continue
                    if messages:
                        answers.append((consume, messages))
            if changes:
                await self._run(self._store.write, changes, sync=False)
            changes, again = TurnWrites(), []
            for consume, messages in answers:
                self.consumed += len(messages)
                if consume.reply.done():  # it was cancelled meanwhile
                    await self.take_back(consume, messages, changes)
                    again += self.waiting.take(consume.channel)
                else:
                    consume.reply.set_result(messages)
            self.serving = consumes = again
            if changes:
                await self._run(self._store.write, changes, sync=False)

    async def _serve(self, consume: ConsumeRequest, changes: TurnWrites) -> list[ConsumerMessage]:
        """Returns the messages for this call. Without any, the call waits or returns empty."""
        channel, group = self._catalog.group(consume.group, consume.channel)
        messages = await self._next(channel, group, consume.count_max)
        if messages:
            first, last = messages[0].message_id, messages[-1].message_id
            acked = last if consume.auto_ack else group.acked_id
            # These messages were acknowledged for a caller that returned them.
            if not consume.auto_ack and first <= group.acked_id:
                acked = group.acked_id = await self._id_before(channel, first)
            channel.ack(group, acked, changes, first_returned=await self._first_returned(channel, group))
            consume.served_group = group
        elif consume.waits:
            self.waiting.add(consume)
        elif not consume.reply.done():
            consume.reply.set_result([])
        return messages

    async def take_back(self, consume: ConsumeRequest, messages: list[ConsumerMessage], changes: TurnWrites) -> None:
        """Stores the messages for the next call of the group, unless the group has moved since they were delivered."""
        self.consumed -= len(messages)
        channel = self._catalog.channels.get(consume.channel)
        if channel is None or (group := channel.groups.get(consume.group)) is not consume.served_group or group is None:
            return
        group.returned = sorted([*group.returned, *messages], key=lambda message: message.message_id)
        channel.ack(group, group.acked_id, changes, first_returned=await self._first_returned(channel, group))

    async def _next(self, channel: Channel, group: ConsumerGroup, count_max: int) -> list[ConsumerMessage]:
        """Returns the messages that the group reads next, and marks them as read."""
        if group.returned:
            returned, group.returned = group.returned[:count_max], group.returned[count_max:]
            return returned
        if channel.is_lost(group):
            raise self._truncated(channel, f"messages of channel {channel.name!r} that group {group.name!r} has not consumed were dropped")
        if channel.last_id in (NOTHING, group.read_id) or group.read_id > channel.last_id:
            return []
        messages: list[ConsumerMessage] = await self._run(
            self._store.scan,
            channel.prefix,
            group.read_id,
            channel.begin_id,
            channel.last_id,
            count_max=count_max,
            bytes_max=self._bytes_max,
        )
        group.read_id = messages[-1].message_id
        return messages

    async def _found(self, channel: Channel, message_id: int) -> int:
        """Returns the id before this one; raises an error if this message does not exist."""
        if message_id <= channel.dropped_id:
            raise self._truncated(channel, f"message {message_id} of channel {channel.name!r} was dropped")
        before = None
        if channel.begin_id <= message_id < channel.end_id:
            before = await self._run(self._store.before, channel.prefix, message_id)
        if before is None:
            raise InvalidArgumentError(
                f"channel {channel.name!r} has no message {message_id}: seek to the id of one, to -1 for the beginning or to the latest"
            )
        return self._beginning(channel) if message_id == channel.begin_id else before

    def _beginning(self, channel: Channel) -> int:
        """Returns the position of a group that reads from the first message of the channel."""
        return channel.dropped_id or NOTHING

    async def _first_returned(self, channel: Channel, group: ConsumerGroup) -> int | None:
        """Returns the id before the first returned message, after which the group has consumed nothing; None without returned messages."""
        return await self._id_before(channel, group.returned[0].message_id) if group.returned else None

    async def _id_before(self, channel: Channel, message_id: int) -> int:
        """Returns the position of a group whose next message is this one, or the first remaining one if this message was dropped."""
        if message_id <= channel.begin_id:
            return self._beginning(channel)
        before = await self._run(self._store.before, channel.prefix, message_id)
        return self._beginning(channel) if before is None else before

    def _truncated(self, channel: Channel, what: str) -> TruncatedError:
        earliest = None if channel.begin_id == channel.end_id else channel.begin_id
        return TruncatedError(f"{what}; the earliest is {earliest}: seek to it, to -1 or to the latest", earliest=earliest)
