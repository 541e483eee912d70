"""Manifest: what one backup holds, as JSON with a version. Pure.

A backup is complete at its `tick`: it has every event of the log up to it, and none above. Objects are shared by the backups of a log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError

VERSION: Final = 1
PREFIX: Final = "manifests/"
OBJECTS: Final = "objects/"


class Chunk(msgspec.Struct, frozen=True):
    """Bytes [start, end) of a file, in the object `name`; `crc` is the CRC32C of these bytes before they were compressed."""

    name: str
    start: int
    end: int
    crc: int


class SegmentCopy(msgspec.Struct, frozen=True):
    """The bytes of a segment file up to the end of the backup; the file is `size` bytes long, and the rest are zeros."""

    base: int
    generation: int
    size: int
    chunks: tuple[Chunk, ...]


class PChannelCopy(msgspec.Struct, frozen=True):
    """A pchannel: the fields of its control page, its segments, and its other files by name."""

    incarnation: int
    term: int
    end: int
    earliest: tuple[int, int]
    limit: int
    segments: tuple[SegmentCopy, ...]
    files: dict[str, Chunk]


class DamagedPart(msgspec.Struct, frozen=True):
    """Damage of the log when it was copied: the file in the directory of the log, the offset, and what is wrong."""

    file: str
    offset: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file} at offset {self.offset}: {self.problem}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup. `at_s` is when it was made (Unix time); `files` lie in the directory of the log, `metadata` is a JSON object of the KV.

    `damage` is what was damaged in the log itself: the backup has these bytes as they were.
    """

    version: int = VERSION
    number: int
    tick: int
    at_s: float
    pchannels: dict[str, PChannelCopy]
    files: dict[str, Chunk]
    metadata: Chunk
    damage: tuple[DamagedPart, ...] = ()

    @property
    def log_id(self) -> int:
        """The incarnation of the first pchannel."""
        return next(iter(self.pchannels.values())).incarnation

    def chunks(self) -> list[Chunk]:
        """Returns everything that the backup needs."""
        found = [self.metadata, *self.files.values()]
        for pchannel in self.pchannels.values():
            found += pchannel.files.values()
            found += [chunk for segment in pchannel.segments for chunk in segment.chunks]
        return found

    def encode(self) -> bytes:
        """Returns the JSON."""
        return msgspec.json.encode(self)


class _Version(msgspec.Struct):
    version: int


def manifest_name(number: int) -> str:
    """Returns the name of the manifest with this number; names ascend as numbers do."""
    return f"{PREFIX}{number:010}.json"


def numbered(names: Iterable[str]) -> list[tuple[int, str]]:
    """Returns the names of manifests among these by number, ascending."""
    stems = {name: name.removeprefix(PREFIX).removesuffix(".json") for name in names}
    return sorted((int(stem), name) for name, stem in stems.items() if stem.isascii() and stem.isdigit())


def decode_manifest(name: str, data: bytes) -> Manifest:
    """Returns the manifest in these bytes. Raises FormatError for a newer version, CorruptionError for anything else that is none."""
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > VERSION:
            raise FormatError(f"the backup {name} has version {version}, known here is {VERSION}: upgrade to use it")
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise CorruptionError(f"{name} is damaged: {error}", path=name, offset=0, expected="a manifest") from error
