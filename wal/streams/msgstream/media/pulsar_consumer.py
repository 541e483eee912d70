"""PulsarConsumer: reads one topic under one subscription.

Owns a consumer of Pulsar's client, recreated when it loses its broker. Its books decide what is delivered and acknowledged.

Each page is received by a call in a thread that waits for WAIT_MS at most, so a consumer that is no longer read holds no thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from wal.errors import ClosedError, InvalidArgumentError, LockedError, StorageError, TruncatedError
from wal.storage.pulsar.connection import close_quietly, is_one_of, patiently
from wal.streams.msgstream.media.pulsar_books import Books
from wal.streams.msgstream.media.pulsar_ids import TopicIds, TopicPosition
from wal.streams.msgstream.media.pulsar_subscription import PulsarSubscription
from wal.streams.msgstream.medium import Received

if TYPE_CHECKING:
    import pulsar


WAIT_MS: Final = 500
LOST_S: Final = 1.0
"""The time that a consumer without a connection may reconnect by itself: its own next attempt may be many seconds away."""
RETRY_S: Final = 0.1
TAKEN_S: Final = 30.0
"""The time that a lost consumer waits for a subscription that another consumer has, from the broker's first such answer on. The other one
may be its own, of a connection whose end the broker has not noticed yet. An earlier outage does not count.
"""
FINAL: Final = (
    "AuthenticationError", "AuthorizationError", "TopicNotFound", "TopicTerminated", "InvalidTopicName", "InvalidConfiguration",
    "IncompatibleSchema", "UnsupportedVersionError",
)  # fmt: skip
"""Answers that a consumer would get at every attempt."""
_log: Final = logging.getLogger("wal.pulsar")


class PulsarConsumer:
    """Reads one channel. `consumer` is the first consumer of Pulsar's client; it is subscribed already."""

    def __init__(self, subscription: PulsarSubscription, channel: str, ids: TopicIds, consumer: pulsar.Consumer) -> None:
        self._subscription = subscription
        self._connection = subscription.connection
        self._channel = channel
        self._ids = ids
        self._consumer: pulsar.Consumer | None = consumer
        self._books = Books(ids, exclusive=subscription.exclusive)
        self._lost_since: float | None = None
        self._taken_since: float | None = None
        self._page: list[Received] = []
        self._fetching: asyncio.Future[list[Received]] | None = None
        self._closed = False
        self._swapping = threading.Lock()

    async def receive(self, count_max: int) -> list[Received]:
        """Returns the next messages. Waits for an absent broker without limit."""
        while not self._page:
            self._check_open()
            if self._fetching is None:
                self._fetching = asyncio.ensure_future(self._connection.read(self._fetch))
            await asyncio.wait([self._fetching])  # if this is cancelled, the next call gets the page
            fetched, self._fetching = self._fetching, None
            self._check_open()
            self._page = fetched.result()
            if self._page:  # the next page is received while this one is handled
                self._fetching = asyncio.ensure_future(self._connection.read(self._fetch))
        page = self._page
        page, self._page = page[:count_max], page[count_max:]
        return page

    async def ack(self, msg_ids: Sequence[bytes]) -> None:
        """Acknowledges these messages. Ids without an unhandled message were acknowledged before.

        Pulsar's client sends them to the broker within 100 ms, and at its close. During an outage of the broker the acks wait.
        """
        self._check_open()
        await self._connection.run(lambda: self._handled(msg_ids))

    async def check(self, msg_id: bytes) -> None:
        """Raises InvalidArgumentError for a malformed or a foreign id, TruncatedError for one whose message Pulsar has deleted."""
        self._check_open()
        position, ours = self._ids.parse(msg_id)
        if await self._connection.run(lambda: self._subscription.has(position)):
            return
        what = f"message {position.ledger}:{position.entry}:{position.batch_index} of channel {self._channel!r}"
        if ours:
            raise TruncatedError(
                f"{what} is gone: Pulsar deletes what all subscriptions have acknowledged, unless the namespace has a retention policy; "
                "read from the earliest message under a new subscription"
            )
        raise InvalidArgumentError(f"no {what}: use a position of this channel whose message still exists")

    async def seek(self, msg_id: bytes, *, inclusive: bool) -> None:
        """Moves the subscription. Pulsar seeks to the entry; the books drop messages before the id in the same batch."""
        self._check_open()
        position, _ = self._ids.parse(msg_id)
        await self._connection.run(lambda: self._seek(position))
        self._books.begin(TopicPosition(position.ledger, position.entry, position.batch_index - inclusive))

    async def close(self) -> None:
        """Ends the consumer. If the broker does not answer, the acks of the last 100 ms may be lost."""
        if self._closed:
            return
        self._closed = True
        ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._connection.run(self._end))]
        if self._fetching is not None:
            ends.append(self._fetching)
        await self._connection.ended(ends)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the consumer of channel {self._channel!r} was closed: open another one")

    # -- in threads

    def _fetch(self) -> list[Received]:
        """Returns a page, which is empty if nothing came within WAIT_MS. Calls must not overlap."""
        import pulsar

        consumer = self._consumer or self._replace()
        if consumer is None:
            return []
        try:
            messages = [consumer.receive(WAIT_MS)]
        except pulsar.exceptions.Timeout:
            self._check_lost(consumer)
            return []
        except pulsar.PulsarException as error:
            self._lose(error)
            return []
        self._lost_since = None
        try:
            messages += consumer.batch_receive()
        except pulsar.PulsarException:
            pass  # the next call meets the same problem
        return self._take(messages)

    def _take(self, messages: Iterable[pulsar.Message]) -> list[Received]:
        received = self._books.receive(messages)
        self._acknowledge()
        return received

    def _handled(self, msg_ids: Iterable[bytes]) -> None:
        self._books.handle(msg_ids)
        self._acknowledge()

    def _acknowledge(self) -> None:
        import pulsar

        consumer, acked = self._consumer, self._books.acked
        while consumer is not None and acked:
            try:
                native = acked.popleft()
            except IndexError:
                return  # another thread has taken the message
            try:
                consumer.acknowledge(native)
            except pulsar.PulsarException:
                acked.append(native)  # for the next consumer
                return

    def _check_lost(self, consumer: pulsar.Consumer) -> None:
        """Replaces a consumer that has had no connection for LOST_S."""
        now = time.monotonic()
        if consumer.is_connected():
            self._lost_since = None
        elif self._lost_since is None:
            self._lost_since = now
        elif now - self._lost_since >= LOST_S:
            self._lose("the connection to the broker was lost")

    def _lose(self, cause: object) -> None:
        with self._swapping:
            consumer, self._consumer = self._consumer, None
        if consumer is not None and not self._closed:
            if self._lost_since is None:
                self._lost_since = time.monotonic()
            _log.warning("%s: %s; subscribing again", self._subscription, cause)
            close_quietly(consumer)

    def _replace(self) -> pulsar.Consumer | None:
        """Subscribes again; returns None, after a pause, while that is not possible."""
        try:
            consumer = self._subscription.consumer()
        except LockedError:
            now = time.monotonic()
            if self._taken_since is None:
                self._taken_since = now
            if now - self._taken_since > TAKEN_S or self._closed:
                raise
            time.sleep(RETRY_S)
            return None
        except StorageError as error:
            self._taken_since = None  # the broker is absent
            if self._closed or (isinstance(error.__cause__, Exception) and is_one_of(error.__cause__, *FINAL)):
                raise
            _log.info("%s; trying again", error)
            time.sleep(RETRY_S)
            return None
        self._taken_since = None
        with self._swapping:
            if not self._closed:
                self._consumer = consumer
        if self._closed:
            close_quietly(consumer)
            return None
        self._acknowledge()
        return consumer

    def _seek(self, position: TopicPosition) -> None:
        import pulsar

        consumer = self._consumer
        assert consumer is not None
        to = pulsar.MessageId(-1, position.ledger, position.entry, -1)
        patiently(self._connection, lambda: consumer.seek(to), f"moving {self._subscription}")

    def _end(self) -> None:
        self._acknowledge()
        with self._swapping:
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            close_quietly(consumer)
