"""Manifest: the content of one backup, as JSON with a version and a checksum. Pure.

A backup is complete at its `tick`: it has every event of the log up to it, and none above. Objects are shared by the backups of a log.

    {"version":3, … ,"crc32c":"01234567"}      the CRC32C of all bytes before the last comma

The checksum ends a manifest of version 2 and of every later version, so that damage is never taken for a newer version. Version 1 had none:
such a manifest must equal, byte for byte, the output of version 1, and agree with the lengths and checksums in the names of its objects. A
store is not trusted: names must be those of files of a journal, and lengths and positions have limits.

Since version 3 each object of a segment begins and ends with whole frames, and has an index object beside it (`indexed.py`), so that it can
be read in ranges. Objects of earlier versions have none: a log with such objects is restored, and not read in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError

VERSION: Final = 3
PREFIX: Final = "manifests/"
OBJECTS: Final = "objects/"
NEWEST: Final = "newest"
"""The object with the number of a recent manifest, from which a reader lists the later ones. It is a hint, and may be missing."""
INDEX: Final = "index-"
"""The beginning of the names of index objects, after `OBJECTS`."""
METADATA: Final = "metadata"
"""The part of an object's name that marks the metadata."""
BYTES_MAX: Final = 1 << 30
"""The largest manifest, and the largest file that is copied in one object. A part of a segment is much smaller."""
PART_BYTES_MAX: Final = 64 << 20
_UNCHECKED: Final = 1
"""The version without a checksum."""

Bounded = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Bits32 = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Position = tuple[Bounded, Bits32]
PChannelName = Annotated[str, msgspec.Meta(pattern=r"\Ap(0|[1-9][0-9]{0,8})\Z")]
PChannelFile = Annotated[str, msgspec.Meta(pattern=r"\A(lineage|checkpoint-[0-9a-f]{16})\Z")]
CursorFile = Annotated[str, msgspec.Meta(pattern=r"\Acursors/[A-Za-z0-9_-]{1,200}\.cursor\Z")]
ObjectName = Annotated[str, msgspec.Meta(pattern=r"\Aobjects/[A-Za-z0-9_.-]{1,200}-[0-9a-f]{1,16}-[0-9a-f]{8}(\.zst)?\Z")]


class ChunkIndex(msgspec.Struct, frozen=True, omit_defaults=True):
    """The index object of a chunk of a segment: its length, the CRC32C of its bytes, and the incarnation of the segment.

    `promised_tick` and `newest` are those of the log before the chunk, as in the header of a segment.
    """

    size: Annotated[int, msgspec.Meta(ge=0, le=PART_BYTES_MAX)]
    crc: Bits32
    incarnation: Bounded
    promised_tick: Bounded = 0
    newest: Position | None = None


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes [start, end) of a file, in the object `name`; `crc` is the CRC32C of these bytes before compression.

    The name of the object ends with the number of these bytes and with `crc`, both in hexadecimal.
    """

    name: ObjectName
    start: Bounded
    end: Bounded
    crc: Bits32
    index: ChunkIndex | None = None
    """None for a file other than a segment, for frames that were damaged in the log, and in earlier versions."""

    def __post_init__(self) -> None:
        length, crc = self.name.removesuffix(".zst").split("-")[-2:]
        if (self.end - self.start, self.crc) != (int(length, 16), int(crc, 16)):
            raise ValueError(f"bytes {self.start} to {self.end} with CRC32C {self.crc:08x} are not in the object {self.name}")
        if self.size > BYTES_MAX:
            raise ValueError(f"the object {self.name} has more than {BYTES_MAX} bytes")

    @property
    def size(self) -> int:
        """The number of bytes in the chunk."""
        return self.end - self.start

    @property
    def index_name(self) -> str | None:
        """The name of the index object, None without one."""
        if self.index is None:
            return None
        return f"{OBJECTS}{INDEX}{self.name.removeprefix(OBJECTS)}-{self.index.size:x}-{self.index.crc:08x}"


class SegmentCopy(msgspec.Struct, frozen=True):
    """The bytes of a segment file up to the end of the backup; the file is `size` bytes long, and the rest are zeros."""

    base: Bounded
    generation: Annotated[int, msgspec.Meta(ge=0)]
    size: Bounded
    chunks: tuple[Chunk, ...]

    def __post_init__(self) -> None:
        edges = [0, *(edge for chunk in self.chunks for edge in (chunk.start, chunk.end))]
        if any(stop != start for stop, start in zip(edges[::2], edges[1::2], strict=False)) or edges[-1] > self.size:
            raise ValueError(f"the chunks of the segment with base {self.base} are not its first bytes, up to at most {self.size}")
        if any(chunk.size > PART_BYTES_MAX for chunk in self.chunks):
            raise ValueError(f"the segment with base {self.base} has a chunk of more than {PART_BYTES_MAX} bytes")


class PChannelCopy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pchannel: the fields of its control page, its segments, and its other files by name.

    `newest` is the newest event below the end, and `promised_tick` the largest promised tick of a frame below it. `keeps_history`: the log
    archives itself there, so that each manifest has the segments of the one before, also those that the log has dropped since.
    """

    incarnation: Bounded
    term: Bounded
    end: Bounded
    earliest: Position
    limit: Bounded
    segments: tuple[SegmentCopy, ...]
    files: dict[PChannelFile, Chunk]
    newest: Position | None = None
    promised_tick: Bounded = 0
    keeps_history: bool = False

    def __post_init__(self) -> None:
        stops = [*(segment.base for segment in self.segments[1:]), self.end]
        for segment, stop in zip(self.segments, stops, strict=bool(self.segments)):
            if not segment.chunks or segment.base + segment.chunks[-1].end != stop:
                raise ValueError(f"the segment with base {segment.base} does not end at {stop}")


class DamagedPart(msgspec.Struct, frozen=True):
    """Damage in the log when it was copied: the file in the directory of the log, the offset, and a description."""

    file: str
    offset: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file} at offset {self.offset}: {self.problem}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup. `at_s` is the time at which it was made (Unix time); `files` are in the directory of the log, `metadata` is a JSON object
    of the KV.

    `damage` lists the damage in the log itself: the backup has these bytes unchanged.
    """

    version: int = VERSION
    number: Bounded
    tick: Bounded
    at_s: float
    pchannels: Annotated[dict[PChannelName, PChannelCopy], msgspec.Meta(min_length=1)]
    files: dict[CursorFile, Chunk]
    metadata: Chunk
    damage: tuple[DamagedPart, ...] = ()

    def __post_init__(self) -> None:
        for part, chunk, _ in self.parts():
            if not chunk.name.startswith(f"{OBJECTS}{part}-"):
                raise ValueError(f"the object {chunk.name} does not hold {part}")

    @property
    def log_id(self) -> int:
        """The incarnation of the first pchannel."""
        return next(iter(self.pchannels.values())).incarnation

    def chunks(self) -> list[Chunk]:
        """Returns all chunks that the backup needs."""
        return [chunk for _, chunk, _ in self.parts()]

    def names(self) -> set[str]:
        """Returns the names of all objects that the backup needs."""
        chunks = self.chunks()
        return {chunk.name for chunk in chunks} | {name for chunk in chunks if (name := chunk.index_name) is not None}

    def parts(self) -> Iterator[tuple[str, Chunk, SegmentCopy | str]]:
        """Yields the backup's chunks: the part in the object's name, the chunk, and its segment or its cursor's file, empty for others."""
        yield METADATA, self.metadata, ""
        yield from ((part_of_cursor(file), chunk, file) for file, chunk in self.files.items())
        for name, pchannel in self.pchannels.items():
            yield from ((part_of_file(name, file), chunk, "") for file, chunk in pchannel.files.items())
            for segment in pchannel.segments:
                for chunk in segment.chunks:
                    yield part_of_segment(name, segment.base, segment.generation, chunk.start), chunk, segment

    def damage_in(self, pchannel: str, segment: SegmentCopy, chunk: Chunk) -> DamagedPart | None:
        """Returns the first damage of the log in this chunk of a segment, None without one."""
        file = f"pchannels/{pchannel}/{segment.base:016x}.wal"
        return next((part for part in self.damage if part.file == file and chunk.start <= part.offset < chunk.end), None)

    def encode(self) -> bytes:
        """Returns the JSON with its checksum."""
        body = msgspec.json.encode(self)[:-1]
        return body + _end_of(body)


def part_of_segment(pchannel: str, base: int, generation: int, start: int) -> str:
    """Returns the part of the object's name for the bytes of a segment from `start` on."""
    return f"{pchannel}-{base:016x}-{generation:016x}-{start:x}"


def part_of_file(pchannel: str, file: str) -> str:
    """Returns the part of the object's name for a file of a pchannel."""
    return f"{pchannel}-{file}"


def part_of_cursor(file: str) -> str:
    """Returns the part of the object's name for a cursor."""
    return f"cursor-{file.removesuffix('.cursor')[-41:]}"


def manifest_name(number: int) -> str:
    """Returns the name of the manifest with this number; names ascend as numbers do."""
    return f"{PREFIX}{number:010}.json"


def numbered(names: Iterable[str]) -> list[tuple[int, str]]:
    """Returns the manifests among these names by number, ascending."""
    return sorted((number, name) for name in names if (number := _number(name)) is not None)


def decode_manifest(place: str, name: str, data: bytes) -> Manifest:
    """Returns the manifest of this name in the store at `place`, from its bytes.

    Raises FormatError for a newer version, CorruptionError for any other content; both name the object.
    """
    path = f"{place}/{name}"
    try:
        body = data[:-_END_BYTES]
        is_checked = data.endswith(_end_of(body))
        if is_checked and (version := msgspec.json.decode(body + b"}", type=_Version).version) > VERSION:
            raise FormatError(f"{path} has version {version}, known here is {VERSION}: upgrade to use it")
        manifest = msgspec.json.decode(body + b"}" if is_checked else data, type=Manifest)
        if not is_checked and (manifest.version != _UNCHECKED or msgspec.json.encode(manifest) != data):
            raise ValueError("its checksum does not fit, or it is not as version 1 wrote it")
        if manifest.number != _number(name):
            raise ValueError(f"it is backup {manifest.number}")
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CorruptionError(f"{path} is damaged: {error}", path=path, offset=0, expected="a manifest") from error
    return manifest


def _number(name: str) -> int | None:
    """Returns the number in the name of a manifest, None in any other name."""
    match = re.fullmatch(rf"{PREFIX}([0-9]{{1,18}})\.json", name)
    return int(match[1]) if match else None


def _end_of(body: bytes) -> bytes:
    """Returns the checksum of these bytes as the end of a manifest."""
    return b',"crc32c":"%08x"}' % google_crc32c.value(body)


class _Version(msgspec.Struct):
    version: int


_END_BYTES: Final = len(_end_of(b""))
