"""The objects of an archive: how the bytes of a log's files are stored, fetched and checked, whole or in ranges.

An object has a chunk of a file, as it is or compressed (`.zst`). An object of a segment with an index begins and ends with whole frames; a
compressed one is a sequence of blocks of `BLOCK_BYTES`, each expanded on its own, so that a reader fetches a range. The name of an object
determines its bytes: it has the length and the CRC32C of the chunk, and of blocks also the CRC32C of what is stored.

    index object    magic "WALI" | version u32 | block_bytes u32 | blocks u32 | the end of each block in the object u64 |
                    an index of the frames, as of a segment whose base is the position of the chunk (`wal.storage.journal.index`)

An index object has its length and its CRC32C in the manifest. The content of an object is compared with its index; a contradiction is a
CorruptionError that names the object.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError
from wal.frame.codec import load_zstd
from wal.storage.archive.manifest import BYTES_MAX, Chunk, ChunkIndex, Manifest, SegmentCopy, decode_manifest
from wal.storage.archive.store import BackupStore
from wal.storage.journal.index import SegmentIndex, pack_column
from wal.storage.journal.layout import HEADER_PAGE_BYTES, SegmentHeader, slot_bytes
from wal.storage.journal.verify import check_frames

BLOCK_BYTES: Final = 256 << 10
COMPRESSED: Final = ".zst"
"""The end of the name of a compressed object."""
_HEAD: Final = struct.Struct("<4sIII")
_MAGIC: Final = b"WALI"
_VERSION: Final = 1


class ChunkPlan(msgspec.Struct, frozen=True):
    """The bytes [start, end) of a segment, to be stored as one object, and the frames in them; None without an index."""

    start: int
    end: int
    frames: SegmentIndex | None


class ObjectIndex(msgspec.Struct, frozen=True):
    """The content of an index object: the frames, and the ends of the blocks in the object, none if it is stored as it is."""

    frames: SegmentIndex
    block_ends: array[int]

    def encode(self, *, incarnation: int, generation: int) -> bytes:
        """Returns the bytes of the index object."""
        head = _HEAD.pack(_MAGIC, _VERSION, BLOCK_BYTES, len(self.block_ends))
        return head + pack_column(self.block_ends) + self.frames.encode(incarnation=incarnation, generation=generation)

    @classmethod
    def decode(cls, data: bytes, segment: SegmentCopy, chunk: Chunk) -> ObjectIndex:
        """Returns the content of the index object of a chunk, whose bytes are `data`. Raises CorruptionError, FormatError for a newer
        version.
        """
        assert chunk.index is not None
        if len(data) < _HEAD.size:
            raise CorruptionError(f"an index object of {len(data)} bytes is cut short", expected=f"{_HEAD.size} bytes of head")
        magic, version, block_bytes, blocks = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise CorruptionError(f"no index object: it starts with {magic!r}", expected=repr(_MAGIC))
        if version != _VERSION:
            raise FormatError(f"the index object has version {version}, known here is {_VERSION}: upgrade to read it")
        expected = -(-chunk.size // BLOCK_BYTES) if chunk.name.endswith(COMPRESSED) else 0
        stop = _HEAD.size + 8 * blocks
        if (block_bytes, blocks) != (BLOCK_BYTES, expected) or stop > len(data):
            raise CorruptionError(f"it has {blocks} blocks of {block_bytes} bytes", expected=f"{expected} of {BLOCK_BYTES}")
        ends = array("Q", struct.unpack_from(f"<{blocks}Q", data, _HEAD.size))
        if any(end <= before for before, end in zip([0, *ends], ends, strict=False)):
            raise CorruptionError("the ends of its blocks do not ascend", expected="ascending ends")
        base = segment.base + chunk.start
        start = base if chunk.start else base + HEADER_PAGE_BYTES
        identity = {"base": base, "incarnation": chunk.index.incarnation, "generation": segment.generation}
        frames = SegmentIndex.decode(data[stop:], **identity, start=start)
        if frames.end != segment.base + chunk.end:
            raise CorruptionError(f"its frames end at {frames.end}", expected=f"{segment.base + chunk.end}")
        return cls(frames, ends)


def plan_chunks(frames: SegmentIndex, base: int, start: int, stop: int, bytes_max: int) -> Iterator[ChunkPlan]:
    """Yields the chunks of the bytes [start, stop) of a segment, each of at most `bytes_max` bytes, or one frame.

    `frames` has the sound frames of this part. Chunks between frames that do not follow each other have no index.
    """
    ordinal, count = frames.ordinal(base + start), frames.ordinal(base + stop)
    while start < stop:
        first_frame = HEADER_PAGE_BYTES if start == 0 else start
        following = frames.positions[ordinal] - base if ordinal < count else stop
        if following > first_frame:  # bytes without a sound frame, or the header of a segment without frames
            end = min(following, start + bytes_max)
            yield ChunkPlan(start, end, SegmentIndex(base) if (start, end) == (0, HEADER_PAGE_BYTES) else None)
            start = end
            continue
        first, end = ordinal, first_frame
        while ordinal < count and frames.positions[ordinal] - base == end:
            frame_end = end + slot_bytes(frames.lengths[ordinal])
            if frame_end > start + bytes_max and ordinal > first:
                break
            ordinal, end = ordinal + 1, frame_end
        yield ChunkPlan(start, end, frames.cut(first, ordinal, base=base + start, start=base + first_frame))
        start = end


def state_after(before: SegmentHeader, frames: SegmentIndex | None) -> SegmentHeader:
    """Returns the header of a segment that would begin after these frames; None for bytes without a sound frame."""
    if frames is None:
        return before
    promised_tick = max(before.promised_tick, frames.promise(0, len(frames)))
    return msgspec.structs.replace(before, promised_tick=promised_tick, newest=frames.last_event(0, len(frames)) or before.newest)


def state_at(header: SegmentHeader, index: ChunkIndex) -> SegmentHeader:
    """Returns the header of a segment that would begin where this chunk of the segment does."""
    return msgspec.structs.replace(header, promised_tick=index.promised_tick, newest=index.newest)


def indexed_chunk(chunk: Chunk, index: bytes, before: SegmentHeader) -> Chunk:
    """Returns the chunk with an index object of these bytes; `before` has the state of the log before the chunk."""
    entry = ChunkIndex(len(index), google_crc32c.value(index), before.incarnation, before.promised_tick, before.newest)
    return msgspec.structs.replace(chunk, index=entry)


def compress_blocks(data: bytes, compress: Callable[[bytes], bytes]) -> tuple[bytes, array[int]]:
    """Returns the stored bytes of a chunk that is compressed in blocks, and the end of each block in them."""
    blocks = [compress(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    ends: array[int] = array("Q")
    for block in blocks:
        ends.append((ends[-1] if ends else 0) + len(block))
    return b"".join(blocks), ends


def expand_blocks(stored: bytes, size: int) -> bytes:
    """Returns the `size` bytes of these frames of zstd, and never more. Raises CorruptionError."""
    zstd = load_zstd()
    view, at = memoryview(stored), 0
    parts: list[bytes] = []
    remaining_bytes, is_whole = size, True
    try:
        while at < len(view) and is_whole:
            length = zstd.get_frame_size(view[at:])
            decompressor = zstd.ZstdDecompressor()
            parts.append(decompressor.decompress(view[at : at + length], remaining_bytes))
            remaining_bytes -= len(parts[-1])
            is_whole = decompressor.eof
            at += length
    except zstd.ZstdError as error:
        raise CorruptionError(f"its blocks cannot be read: {error}", expected=f"zstd of {size} bytes") from error
    if remaining_bytes or not is_whole:
        raise CorruptionError("its blocks have another size than is stated for it", expected=f"{size} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def load_manifest(store: BackupStore, name: str) -> Manifest:
    """Returns the manifest of this name. Raises FormatError for a newer version, CorruptionError if it is damaged."""
    return decode_manifest(store.place, name, store.get(name, BYTES_MAX))


def fetch(store: BackupStore, chunk: Chunk) -> bytes:
    """Returns the bytes of a chunk. Raises CorruptionError if they are missing or damaged."""
    is_compressed = chunk.name.endswith(COMPRESSED)
    # zstd may add less than this to what it cannot compress, in each block.
    spare = chunk.size // 128 + 1024 * (1 + chunk.size // BLOCK_BYTES) if is_compressed else 0
    try:
        data = store.get(chunk.name, chunk.size + spare)
        if is_compressed:
            data = expand_blocks(data, chunk.size)
    except FileNotFoundError:
        raise damaged_chunk(store, chunk, "it is missing") from None
    except CorruptionError as error:
        raise damaged_chunk(store, chunk, str(error)) from error
    if len(data) != chunk.size or google_crc32c.value(data) != chunk.crc:
        raise damaged_chunk(store, chunk, f"it has {len(data)} bytes and CRC32C {google_crc32c.value(data):#010x}")
    return data


def fetch_part(store: BackupStore, segment: SegmentCopy, chunk: Chunk) -> bytes:
    """Returns a chunk of a segment. Raises CorruptionError as `fetch` does, and if the chunk begins another segment than its manifest
    names.
    """
    data = fetch(store, chunk)
    if chunk is not segment.chunks[0]:
        return data
    try:
        header = SegmentHeader.unpack(data)
        if (header.generation, header.base, header.size) != (segment.generation, segment.base, segment.size):
            raise CorruptionError("it is the beginning of another segment than the manifest names")
    except (CorruptionError, FormatError) as error:
        raise damaged_chunk(store, chunk, str(error)) from error
    return data


def fetch_index(store: BackupStore, segment: SegmentCopy, chunk: Chunk) -> ObjectIndex:
    """Returns the index of a chunk that has one. Raises CorruptionError if the index object is damaged, FileNotFoundError without it."""
    name, expected = chunk.index_name, chunk.index
    assert name is not None
    assert expected is not None
    try:
        data = store.get(name, expected.size)
        if len(data) != expected.size or google_crc32c.value(data) != expected.crc:
            raise CorruptionError(f"it has {len(data)} bytes and CRC32C {google_crc32c.value(data):#010x}")
        return ObjectIndex.decode(data, segment, chunk)
    except FileNotFoundError as error:
        raise FileNotFoundError(2, "it is missing", f"{store.place}/{name}") from error
    except CorruptionError as error:
        raise damaged_index(store, chunk, str(error)) from error


def check_index(store: BackupStore, segment: SegmentCopy, chunk: Chunk, header: SegmentHeader, data: bytes) -> None:
    """Raises CorruptionError if the index of a chunk, whose bytes are `data`, is missing, damaged, or contradicts them."""
    if chunk.index is None:
        return
    try:
        index = fetch_index(store, segment, chunk)
    except FileNotFoundError:
        raise damaged_index(store, chunk, "it is missing") from None
    base, begin = segment.base + chunk.start, chunk.start or HEADER_PAGE_BYTES
    sound_frames, _ = check_frames(
        Path(chunk.name), header, lambda length, at: data[at - chunk.start : at - chunk.start + length], begin=begin, end=chunk.end
    )
    frames = sound_frames.cut(0, len(sound_frames), base=base, start=segment.base + begin)
    if not index.frames.same_content(frames):
        raise damaged_index(store, chunk, f"it contradicts the object {chunk.name}")
    if len(frames) and frames.indices[0] and frames.first_ticks[0] <= chunk.index.promised_tick:
        raise damaged_index(store, chunk, f"it has tick {frames.first_ticks[0]}, at or below {chunk.index.promised_tick}, promised before")


def damaged_chunk(store: BackupStore, chunk: Chunk, what: str) -> CorruptionError:
    """Returns the error for a damaged object."""
    return _damaged(f"{store.place}/{chunk.name}", f"{chunk.size} bytes with CRC32C {chunk.crc:#010x}", what)


def damaged_index(store: BackupStore, chunk: Chunk, what: str) -> CorruptionError:
    """Returns the error for a damaged index object."""
    assert chunk.index is not None
    return _damaged(f"{store.place}/{chunk.index_name}", f"{chunk.index.size} bytes with CRC32C {chunk.index.crc:#010x}", what)


def _damaged(path: str, expected: str, what: str) -> CorruptionError:
    return CorruptionError(f"{path} is damaged: {what}; expected {expected}", path=path, offset=0, expected=expected)
