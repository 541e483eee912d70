"""Matching: a pattern that names a family of vchannels, where a call takes names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError, shortened

PATTERN_BYTES_MAX: Final = 512
"""The most UTF-8 bytes of a pattern."""
MATCHERS_MAX: Final = 256
"""The most patterns whose matchers are kept."""


class Matching(msgspec.Struct, frozen=True):
    """All vchannels whose whole name matches: `*` is any characters, or none, `?` exactly one, and everything else itself.

    `Matching("account-*")` also has the vchannels that are created later. Upper and lower case differ. `name in Matching(…)` is a match.

    Raises TypeError for a pattern that is not a str; InvalidArgumentError for an empty pattern, and for a pattern longer than 512 bytes,
    with control characters, which no name has, or with characters that UTF-8 cannot encode.
    """

    pattern: str

    def __post_init__(self) -> None:
        check_pattern(self.pattern)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _matcher(self.pattern).fullmatch(name) is not None

    def isdisjoint(self, names: Iterable[str]) -> bool:
        """Returns whether none of these names matches."""
        return not any(map(_matcher(self.pattern).fullmatch, names))

    def __repr__(self) -> str:
        return f"Matching({self.pattern!r})"


def check_pattern(pattern: object) -> str:
    """Returns the pattern if it is valid; raises as `Matching` does."""
    if not isinstance(pattern, str):
        raise TypeError(f"Matching takes a pattern (str) such as 'account-*', not {pattern!r:.80}: several names are given as a sequence")
    if not pattern:
        raise InvalidArgumentError("Matching('') matches no vchannel: '*' stands for any characters, so Matching('*') matches all")
    try:
        length = len(pattern.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"the pattern {shortened(pattern)} cannot be encoded as UTF-8, so it matches no vchannel: write it without lone surrogates"
        ) from error
    if length > PATTERN_BYTES_MAX:
        raise InvalidArgumentError(
            f"the pattern {shortened(pattern)} is {length} bytes long: at most {PATTERN_BYTES_MAX}; shorten it with '*', which stands for "
            "any characters"
        )
    if any(character < " " or character == "\x7f" for character in pattern):
        raise InvalidArgumentError(
            f"the pattern {shortened(pattern)} holds control characters, so it matches no vchannel: write it without them"
        )
    return pattern


@lru_cache(maxsize=MATCHERS_MAX)
def _matcher(pattern: str) -> re.Pattern[str]:
    """Returns the regular expression of a pattern.

    Matching takes at most as many steps as the product of both lengths: the text between two `*` matches at its first fit, since no later
    fit could help the rest, and an atomic group tries no other. `fnmatch` works alike, but gives `[` a meaning.
    """
    first, *rest = [_piece(piece) for piece in re.sub(r"\*+", "*", pattern).split("*")]
    if not rest:
        return re.compile(first, re.DOTALL)
    *middle, last = rest
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{last}", re.DOTALL)


def _piece(text: str) -> str:
    return "".join("." if character == "?" else re.escape(character) for character in text)
