"""Pulsar as a medium: a channel is an unpartitioned topic of one namespace, a subscription is Pulsar's, an id is Pulsar's MessageId.

Owns the connection, and the checks of a topic before it is used: a topic with partitions has no order, and in the topic of a log of this
runtime every foreign message is damage.

Pulsar keeps a message until every subscription has acknowledged it. A message that no subscription waits for, and one that all have
acknowledged, stays only if the namespace has a retention policy.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Final, Self, Unpack

from wal.async_only import AsyncOnly
from wal.errors import ClosedError, InvalidArgumentError
from wal.location import check_admin_url, check_token, parse_location
from wal.msgstream.media.pulsar_consumer import PulsarConsumer
from wal.msgstream.media.pulsar_ids import TopicIds
from wal.msgstream.media.pulsar_producer import PulsarProducer, create_producer
from wal.msgstream.media.pulsar_subscription import Subscription
from wal.msgstream.medium import MediumProducer, Outgoing
from wal.msgstream.options import StreamOptions, TtStreamOptions
from wal.msgstream.sending import send_to_each
from wal.msgstream.stream import MsgStream
from wal.msgstream.tt_stream import TtMsgStream
from wal.pulsar import Admin, Connection, PulsarAddress
from wal.pulsar.address import LOG_SUBSCRIPTION
from wal.pulsar.connection import patiently
from wal.secret import Secret

__all__ = ["PulsarMedium", "PulsarMsgStream", "PulsarTtMsgStream"]

CONSUMERS_MAX: Final = 4_096
"""Consumers of a medium that can wait for messages at the same time; each waits in a thread."""
MESSAGE_BYTES_MAX: Final = 5 << 20
"""Pulsar's default `maxMessageSize`, for brokers that do not tell theirs."""
METADATA_BYTES: Final = 1 << 10
"""Left below `maxMessageSize` for Pulsar's metadata of a message, which is less than a hundred bytes here."""
_PARTITION: Final = re.compile(r".*-partition-\d+")


class PulsarMedium(AsyncOnly):
    """The channels in one namespace of Pulsar. It connects at its first use; one event loop uses it.

    `address`: `pulsar://host:port[/tenant/namespace]`, or `pulsar+ssl://…`; without a namespace `public/default`. `admin_url`, `token` and
    `tls_authority` are as the settings `pulsar_…` of a log. A `wal.pulsar.PulsarAddress` has all of them.

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
        self._connection = Connection(self._address, readers=CONSUMERS_MAX)
        self._admin = Admin(self._address)
        self._starting: asyncio.Task[int] | None = None
        self._closed = False

    async def producer(self, channel: str) -> PulsarProducer:
        """Opens a producer of the channel, which is created if it does not exist."""
        topic, bytes_max = await self._open(channel)
        producer = await self._connection.run(
            lambda: patiently(
                self._connection, lambda: create_producer(self._connection.client, topic), f"writing to {topic}"
            )
        )
        return PulsarProducer(self._connection, channel, TopicIds(topic), producer, bytes_max=bytes_max)

    async def consumer(
        self, channel: str, sub_name: str, *, earliest: bool = True, exclusive: bool = False
    ) -> PulsarConsumer:
        """Opens a consumer of the channel, which is created if it does not exist.

        Raises LockedError when another consumer excludes this one, InvalidArgumentError for the subscription of a log.
        """
        if sub_name == LOG_SUBSCRIPTION:
            raise InvalidArgumentError(
                f"subscription {sub_name!r} is the name by which logs on Pulsar hold their messages: choose another name"
            )
        topic, _ = await self._open(channel)
        subscription = Subscription(self._connection, topic, sub_name, earliest=earliest, exclusive=exclusive)
        consumer = await self._connection.run(subscription.consumer)
        return PulsarConsumer(subscription, channel, TopicIds(topic), consumer)

    async def broadcast(
        self, producers: Mapping[str, MediumProducer], messages: Sequence[Outgoing]
    ) -> Mapping[str, list[bytes]]:
        """Sends the messages to each channel."""
        return await send_to_each(producers, messages)

    async def close(self) -> None:
        """Closes the connection, which does not wait long for a broker that does not answer. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        await self._connection.ended([asyncio.ensure_future(self._connection.close())])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _open(self, channel: str) -> tuple[str, int]:
        """Connects, checks the channel's topic and creates it if it is missing; returns it, and the largest payload."""
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
        """Creates the topic if it is missing. Raises InvalidArgumentError for one that cannot be a channel."""
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
    """The seeds' stream over Pulsar: a MsgStream over a PulsarMedium of its own."""

    create_pulsar_producers = MsgStream.as_producer
    create_pulsar_consumers = MsgStream.as_consumer

    def __init__(
        self,
        address: str | PulsarAddress,
        **options: Unpack[StreamOptions],
    ) -> None:
        super().__init__(
            PulsarMedium(address),
            owns_medium=True,
            **options,
        )


class PulsarTtMsgStream(TtMsgStream):
    """The seeds' time-ticked stream over Pulsar: a TtMsgStream over a PulsarMedium of its own."""

    create_pulsar_producers = TtMsgStream.as_producer
    create_pulsar_consumers = TtMsgStream.as_consumer

    def __init__(
        self,
        address: str | PulsarAddress,
        **options: Unpack[TtStreamOptions],
    ) -> None:
        super().__init__(
            PulsarMedium(address),
            owns_medium=True,
            **options,
        )


def _address(
    address: str | PulsarAddress, admin_url: str | None, token: Secret | None, tls_authority: str | None
) -> PulsarAddress:
    """Returns the address with these credentials."""
    if isinstance(address, PulsarAddress):
        if (admin_url, token, tls_authority) != (None, None, None):
            raise InvalidArgumentError("a PulsarAddress has an admin_url, a token and a tls_authority: give them there")
        return address
    if not isinstance(address, str):
        raise TypeError(f"the address of a Pulsar is a str or a PulsarAddress, not {type(address).__name__}")
    whole = address if "/" in address.partition("://")[2] else f"{address}/public/default"
    found = parse_location(whole).pulsar
    if found is None:
        raise InvalidArgumentError(
            f"{address!r} is not the address of a Pulsar: use pulsar://host:port/tenant/namespace"
        )
    if admin_url is not None:
        check_admin_url("admin_url", admin_url)
    if token is not None:
        check_token("token", token)
    return PulsarAddress(found.service_url, found.tenant, found.namespace, admin_url, token, tls_authority)
