"""RocksMQ as a medium: a subscription is a consumer group, and an id is RocksMQ's, 8 bytes, big-endian.

A group delivers each message to one of its consumers and has one position. `RocksMQSubscription` moves the position over the messages that
all consumers in this process have handled. A consumer that closes returns its unhandled messages to the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Final, Unpack
from weakref import WeakKeyDictionary

from wal.errors import ChannelExistError, ClosedError, InvalidArgumentError, LockedError, StorageError, WALError
from wal.location import absolute_path
from wal.runtime.tasks import keep_task
from wal.streams.msgstream.errors import PartialSendError
from wal.streams.msgstream.medium import BaseMedium, Outgoing, Received
from wal.streams.msgstream.stream import MsgStream, StreamOptions, TtStreamOptions
from wal.streams.msgstream.tt_stream import TtMsgStream
from wal.streams.rocksmq import BATCH_MESSAGES_MAX, ConsumerMessage, RocksMQ, RocksMQSettings


class RocksMQSubscription:
    """A consumer group of one channel, as the streams of this process share it. Pure.

    RocksMQ has one position for a group, and streams acknowledge in any order. So the subscription records all messages that were delivered
    to any of its consumers, and moves the position to just below the first unhandled one.
    """

    def __init__(self) -> None:
        self.consumers: int = 0
        self.exclusive: bool = False
        self._delivered: deque[int] = deque()  # ascending, from the first unhandled message on
        self._handled: set[int] = set()

    def delivered(self, message_ids: Iterable[int]) -> None:
        """Records messages that were delivered to a consumer. Messages that an earlier consumer returned are recorded already."""
        delivered = self._delivered
        for message_id in message_ids:
            if not delivered or message_id > delivered[-1]:
                delivered.append(message_id)
            elif delivered[at := bisect_left(delivered, message_id)] != message_id:
                delivered.insert(at, message_id)

    def handled(self, message_ids: Sequence[int]) -> int | None:
        """Records handled messages, and returns the id up to which the group has now consumed everything; None if the position did not
        move.
        """
        delivered, handled = self._delivered, self._handled
        last = None
        for message_id in message_ids:
            if delivered and delivered[0] == message_id:  # the usual case: in order
                last = delivered.popleft()
            else:
                handled.add(message_id)
        while handled and delivered and delivered[0] in handled:
            last = delivered.popleft()
            handled.discard(last)
        return last

    def moved(self) -> None:
        """Clears the delivered messages, because a seek moved the group."""
        self._delivered.clear()
        self._handled.clear()


def join(mq: RocksMQ, channel: str, group: str, *, exclusive: bool) -> RocksMQSubscription:
    """Returns the subscription with one more consumer.

    Raises LockedError if this consumer, or a present one, excludes others.
    """
    of_mq = _subscriptions.setdefault(mq, {})
    subscription = of_mq.get((channel, group))
    if subscription is None or not subscription.consumers:
        subscription = of_mq[channel, group] = RocksMQSubscription()
    elif exclusive or subscription.exclusive:
        raise LockedError(
            f"subscription {group!r} of channel {channel!r} is open in {subscription.consumers} streams of this process, and a time-ticked "
            "stream reads alone: close the other streams, or subscribe under another name"
        )
    subscription.consumers += 1
    subscription.exclusive = exclusive
    return subscription


_subscriptions: MutableMapping[RocksMQ, dict[tuple[str, str], RocksMQSubscription]] = WeakKeyDictionary()


class SharedRocksMQ:
    """The RocksMQ of a directory, open once in this process for all media that use it.

    RocksDB does not open a directory twice, not even in one process. The first medium opens it, the last one closes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self._settings: RocksMQSettings | None = None
        self._mq: RocksMQ | None = None
        self._closing: asyncio.Future[None] | None = None
        self._users = 0

    async def take(self, settings: RocksMQSettings | None) -> RocksMQ:
        """Returns the open RocksMQ; each call needs one call of `give`. Raises the errors of `RocksMQ.open`, and InvalidArgumentError for
        settings (None: any) other than those it is open with.
        """
        async with self._lock:
            if self._closing is not None:
                await asyncio.wait([self._closing])  # `give` has raised its failure
                self._closing = None
            if self._mq is None:
                self._settings = settings or RocksMQSettings()
                opening = asyncio.ensure_future(RocksMQ.open(self._path, settings=self._settings))
                try:
                    self._mq = await asyncio.shield(opening)
                except asyncio.CancelledError:
                    self._closing = asyncio.ensure_future(_abandon(opening))
                    raise
            elif settings not in (None, self._settings):
                raise InvalidArgumentError(
                    f"the RocksMQ in {self._path} is open in this process with other settings: give the same, or none"
                )
            self._users += 1
            return self._mq

    async def give(self) -> None:
        """Ends one use; the last one closes the RocksMQ."""
        self._users -= 1
        if self._users == 0 and self._mq is not None:
            self._closing = asyncio.ensure_future(self._mq.close())
            self._mq = None
            await asyncio.shield(self._closing)


def shared_rocksmq(name: str | os.PathLike[str]) -> SharedRocksMQ:
    """Returns the shared RocksMQ of this directory and the running loop; a leading `~` is expanded."""
    path = absolute_path(str(Path(name)), "the directory of a RocksMQ")
    of_loop = _shared.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(path, SharedRocksMQ(path))


async def _abandon(opening: asyncio.Future[RocksMQ]) -> None:
    """Closes a half-open RocksMQ of a cancelled caller: until then its lock blocks the next opening."""
    with contextlib.suppress(WALError):
        await (await opening).close()


_shared: MutableMapping[asyncio.AbstractEventLoop, dict[Path, SharedRocksMQ]] = WeakKeyDictionary()


ID_BYTES: Final = 8


class RocksMQMedium(BaseMedium):
    """The channels of one RocksMQ: the RocksMQ of a directory, which all media of this process share while one of them has it open, or an
    open RocksMQ, which its owner closes.

    The first use raises InvalidArgumentError for a wrong name, and LockedError for a RocksMQ that another process has open.
    """

    name: str = "rocksmq"

    def __init__(self, place: str | os.PathLike[str] | RocksMQ, *, settings: RocksMQSettings | None = None) -> None:
        if not isinstance(place, str | os.PathLike | RocksMQ):
            raise TypeError(f"a RocksMQMedium takes a directory or an open RocksMQ, not {place!r}")
        if isinstance(place, RocksMQ) and settings is not None:
            raise InvalidArgumentError("an open RocksMQ has its settings: give settings with a directory only")
        self._place = place
        self._settings = settings
        self._shared: SharedRocksMQ | None = None
        self._mq: RocksMQ | None = place if isinstance(place, RocksMQ) else None
        self._opening = asyncio.Lock()
        self._closed = False

    async def producer(self, channel: str) -> RocksMQProducer:
        """Opens a producer of the channel, which is created if it does not exist."""
        mq = await self._opened()
        await _created(mq, channel)
        return RocksMQProducer(mq, channel)

    async def consumer(self, channel: str, sub_name: str, *, earliest: bool = True, exclusive: bool = False) -> RocksMQConsumer:
        """Opens a consumer of the channel in the group `sub_name`; both are created if they do not exist."""
        mq = await self._opened()
        await _created(mq, channel)
        subscription = join(mq, channel, sub_name, exclusive=exclusive)
        try:
            with contextlib.suppress(ChannelExistError):
                await mq.create_consumer_group(sub_name, channel, latest=not earliest)
        except BaseException:
            subscription.consumers -= 1
            raise
        return RocksMQConsumer(mq, channel, sub_name, subscription)

    async def close(self) -> None:
        """Releases the RocksMQ of a directory; its last user in this process closes it. Idempotent."""
        self._closed = True
        async with self._opening:
            shared, self._shared = self._shared, None
        if shared is not None:
            await shared.give()

    async def _opened(self) -> RocksMQ:
        async with self._opening:
            if self._closed:
                raise ClosedError("this medium was closed: create another one")
            if self._mq is None:
                assert not isinstance(self._place, RocksMQ)
                shared = shared_rocksmq(self._place)
                self._mq = await shared.take(self._settings)
                self._shared = shared
            return self._mq


class RocksMQProducer:
    """Writes to one channel."""

    def __init__(self, mq: RocksMQ, channel: str) -> None:
        self._mq = mq
        self._channel = channel
        self._closed = False

    async def send(self, messages: Sequence[Outgoing]) -> list[bytes]:
        """Sends the messages, all or none of them if they fit into one batch of RocksMQ."""
        if self._closed:
            raise ClosedError(f"the producer of channel {self._channel!r} was closed: open another one")
        stored_ids: list[bytes] = []
        for batch in [*self._batches(messages)]:
            try:
                ids = await self._mq.produce(self._channel, batch)
            except Exception as error:
                if not stored_ids:
                    raise
                durable = {self._channel: [*stored_ids, *[None] * (len(messages) - len(stored_ids))]}
                raise PartialSendError(str(error), durable=durable) from error
            stored_ids += [message_id.to_bytes(ID_BYTES, "big") for message_id in ids]
        return stored_ids

    def _batches(self, messages: Sequence[Outgoing]) -> Iterator[list[bytes]]:
        """Yields the payloads in batches that RocksMQ accepts; raises InvalidArgumentError for a payload that is too large."""
        settings = self._mq.settings
        batch: list[bytes] = []
        size = 0
        for message in messages:
            payload = message.payload
            if len(payload) > settings.message_bytes_max:
                raise InvalidArgumentError(
                    f"a message of {len(payload)} bytes exceeds message_bytes_max={settings.message_bytes_max}: split it, or raise "
                    "the setting"
                )
            size += len(payload)
            if size > settings.batch_bytes_max or len(batch) == BATCH_MESSAGES_MAX:
                yield batch
                batch, size = [], len(payload)
            batch.append(payload)
        if batch:
            yield batch

    async def close(self) -> None:
        """Ends the producer; RocksMQ finishes the calls in flight."""
        self._closed = True


class RocksMQConsumer:
    """Reads one channel as a member of a consumer group."""

    def __init__(self, mq: RocksMQ, channel: str, group: str, subscription: RocksMQSubscription) -> None:
        self._mq = mq
        self._channel = channel
        self._group = group
        self._subscription = subscription
        self._unhandled: dict[int, ConsumerMessage] = {}
        self._receiving = asyncio.Lock()
        self._taking: asyncio.Task[list[ConsumerMessage]] | None = None
        self._returning: set[asyncio.Task[None]] = set()
        self._closed = False

    async def receive(self, count_max: int) -> list[Received]:
        """Returns the next messages of the group."""
        async with self._receiving:
            if self._closed:
                raise self._was_closed()
            messages = await self._take(count_max)
            ids = [message.message_id for message in messages]
            self._unhandled.update(zip(ids, messages, strict=True))
            self._subscription.delivered(ids)
        packed = struct.pack(f">{len(ids)}Q", *ids)
        return [
            Received(packed[at : at + ID_BYTES], message.payload)
            for at, message in zip(range(0, len(packed), ID_BYTES), messages, strict=True)
        ]

    async def _take(self, count_max: int) -> list[ConsumerMessage]:
        taking = self._taking = asyncio.ensure_future(
            self._mq.consume(self._group, self._channel, count_max, timeout_s=None, auto_ack=False)
        )
        try:
            return await taking
        except asyncio.CancelledError:
            if taking.done() and not taking.cancelled() and taking.exception() is None:
                # The call was cancelled in the turn in which the messages came.
                self._return(taking.result())
            task = asyncio.current_task()
            if self._closed and not (task is not None and task.cancelling()):
                raise self._was_closed() from None
            raise
        finally:
            self._taking = None

    def _return(self, messages: list[ConsumerMessage]) -> None:
        keep_task(self._returning, asyncio.ensure_future(self._give_back(messages)))

    async def _give_back(self, messages: list[ConsumerMessage]) -> None:
        # A RocksMQ that is closed or has failed redelivers them when it is opened again.
        with contextlib.suppress(ClosedError, StorageError):
            await self._mq.give_back(self._group, self._channel, messages)

    async def ack(self, msg_ids: Sequence[bytes]) -> None:
        """Moves the group's position to just below the first unhandled message."""
        mine = self._unhandled
        ids = struct.unpack(f">{len(msg_ids)}Q", b"".join(msg_ids))
        last = self._subscription.handled([each for each in ids if mine.pop(each, None) is not None])
        if last is not None:
            await self._mq.ack(self._group, self._channel, last)

    async def check(self, msg_id: bytes) -> None:
        """Checks that the channel has the message."""
        await self._mq.find(self._channel, self._number(msg_id))

    async def seek(self, msg_id: bytes, *, inclusive: bool) -> None:
        """Moves the whole group, durably; its other consumers continue there as well."""
        await self._mq.seek(self._group, self._channel, self._number(msg_id), inclusive=inclusive)
        self._subscription.moved()
        self._unhandled.clear()

    def _number(self, msg_id: bytes) -> int:
        if len(msg_id) != ID_BYTES or not (number := int.from_bytes(msg_id, "big")):
            raise InvalidArgumentError(
                f"message id {msg_id.hex()} is not of channel {self._channel!r}: ids of RocksMQ are {ID_BYTES} bytes, and not 0"
            )
        return number

    async def close(self) -> None:
        """Returns the unhandled messages to the group's next consumer."""
        if self._closed:
            return
        self._closed = True
        if self._taking is not None:
            self._taking.cancel()
        async with self._receiving:
            pass
        if self._returning:
            await asyncio.wait(self._returning)
        try:
            if self._unhandled:
                await self._give_back([*self._unhandled.values()])
        finally:
            self._unhandled.clear()
            self._subscription.consumers -= 1

    def _was_closed(self) -> ClosedError:
        return ClosedError(f"the consumer of channel {self._channel!r} as {self._group!r} was closed: open another one")


async def _created(mq: RocksMQ, channel: str) -> None:
    with contextlib.suppress(ChannelExistError):
        await mq.create_channel(channel)


class RmqMsgStream(MsgStream):
    """Milvus' stream over RocksMQ: a MsgStream over a RocksMQMedium of its own."""

    def __init__(
        self, place: str | os.PathLike[str] | RocksMQ, *, settings: RocksMQSettings | None = None, **options: Unpack[StreamOptions]
    ) -> None:
        super().__init__(RocksMQMedium(place, settings=settings), owns_medium=True, **options)


class RmqTtMsgStream(TtMsgStream):
    """Milvus' time-ticked stream over RocksMQ: a TtMsgStream over a RocksMQMedium of its own."""

    def __init__(
        self, place: str | os.PathLike[str] | RocksMQ, *, settings: RocksMQSettings | None = None, **options: Unpack[TtStreamOptions]
    ) -> None:
        super().__init__(RocksMQMedium(place, settings=settings), owns_medium=True, **options)
