"""ChannelChoice: which vchannels a read was asked for: all, some by name, or those whose names match a pattern. Pure.

It promises that a pattern is matched on whole names, and that a name is matched once: there may be 65,536 of them, asked for sixty times
a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

__all__ = ["ChannelChoice"]


class ChannelChoice(msgspec.Struct, frozen=True):
    """`names` or a regular expression `pattern`; neither: all vchannels."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None

    @property
    def everything(self) -> bool:
        """Whether every vchannel is meant."""
        return self.names is None and self.pattern is None

    def __contains__(self, name: object) -> bool:
        if self.names is not None:
            return name in self.names
        return self.pattern is None or (isinstance(name, str) and _matches(self.pattern, name))

    def among(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these names that are meant."""
        return frozenset(name for name in names if name in self)

    def __str__(self) -> str:
        if self.names is not None:
            return ", ".join(map(repr, self.names))
        return "all vchannels" if self.pattern is None else f"vchannels that match {self.pattern!r}"


@lru_cache(maxsize=1 << 17)
def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern, name) is not None
