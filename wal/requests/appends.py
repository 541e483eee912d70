"""Appends: messages to append, as columns. Pure.

A row of the columns is a message. A column that would hold only defaults is empty, so that plain messages cost nothing but their payloads
on their way from a client over the network into a frame.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from wal.message import Message, MessageID, MessageType, decode_properties, encode_properties, type_properties
from wal.write.idempotency.keys import Key

PART_ROWS_MAX: Final = 1024
"""The most rows of an `Append` that the node executes at once, if they are plain messages for one vchannel."""
ROWS_A_TURN: Final = 256
"""The most rows of any other `Append`, each of which takes work of its own."""


class Unchecked(enum.Enum):
    """The default of `expected_last`: the append does not depend on what the last event is."""

    UNCHECKED = "not checked"


UNCHECKED: Final = Unchecked.UNCHECKED
NOT_EXPECTED: Final[Mapping[str, MessageID | None]] = MappingProxyType({})
"""The last event of no vchannel is expected."""


class Append(msgspec.Struct, frozen=True):
    """Appends messages, each an event of its own, in their order.

    `numbers` say which of the `vchannels` each row is for; empty: all are for the first. An empty column of the others means: INSERT
    (`types`), no properties (in their stored form), no idempotency key, no barrier time tick (0), no expectation (`UNCHECKED`) of what the
    last event of the vchannel is.
    """

    vchannels: Sequence[str]
    payloads: Sequence[bytes]
    numbers: Sequence[int] = ()
    types: Sequence[int] = ()
    properties: Sequence[bytes] = ()
    keys: Sequence[Key | None] = ()
    barriers: Sequence[int] = ()
    expected: Sequence[MessageID | Unchecked | None] = ()

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Append:
        """Returns the columns of these messages."""
        names = list(dict.fromkeys([message.vchannel for message in messages]))
        numbers: Sequence[int] = ()
        if len(names) > 1:
            number = {name: at for at, name in enumerate(names)}
            numbers = [number[message.vchannel] for message in messages]
        types: list[int] = [message.message_type for message in messages]
        properties = [message.properties for message in messages]
        return cls(
            names,
            [message.payload for message in messages],
            numbers,
            types if types.count(_INSERT) < len(types) else (),
            [encode_properties(each) if each else b"" for each in properties] if any(properties) else (),
        )

    def __len__(self) -> int:
        return len(self.payloads)

    def vchannel(self, row: int) -> str:
        """Returns the vchannel of a row."""
        return self.vchannels[self.numbers[row] if self.numbers else 0]

    def may_wait(self, row: int) -> bool:
        """Returns whether a row may wait at the node for longer than the log takes to write: for its barrier, or for the same key."""
        return bool((self.barriers and self.barriers[row]) or (self.keys and self.keys[row] is not None))

    @property
    def has_special(self) -> bool:
        """Whether any row may be special."""
        return bool(self.keys or self.barriers or self.expected or self.types)

    def is_special(self, row: int) -> bool:
        """Returns whether a row needs an operation of its own: for an option that it has, or because no transaction may span it."""
        if not self.has_special:
            return False
        if self.may_wait(row) or (self.expected and self.expected[row] is not UNCHECKED):
            return True
        return bool(self.types) and type_properties(self.types[row]).exclusive

    def message(self, row: int) -> Message:
        """Returns the message of a row."""
        kind = MessageType(self.types[row]) if self.types else MessageType.INSERT
        properties = decode_properties(self.properties[row]) if self.properties else {}
        return Message(self.vchannel(row), self.payloads[row], message_type=kind, properties=properties)


_INSERT: Final = MessageType.INSERT
