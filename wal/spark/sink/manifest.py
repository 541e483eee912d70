"""Manifest: the content that a write of the sink publishes, decided once. Pure: it is encoded to, and decoded from, the bytes of a file.

A manifest names the staged file of each task whose attempt won. Once it is stored, the write consists of exactly these chunks, whatever a
replay stages. `published` counts the chunks that are known to be in the log. The later chunks are written under the keys of `producer`,
which changes with `published` and is never the name of another write.

    magic "WALSINKM" | version u32 | length u32 | crc32c u32 (of the bytes before it, then of the body) | body: JSON
"""

from __future__ import annotations

import re
import struct
from typing import Annotated, Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError, InvalidArgumentError, corruption
from wal.message import Natural

PRODUCER_PREFIX: Final = "wal.spark/"
"""The prefix of the names of the sink's producers. A producer that no manifest names is forgotten."""
_MAGIC: Final = b"WALSINKM"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sII")
_CRC: Final = struct.Struct("<I")
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class WriteKey(msgspec.Struct, frozen=True, order=True):
    """The identity of a write: the id of a streaming query and its batch, or the random id of a batch job and batch 0.

    The id has up to 64 letters, digits and hyphens: it is part of file names.
    """

    write_id: str
    batch_id: int

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.write_id):
            raise InvalidArgumentError(
                f"invalid write id {self.write_id!r}: use up to 64 letters, digits and hyphens, as Spark's query ids have"
            )
        if not 0 <= self.batch_id < 1 << 63:
            raise InvalidArgumentError(f"batch id {self.batch_id} is out of range: 0 to 2**63 - 1")


class StagedFile(msgspec.Struct, frozen=True):
    """A file of chunks that one attempt of a task staged. `crc32c` covers the checksums of its chunks, in their order."""

    name: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,100}\.staged\Z")]
    partition_id: Natural
    chunks: Natural
    rows: Natural
    size: Natural
    crc32c: Natural


class BatchManifest(msgspec.Struct, frozen=True):
    """The decided content of a write. `stream` is False for a batch job.

    `token` is random, so that no other manifest has the same producers. On Pulsar it begins with the id of the sink's folder. Folders of
    several staging directories may publish to one log, and no folder forgets the producers of another.
    """

    key: WriteKey
    stream: bool
    token: str
    files: tuple[StagedFile, ...]
    published: int = 0

    @property
    def chunks(self) -> int:
        """The number of chunks in the write."""
        return sum(file.chunks for file in self.files)

    @property
    def rows(self) -> int:
        """The number of rows in the write."""
        return sum(file.rows for file in self.files)

    @property
    def producer(self) -> str:
        """The name of the producer of the chunks from `published` on; their numbers are its sequences."""
        return f"{PRODUCER_PREFIX}{self.key.write_id}/{self.key.batch_id}/{self.token}/{self.published}"

    def after(self, published: int) -> BatchManifest:
        """Returns this manifest with this many chunks known to be in the log."""
        return msgspec.structs.replace(self, published=published)


def is_producer_of(folder_id: str, name: str) -> bool:
    """Returns whether a producer of this name belongs to the sink's folder of this id; a folder without an id owns all of them."""
    return name.startswith(PRODUCER_PREFIX) and (not folder_id or f"/{folder_id}-" in name)


def encode_manifest(manifest: BatchManifest) -> bytes:
    """Returns the bytes of a manifest's file."""
    body = msgspec.json.encode(manifest)
    head = _HEAD.pack(_MAGIC, _VERSION, len(body))
    return head + _CRC.pack(google_crc32c.extend(google_crc32c.value(head), body)) + body


def decode_manifest(data: bytes) -> BatchManifest:
    """Returns the manifest in these bytes. Raises CorruptionError for damage, FormatError for a newer version."""
    whole = "a whole manifest"
    start = _HEAD.size + _CRC.size
    if len(data) < start or not data.startswith(_MAGIC):
        raise CorruptionError(f"a manifest of {len(data)} bytes has no head", expected=whole)
    _, version, length = _HEAD.unpack_from(data)
    body = data[start:]
    if len(body) != length:
        raise CorruptionError(f"a manifest has {len(body)} bytes after its head", expected=f"{length} bytes")
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    if (checksum := google_crc32c.extend(google_crc32c.value(data[: _HEAD.size]), body)) != crc:
        raise CorruptionError(f"a manifest has CRC32C {checksum:#010x}", expected=f"{crc:#010x}")
    if version != _VERSION:
        raise FormatError(f"a manifest of version {version}; this version of the package reads {_VERSION}: upgrade to publish it")
    with corruption("a manifest cannot be decoded", expected=whole):
        return msgspec.json.decode(body, type=BatchManifest)
