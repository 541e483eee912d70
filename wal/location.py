"""Locations: one string decides where the log lives."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from wal.errors import InvalidArgumentError

__all__ = ["Location", "parse_location"]


class Location(msgspec.Struct, frozen=True):
    """`scheme` is "journal" (with its directory as `path`) or "memory"."""

    scheme: str
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.scheme}:{self.path or ''}"


def parse_location(location: str | os.PathLike[str]) -> Location:
    """`data/` or `journal:data/` (a directory), or `memory:`. Anything else is an InvalidArgumentError that lists the forms."""
    if isinstance(location, os.PathLike):
        return Location("journal", Path(location))
    if not isinstance(location, str):
        raise TypeError(f"a location is a str or a path, not {type(location).__name__}")
    if location == "memory:":
        return Location("memory")
    directory = location
    scheme, colon, rest = location.partition(":")
    if colon and scheme == "journal":
        directory = rest
    elif colon and "/" not in scheme:
        raise InvalidArgumentError(
            f"location {location!r} is of no known form: use a directory ('data/' or 'journal:data/') or 'memory:'"
        )
    if not directory or "\0" in directory:
        raise InvalidArgumentError(f"location {location!r} names no directory: use for example 'data/'")
    return Location("journal", Path(directory))
