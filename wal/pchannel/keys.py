"""Idempotency keys as callers give them: a plain text, or a producer with a sequence. Pure.

Owns what a key may be, how many bytes it takes in a record, and what is said about producers. What is remembered of keys is
`IdempotencyTable`'s.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.frame import encode_key

__all__ = ["Key", "ProducerInfo", "ProducerKey", "check_key", "key_ext"]

KEY_BYTES_MAX: Final = 255
SEQUENCE_END: Final = 1 << 63


class ProducerKey(msgspec.Struct, frozen=True, gc=False):
    """The `sequence`-th thing that `producer` appends to a vchannel: remembered for good, unlike a plain key.

    Sequences of a producer ascend on each vchannel (gaps are fine): one that is not above the producer's last durable one is a
    duplicate. A name of 1 to 255 bytes of UTF-8, a sequence from 0 to 2**63 - 1.
    """

    producer: str
    sequence: int

    def __post_init__(self) -> None:
        _check_text("producer", self.producer)
        if not isinstance(self.sequence, int) or isinstance(self.sequence, bool):
            raise TypeError(f"the sequence of producer {self.producer!r} must be an int, not {self.sequence!r}")
        if not 0 <= self.sequence < SEQUENCE_END:
            raise InvalidArgumentError(
                f"sequence {self.sequence} of producer {self.producer!r} is out of range: 0 to 2**63 - 1"
            )


class ProducerInfo(msgspec.Struct, frozen=True):
    """A producer that is remembered: its name, the vchannel it appends to (several: wide transactions), its last durable sequence."""

    name: str
    vchannels: tuple[str, ...]
    last_sequence: int


Key = str | ProducerKey


def check_key(key: object) -> Key:
    """The key, if it is one: TypeError for another type, InvalidArgumentError for an empty or too long text."""
    if isinstance(key, ProducerKey):
        return key
    if not isinstance(key, str):
        raise TypeError(f"idempotency_key must be a str, a ProducerKey or None, not {key!r}")
    return _check_text("idempotency_key", key)


def key_ext(key: Key) -> bytes:
    """The key as records carry it."""
    return encode_key(key.producer, sequence=key.sequence) if isinstance(key, ProducerKey) else encode_key(key)


def _check_text(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {text!r}")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"{what} {text!r} cannot be encoded as UTF-8: use text without lone surrogates"
        ) from error
    if not 0 < length <= KEY_BYTES_MAX:
        raise InvalidArgumentError(
            f"{what} {text[:40]!r} is {length} bytes long: 1 to {KEY_BYTES_MAX} bytes of UTF-8 are taken"
        )
    return text
