"""PulsarSubscription: how a consumer subscribes to a topic of Pulsar, and which messages the topic has. Its methods block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wal.errors import LockedError
from wal.storage.pulsar.connection import PulsarConnection, patiently
from wal.streams.msgstream.media.pulsar_ids import Place

if TYPE_CHECKING:
    import pulsar


PAGE_MESSAGES: Final = 999
"""With the first one, a thousand messages in a page."""
PAGE_BYTES: Final = 4 << 20
PAGE_WAIT_MS: Final = 1
"""How long a page waits for more messages after its first one: the least that Pulsar's client can wait."""
QUEUE_MESSAGES: Final = 4_000
"""Messages that the client fetches ahead."""
LOOK_MS: Final = 5_000
"""How long a message that must exist is waited for."""


class PulsarSubscription:
    """How a consumer subscribes to a topic of Pulsar, and which messages the topic has.

    How to subscribe: a topic, and a subscription of it with one consumer (`exclusive`) or several. All methods block.
    """

    def __init__(self, connection: PulsarConnection, topic: str, name: str, *, earliest: bool, exclusive: bool) -> None:
        self.connection = connection
        self.topic = topic
        self.name = name
        self.exclusive = exclusive
        self._earliest = earliest

    def __str__(self) -> str:
        return f"subscription {self.name!r} of {self.topic}"

    def consumer(self) -> pulsar.Consumer:
        """Creates a consumer. Raises LockedError when another consumer excludes it."""
        import pulsar

        positions, types = pulsar.InitialPosition, pulsar.ConsumerType

        def subscribe() -> pulsar.Consumer | None:
            try:
                return self.connection.client.subscribe(
                    self.topic,
                    self.name,
                    consumer_type=types.Exclusive if self.exclusive else types.Shared,
                    initial_position=positions.Earliest if self._earliest else positions.Latest,
                    receiver_queue_size=QUEUE_MESSAGES,
                    start_message_id_inclusive=True,
                    batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(PAGE_MESSAGES, PAGE_BYTES, PAGE_WAIT_MS),
                    batch_index_ack_enabled=True,
                )
            except pulsar.exceptions.ConsumerBusy:
                return None

        consumer = patiently(self.connection, subscribe, f"opening {self}")
        if consumer is None:
            raise LockedError(f"{self} has a consumer that excludes this one: close that one, or choose another name")
        return consumer

    def has(self, place: Place) -> bool:
        """Whether the topic has the message at this place."""
        import pulsar

        start = pulsar.MessageId(-1, place.ledger, place.entry, -1)

        def look() -> bool:
            reader = self.connection.client.create_reader(self.topic, start, start_message_id_inclusive=True)
            try:
                while reader.has_message_available():
                    native = reader.read_next(timeout_millis=LOOK_MS).message_id()
                    message_place = Place(native.ledger_id(), native.entry_id(), native.batch_index())
                    if message_place >= place:
                        return message_place == place
                return False
            finally:
                reader.close()

        return patiently(self.connection, look, f"looking for a message of {self.topic}")
