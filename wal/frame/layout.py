"""Layout: the bytes of a frame: constants, column order, and the header.

A frame is the unit of everything: one group commit, one backend write, one sync, one atomic outcome. All numbers are little-endian.

    HEADER 96 B, see `FrameHeader`
    TABLES one column after the other, for the whole frame
      run     kind u8 | name_len u16 | incarnation u32 | records u32 | body_offset u32
      record  [index u32] payload_len u32 [type u16] [flags u8] [properties_len u32] [ext_len u32]   ([…] as the header declares)
      block   end u32 | crc32c u32 [| stored_end u32]   (with a codec: where the stored block ends)
      names   UTF-8, joined, one a run (empty for the runs of kind PCHANNEL, SHARED and SYSTEM)
    BODY    run after run, each: payloads together | properties together | ext together

The body is cut into blocks of at least `BLOCK_BYTES_MIN` (the last may be shorter), always at the end of a payload, of properties or of an
ext: a reader fetches and checks only the blocks that it needs, and no field spans two blocks. With a codec each block is compressed
separately unless it would not shrink; its CRC is that of the stored bytes, and `body_len` counts these.

This module only packs and checks the header; `encode` and `decode` do the rest.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError

FORMAT_VERSION: Final = 1
HEADER_BYTES: Final = 96
MAGIC: Final = b"WALF"
BLOCK_BYTES_MIN: Final = 16 * 1024

COLUMN_INDEX: Final = 1 << 8
"""Without this column the i-th record row of the frame has the index i."""
COLUMN_TYPE: Final = 1 << 9
"""Without this column every record is an INSERT."""
COLUMN_FLAGS: Final = 1 << 10
COLUMN_PROPERTIES: Final = 1 << 11
COLUMN_EXT: Final = 1 << 12
CODEC_ZSTD: Final = 1
"""The codec of a body that has compressed blocks; see `codec`."""
_CODEC_MASK: Final = 0xFF
_KNOWN_INCOMPATIBLE: Final = COLUMN_INDEX | COLUMN_TYPE | COLUMN_FLAGS | COLUMN_PROPERTIES | COLUMN_EXT | CODEC_ZSTD
"""The only codec is one bit, so an unknown bit may belong to a codec as well."""

KEYED: Final = 1
"""A compatible flag: the frame has keyed events (records or commits with an idempotency key, or a PRODUCER_FORGOTTEN record)."""
BROADCAST: Final = 2
"""A compatible flag: the frame has copies of broadcasts (SHARED and COPY runs)."""
CURSORS: Final = 4
"""A compatible flag: the frame has CURSOR records, the state of cursors whose home is this log."""
SCHEDULES: Final = 8
"""A compatible flag: the frame has SCHEDULED or UNSCHEDULED records, of messages that wait for their delivery time."""
RECOVERED: Final = KEYED | BROADCAST | CURSORS | SCHEDULES
"""The flags that recovery looks for: a frame without any of them changes nothing that recovery restores."""

DEFAULT_TYPE: Final = 2
"""`MessageType.INSERT`: the type of every record of a frame without a type column."""

FLAG_BODY: Final = 1
"""A body of the transaction whose COMMIT row follows in the same run."""
FLAG_COMMIT: Final = 2
"""The event of a transaction; a transaction over several vchannels has one COMMIT row in each of its runs, with one index."""
FLAG_COPY: Final = 4
"""The payload of a broadcast in a SHARED run; its copies are the COPY runs that name this run."""
FLAGS_KNOWN: Final = FLAG_BODY | FLAG_COMMIT | FLAG_COPY


class RunKind(enum.IntEnum):
    """The kind of a run, which is the kind of its records.

    VCHANNEL: the records of one vchannel. PCHANNEL: messages for every reader of the pchannel (its name is ""). SHARED: the payload of one
    broadcast. COPY: one copy of it for a vchannel. It has no record rows: `records` is the ordinal of the SHARED run, and the k-th COPY run
    of a SHARED run has the index of its record plus k. SYSTEM: the log's own records, which take no index.
    """

    VCHANNEL = 0
    PCHANNEL = 1
    SHARED = 2
    SYSTEM = 3
    COPY = 4


class SystemRecord(enum.IntEnum):
    """The type column of a record in a SYSTEM run.

    TERM_START: the first frame of a term; payload `previous term u64 | last sequence of it u64`.
    CHECKPOINT_CHUNK: a piece of a recovery checkpoint, if the log is the only store (Pulsar).
    PRODUCER_FORGOTTEN: the log forgets this producer here; payload: its name in UTF-8.
    CURSOR: the state of a cursor from here on, see `wal/write/cursor_table.py`; at most one record for each cursor.
    SCHEDULED: a message that is appended at a later time, see `wal/write/schedule.py`.
    UNSCHEDULED: the numbers of messages that wait no more, since they are in this frame or were cancelled.
    """

    TERM_START = 1
    CHECKPOINT_CHUNK = 3
    PRODUCER_FORGOTTEN = 4
    CURSOR = 5
    SCHEDULED = 6
    UNSCHEDULED = 7


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """The first 96 bytes.

        magic "WALF" | version u16 | header_len u16 | incompatible u32 (codec, columns) | compatible u32 | incarnation u64 |
        term u64 | sequence u64 | first_tick u64 | promised_tick u64 | indices u32 | records u32 | runs u32 | blocks u32 |
        tables_len u32 | body_len u32 | names_len u32 | reserved 8 B, zero | crc32c u32 (of the header before it, then the tables)

    `sequence` is dense within a term; 0 is the term-start frame. The event with index i, for i below `indices`, has the tick `first_tick +
    i`. Everything up to `promised_tick` is in the log up to and including this frame. `tables_len` includes the names, and `body_len` is
    that of the stored body.
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
    def codec(self) -> int:
        """The codec of the body: 0, or `CODEC_ZSTD`."""
        return self.incompatible & _CODEC_MASK

    @property
    def head_bytes(self) -> int:
        """The bytes of header and tables, which are read before any of the body."""
        return HEADER_BYTES + self.tables_len

    @property
    def frame_bytes(self) -> int:
        """The bytes of the whole frame."""
        return HEADER_BYTES + self.tables_len + self.body_len

    def pack(self) -> bytes:
        """Returns the header (92 bytes) without its CRC, which also covers the tables."""
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
        """Returns the header at this offset; its CRC is checked with the tables, by `decode`, and then its version, by `check_known`.

        Raises CorruptionError for bytes that are not a frame.
        """
        if len(data) - offset < HEADER_BYTES:
            raise CorruptionError(f"a frame of {len(data) - offset} bytes is cut short", expected=f"{HEADER_BYTES} bytes of header")
        (magic, _version, header_len, incompatible, compatible, *rest) = _HEADER.unpack_from(data, offset)
        if magic != MAGIC:
            raise CorruptionError(f"no frame here: it starts with {magic!r}", expected=repr(MAGIC))
        if header_len != HEADER_BYTES:
            raise CorruptionError(f"frame header length is {header_len}", expected=str(HEADER_BYTES))
        return cls(incompatible, compatible, *rest)

    def check_known(self, data: bytes, offset: int) -> None:
        """Raises a FormatError that names what is new if a newer version has written this header, at this offset, whose CRC matches."""
        (version,) = _VERSION_FIELD.unpack_from(data, offset + len(MAGIC))
        if version != FORMAT_VERSION:
            raise FormatError(f"frame format version {version} is not known here (known: {FORMAT_VERSION}): upgrade to read it")
        if unknown := self.incompatible & ~_KNOWN_INCOMPATIBLE:
            raise FormatError(
                f"the frame uses features {unknown:#x} (codec {self.codec}) that this version does not know: upgrade to read it"
            )


_HEADER: Final = struct.Struct("<4sHHIIQQQQQIIIIIII8x")
_VERSION_FIELD: Final = struct.Struct("<H")
CRC: Final = struct.Struct("<I")
assert _HEADER.size + CRC.size == HEADER_BYTES
