"""The bytes of a frame: constants, column order, and the header.

A frame is the unit of everything: one group commit, one backend write, one sync, one atomic outcome. Little-endian throughout.

    HEADER 96 B, see `FrameHeader`
    TABLES one column after the other, for the whole frame
      run     kind u8 | name_len u16 | incarnation u32 | records u32 | body_offset u32
      record  [index u32] payload_len u32 [type u16] [flags u8] [properties_len u32] [ext_len u32]   ([…] where the header says so)
      block   end u32 | crc32c u32
      names   UTF-8, joined, one a run (empty for the runs of kind PCHANNEL, SHARED and SYSTEM)
    BODY    run after run, each: payloads together | properties together | ext together

The body is cut into blocks of at least `BLOCK_BYTES_MIN` (the last may be shorter), always at the end of a payload, of properties
or of an ext: a reader fetches and checks only the blocks it needs, and no field ever straddles two of them.

This module holds no behaviour beyond packing and checking the header; `encode` and `decode` hold the rest.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError

__all__ = [
    "BLOCK_BYTES_MIN",
    "BROADCAST",
    "COLUMN_EXT",
    "COLUMN_FLAGS",
    "COLUMN_INDEX",
    "COLUMN_PROPERTIES",
    "COLUMN_TYPE",
    "DEFAULT_TYPE",
    "FLAG_BODY",
    "FLAG_COMMIT",
    "FLAG_COPY",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "KEYED",
    "RECOVERED",
    "FrameHeader",
    "RunKind",
    "SystemRecord",
]

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 96
MAGIC: Final = b"WALF"
BLOCK_BYTES_MIN: Final = 16 * 1024

COLUMN_INDEX: Final = 1 << 8
"""Without it the i-th record row of the frame has index i."""
COLUMN_TYPE: Final = 1 << 9
"""Without it every record is an INSERT."""
COLUMN_FLAGS: Final = 1 << 10
COLUMN_PROPERTIES: Final = 1 << 11
COLUMN_EXT: Final = 1 << 12
_CODEC_MASK: Final = 0xFF
_KNOWN_INCOMPATIBLE: Final = COLUMN_INDEX | COLUMN_TYPE | COLUMN_FLAGS | COLUMN_PROPERTIES | COLUMN_EXT

KEYED: Final = 1
"""Of the compatible flags: the frame holds keyed events (records or commits with an idempotency key, or a PRODUCER_FORGOTTEN record)."""
BROADCAST: Final = 2
"""Of the compatible flags: the frame holds copies of broadcasts (SHARED and COPY runs)."""
RECOVERED: Final = KEYED | BROADCAST
"""What recovery looks for: a frame with none of these flags changes nothing that has to be remembered."""

DEFAULT_TYPE: Final = 2
"""`MessageType.INSERT`: the type of every record of a frame without a type column."""

FLAG_BODY: Final = 1
"""A body of the transaction whose COMMIT row follows in the same run."""
FLAG_COMMIT: Final = 2
"""The event of a transaction; a transaction over several vchannels has one COMMIT row in each of its runs, with one index."""
FLAG_COPY: Final = 4
"""The payload of a broadcast in a SHARED run: its copies are the COPY runs that name this run."""
FLAGS_KNOWN: Final = FLAG_BODY | FLAG_COMMIT | FLAG_COPY


class RunKind(enum.IntEnum):
    """What the records of a run are for.

    VCHANNEL: one vchannel's records. PCHANNEL: messages for every reader of the pchannel (name ""). SHARED: one broadcast
    payload. COPY: one copy of it for a vchannel: no record rows, `records` is the ordinal of the SHARED run, and the k-th COPY
    run of a SHARED run has the index of its record plus k. SYSTEM: the log's own records, which take no index.
    """

    VCHANNEL = 0
    PCHANNEL = 1
    SHARED = 2
    SYSTEM = 3
    COPY = 4


class SystemRecord(enum.IntEnum):
    """The type column of a record in a SYSTEM run.

    TERM_START: the first frame of a term; payload `previous term u64 | last sequence of it u64`.
    CHECKPOINT_CHUNK: a piece of a recovery checkpoint, where the log is the only store (Pulsar).
    PRODUCER_FORGOTTEN: nothing is known of this producer from here on; payload: its name in UTF-8.
    """

    TERM_START = 1
    CHECKPOINT_CHUNK = 3
    PRODUCER_FORGOTTEN = 4


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """The first 96 bytes.

        magic "WALF" | version u16 | header_len u16 | incompatible u32 (codec, columns) | compatible u32 | incarnation u64 |
        term u64 | sequence u64 | first_tick u64 | promise u64 | indices u32 | records u32 | runs u32 | blocks u32 |
        tables_len u32 | body_len u32 | names_len u32 | reserved 8 B, zero | crc32c u32 (of the header before it, then the tables)

    `sequence` is dense within a term; 0 is the term-start frame. The event with index i has the tick `first_tick + i`, for i
    below `indices`. `promise`: everything up to this tick is in the log up to and with this frame. `tables_len` includes the
    names.
    """

    incompatible: int
    compatible: int
    incarnation: int
    term: int
    sequence: int
    first_tick: int
    promised_tick: int
    indices: int
    records: int
    runs: int
    blocks: int
    tables_len: int
    body_len: int
    names_len: int

    @property
    def head_bytes(self) -> int:
        """Bytes of header and tables: what has to be read before anything of the body."""
        return HEADER_BYTES + self.tables_len

    @property
    def frame_bytes(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + self.tables_len + self.body_len

    def pack(self) -> bytes:
        """The header without its CRC, which also covers the tables (92 bytes)."""
        return _HEADER.pack(
            MAGIC,
            FORMAT_VERSION,
            HEADER_BYTES,
            self.incompatible,
            self.compatible,
            self.incarnation,
            self.term,
            self.sequence,
            self.first_tick,
            self.promised_tick,
            self.indices,
            self.records,
            self.runs,
            self.blocks,
            self.tables_len,
            self.body_len,
            self.names_len,
        )

    @classmethod
    def unpack(cls, data: bytes, offset: int = 0) -> FrameHeader:
        """The header at this offset; its CRC is checked with the tables, by `decode`.

        CorruptionError when it is no frame, FormatError when it was made by a newer version (the text says which part).
        """
        if len(data) - offset < HEADER_BYTES:
            raise CorruptionError(
                f"a frame of {len(data) - offset} bytes is cut short",
                expected=f"{HEADER_BYTES} bytes of header",
            )
        (magic, version, header_len, incompatible, compatible, *rest) = _HEADER.unpack_from(data, offset)
        if magic != MAGIC:
            raise CorruptionError(f"no frame here: it starts with {magic!r}", expected=repr(MAGIC))
        if version != FORMAT_VERSION:
            raise FormatError(
                f"frame format version {version} is not known here (known: {FORMAT_VERSION}): upgrade to read it"
            )
        if header_len != HEADER_BYTES:
            raise CorruptionError(f"frame header length is {header_len}", expected=str(HEADER_BYTES))
        if incompatible & ~_KNOWN_INCOMPATIBLE:
            raise FormatError(
                f"the frame uses features {incompatible & ~_KNOWN_INCOMPATIBLE:#x} (codec {incompatible & _CODEC_MASK}) that "
                "this version does not know: upgrade to read it"
            )
        return cls(incompatible, compatible, *rest)


_HEADER: Final = struct.Struct("<4sHHIIQQQQQIIIIIII8x")
CRC: Final = struct.Struct("<I")
assert _HEADER.size + CRC.size == HEADER_BYTES
