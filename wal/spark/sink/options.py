"""SinkOptions: what `option(…)` of a write may say, checked once, where the write is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from wal.channels import check_vchannel
from wal.errors import InvalidArgumentError
from wal.location import parse_location
from wal.settings import Settings
from wal.spark.sources import without_scheme

__all__ = ["SinkOptions"]

_SPARK_OWN: Final = frozenset(("checkpointlocation", "queryname"))
"""Spark's own options, which it hands to the sink as well."""


class SinkOptions(msgspec.Struct, frozen=True):
    """Times in seconds. `vchannel`: where all rows go, instead of where their column says."""

    journal: Path
    vchannel: str | None
    settings: Settings
    lock_timeout_s: float
    orphan_age_s: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of a write; names in any case. InvalidArgumentError for an unknown one, listing those there are, or a wrong value."""
        given = {name.lower(): (name, value) for name, value in options.items()}
        for name, (shown, _) in given.items():
            if name not in _READERS and name not in _SPARK_OWN:
                raise InvalidArgumentError(
                    f"there is no option {shown!r} of the sink; accepted are: {', '.join(sorted(_NAMES.values()))}"
                )
        if "path" not in given:
            raise InvalidArgumentError("there is no path: name the directory of a journal, as in save('data/')")
        values = {
            field: read(_NAMES[name], given[name][1] if name in given else None)
            for name, (field, read) in _READERS.items()
        }
        return cls(**values)  # type: ignore[arg-type]


def _path(name: str, text: str | None) -> Path:
    location = parse_location(without_scheme(text or ""))
    if location.scheme != "journal" or location.path is None:
        raise InvalidArgumentError(
            f"option {name}={text!r} is no journal: the sink writes to a directory of this host, such as 'data/'"
        )
    return location.path


def _vchannel(name: str, text: str | None) -> str | None:
    return None if text is None else check_vchannel(text)


def _settings(name: str, text: str | None) -> Settings:
    return Settings() if text is None else Settings.load(text)


def _milliseconds(default_s: float) -> Callable[[str, str | None], float]:
    def read(name: str, text: str | None) -> float:
        if text is None:
            return default_s
        if not (text.isascii() and text.isdigit()):
            raise InvalidArgumentError(f"option {name}={text!r} is no whole number of milliseconds")
        return int(text) / 1000

    return read


_READERS: Final[dict[str, tuple[str, Callable[[str, str | None], object]]]] = {
    "path": ("journal", _path),
    "vchannel": ("vchannel", _vchannel),
    "settings": ("settings", _settings),
    "locktimeoutms": ("lock_timeout_s", _milliseconds(60.0)),
    "orphanagems": ("orphan_age_s", _milliseconds(24 * 3600.0)),
}
"""By lower-case name: the field, and what makes its value of the text, or of None when the option is not given."""
_NAMES: Final = {
    "path": "path",
    "vchannel": "vchannel",
    "settings": "settings",
    "locktimeoutms": "lockTimeoutMs",
    "orphanagems": "orphanAgeMs",
}
