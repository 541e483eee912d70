"""Vchannels: their valid names, the pchannel of each, and the warning for a reader of an unknown name.

A vchannel that does not exist is read as an empty log, since it may be created later; a misspelt name would look the same. So a read of a
name that no append creates within seconds logs a warning that lists existing vchannels. This module never blocks, and compares only a
bounded number of names for that list.
"""

from __future__ import annotations

import difflib
import logging
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.message.matching import Matching

if TYPE_CHECKING:
    from wal.message import Lineage

ROLE_BYTES_MAX: Final = 255
ADDRESS_BYTES_MAX: Final = 255
DESCRIPTION_BYTES_MAX: Final = 1024
"""The most UTF-8 bytes of each text. JSON needs at most 6 bytes for one."""
OWNERS_MAX: Final = 60
"""The most records with owners in one operation of the KV: with 68 others they fit in one of every KV (`OPERATION_BYTES_MAX`)."""


class OwnerDescription(msgspec.Struct, frozen=True, gc=False):
    """The owner of a channel: its role (not empty), its address, and a description for people.

    The texts are the caller's own; the log stores them and never interprets them. Raises TypeError for a text that is not a str,
    InvalidArgumentError for a text that is too long or that UTF-8 cannot encode.
    """

    role: str
    address: str = ""
    description_text: str = ""

    def __post_init__(self) -> None:
        _check_text("role", self.role, ROLE_BYTES_MAX)
        _check_text("address", self.address, ADDRESS_BYTES_MAX)
        _check_text("description_text", self.description_text, DESCRIPTION_BYTES_MAX)
        if not self.role:
            raise InvalidArgumentError(
                "the owner's role is empty: name the part that owns the channels, such as OwnerDescription('ingest')"
            )


def check_owner(owner: object) -> OwnerDescription:
    """Returns the owner; raises TypeError for another type."""
    if not isinstance(owner, OwnerDescription):
        raise TypeError(f"owner must be an OwnerDescription, such as OwnerDescription('ingest'), not {owner!r:.80}")
    return owner


def _check_text(field: str, text: object, bytes_max: int) -> None:
    if not isinstance(text, str):
        raise TypeError(f"the owner's {field} must be a str, not {type(text).__name__}")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the owner's {field} has {text[error.start]!r} at character {error.start}, which UTF-8 cannot encode: leave out lone "
            "surrogates"
        ) from None
    if length > bytes_max:
        raise InvalidArgumentError(f"the owner's {field} is {length} bytes long, and may have at most {bytes_max}: shorten it")


NAMES_MAX: Final = 65_536
"""The most vchannels that one request names: as many as a log has by default."""
VCHANNEL_NAME_BYTES_MAX: Final = 255
"""The most UTF-8 bytes of a vchannel's name."""
NOTED_MAX: Final = 1024
"""The most names of which one log warns: a caller that reads more unknown names has been warned enough."""
UNKNOWN_S: Final = 5.0
"""The seconds that a reader may come before the first append to its vchannel without a warning."""
SHOWN_MAX: Final = 10
"""The most vchannels that an error or a warning lists."""
COMPARED_MAX: Final = 128
"""The most names that are compared with the unknown one, …"""
COMPARED_CHARACTERS: Final = 48
"""… and the most characters of each: both together take a few milliseconds at most."""
_PREFIX: Final = 4
_log: Final = logging.getLogger("wal.channels")


class VChannelInfo(msgspec.Struct, frozen=True, gc=False):
    """A vchannel: its name, its pchannel, the incarnation of the name, and, if `create_channels` made it, the owner."""

    name: str
    pchannel: str
    incarnation: int
    owner: OwnerDescription | None = None


def check_vchannel(name: object) -> str:
    """Returns the name if it is valid for a vchannel.

    Raises TypeError unless it is a str, InvalidArgumentError if it is empty, too long, or has control characters.
    """
    if not isinstance(name, str):
        raise TypeError(f"a vchannel is named by a str, not {type(name).__name__}")
    if not name:
        raise InvalidArgumentError('vchannel is empty: name the vchannel ("" stands for the whole pchannel and is the WAL\'s own)')
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"vchannel {name!r} cannot be encoded as UTF-8: name it without lone surrogates") from error
    if length > VCHANNEL_NAME_BYTES_MAX:
        raise InvalidArgumentError(f"vchannel {name[:40]!r}… is {length} bytes long: at most {VCHANNEL_NAME_BYTES_MAX}")
    if not name.isprintable() and any(character < " " or character == "\x7f" for character in name):
        raise InvalidArgumentError(f"vchannel {name!r} holds control characters: name it without them")
    return name


def check_vchannels(vchannels: object, call: str) -> tuple[str, ...]:
    """Returns the names that a caller passed (one name, or several), each once. The error for a wrong type begins with `call`.

    Raises TypeError for a wrong type of the argument or of a name, InvalidArgumentError for an invalid name or a pattern.
    """
    if isinstance(vchannels, str):
        return (check_vchannel(vchannels),)
    if isinstance(vchannels, Matching):
        raise InvalidArgumentError(f"{call}, and no pattern yet, as {vchannels} is: name them (log.vchannels() lists the vchannels)")
    if not isinstance(vchannels, Iterable) or isinstance(vchannels, bytes | bytearray | memoryview):
        raise TypeError(f"{call}, not {vchannels!r}")
    return tuple(dict.fromkeys(check_vchannel(name) for name in vchannels))


VChannelBegin = tuple[int, int]
"""The end of the pchannel's log when a vchannel was created, as (incarnation of the pchannel, position): its events are at or above it."""


def first_position(begins: Iterable[VChannelBegin | None], lineage: Lineage, end: int) -> int:
    """Returns a position below which the log has no event of the vchannels with these begins; 0 if one of them is unknown.

    `lineage` and the durable `end` are those of the log. Events that a restore from a copy has lost do not count, nor does the record of a
    vchannel that is ahead of the log.
    """
    first: int | None = None
    for begin in begins:
        if begin is None:
            return 0
        incarnation, position = begin
        if position > end or not (incarnation == lineage.incarnation or lineage.covers(incarnation, position)):
            return 0
        first = position if first is None else min(first, position)
    return first or 0


def place(name: str, pchannels: list[str]) -> str:
    """Returns the pchannel for a new vchannel, by a hash of its name, so that every process would choose the same."""
    return pchannels[zlib.crc32(name.encode()) % len(pchannels)]


def common_place(names: Iterable[str], records: Mapping[str, VChannelInfo], pchannels: list[str], *, create_vchannels: bool) -> str:
    """Returns the one pchannel of these vchannels, or the pchannel that they would get.

    Raises ChannelNotExistError if one does not exist and must not be created, InvalidArgumentError if they are on several.
    """
    places: dict[str, str] = {}
    for name in names:
        if (info := records.get(name)) is not None:
            places[name] = info.pchannel
        elif create_vchannels:
            places[name] = place(name, pchannels)
        else:
            raise ChannelNotExistError(
                f"vchannel {name!r} does not exist and create_vchannels is off: make it with create_vchannel({name!r}); "
                f"{existing_vchannels(name, records)}"
            )
    distinct = set(places.values())
    if len(distinct) > 1:
        text = ", ".join(f"{name!r} on {pchannel}" for name, pchannel in islice(places.items(), SHOWN_MAX))
        text += f", and {len(places) - SHOWN_MAX} others" if len(places) > SHOWN_MAX else ""
        raise InvalidArgumentError(f"one scanner reads one pchannel, but these lie on several ({text}): read them apart")
    return distinct.pop()


class UnknownVChannels:
    """The unknown names that were read in one log, called `location` in the warnings.

    A misspelt name stays unknown; a name that is read before its first append does not. So a name is recorded when it is read. The warning
    follows if the name is still unknown UNKNOWN_S later, or when the log closes before that.
    """

    def __init__(self, location: str, *, monotonic: Callable[[], float]) -> None:
        self._location = location
        self._monotonic = monotonic
        self._noted: dict[str, float] = {}
        """The time at which each name was recorded; infinity after its warning, or once it is known."""

    def note(self, names: Iterable[str], known: Collection[str]) -> bool:
        """Records each new unknown name among these; returns whether there was one."""
        before = len(self._noted)
        for name in names:
            if name not in known and len(self._noted) < NOTED_MAX:
                self._noted.setdefault(name, self._monotonic())
        return len(self._noted) > before

    def warn(self, known: Collection[str], *, at_close: bool = False) -> None:
        """Logs a warning for each recorded name that is still unknown after UNKNOWN_S, or now at the close."""
        due = math.inf if at_close else self._monotonic() - UNKNOWN_S
        for name, noted in self._noted.items():
            if noted == math.inf or (noted > due and name not in known):
                continue
            self._noted[name] = math.inf
            if name not in known:
                _log.warning(
                    "vchannel %r does not exist in %s: it is read as an empty log until it is created; %s%s",
                    name,
                    self._location,
                    existing_vchannels(name, known),
                    f"; a name is no pattern, which is Matching({name!r})" if "*" in name else "",
                )


def existing_vchannels(name: str, known: Collection[str]) -> str:
    """Returns a phrase that lists up to ten of the known names, those most similar to `name` first."""
    if not known:
        return "there are no vchannels yet"
    names = ", ".join(map(repr, _nearest(name, known)))
    return f"there are {names}" if len(known) <= SHOWN_MAX else f"there are {len(known)}, among them {names}"


def _nearest(name: str, known: Collection[str]) -> list[str]:
    candidates = sorted(known if len(known) <= COMPARED_MAX else _alike(name, known))
    clipped: dict[str, list[str]] = {}
    for one in candidates:
        clipped.setdefault(one[:COMPARED_CHARACTERS].casefold(), []).append(one)
    close = difflib.get_close_matches(name[:COMPARED_CHARACTERS].casefold(), clipped, n=SHOWN_MAX)
    nearest = dict.fromkeys(one for start in close for one in clipped[start])
    return list(nearest | dict.fromkeys(candidates))[:SHOWN_MAX]


def _alike(name: str, known: Collection[str]) -> list[str]:
    """Returns names that begin as `name` does, or any names without such a one."""
    candidates = list(islice((one for one in known if one.startswith(name[:_PREFIX])), COMPARED_MAX))
    return candidates or list(islice(known, COMPARED_MAX))
