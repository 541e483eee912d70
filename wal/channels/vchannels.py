"""Vchannels: their valid names, and the pchannel of each. A vchannel's place is a hash of its name.

This module never blocks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from wal.channels.owners import OwnerDescription
from wal.channels.unknown_vchannels import SHOWN_MAX, existing_vchannels
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.message.matching import Matching

if TYPE_CHECKING:
    from wal.message import Lineage

NAMES_MAX: Final = 65_536
"""The most vchannels that one request names: as many as a log has by default."""
VCHANNEL_NAME_BYTES_MAX: Final = 255
"""The most UTF-8 bytes of a vchannel's name."""


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
    check_name("vchannel", name, VCHANNEL_NAME_BYTES_MAX)
    return name


def check_name(what: str, name: str, bytes_max: int) -> None:
    """Raises InvalidArgumentError if the name of a vchannel or a cursor is too long, has control characters, or is not UTF-8."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{what} {name!r} cannot be encoded as UTF-8: name it without lone surrogates") from error
    if length > bytes_max:
        raise InvalidArgumentError(f"{what} {name[:40]!r}… is {length} bytes long: at most {bytes_max}")
    if not name.isprintable() and any(character < " " or character == "\x7f" for character in name):
        raise InvalidArgumentError(f"{what} {name!r} holds control characters: name it without them")


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


def not_created(name: str) -> ChannelNotExistError:
    """Returns the error for a missing vchannel where the settings forbid that a use creates it."""
    return ChannelNotExistError(f"vchannel {name!r} does not exist and create_vchannels is off: make it with create_vchannel({name!r})")


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
            raise ChannelNotExistError(f"{not_created(name)}; {existing_vchannels(name, records)}")
    distinct = set(places.values())
    if len(distinct) > 1:
        text = ", ".join(f"{name!r} on {pchannel}" for name, pchannel in islice(places.items(), SHOWN_MAX))
        text += f", and {len(places) - SHOWN_MAX} others" if len(places) > SHOWN_MAX else ""
        raise InvalidArgumentError(f"one scanner reads one pchannel, but these lie on several ({text}): read them apart")
    return distinct.pop()
