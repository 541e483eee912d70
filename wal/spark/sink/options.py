"""SinkOptions: the options of a write, checked once, where the write is planned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError
from wal.location import absolute_path
from wal.settings import Settings
from wal.spark.location import LOCATION_OPTIONS, SparkLocation
from wal.spark.sink.folder import SinkFolder

LOCK_TIMEOUT_S: Final = 60.0
ORPHAN_AGE_S: Final = 24 * 3600.0
_OWN: Final = ("staging", "vchannel", "settings", "lockTimeoutMs", "orphanAgeMs")
_SPARK_OWN: Final = frozenset(("checkpointlocation", "queryname"))
"""Spark's own options, which it passes to the sink as well."""


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of one write. Times are in seconds. `vchannel` is the target of all rows, overriding their column."""

    location: SparkLocation
    directory: Path
    """The directory that has the sink's folder: the journal's own, or the option staging."""
    vchannel: str | None
    settings: Settings
    lock_timeout_s: float
    orphan_age_s: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Returns the options of a write; their names may be in any case.

        Raises InvalidArgumentError for a wrong value, and for an unknown name with a list of the accepted ones.
        """
        lowercase_options = {name.lower(): value for name, value in options.items()}
        accepted = {name.lower() for name in (*LOCATION_OPTIONS, *_OWN)} | _SPARK_OWN
        for name in options:
            if name.lower() not in accepted:
                raise InvalidArgumentError(f"no option {name!r} of the sink; accepted are: {', '.join(sorted((*LOCATION_OPTIONS, *_OWN)))}")
        location = SparkLocation.of(lowercase_options)
        settings = lowercase_options.get("settings")
        return cls(
            location,
            _directory(location, lowercase_options.get("staging")),
            None if "vchannel" not in lowercase_options else check_vchannel(lowercase_options["vchannel"]),
            Settings() if settings is None else Settings.load(settings),
            _milliseconds(lowercase_options, "lockTimeoutMs", LOCK_TIMEOUT_S),
            _milliseconds(lowercase_options, "orphanAgeMs", ORPHAN_AGE_S),
        )

    @property
    def folder(self) -> SinkFolder:
        """The sink's files."""
        return SinkFolder(self.directory)


def _directory(location: SparkLocation, staging: str | None) -> Path:
    journal = location.directory()
    if journal is not None:
        if staging is not None:
            raise InvalidArgumentError(
                f"staging={staging!r} goes with address or service.url: a journal has the files of the sink in its own directory, so leave "
                "it out"
            )
        return journal
    if (archive := location.archive()) is not None:
        raise InvalidArgumentError(
            f"path={archive!r} is an archive, which is only read: write to the log itself, and `wal backup` archives it"
        )
    place = location.servers() or location.pulsar()[0]
    if not staging:
        raise InvalidArgumentError(
            f"{place} has no directory for the files of the sink: give the option staging, a directory that the driver and all executors "
            "see under the same path, and keep it as long as the checkpoints of the queries that write to this log"
        )
    return absolute_path(staging, "the option staging")


def _milliseconds(options: Mapping[str, str], name: str, default_s: float) -> float:
    text = options.get(name.lower())
    if text is None:
        return default_s
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgumentError(f"option {name}={text!r} is not a whole number of milliseconds")
    return int(text) / 1000
