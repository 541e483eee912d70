"""Messages, as a user appends them and as a reader receives them.

Owns: `Message` (before the append), `ImmutableMessage` and `ImmutableTxnMessage` (after it). Local readers at the tail with the same
selection get the same messages. A delivered message never changes, so a consumer may pass it to other tasks and threads. Its id,
properties and time are derived on access, because most readers need few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from wal.errors import InvalidArgumentError, NoPayloadError
from wal.message.append_result import TxnContext
from wal.message.broadcast_header import BroadcastHeader
from wal.message.instead import Instead
from wal.message.message_id import FORM_JOURNAL, MessageID
from wal.message.properties import check_properties, check_text, decode_properties, properties_size
from wal.message.types import MessageType


class _Target(msgspec.Struct, frozen=True, gc=False):
    vchannel: str
    payload: bytes


class Message(_Target, frozen=True, gc=False, kw_only=True):
    """A message to append: a vchannel, a payload (`bytes`) and optional properties (`str` to `str`).

    The same object may be appended any number of times: an append does not change it. Creating one raises TypeError for a wrong type,
    InvalidArgumentError for an empty vchannel or a property key that begins with `_`, which is reserved. Appending a type that only the
    log or its broadcaster writes raises InvalidArgumentError.
    """

    message_type: MessageType = MessageType.INSERT
    properties: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.payload.__class__ is not bytes:
            raise TypeError(f"payload must be bytes, not {type(self.payload).__name__}: convert it with bytes(…) or .encode()")
        if self.vchannel.__class__ is not str:
            raise TypeError(f"vchannel must be a str, not {type(self.vchannel).__name__}")
        if not self.vchannel:
            raise InvalidArgumentError("vchannel is empty: name the vchannel that the message is for")
        if not self.vchannel.isascii():
            check_text(self.vchannel, "vchannel")
        if self.message_type.__class__ is not MessageType:
            raise TypeError(f"message_type must be a MessageType, not {self.message_type!r}")
        properties = self.properties
        plain = not properties and properties.__class__ is dict
        _set_field(self, "properties", {} if plain else check_properties(properties))

    def __repr__(self) -> str:
        properties = f", properties={self.properties!r}" if self.properties else ""
        return f"Message({self.vchannel!r}, {len(self.payload)} bytes, message_type={self.message_type.name}{properties})"

    def estimate_size(self) -> int:
        """Returns the bytes of the payload and of all property keys and values."""
        properties = self.properties
        return len(self.payload) + (properties_size(properties) if properties else 0)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """The frame that a message was read from: its pchannel, the incarnation of the pchannel's log, and the position of the frame."""

    pchannel: str
    incarnation: int
    position: int
    form: int = FORM_JOURNAL

    def message_id(self, index: int) -> MessageID:
        """Returns the id of the event (or body) at this index of the frame."""
        return MessageID(self.pchannel, self.incarnation, self.position, index, self.form)


_set_field: Final = msgspec.structs.force_setattr
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: Final = {int(t): t for t in MessageType}


class ImmutableMessage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A message in the log.

    `payload`, `vchannel`, `time_tick`, `txn_context` (None unless it is a transaction or a body of one) and `broadcast` (the header, or
    None) are fields; the rest is derived on access. The `time_tick` of a body is that of its commit.
    """

    _origin: Origin
    _index: int
    time_tick: int
    vchannel: str
    payload: bytes
    _type: int = 2
    _properties: bytes = b""
    txn_context: TxnContext | None = None
    broadcast: BroadcastHeader | None = None
    if not TYPE_CHECKING:
        body = data = value = Instead("payload")
        headers = Instead("properties")
        id = offset = Instead("message_id")
        timestamp = Instead("append_time, or time_tick")
        topic = Instead("vchannel")

    @property
    def message_id(self) -> MessageID:
        """The id of the event; a body has its own."""
        return self._origin.message_id(self._index)

    @property
    def last_confirmed(self) -> MessageID:
        """The id after which every later message follows: its own, because ids and ticks have one order here."""
        return self._origin.message_id(self._index)

    @property
    def message_type(self) -> MessageType:
        """The type; `UNKNOWN` for a number that this version does not know."""
        return _TYPES.get(self._type, MessageType.UNKNOWN)

    @property
    def properties(self) -> dict[str, str]:
        """The user's properties, a new dict at each access."""
        return decode_properties(self._properties)

    @property
    def append_time(self) -> datetime:
        """The time of the append (UTC, milliseconds), taken from the tick."""
        return _EPOCH + timedelta(milliseconds=self.time_tick >> 18)

    def estimate_size(self) -> int:
        """Returns the bytes of the payload and of all property keys and values."""
        return len(self.payload) + (properties_size(self.properties) if self._properties else 0)

    def bodies(self) -> Sequence[ImmutableMessage]:
        """Returns the messages in it: the only body of a plain message is itself."""
        return (self,)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(message_id={self.message_id}, time_tick={self.time_tick}, vchannel={self.vchannel!r}, "
            f"message_type={self.message_type.name}, payload={len(self.payload)} bytes)"
        )


class ImmutableTxnMessage(ImmutableMessage, frozen=True, gc=False, eq=False, kw_only=True):
    """A committed transaction: one event at its commit's tick, with its bodies in append order within each vchannel.

    `vchannels` are those of the transaction that this reader reads; `vchannel` is the name if there is only one, else `""`. It has no
    payload and no properties of its own: reading them raises NoPayloadError, so that no reader skips the bodies unawares.
    """

    messages: tuple[ImmutableMessage, ...]
    vchannels: tuple[str, ...]
    _first_index: int
    """The index of the first body of the whole transaction (the index of the commit if there is no body)."""

    @property  # type: ignore[misc]
    def payload(self) -> bytes:
        """Raises NoPayloadError: each body has its own."""
        raise NoPayloadError("payload")

    @property
    def properties(self) -> dict[str, str]:
        """Raises NoPayloadError: each body has its own."""
        raise NoPayloadError("properties")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(message_id={self.message_id}, time_tick={self.time_tick}, vchannels={self.vchannels!r}, "
            f"bodies={len(self.messages)})"
        )

    def estimate_size(self) -> int:
        """Returns the bytes of all bodies."""
        return sum(body.estimate_size() for body in self.messages)

    def bodies(self) -> Sequence[ImmutableMessage]:
        """Returns the messages of the transaction."""
        return self.messages


class TimeTickMessage(ImmutableMessage, frozen=True, gc=False, eq=False):
    """Announces the promised tick `time_tick` (elsewhere called watermark): no message with a tick at or below it will follow.

    Its id is the id of the newest event before it, None before any.
    """

    has_event: bool = True

    @property
    def message_id(self) -> MessageID | None:  # type: ignore[override]
        """The id of the newest event before it; None before any."""
        return self._origin.message_id(self._index) if self.has_event else None

    @property
    def last_confirmed(self) -> MessageID | None:  # type: ignore[override]
        return self.message_id
