"""Pulsar as a medium: a channel is an unpartitioned topic of one namespace, a subscription is Pulsar's, an id is Pulsar's MessageId.

Owns the connection, and the checks of a topic before it is used. A topic with partitions has no order, and in the topic of a log of this
runtime every foreign message is damage.

Pulsar keeps a message until every subscription has acknowledged it. After that, and without any subscription, the message stays only if the
namespace has a retention policy.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from wal.errors import ClosedError, InvalidArgumentError, StorageError, WALError, caused
from wal.location import check_admin_url, check_token, parse_location
from wal.runtime.async_only import AsyncOnly
from wal.runtime.secret import Secret
from wal.runtime.tasks import keep_task
from wal.storage.pulsar.address import LOG_SUBSCRIPTION, PulsarAddress
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.connection import PulsarConnection, close_quietly, is_refusal, patiently
from wal.streams.msgstream.errors import PartialSendError
from wal.streams.msgstream.media.pulsar_consumer import PulsarConsumer
from wal.streams.msgstream.media.pulsar_ids import TopicIds, TopicPosition
from wal.streams.msgstream.media.pulsar_subscription import PulsarSubscription
from wal.streams.msgstream.medium import BaseMedium, Outgoing
from wal.streams.msgstream.stream import MsgStream, StreamOptions, TtStreamOptions
from wal.streams.msgstream.tt_stream import TtMsgStream

if TYPE_CHECKING:
    import pulsar


SEND_TIMEOUT_S: Final = 120
"""The maximum wait for an answer, the same as for an append to a log on Pulsar."""
BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 1 << 20
"""The maximum size of a batch, which is one entry of the topic."""
BATCH_DELAY_MS: Final = 1
"""The time that a message waits for others: the minimum of Pulsar's client, and less than the broker needs to answer."""


class PulsarProducer:
    """Writes the messages of a stream to one topic, in Pulsar's batches.

    Owns a producer of Pulsar's client. Messages are queued on the event loop, which keeps the order of the calls, and are answered by
    threads of the client. During an outage of the broker the client keeps unanswered messages and sends them again. So Pulsar may store a
    message twice; a time-ticked stream drops such duplicates.

    `bytes_max` is the largest payload that the broker accepts.
    """

    def __init__(self, connection: PulsarConnection, channel: str, ids: TopicIds, producer: pulsar.Producer, *, bytes_max: int) -> None:
        self._connection = connection
        self._channel = channel
        self._ids = ids
        self._producer = producer
        self._bytes_max = bytes_max
        self._flights: set[asyncio.Future[None]] = set()
        self._closed = False

    async def send(self, messages: Sequence[Outgoing]) -> list[bytes]:
        """Sends the messages and returns their ids when the broker has stored all of them.

        When the broker has not answered for a message within SEND_TIMEOUT_S, the error has `outcome_unknown`.
        """
        if self._closed:
            raise ClosedError(f"the producer of channel {self._channel!r} was closed: open another one")
        for message in messages:
            if len(message.payload) > self._bytes_max:
                raise InvalidArgumentError(
                    f"a message for channel {self._channel!r} has {len(message.payload)} bytes, and this Pulsar takes {self._bytes_max} at "
                    "most: split it, or raise maxMessageSize on the brokers"
                )
        flight = _CallInFlight(asyncio.get_running_loop(), len(messages))
        keep_task(self._flights, flight.done)
        for number, message in enumerate(messages):
            self._producer.send_async(message.payload, partial(flight.answered, number))
        await asyncio.wait([flight.done])
        ids = [self._id(answer) for answer in flight.answers]
        refused = next((result for result, _ in flight.answers if not _is_ok(result)), None)
        if refused is not None:
            raise self._error(refused, ids)
        return [msg_id for msg_id in ids if msg_id is not None]

    async def close(self) -> None:
        """Closes the producer after the calls in flight. Does not wait for them if the broker does not answer."""
        if self._closed:
            return
        self._closed = True
        if self._flights:
            await self._connection.ended(self._flights)
        await self._connection.ended([asyncio.ensure_future(self._connection.run(lambda: close_quietly(self._producer)))])

    def _id(self, answer: tuple[Any, Any]) -> bytes | None:
        result, native = answer
        if not _is_ok(result):
            return None
        return self._ids.of(TopicPosition(native.ledger_id(), native.entry_id(), native.batch_index()))

    def _error(self, result: Any, ids: Sequence[bytes | None]) -> WALError:
        """Returns the error for messages of which at least one was answered with `result`."""
        stored = sum(msg_id is not None for msg_id in ids)
        text = f"Pulsar did not take {len(ids) - stored} of {len(ids)} messages for channel {self._channel!r}: {result}"
        cause: WALError
        if is_refusal(result):
            cause = InvalidArgumentError(f"{text}; send other ones, or raise the broker's limit")
        else:
            cause = StorageError(f"{text}; they may be stored or not", outcome_unknown=True)
        if not stored:
            return cause
        return caused(PartialSendError(str(cause), durable={self._channel: ids}), cause)


def create_producer(client: pulsar.Client, topic: str) -> pulsar.Producer:
    """Creates a producer that sends batches and whose queue has no limit of its own. Blocks."""
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=BATCH_BYTES,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
        block_if_queue_full=False,
        max_pending_messages=0,
        send_timeout_millis=SEND_TIMEOUT_S * 1_000,
    )


class _CallInFlight:
    """The messages of one call. `done` ends when all are answered; then `answers` are their results and ids."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.answers: list[tuple[Any, Any]] = [(None, None)] * count
        self._loop = loop
        self._counted = itertools.count(1)  # a counter that several threads may advance

    def answered(self, number: int, result: Any, message_id: Any) -> None:
        """Runs on a thread of the client, where an exception would end the process."""
        self.answers[number] = (result, message_id)
        if next(self._counted) == len(self.answers):
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                pass  # the loop was closed

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def _is_ok(result: Any) -> bool:
    import _pulsar

    return bool(result == _pulsar.Result.Ok)


CONSUMERS_MAX: Final = 4_096
"""The maximum number of a medium's consumers that wait for messages at the same time; each waits in a thread."""
MESSAGE_BYTES_MAX: Final = 5 << 20
"""Pulsar's default `maxMessageSize`, for brokers that do not send theirs."""
METADATA_BYTES: Final = 1 << 10
"""The reserve below `maxMessageSize` for Pulsar's metadata of a message, which is less than a hundred bytes here."""
_PARTITION: Final = re.compile(r".*-partition-\d+")


class PulsarMedium(BaseMedium, AsyncOnly):
    """The channels in one namespace of Pulsar. It connects at its first use; one event loop uses it.

    `address` is `pulsar://host:port[/tenant/namespace]`, or `pulsar+ssl://…`; without a namespace `public/default`. `admin_url`, `token`
    and `tls_authority` are as the settings `pulsar_…` of a log. A `wal.storage.pulsar.address.PulsarAddress` has all of them.

    The first use raises InvalidArgumentError for a missing token or namespace, StorageError when Pulsar does not answer.
    """

    name: str = "pulsar"
    _with_form = "async with PulsarMedium(address) as medium: …"

    def __init__(
        self,
        address: str | PulsarAddress,
        *,
        admin_url: str | None = None,
        token: str | Secret | None = None,
        tls_authority: str | None = None,
    ) -> None:
        self._address = _address(address, admin_url, None if token is None else Secret.of(token), tls_authority)
        self._connection = PulsarConnection(self._address, readers=CONSUMERS_MAX)
        self._admin = Admin(self._address)
        self._starting: asyncio.Task[int] | None = None
        self._closed = False

    async def producer(self, channel: str) -> PulsarProducer:
        """Opens a producer of the channel, which is created if it does not exist."""
        topic, bytes_max = await self._open(channel)
        producer = await self._connection.run(
            lambda: patiently(self._connection, lambda: create_producer(self._connection.client, topic), f"writing to {topic}")
        )
        return PulsarProducer(self._connection, channel, TopicIds(topic), producer, bytes_max=bytes_max)

    async def consumer(self, channel: str, sub_name: str, *, earliest: bool = True, exclusive: bool = False) -> PulsarConsumer:
        """Opens a consumer of the channel, which is created if it does not exist.

        Raises LockedError when another consumer excludes this one, InvalidArgumentError for the subscription of a log.
        """
        if sub_name == LOG_SUBSCRIPTION:
            raise InvalidArgumentError(
                f"subscription {sub_name!r} is the name by which logs on Pulsar hold their messages: choose another name"
            )
        topic, _ = await self._open(channel)
        subscription = PulsarSubscription(self._connection, topic, sub_name, earliest=earliest, exclusive=exclusive)
        consumer = await self._connection.run(subscription.consumer)
        return PulsarConsumer(subscription, channel, TopicIds(topic), consumer)

    async def close(self) -> None:
        """Closes the connection, without a long wait for a broker that does not answer. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        await self._connection.ended([asyncio.ensure_future(self._connection.close())])

    async def _open(self, channel: str) -> tuple[str, int]:
        """Connects, checks the channel's topic and creates it if it is missing. Returns the topic, and the largest payload."""
        if self._closed:
            raise ClosedError("this medium was closed: create another one")
        topic = self._address.topic(channel, "channel")
        if _PARTITION.fullmatch(channel):
            raise InvalidArgumentError(
                f"channel name {channel!r} names a partition of a topic of Pulsar: use a name that does not end like that"
            )
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        bytes_max = await asyncio.shield(self._starting)
        await self._connection.run(lambda: self._check(topic, channel))
        return topic, bytes_max

    async def _start(self) -> int:
        """Connects; returns the largest payload of a message."""
        await self._connection.run(self._connection.start)
        await self._connection.run(self._admin.check_namespace)
        limit = await self._connection.run(self._admin.message_bytes_max)
        return (MESSAGE_BYTES_MAX if limit is None else limit) - METADATA_BYTES

    # -- in threads

    def _check(self, topic: str, channel: str) -> None:
        """Creates the topic if it is missing. Raises InvalidArgumentError for a topic that cannot be a channel."""
        partitions = self._admin.partitions(topic)
        if partitions:
            raise InvalidArgumentError(
                f"channel {channel!r} is the topic {topic} with {partitions} partitions, whose messages have no common order: use a topic "
                "without partitions, or a channel for each of them"
            )
        if LOG_SUBSCRIPTION in self._admin.subscriptions(topic):
            raise InvalidArgumentError(
                f"channel {channel!r} is {topic}, which belongs to a log (it has the subscription {LOG_SUBSCRIPTION!r}): messages of a "
                "stream would damage the log; use another name, or another namespace"
            )
        self._admin.make_topic(topic)


class PulsarMsgStream(MsgStream):
    """Milvus' stream over Pulsar: a MsgStream over a PulsarMedium of its own."""

    create_pulsar_producers = MsgStream.as_producer
    create_pulsar_consumers = MsgStream.as_consumer

    def __init__(self, address: str | PulsarAddress, **options: Unpack[StreamOptions]) -> None:
        super().__init__(PulsarMedium(address), owns_medium=True, **options)


class PulsarTtMsgStream(TtMsgStream):
    """Milvus' time-ticked stream over Pulsar: a TtMsgStream over a PulsarMedium of its own."""

    create_pulsar_producers = TtMsgStream.as_producer
    create_pulsar_consumers = TtMsgStream.as_consumer

    def __init__(self, address: str | PulsarAddress, **options: Unpack[TtStreamOptions]) -> None:
        super().__init__(PulsarMedium(address), owns_medium=True, **options)


def _address(address: str | PulsarAddress, admin_url: str | None, token: Secret | None, tls_authority: str | None) -> PulsarAddress:
    """Returns the address with these credentials."""
    if isinstance(address, PulsarAddress):
        if (admin_url, token, tls_authority) != (None, None, None):
            raise InvalidArgumentError("a PulsarAddress has an admin_url, a token and a tls_authority: give them there")
        return address
    if not isinstance(address, str):
        raise TypeError(f"the address of a Pulsar is a str or a PulsarAddress, not {type(address).__name__}")
    whole = address if "/" in address.partition("://")[2] else f"{address}/public/default"
    pulsar_location = parse_location(whole).pulsar
    if pulsar_location is None:
        raise InvalidArgumentError(f"{address!r} is not the address of a Pulsar: use pulsar://host:port/tenant/namespace")
    if admin_url is not None:
        check_admin_url("admin_url", admin_url)
    if token is not None:
        check_token("token", token)
    return PulsarAddress(pulsar_location.service_url, pulsar_location.tenant, pulsar_location.namespace, admin_url, token, tls_authority)
