"""PulsarSubscription: creates the consumers of a topic of Pulsar, and looks up its messages. Its methods block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wal.errors import LockedError
from wal.storage.pulsar.connection import PulsarConnection, patiently
from wal.streams.msgstream.media.pulsar_ids import TopicPosition

if TYPE_CHECKING:
    import pulsar


PAGE_MESSAGES: Final = 999
"""With the first message, a page has a thousand messages."""
PAGE_BYTES: Final = 4 << 20
PAGE_WAIT_MS: Final = 1
"""The time that a page waits for more messages after its first one: the minimum of Pulsar's client."""
QUEUE_MESSAGES: Final = 4_000
"""Messages that the client fetches ahead."""
LOOK_MS: Final = 5_000
"""The maximum wait for a message that must exist."""


class PulsarSubscription:
    """A subscription of one topic, with a single consumer (`exclusive`) or several. All methods block."""

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

    def has(self, position: TopicPosition) -> bool:
        """Returns whether the topic has the message at this position."""
        import pulsar

        start = pulsar.MessageId(-1, position.ledger, position.entry, -1)

        def look() -> bool:
            reader = self.connection.client.create_reader(self.topic, start, start_message_id_inclusive=True)
            try:
                while reader.has_message_available():
                    native = reader.read_next(timeout_millis=LOOK_MS).message_id()
                    message_position = TopicPosition(native.ledger_id(), native.entry_id(), native.batch_index())
                    if message_position >= position:
                        return message_position == position
                return False
            finally:
                reader.close()

        return patiently(self.connection, look, f"looking for a message of {self.topic}")
