"""MessageID: the pchannel and the log position of an event or a body.

Owns: identity and order of ids, their text and their bytes, and the form of positions in MessagePack. Within one incarnation of one
pchannel the order of ids is that of the events, of the ids' bytes and of the time ticks. Comparing ids of different pchannels, or of two
incarnations of one, is an error, never a silent answer.
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, Final

import msgspec

from wal.errors import InvalidArgumentError, shortened

FORM_JOURNAL: Final = 1
"""The form of ids whose position takes 8 bytes: the bytes of the pchannel's log since it began (journal and memory)."""
FORM_PULSAR: Final = 2
"""The form of ids whose position takes 16 bytes: ledger, then entry."""

LogPosition = tuple[int, int]
"""A position in the log of a pchannel: the position of a frame, and the index of an event (or body) in it."""

_POSITION_BYTES: Final = {FORM_JOURNAL: 8, FORM_PULSAR: 16}
_INDEX: Final = struct.Struct(">I")
_PCHANNEL_BYTES_MAX: Final = 255
_KEY_BYTES: Final = frozenset(b"abcdefghijklmnopqrstuvwyz0123456789")
_ESCAPED: Final = re.compile(rb"x([0-9a-f]{2})")


class MessageID(msgspec.Struct, frozen=True, gc=False):
    """The id of one event, or of one body of a transaction.

    It has the `pchannel`, the `incarnation` of the pchannel's log, the `position` of the frame (in bytes; on Pulsar `ledger << 64 | entry`)
    and the `index` within the frame. Ids are hashable. `==` never raises; `<`, `<=`, `>` and `>=` raise an
    InvalidArgumentError for ids of different pchannels or incarnations, unless both name events of one log that was restored from a copy
    and is open in this process, or was.

        bytes:  form u8 | length u8 and name of the pchannel | incarnation u64 | position (8 or 16 bytes) | index u32, big-endian
        text:   pchannel:incarnation:position:index            (incarnation hexadecimal; a Pulsar position is ledger.entry)
        key:    pchannel-incarnation-position-index            (the numbers hexadecimal, with all digits that their bytes have)
    """

    pchannel: str
    incarnation: int
    position: int
    index: int
    form: int = FORM_JOURNAL

    def same_log(self, other: MessageID) -> bool:
        """Returns whether both ids are in the same incarnation of the same pchannel, so that they can be compared."""
        return self.pchannel == other.pchannel and self.incarnation == other.incarnation and self.form == other.form

    def __lt__(self, other: MessageID) -> bool:
        return self._key(other) < (other.position, other.index)

    def __le__(self, other: MessageID) -> bool:
        return self._key(other) <= (other.position, other.index)

    def __gt__(self, other: MessageID) -> bool:
        return self._key(other) > (other.position, other.index)

    def __ge__(self, other: MessageID) -> bool:
        return self._key(other) >= (other.position, other.index)

    def __repr__(self) -> str:
        return f"MessageID.parse({str(self)!r})"

    def __str__(self) -> str:
        position = str(self.position)
        if self.form == FORM_PULSAR:
            position = f"{self.position >> 64}.{self.position & 0xFFFF_FFFF_FFFF_FFFF}"
        return f"{self.pchannel}:{self.incarnation:x}:{position}:{self.index}"

    @property
    def key(self) -> str:
        """The id as a text of a to z, 0 to 9 and "-": for file names, the Message-ID of a mail, and keys of idempotency.

        Different ids have different keys, and the keys of one incarnation of a pchannel sort as its ids do. `parse` accepts keys. In the
        name of the pchannel every byte other than a to w, y, z and 0 to 9 is written as "x" and two hexadecimal digits.
        Raises InvalidArgumentError for an id that has no bytes.
        """
        data = bytes(self)
        at = 2 + data[1]
        name = "".join(chr(byte) if byte in _KEY_BYTES else f"x{byte:02x}" for byte in data[2:at])
        return f"{name}-{data[at : at + 8].hex()}-{data[at + 8 : -4].hex()}-{data[-4:].hex()}"

    @classmethod
    def parse(cls, text: str) -> MessageID:
        """Returns the id that `str()` printed, or that has this `key`. Raises InvalidArgumentError for any other text."""
        if not isinstance(text, str):
            raise TypeError(f"MessageID.parse() takes the text of an id (str), not {type(text).__name__}")
        try:
            if ":" not in text:
                return cls._of_key(text)
            pchannel, incarnation, position, index = text.rsplit(":", 3)
            form = FORM_JOURNAL
            if "." in position:
                form = FORM_PULSAR
                ledger, entry = position.split(".")
                at = _digits(ledger) << 64 | _digits(entry)
            else:
                at = _digits(position)
            message_id = cls(pchannel, int(incarnation, 16), at, _digits(index), form)
            if str(message_id) != text:
                raise ValueError("not in canonical form")
            message_id.__bytes__()
        except ValueError as error:
            raise InvalidArgumentError(
                f"{shortened(text)} is not the text of a MessageID: expected pchannel:incarnation:position:index as str(id) prints it, "
                "or the id's key"
            ) from error
        return message_id

    @classmethod
    def _of_key(cls, key: str) -> MessageID:
        name, incarnation, position, index = key.split("-")
        pchannel = _ESCAPED.sub(lambda escaped: bytes((int(escaped[1], 16),)), name.encode())
        form = FORM_PULSAR if len(position) == 2 * _POSITION_BYTES[FORM_PULSAR] else FORM_JOURNAL
        message_id = cls(pchannel.decode(), int(incarnation, 16), int(position, 16), int(index, 16), form)
        if message_id.key != key:
            raise ValueError("not in canonical form")
        return message_id

    def __bytes__(self) -> bytes:
        name = self.pchannel.encode()
        if not 0 < len(name) <= _PCHANNEL_BYTES_MAX:
            raise InvalidArgumentError(f"pchannel name {self.pchannel!r} is {len(name)} bytes long; an id holds 1 to {_PCHANNEL_BYTES_MAX}")
        try:
            return b"".join(
                (
                    bytes((self.form, len(name))),
                    name,
                    self.incarnation.to_bytes(8, "big"),
                    self.position.to_bytes(_POSITION_BYTES[self.form], "big"),
                    _INDEX.pack(self.index),
                )
            )
        except (LookupError, ValueError, OverflowError, struct.error) as error:
            raise InvalidArgumentError(
                f"an id with incarnation={self.incarnation}, position={self.position}, index={self.index}, form={self.form} has no bytes: "
                f"form {FORM_JOURNAL} or {FORM_PULSAR}, and numbers that fit in its fields, are needed"
            ) from error

    @classmethod
    def from_bytes(cls, data: bytes) -> MessageID:
        """Returns the id that `bytes()` encoded. Raises InvalidArgumentError for any other bytes."""
        if not isinstance(data, bytes):
            raise TypeError(f"MessageID.from_bytes() takes bytes, not {type(data).__name__}")
        try:
            form, name_length = data[0], data[1]
            width = _POSITION_BYTES[form]
            if name_length == 0 or len(data) != 2 + name_length + 8 + width + 4:
                raise ValueError("wrong length")
            at = 2 + name_length
            return cls(
                data[2:at].decode(),
                int.from_bytes(data[at : at + 8], "big"),
                int.from_bytes(data[at + 8 : at + 8 + width], "big"),
                _INDEX.unpack_from(data, at + 8 + width)[0],
                form,
            )
        except (LookupError, ValueError) as error:
            raise InvalidArgumentError(
                f"{data!r} are not the bytes of a MessageID: expected what bytes(id) gives (form, pchannel, incarnation, position, index)"
            ) from error

    def _key(self, other: MessageID) -> tuple[int, int]:
        if not isinstance(other, MessageID):
            raise TypeError(f"a MessageID can be compared with a MessageID, not with {type(other).__name__}")
        if not self.same_log(other) and not _is_common(self, other) and not _is_common(other, self):
            raise InvalidArgumentError(
                f"{self} and {other} lie in different pchannels (or incarnations of one) and have no order: "
                "compare ids of one pchannel, or compare time ticks"
            )
        return (self.position, self.index)


# -- restores of copies, see `wal.message.lineage`

_FORKS: Final[dict[tuple[str, int, int], int]] = {}
"""By pchannel, an incarnation and a later one of the same log: the position below which both are the same."""


def note_fork(pchannel: str, parent: int, child: int, fork: int) -> None:
    """Notes that a log which this process has opened is the same in both incarnations below this position."""
    _FORKS[pchannel, parent, child] = fork


def _is_common(early: MessageID, late: MessageID) -> bool:
    """Returns whether `early` names an event that the later incarnation of the log, that of `late`, has too."""
    fork = _FORKS.get((early.pchannel, early.incarnation, late.incarnation))
    # Below the fork both incarnations have the same events; a position means the same in one form only.
    return fork is not None and early.pchannel == late.pchannel and early.position < fork and early.form == late.form


# -- positions in MessagePack, whose integers end at 64 bits: a Pulsar position takes more, and is stored as its 16 bytes, big-endian

Natural = Annotated[int, msgspec.Meta(ge=0)]
"""A count, an index, or another number that must not be negative: a negative one does not decode."""
PackedPosition = Natural | bytes
_INTEGERS_END: Final = 1 << 64


def packed(position: int) -> PackedPosition:
    """Returns the packed form of this position."""
    return position if position < _INTEGERS_END else position.to_bytes(_POSITION_BYTES[FORM_PULSAR], "big")


def unpacked(value: PackedPosition) -> int:
    """Returns the position of this packed form; raises ValueError or TypeError for any other value."""
    if isinstance(value, int):
        return value
    if len(value) != _POSITION_BYTES[FORM_PULSAR]:
        raise ValueError(f"a position of {len(value)} bytes")
    return int.from_bytes(value, "big")


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)
