"""Frames: draft, encode, decode and check. Pure functions over bytes; this room imports only errors, and zstd when a frame needs it.

Records are gathered in a `FrameDraft`; `encode_frame` turns a draft into the bytes of one group commit, in the form of `layout.py`. A
`FrameView` reads them back: the header and the tables first, under one CRC, and of the body only the wanted blocks, each under its own.
"""

from wal.frame.codec import Compressor
from wal.frame.decode import BodySource, Columns, FrameView, RecordColumns, StoredColumns, TermStart, check_frame
from wal.frame.draft import CopyNames, FrameDraft, Payloads, Record, RunName
from wal.frame.encode import EncodedFrame, Tables, compressed, encode_frame, frame_tables
from wal.frame.ext import KEY_TAGS, ExtTag, decode_ext, decode_key, decode_txn, encode_ext, encode_key, encode_txn
from wal.frame.layout import (
    BLOCK_BYTES_MIN,
    BROADCAST,
    CURSORS,
    DEFAULT_TYPE,
    FLAG_BODY,
    FLAG_COMMIT,
    FLAG_COPY,
    FORMAT_VERSION,
    HEADER_BYTES,
    KEYED,
    RECOVERED,
    SCHEDULES,
    FrameHeader,
    RunKind,
    SystemRecord,
)
from wal.frame.rows_head import RowsHead, RunSpan, rows_head
from wal.frame.tables import RunRow

__all__ = [
    "BLOCK_BYTES_MIN",
    "BROADCAST",
    "CURSORS",
    "DEFAULT_TYPE",
    "FLAG_BODY",
    "FLAG_COMMIT",
    "FLAG_COPY",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "KEYED",
    "KEY_TAGS",
    "RECOVERED",
    "SCHEDULES",
    "BodySource",
    "Columns",
    "Compressor",
    "CopyNames",
    "EncodedFrame",
    "ExtTag",
    "FrameDraft",
    "FrameHeader",
    "FrameView",
    "Payloads",
    "Record",
    "RecordColumns",
    "RowsHead",
    "RunKind",
    "RunName",
    "RunRow",
    "RunSpan",
    "StoredColumns",
    "SystemRecord",
    "Tables",
    "TermStart",
    "check_frame",
    "compressed",
    "decode_ext",
    "decode_key",
    "decode_txn",
    "encode_ext",
    "encode_frame",
    "encode_key",
    "encode_txn",
    "frame_tables",
    "rows_head",
]
