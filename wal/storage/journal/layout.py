"""The bytes of a journal's files: segment header, envelope, and how positions map to them. Pure; little-endian throughout.

    <base:016x>.wal   header page 4 KiB, see `SegmentHeader`
                      then, at multiples of 512, one after the other:  ENVELOPE 32 B | FRAME | zeros up to the next multiple
                      sealed: an envelope of length 0 after the last frame, if there is room

A position is the base of a segment plus the offset of a frame's envelope in its file, so positions count bytes since the log began, header
pages included. The base of a segment is the end of the segment before it. Each frame starts on a new sector: writing it never rewrites a
sector with an acknowledged frame. An envelope has the segment's random generation and the frame's own position, so a frame left over in a
recycled file is never mistaken for one of this segment.
"""

from __future__ import annotations

import struct
import sys
from typing import Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError

SECTOR_BYTES: Final = 512
"""The bytes that a disk writes whole or not at all."""
HEADER_PAGE_BYTES: Final = 4096
ENVELOPE_BYTES: Final = 32
_VERSION: Final = 1
_SEGMENT_MAGIC: Final = b"WALSEGMT"
_ENVELOPE_MAGIC: Final = b"WALE"


class SegmentHeader(msgspec.Struct, frozen=True, gc=False):
    """The first page of a segment file.

        magic "WALSEGMT" | version u32 | zero u32 | incarnation u64 | generation u64 | base u64 | size u64 | previous_base u64 |
        previous_term u64 | previous_sequence i64 | first_tick u64 | promise u64 | newest position u64 | newest index u32 |
        crc32c u32 | zeros

    `generation` is random. `size`: bytes of the file. `previous_base` is the base of the previous segment (this base is its end),
    `previous_term` and `previous_sequence` are those of its last frame; they are 0, 0 and -1 in the first segment. `first_tick`: of the
    first frame (0 in the first segment). `promised_tick` and `newest` (position, index; zeros for none) are the values when the segment was
    begun, so that an opening never has to read further back than the last segment.
    """

    incarnation: int
    generation: int
    base: int
    size: int
    previous_base: int = 0
    previous_term: int = 0
    previous_sequence: int = -1
    first_tick: int = 0
    promised_tick: int = 0
    newest: tuple[int, int] | None = None

    def pack(self) -> bytes:
        """Returns the whole page."""
        packed = _HEADER.pack(
            _SEGMENT_MAGIC,
            _VERSION,
            0,
            self.incarnation,
            self.generation,
            self.base,
            self.size,
            self.previous_base,
            self.previous_term,
            self.previous_sequence,
            self.first_tick,
            self.promised_tick,
            *(self.newest or (0, 0)),
        )
        return (packed + _CRC.pack(google_crc32c.value(packed))).ljust(HEADER_PAGE_BYTES, b"\0")

    @classmethod
    def unpack(cls, page: bytes) -> SegmentHeader:
        """Returns the header in this page. Raises CorruptionError (without path) for damage, and FormatError for a newer version."""
        if len(page) < HEADER_PAGE_BYTES:
            raise CorruptionError(f"a segment of {len(page)} bytes is cut short", expected=f"a header of {HEADER_PAGE_BYTES} bytes")
        magic, version, _zero, *fields, newest_position, newest_index = _HEADER.unpack_from(page)
        (crc,) = _CRC.unpack_from(page, _HEADER.size)
        if magic != _SEGMENT_MAGIC:
            raise CorruptionError(f"no segment of a journal: it starts with {magic!r}", expected=repr(_SEGMENT_MAGIC))
        if (actual := google_crc32c.value(page[: _HEADER.size])) != crc:
            raise CorruptionError(f"a segment header has CRC32C {actual:#010x}", expected=f"{crc:#010x}")
        if version != _VERSION:
            raise FormatError(f"segment version {version} is not known here (known: {_VERSION}): upgrade to read it")
        fields.append((newest_position, newest_index) if newest_position else None)
        return cls(*fields)


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """The bytes before a frame: `magic "WALE" | length u32 | generation u64 | position u64 | zero u32 | crc32c u32`.

    `length` is that of the frame; 0 seals the segment, and nothing follows.
    """

    length: int
    generation: int
    position: int

    def pack(self) -> bytes:
        return pack_envelope(self.length, self.generation, self.position)

    @classmethod
    def unpack(cls, data: bytes, at: int, *, generation: int, position: int) -> Envelope | None:
        """Returns the envelope at `at`, or None for any other bytes, generation or position."""
        if len(data) - at < ENVELOPE_BYTES:
            return None
        magic, length, found_generation, found_position, zero = _ENVELOPE.unpack_from(data, at)
        if (magic, found_generation, found_position, zero) != (_ENVELOPE_MAGIC, generation, position, 0):
            return None
        (crc,) = _CRC.unpack_from(data, at + _ENVELOPE.size)
        if google_crc32c.value(data[at : at + _ENVELOPE.size]) != crc:
            return None
        return cls(length, generation, position)

    @staticmethod
    def find(data: bytes, *, generation: int, base: int, offset: int) -> int:
        """Returns the file offset of the first valid envelope in `data`, or -1. `data` begins at `offset` in the file, a multiple of 512.

        `base` is the segment's. The search compares only the random generation: eight bytes per sector.
        """
        words = memoryview(data)[: len(data) // 8 * 8].cast("Q")[_GENERATION_AT // 8 :: SECTOR_BYTES // 8].tolist()
        needle = int.from_bytes(generation.to_bytes(8, "little"), sys.byteorder)
        sector = -1
        try:
            while True:
                sector = words.index(needle, sector + 1)
                start = sector * SECTOR_BYTES
                position = base + offset + start
                if Envelope.unpack(data, start, generation=generation, position=position) is not None:
                    return offset + start
        except ValueError:
            return -1


_HEADER: Final = struct.Struct("<8sIIQQQQQQqQQQI")
_ENVELOPE: Final = struct.Struct("<4sIQQI")
_CRC: Final = struct.Struct("<I")
_GENERATION_AT: Final = 8
assert _ENVELOPE.size + _CRC.size == ENVELOPE_BYTES
HEADER_FIELDS_BYTES: Final = _HEADER.size + _CRC.size
"""The fields of a segment's header with their CRC; the rest of its page is zero."""


def pack_envelope(length: int, generation: int, position: int) -> bytes:
    """Returns the bytes of an envelope."""
    packed = _ENVELOPE.pack(_ENVELOPE_MAGIC, length, generation, position, 0)
    return packed + _CRC.pack(google_crc32c.value(packed))


def slot_bytes(length: int) -> int:
    """Returns the bytes that a frame of this length takes in a segment, envelope and padding included."""
    return -(-(ENVELOPE_BYTES + length) // SECTOR_BYTES) * SECTOR_BYTES


def padding(length: int) -> bytes:
    """Returns the zeros after a frame of this length."""
    return _ZEROS[: -(ENVELOPE_BYTES + length) % SECTOR_BYTES]


_ZEROS: Final = bytes(SECTOR_BYTES)


def segment_name(base: int) -> str:
    """Returns the file name of the segment with this base."""
    return f"{base:016x}.wal"
