"""Staging: a task writes its chunks into its own file, and publishing reads them back.

Owns the format of a staged file. A finished file is durable, with its name, before the task reports success. An unfinished file is removed
at once or, if the process was killed, by the sweep. A file that no manifest names is never read.

    magic "WALSTAGE" | version u32 | zero u32
    chunk after chunk: length u32 | rows u32 | crc32c u32 (of the two before it, then of the body) | body: an Arrow IPC stream of one batch
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec
import pyarrow as pa

from wal.errors import CorruptionError
from wal.message import Message, MessageType
from wal.runtime.system import sync_file, sync_path
from wal.spark.sink.chunking import ChunkBounds, cut
from wal.spark.sink.folder import make_directory, storing, write_all
from wal.spark.sink.manifest import StagedFile
from wal.spark.sink.rows import RowReader
from wal.storage.files import PRIVATE

STAGED_SUFFIX: Final = ".staged"
_HEAD: Final = b"WALSTAGE" + struct.pack("<II", 1, 0)
_CHUNK: Final = struct.Struct("<II")
_CRC: Final = struct.Struct("<I")
_GATHERED: Final = 4
"""The number of chunks that are cut from one gathered batch, so that few chunks are short."""


class StagedRows(msgspec.Struct, frozen=True):
    """The content of one chunk: a vchannel and a message for each row, in the order of the rows."""

    names: list[str]
    codes: list[int]
    payloads: list[bytes]
    types: list[int] | None
    properties: list[list[dict[str, str]] | None] | None

    def messages(self) -> Iterator[Message]:
        """Yields the rows as messages."""
        names = self.names
        if self.types is None and self.properties is None:
            for code, payload in zip(self.codes, self.payloads, strict=True):
                yield Message(names[code], payload)
            return
        types = self.types or [int(MessageType.INSERT)] * len(self.codes)
        properties = self.properties or [None] * len(self.codes)
        for code, payload, kind, entries in zip(self.codes, self.payloads, types, properties, strict=True):
            row_properties = {entry["key"]: entry["value"] for entry in entries} if entries else {}
            yield Message(names[code], payload, message_type=MessageType(kind), properties=row_properties)


class StagingWriter:
    """Writes the file of one attempt in `directory`. The name is new each time: no attempt touches another attempt's file."""

    def __init__(self, directory: Path, *, partition_id: int, attempt: int, bounds: ChunkBounds) -> None:
        self._directory = directory
        self._partition_id = partition_id
        self._name = f"{partition_id}-{attempt}-{secrets.token_hex(6)}{STAGED_SUFFIX}"
        self._bounds = bounds
        self._fd = -1
        self._made = False
        self._crcs = 0
        self._chunks = 0
        self._rows = 0
        self._size = 0

    def stage(self, batches: Iterable[Any], reader: RowReader) -> StagedFile | None:
        """Stages all rows of these Arrow batches. Returns None if there are none; leaves no file then, nor after a failure."""
        try:
            for batch in gathered(batches, self._bounds):
                rows = reader.read(batch)
                start = 0
                for end in cut(rows.counted, rows.stored, self._bounds):
                    self._write(rows.table.slice(start, end - start))
                    start = end
            return self._finish()
        except BaseException:
            self._discard()
            raise

    def _write(self, rows: Any) -> None:
        body = encode_rows(rows)
        head = _CHUNK.pack(len(body), rows.num_rows)
        crc = _CRC.pack(google_crc32c.extend(google_crc32c.value(head), body))
        with storing(self._directory):
            if self._fd < 0:
                make_directory(self._directory)
                self._fd = PRIVATE.create(self._directory / self._name, os.O_WRONLY | os.O_EXCL)
                self._made = True
                self._put(_HEAD)
            self._put(head + crc)
            self._put(body)
        self._crcs = google_crc32c.extend(self._crcs, crc)
        self._chunks += 1
        self._rows += rows.num_rows

    def _put(self, data: bytes) -> None:
        write_all(self._fd, data)
        self._size += len(data)

    def _finish(self) -> StagedFile | None:
        if self._fd < 0:
            return None
        with storing(self._directory):
            sync_file(self._fd)
            os.close(self._fd)
            self._fd = -1
            sync_path(self._directory)
        return StagedFile(self._name, self._partition_id, self._chunks, self._rows, self._size, self._crcs)

    def _discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._made:
            (self._directory / self._name).unlink(missing_ok=True)


def gathered(batches: Iterable[Any], bounds: ChunkBounds) -> Iterator[Any]:
    """Yields the same rows in larger batches, each (except the last) of some chunks. Holds at most one such batch and one more."""
    batches_held: list[Any] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        batches_held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= _GATHERED * bounds.rows_max or size >= _GATHERED * bounds.counted_max:
            yield from _joined(batches_held)
            batches_held, rows, size = [], 0, 0
    yield from _joined(batches_held)


def read_chunks(directory: Path, file: StagedFile, *, skip: int = 0) -> Iterator[StagedRows]:
    """Yields the chunks of a staged file, after the first `skip`. Raises CorruptionError with the offset of the damage."""
    path = directory / file.name
    with storing(path):
        try:
            opened = path.open("rb")
        except FileNotFoundError:
            raise staged_file_gone(path) from None
    crcs = 0
    with opened, storing(path):
        if opened.read(len(_HEAD)) != _HEAD:
            raise _damaged(path, 0, "the head is wrong", "a staged file of version 1")
        for number in range(file.chunks):
            at = opened.tell()
            head = opened.read(_CHUNK.size + _CRC.size)
            if len(head) < _CHUNK.size + _CRC.size:
                raise _damaged(path, at, f"the file ends before chunk {number}", f"{file.chunks} chunks")
            length, _ = _CHUNK.unpack_from(head)
            crcs = google_crc32c.extend(crcs, head[_CHUNK.size :])
            if number < skip:
                opened.seek(length, os.SEEK_CUR)
                continue
            body = opened.read(min(length, file.size))
            (crc,) = _CRC.unpack_from(head, _CHUNK.size)
            checksum = google_crc32c.extend(google_crc32c.value(head[: _CHUNK.size]), body)
            if checksum != crc:
                raise _damaged(path, at, f"chunk {number} has CRC32C {checksum:#010x}", f"{crc:#010x}")
            yield decode_rows(body)
        if crcs != file.crc32c:
            raise _damaged(path, 0, f"the chunks have CRC32C {crcs:#010x} together", f"{file.crc32c:#010x}")


def staged_file_gone(path: Path) -> CorruptionError:
    """Returns the error for a staged file that a manifest names but that is missing or changed."""
    return _damaged(path, 0, "the file is gone or cut off", "the file that the manifest names")


def encode_rows(rows: Any) -> bytes:
    """Returns the body of a chunk. It rebuilds the dictionary of vchannels, so that it has only those of these rows."""
    at = rows.schema.get_field_index("vchannel")
    own = rows.column(at).cast(pa.string()).dictionary_encode()
    rows = rows.set_column(at, "vchannel", own)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_batch(rows)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def decode_rows(body: bytes) -> StagedRows:
    """Returns the chunk in these bytes, which are unchanged since they were staged."""
    rows = pa.ipc.open_stream(pa.py_buffer(body)).read_next_batch()
    columns = {name: rows.column(index) for index, name in enumerate(rows.schema.names)}
    names = columns["vchannel"]
    return StagedRows(
        names.dictionary.to_pylist(),
        names.indices.to_pylist(),
        columns["payload"].to_pylist(),
        columns["message_type"].to_pylist() if "message_type" in columns else None,
        columns["properties"].to_pylist() if "properties" in columns else None,
    )


def _joined(batches: list[Any]) -> Iterator[Any]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _damaged(path: Path, offset: int, text: str, expected: str) -> CorruptionError:
    return CorruptionError(
        f"{path} is damaged at {offset}: {text}; expected {expected}; restore the file, or give this write up with wal.spark.sink.discard",
        path=str(path),
        offset=offset,
        expected=expected,
    )
