"""Bodies: the messages of a transaction that are known at once, checked and in their stored form.

Every engine checks them before it sends anything: one bad message, and none of them is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from wal.engine.checks import check_body_type, check_size
from wal.errors import InvalidArgumentError
from wal.frame import Payloads, Record
from wal.message import Message, encode_properties
from wal.pchannel import BODY_OVERHEAD

__all__ = ["Bodies", "as_messages", "bodies_of", "check_body", "plain_bodies"]


class Bodies(msgspec.Struct, gc=False):
    """The records of the bodies, in order, and the vchannel of each.

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
    for given in messages:
        message = check_body(given, names)
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


def check_body(given: object, names: Collection[str]) -> Message:
    """Returns a body of a transaction over these vchannels as a message. Raises TypeError or InvalidArgumentError if it is none."""
    if isinstance(given, bytes):
        if len(names) != 1:
            raise InvalidArgumentError(
                f"the transaction is over {len(names)} vchannels, so bytes name none of them: append Message(vchannel, payload)"
            )
        return Message(next(iter(names)), given)
    if not isinstance(given, Message):
        raise TypeError(f"a transaction takes a Message or bytes, not {type(given).__name__}")
    if given.vchannel not in names:
        raise InvalidArgumentError(
            f"message for vchannel {given.vchannel!r} in a transaction over {', '.join(map(repr, names))}: name "
            "every vchannel when the transaction begins"
        )
    return given


_BYTES: Final = frozenset((bytes,))
