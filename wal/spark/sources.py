"""From the option that says where the log is to the source that reads it."""

from __future__ import annotations

import os
import re

from wal.errors import InvalidArgumentError
from wal.location import parse_location
from wal.spark.frame_source import FrameSource
from wal.spark.journal_frames import JournalSource
from wal.spark.options import Location

__all__ = ["source_of", "without_scheme"]


def without_scheme(path: str) -> str:
    """The path in a `file:` URL as Spark and Hadoop write them (`file:/data`, `file:///data`); any other text as it is."""
    return re.sub(r"^file:(//)?(?=/)", "", path)


def source_of(location: Location) -> FrameSource:
    """The source at this location. InvalidArgumentError for what cannot be read (yet)."""
    if location.kind != "path":
        raise InvalidArgumentError(
            f"{location.kind}={location.value!r}: this release reads journals only: give path, the journal's directory"
        )
    parsed = parse_location(without_scheme(location.value))
    if parsed.path is None:
        raise InvalidArgumentError(
            f"path={location.value!r} names no directory: {parsed} has no files that Spark could read; give the directory of a journal"
        )
    return JournalSource(os.path.abspath(parsed.path))
