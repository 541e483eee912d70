"""The checks of messages and idempotency keys that every engine makes before it sends anything, and the stored form of a message."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from wal.channels.unknown_vchannels import SHOWN_MAX
from wal.errors import InvalidArgumentError
from wal.frame import Payloads, Record
from wal.message import Message, MessageType, encode_properties, type_properties
from wal.settings import Settings
from wal.write.idempotency.keys import Key, key_ext
from wal.write.txn_table import BODY_OVERHEAD

LETTER_BYTES: Final = 4096
"""The bytes that a dead letter, or a redriven message, may have beyond `message_bytes_max`: the properties that a consumer adds."""


def record_of(message: Message, *, bytes_max: int) -> Record:
    """Returns the stored form of a message. Raises TypeError for any other object, InvalidArgumentError above `message_bytes_max`."""
    check_is_message(message)
    check_size(message, bytes_max=bytes_max)
    properties = encode_properties(message.properties) if message.properties else b""
    return Record(message.payload, int(message.message_type), 0, properties)


def check_size(message: Message, *, bytes_max: int) -> None:
    """Raises InvalidArgumentError if the message exceeds the setting `message_bytes_max`."""
    size = message.estimate_size()
    if size > bytes_max:
        raise InvalidArgumentError(
            f"a message of {size} bytes (payload and properties) for vchannel {message.vchannel!r} exceeds message_bytes_max="
            f"{bytes_max}: split it, store the payload in another place and append a reference, or raise the setting"
        )


def check_message(message: Message, *, bytes_max: int) -> None:
    """Raises TypeError if it is not a Message, InvalidArgumentError above `message_bytes_max`, and for a type that no client appends."""
    check_is_message(message)
    check_size(message, bytes_max=bytes_max)
    check_client_type(message.message_type)


def check_is_message(message: object) -> None:
    """Raises TypeError if it is not a Message."""
    if message.__class__ is not Message and not isinstance(message, Message):
        raise TypeError(f"an append takes a Message, not {type(message).__name__}: Message(vchannel, payload)")


def check_client_type(message_type: MessageType) -> None:
    """Raises InvalidArgumentError if only the WAL or its broadcaster writes messages of this type."""
    kind = type_properties(message_type)
    if kind.system or kind.broadcaster:  # not `appendable`: a property costs a call for each message
        writer = (
            "only the broadcaster writes one, when log.broadcast().abort(…) is called"
            if kind.broadcaster
            else "only the WAL itself writes one"
        )
        raise InvalidArgumentError(
            f"message_type {message_type.name} cannot be appended, since {writer}: append another type, such as INSERT"
        )


def check_body_type(message: Message) -> None:
    """Raises InvalidArgumentError if a message of this type cannot be part of a transaction."""
    if not type_properties(message.message_type).dml:
        raise InvalidArgumentError(
            f"a {message.message_type.name} message cannot be in a transaction, only INSERT and DELETE can: append it by itself"
        )


def kept_key_ext(key: Key, settings: Settings) -> bytes:
    """Returns an idempotency key as records carry it.

    Raises TypeError or InvalidArgumentError for an invalid key, and InvalidArgumentError if the settings would forget it at once.
    """
    ext = key_ext(key)
    if isinstance(key, str) and (settings.idempotency_window_count == 0 or settings.idempotency_window_s == 0):
        raise InvalidArgumentError(
            f"idempotency_key={key!r} would be forgotten at once: idempotency_window_count={settings.idempotency_window_count}, "
            f"idempotency_window_s={settings.idempotency_window_s}: raise the setting that is 0, or use a ProducerKey"
        )
    return ext


def spans_pchannels(places: Mapping[str, str]) -> InvalidArgumentError:
    """Returns the error for a transaction on vchannels of several pchannels; `places` are the pchannels by vchannel."""
    text = ", ".join(f"{name!r} on {pchannel}" for name, pchannel in islice(places.items(), SHOWN_MAX))
    text += f", and {len(places) - SHOWN_MAX} others" if len(places) > SHOWN_MAX else ""
    return InvalidArgumentError(
        f"a transaction is one frame and cannot span pchannels ({text}): make the vchannels on one pchannel with "
        "create_vchannel(name, pchannel=…), or use the broadcaster, log.broadcast(), which writes to all of them"
    )


class Bodies(msgspec.Struct, gc=False):
    """The messages of a transaction that are known at once, checked and in their stored form.

    Every engine checks them before it sends anything: one bad message refuses all of them.

    `counted` are their bytes as the bounds of transactions count them, `stored` as they take space in the frame.
    """

    records: list[Record]
    vchannels: list[str]
    counted: int
    stored: int


def bodies_of(messages: Sequence[Message | bytes], names: tuple[str, ...], *, bytes_max: int) -> Bodies:
    """Returns the bodies of a transaction over `names`; `bytes` are an INSERT on its only vchannel.

    Raises TypeError or InvalidArgumentError for the first message that cannot be in it; `bytes_max` is the setting `message_bytes_max`.
    """
    if (plain := plain_bodies(messages, names, bytes_max=bytes_max)) is not None:
        size = sum(plain.lengths) + BODY_OVERHEAD * len(plain)
        return Bodies(list(map(Record, plain.payloads)), [names[0]] * len(plain), size, size)
    records: list[Record] = []
    vchannels: list[str] = []
    counted = stored = 0
    for item in messages:
        message = check_body(item, names)
        size = message.estimate_size()
        if size > bytes_max:
            check_size(message, bytes_max=bytes_max)
        check_body_type(message)
        properties = encode_properties(message.properties) if message.properties else b""
        records.append(Record(message.payload, int(message.message_type), 0, properties))
        vchannels.append(message.vchannel)
        counted += size + BODY_OVERHEAD
        stored += len(message.payload) + len(properties) + BODY_OVERHEAD
    return Bodies(records, vchannels, counted, stored)


def plain_bodies(messages: Sequence[Message | bytes], names: tuple[str, ...], *, bytes_max: int) -> Payloads | None:
    """Returns the bodies as payloads, or None unless all are `bytes`, none is larger than `bytes_max`, and there is only one vchannel."""
    if len(names) == 1 and _BYTES.issuperset(map(type, messages)):
        lengths = list(map(len, messages))  # type: ignore[arg-type]
        if not lengths or max(lengths) <= bytes_max:
            return Payloads(list(messages), lengths)  # type: ignore[arg-type]
    return None


def as_messages(checked: Sequence[Message | bytes], names: tuple[str, ...]) -> list[Message]:
    """Returns bodies, which `bodies_of` has checked, as messages."""
    return [Message(names[0], body) if isinstance(body, bytes) else body for body in checked]


def uniform(checked: Sequence[Message | bytes], names: tuple[str, ...]) -> Sequence[Message | bytes]:
    """Returns bodies, which `bodies_of` has checked, as they are sent: all `bytes`, or all messages."""
    return checked if _BYTES.issuperset(map(type, checked)) else as_messages(checked, names)


def check_body(message: object, names: Collection[str]) -> Message:
    """Returns a body of a transaction over these vchannels as a message. Raises TypeError or InvalidArgumentError for any other object."""
    if isinstance(message, bytes):
        if len(names) != 1:
            raise InvalidArgumentError(
                f"the transaction has {len(names)} vchannels, so bytes name none of them: append Message(vchannel, payload)"
            )
        return Message(next(iter(names)), message)
    if not isinstance(message, Message):
        raise TypeError(f"a transaction takes a Message or bytes, not {type(message).__name__}")
    if message.vchannel not in names:
        raise InvalidArgumentError(
            f"message for vchannel {message.vchannel!r} in a transaction over {', '.join(map(repr, names))}: name "
            "every vchannel when the transaction begins"
        )
    return message


_BYTES: Final = frozenset((bytes,))
