"""Idempotency keys in the form of callers, and in the form of a log's frames. Pure."""

from __future__ import annotations

from operator import attrgetter, gt
from typing import Final

import msgspec

from wal.errors import CorruptionError, InvalidArgumentError
from wal.frame import FLAG_COMMIT, KEY_TAGS, KEYED, FrameView, RunName, SystemRecord, decode_ext, decode_key, decode_txn, encode_key

KEY_BYTES_MAX: Final = 255
SEQUENCE_END: Final = 1 << 63


class ProducerKey(msgspec.Struct, frozen=True, gc=False):
    """The key of the append number `sequence` of a `producer` to a vchannel. Unlike a plain key it is remembered for good.

    Sequences of a producer ascend on each vchannel (gaps are fine): a sequence at or below the producer's last durable one is a duplicate.
    The name has 1 to 255 bytes of UTF-8, the sequence is from 0 to 2**63 - 1.
    """

    producer: str
    sequence: int

    def __post_init__(self) -> None:
        name, sequence = self.producer, self.sequence
        usual = name.__class__ is str and name.isascii() and 0 < len(name) <= KEY_BYTES_MAX
        if usual and sequence.__class__ is int and 0 <= sequence < SEQUENCE_END:
            return
        _check_text("producer", self.producer)
        if not isinstance(self.sequence, int) or isinstance(self.sequence, bool):
            raise TypeError(f"the sequence of producer {self.producer!r} must be an int, not {self.sequence!r}")
        if not 0 <= self.sequence < SEQUENCE_END:
            raise InvalidArgumentError(f"sequence {self.sequence} of producer {self.producer!r} is out of range: 0 to 2**63 - 1")


class ProducerInfo(msgspec.Struct, frozen=True):
    """A remembered producer: its name, the vchannel it appends to (several for wide transactions), its last durable sequence."""

    name: str
    vchannels: tuple[str, ...]
    last_sequence: int


Key = str | ProducerKey


def check_key(key: object) -> Key:
    """Returns the key if it is valid. Raises TypeError for another type, InvalidArgumentError for an empty or too long text."""
    if isinstance(key, ProducerKey):
        return key
    if not isinstance(key, str):
        raise TypeError(f"idempotency_key must be a str, a ProducerKey or None, not {key!r}")
    return _check_text("idempotency_key", key)


def key_ext(key: Key) -> bytes:
    """Returns the key as records carry it. Raises as `check_key` does."""
    if key.__class__ is str and key.isascii() and 0 < len(key) <= KEY_BYTES_MAX:
        return KEY_TAGS[len(key)] + key.encode()
    if key.__class__ is not ProducerKey:  # which was checked when it was made
        key = check_key(key)
    return encode_key(key.producer, sequence=key.sequence) if isinstance(key, ProducerKey) else encode_key(key)


def _check_text(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {text!r}")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} {text!r} cannot be encoded as UTF-8: use text without lone surrogates") from error
    if not 0 < length <= KEY_BYTES_MAX:
        raise InvalidArgumentError(f"{what} {text[:40]!r} is {length} bytes long: 1 to {KEY_BYTES_MAX} bytes of UTF-8 are taken")
    return text


class KeyedEvent(msgspec.Struct, gc=False):
    """An event with a key, as recovery finds it: its index, the sorted vchannels it was appended to, and a transaction's id and keepalive.

    `text` is the plain key, or with a `sequence` the producer's name.
    """

    index: int
    names: tuple[RunName, ...]
    text: str
    sequence: int | None
    txn_id: int = 0
    keepalive_ms: int = 0


def keyed_events(view: FrameView) -> tuple[list[KeyedEvent], list[str]]:
    """Returns the keyed events of a frame in order, and the producers that it forgets. CorruptionError for damage.

    A wide transaction has the same key in each of its runs and is one event. A frame without the flag KEYED is not decoded.
    """
    if not view.header.compatible & KEYED:
        return [], []
    events: list[KeyedEvent] = []
    commits: dict[int, KeyedEvent] = {}
    forgotten = [payload.decode() for kind, payload in view.system_records() if kind == SystemRecord.PRODUCER_FORGOTTEN]
    for name, incarnation, index, flags, ext in view.exts():
        if (key_parts := decode_key(ext)) is None:
            continue
        text, sequence = key_parts
        if not 0 < len(text) <= KEY_BYTES_MAX or (sequence is not None and sequence >= SEQUENCE_END):
            raise CorruptionError(f"the idempotency key of a record is damaged: {text[:40]!r}, sequence {sequence}", expected="a key")
        run_name = (name, incarnation)
        if not flags & FLAG_COMMIT:
            events.append(KeyedEvent(index, (run_name,), text, sequence))
        elif (commit := commits.get(index)) is not None:
            commit.names += (run_name,)
        else:
            txn_id, keepalive_ms, _, _ = decode_txn(decode_ext(ext))
            commits[index] = commit = KeyedEvent(index, (run_name,), text, sequence, txn_id, keepalive_ms)
            events.append(commit)
    for commit in commits.values():
        commit.names = tuple(sorted(commit.names))
    if any(map(gt, map(_BY_INDEX, events), map(_BY_INDEX, events[1:]))):
        events.sort(key=_BY_INDEX)
    return events, forgotten


_BY_INDEX: Final = attrgetter("index")
