"""PulsarProducer: writes the messages of a stream to one topic, in Pulsar's batches.

Owns a producer of Pulsar's client. Messages are queued on the event loop, which keeps the order of the calls, and are answered by threads
of the client. While the broker is away the client keeps what is unanswered and sends it again, so Pulsar may store a message twice; a
time-ticked stream drops such repeats.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wal.errors import ClosedError, InvalidArgumentError, StorageError, WALError
from wal.msgstream.errors import PartialSendError
from wal.msgstream.media.pulsar_ids import Place, TopicIds
from wal.msgstream.medium import Outgoing
from wal.pulsar.connection import Connection, is_refusal

if TYPE_CHECKING:
    import pulsar

__all__ = ["SEND_TIMEOUT_S", "PulsarProducer", "create_producer"]

SEND_TIMEOUT_S: Final = 120
"""How long a message may wait for an answer, as long as an append to a log on Pulsar."""
BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 1 << 20
"""Where a batch, which is one entry of the topic, is cut."""
BATCH_DELAY_MS: Final = 1
"""How long a message waits for others: the least that Pulsar's client can wait, and less than the broker needs to answer."""


class PulsarProducer:
    """Writes to one channel. `bytes_max`: the largest payload that the broker takes."""

    def __init__(
        self, connection: Connection, channel: str, ids: TopicIds, producer: pulsar.Producer, *, bytes_max: int
    ) -> None:
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
        flight = _Flight(asyncio.get_running_loop(), len(messages))
        self._flights.add(flight.done)
        flight.done.add_done_callback(self._flights.discard)
        for number, message in enumerate(messages):
            self._producer.send_async(message.payload, partial(flight.answered, number))
        await asyncio.wait([flight.done])
        ids = [self._id(answer) for answer in flight.answers]
        refused = next((result for result, _ in flight.answers if not _is_ok(result)), None)
        if refused is not None:
            raise self._error(refused, ids)
        return [msg_id for msg_id in ids if msg_id is not None]

    async def close(self) -> None:
        """Ends the producer after the calls in flight, which it does not wait for if the broker does not answer."""
        if self._closed:
            return
        self._closed = True
        if self._flights:
            await self._connection.ended(self._flights)
        await self._connection.ended([asyncio.ensure_future(self._connection.run(self._end))])

    def _end(self) -> None:
        import pulsar

        try:
            self._producer.close()
        except pulsar.PulsarException:
            pass  # its broker is gone, or the connection was closed before

    def _id(self, answer: tuple[Any, Any]) -> bytes | None:
        result, native = answer
        if not _is_ok(result):
            return None
        return self._ids.of(Place(native.ledger_id(), native.entry_id(), native.batch_index()))

    def _error(self, result: Any, ids: Sequence[bytes | None]) -> WALError:
        """Returns the error for messages of which at least one was answered with `result`."""
        sent = sum(msg_id is not None for msg_id in ids)
        text = f"Pulsar did not take {len(ids) - sent} of {len(ids)} messages for channel {self._channel!r}: {result}"
        cause: WALError
        if is_refusal(result):
            cause = InvalidArgumentError(f"{text}; send other ones, or raise the broker's limit")
        else:
            cause = StorageError(f"{text}; they may be stored or not", outcome_unknown=True)
        if not sent:
            return cause
        partly = PartialSendError(str(cause), durable={self._channel: ids})
        partly.__cause__ = cause
        return partly


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


class _Flight:
    """The messages of one call. `done` ends when all are answered; `answers` are their results and ids then."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self.answers: list[tuple[Any, Any]] = [(None, None)] * count
        self._loop = loop
        self._counted = itertools.count(1)  # a counter that several threads may advance

    def answered(self, number: int, result: Any, message_id: Any) -> None:
        """Called by a thread of the client. An exception would end the process."""
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
