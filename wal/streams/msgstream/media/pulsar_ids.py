"""TopicIds: the ids of a topic's messages as bytes. Pure.

An id is Pulsar's own serialized MessageId (protobuf: ledger, entry, and the index in a batch, if there is one), so any client of Pulsar can
read it. We add a field that Pulsar skips: a digest of the topic's name. Ledgers do not name their topic, so only that field distinguishes
an id of another channel from an id whose message was deleted.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from wal.errors import InvalidArgumentError

UNBATCHED: Final = -1
"""The index of a message that is an entry of its own."""
_LEDGER, _ENTRY, _PARTITION, _INDEX, _ACK_SET, _BATCH_SIZE = 1, 2, 3, 4, 5, 6
"""The fields of MessageIdData in Pulsar's PulsarApi.proto."""
_TOPIC: Final = 15
"""The field for the digest of the topic; the largest number whose tag is one byte."""
_VARINT, _FIXED64 = 0, 1
_DIGEST_BYTES: Final = 8


class TopicPosition(NamedTuple):
    """The position of a message in its topic. Positions have the order of the messages. `batch_index` is UNBATCHED outside a batch."""

    ledger: int
    entry: int
    batch_index: int


class TopicIds:
    """Encodes and decodes the ids of one topic; `topic` is its full name."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._mark = bytes([_TOPIC << 3 | _FIXED64]) + hashlib.blake2b(topic.encode(), digest_size=_DIGEST_BYTES).digest()
        self._ends = {UNBATCHED: self._mark}

    def entry(self, ledger: int, entry: int) -> bytes:
        """Returns the common prefix of the ids of all messages in this entry."""
        return b"%c%b%c%b" % (_LEDGER << 3, _varint(ledger), _ENTRY << 3, _varint(entry))

    def end(self, index: int) -> bytes:
        """Returns the end of the ids of messages at this index of a batch."""
        end = self._ends.get(index)
        if end is None:
            end = self._ends[index] = b"%c%b%b" % (_INDEX << 3, _varint(index), self._mark)
        return end

    def of(self, position: TopicPosition) -> bytes:
        """Returns the id of the message at this position."""
        return self.entry(position.ledger, position.entry) + self.end(position.batch_index)

    def parse(self, msg_id: bytes) -> tuple[TopicPosition, bool]:
        """Returns the position of an id, and whether the id names this topic; an id of another client names no topic.

        Raises InvalidArgumentError for an id that is malformed or names another topic.
        """
        try:
            fields, mark = _fields(msg_id)
            position = TopicPosition(fields[_LEDGER], fields[_ENTRY], fields.get(_INDEX, UNBATCHED))
        except (KeyError, ValueError, IndexError):
            raise InvalidArgumentError(
                f"message id {msg_id.hex()} is not one of Pulsar: use the msg_id of a position that a stream on Pulsar gave"
            ) from None
        if mark and mark != self._mark[1:]:
            raise InvalidArgumentError(
                f"message id {msg_id.hex()} belongs to another topic than {self._topic}: use a position of this channel, in this namespace"
            )
        return position, bool(mark)


def batch_size(msg_id: bytes) -> int:
    """Returns the number of messages in the entry of this id, as Pulsar's client serialized it."""
    return _fields(msg_id)[0].get(_BATCH_SIZE, 1)


def _varint(number: int) -> bytes:
    """Returns the number as protobuf encodes it."""
    encoding = bytearray()
    while number > 0x7F:
        encoding.append(number & 0x7F | 0x80)
        number >>= 7
    encoding.append(number)
    return bytes(encoding)


def _fields(data: bytes) -> tuple[dict[int, int], bytes]:
    """Returns the numbers in a serialized MessageIdData, and the digest of the topic, empty if missing. Raises ValueError or IndexError."""
    numbers: dict[int, int] = {}
    at, mark = 0, b""
    while at < len(data):
        tag, at = data[at], at + 1
        if tag == _TOPIC << 3 | _FIXED64:
            mark, at = data[at : at + _DIGEST_BYTES], at + _DIGEST_BYTES
            if len(mark) < _DIGEST_BYTES:
                raise ValueError
        elif tag & 7 == _VARINT and tag >> 3 in (_LEDGER, _ENTRY, _PARTITION, _INDEX, _ACK_SET, _BATCH_SIZE):
            number = shift = 0
            while data[at] & 0x80:
                number, shift, at = number | (data[at] & 0x7F) << shift, shift + 7, at + 1
            numbers[tag >> 3], at = number | data[at] << shift, at + 1
        else:
            raise ValueError
    if not all(0 <= number < 1 << 63 for field, number in numbers.items() if field in (_LEDGER, _ENTRY, _INDEX)):
        raise ValueError
    return numbers, mark
