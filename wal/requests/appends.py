"""Appends: the options of an append or a transaction, and messages to append, as columns. Pure.

A row of the columns is a message. A column that would hold only defaults is empty, so that plain messages cost nothing but their payloads
on their way from a client over the network into a frame.

A new option is a field of `WriteOptions` with its check, a parameter of the calls that take it (`wal.api.accesser`), its column on the wire
(`wal.rpc.appends`), and a line where the node judges it (`wal.node.appends`).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Final

import msgspec

from wal.channels.unknown_vchannels import SHOWN_MAX
from wal.errors import InvalidArgumentError
from wal.message import Message, MessageID, MessageType, decode_properties, encode_properties, type_properties
from wal.timestamp.checks import check_tick
from wal.write.idempotency.keys import KEY_BYTES_MAX, Key, check_key

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


class WriteOptions(msgspec.Struct, frozen=True, gc=False):
    """How an append or a transaction is written.

    It waits until everything at or below the barrier is in the log (0: no barrier). A key makes it idempotent. It is written only if these
    are the last events of its vchannels (None: there never was one), of which a transaction may name some.

    Raises TypeError or InvalidArgumentError for a barrier that is not a tick, and for an invalid key.
    """

    barrier_time_tick: int = 0
    key: Key | None = None
    expected_last: Mapping[str, MessageID | None] = NOT_EXPECTED

    def __post_init__(self) -> None:
        if self.barrier_time_tick is not NO_BARRIER:
            check_tick("barrier_time_tick", self.barrier_time_tick)
        key = self.key
        if key is not None and (key.__class__ is not str or not key.isascii() or not 0 < len(key) <= KEY_BYTES_MAX):  # most need no call
            check_key(key)

    @property
    def may_wait(self) -> bool:
        """Whether it may wait at the node for longer than the log takes to write: for its barrier, or for the same key."""
        return self.barrier_time_tick > 0 or self.key is not None

    def check_expected(self, names: Collection[str]) -> None:
        """Raises InvalidArgumentError for an expected event of a vchannel that is not one of these, which are written."""
        if self.expected_last and (others := self.expected_last.keys() - names):
            more = f" and {len(names) - SHOWN_MAX} others" if len(names) > SHOWN_MAX else ""
            raise InvalidArgumentError(
                f"expected_last names the vchannel {min(others)[:40]!r}, which is not in the transaction on "
                f"{', '.join(map(repr, islice(names, SHOWN_MAX)))}{more}"
            )


NO_BARRIER: Final = 0
"""The default, compared by identity: every other value, also `False` and 0.0, is checked."""
PLAIN: Final = WriteOptions()
"""No options. Appends compare with it by identity."""


class Append(msgspec.Struct, frozen=True):
    """Appends messages, each an event of its own, in their order.

    `numbers` say which of the `vchannels` each row is for; empty: all are for the first. An empty column of the others means: INSERT
    (`types`), no properties (in their stored form), no options.
    """

    vchannels: Sequence[str]
    payloads: Sequence[bytes]
    numbers: Sequence[int] = ()
    types: Sequence[int] = ()
    properties: Sequence[bytes] = ()
    options: Sequence[WriteOptions] = ()

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

    def options_of(self, row: int) -> WriteOptions:
        """Returns the options of a row."""
        return self.options[row] if self.options else PLAIN

    @property
    def has_special(self) -> bool:
        """Whether any row may be special."""
        return bool(self.options or self.types)

    def is_special(self, row: int) -> bool:
        """Returns whether a row needs an operation of its own: for an option that it has, or because no transaction may span it."""
        if self.options and self.options[row] is not PLAIN:
            return True
        return bool(self.types) and type_properties(self.types[row]).exclusive

    def message(self, row: int) -> Message:
        """Returns the message of a row."""
        kind = MessageType(self.types[row]) if self.types else MessageType.INSERT
        properties = decode_properties(self.properties[row]) if self.properties else {}
        return Message(self.vchannel(row), self.payloads[row], message_type=kind, properties=properties)


_INSERT: Final = MessageType.INSERT
