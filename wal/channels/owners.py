"""Owners of channels: who a channel was made for, as `create_channels` records it.

The texts are the caller's own. The log stores them and never interprets them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wal.errors import InvalidArgumentError

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
