"""Frames: draft, encode, decode, check. Pure functions over bytes; knows no other room."""

from wal.frame.decode import BodySource, Columns, FrameView, TermStart
from wal.frame.draft import FrameDraft, Record, RunName
from wal.frame.encode import EncodedFrame, encode_frame
from wal.frame.ext import ExtTag, decode_ext, decode_txn, encode_ext, encode_txn
from wal.frame.layout import (
    BLOCK_BYTES_MIN,
    FLAG_BODY,
    FLAG_COMMIT,
    FLAG_COPY,
    FORMAT_VERSION,
    HEADER_BYTES,
    FrameHeader,
    RunKind,
    SystemRecord,
)
from wal.frame.tables import RunRow

__all__ = [
    "BLOCK_BYTES_MIN",
    "FLAG_BODY",
    "FLAG_COMMIT",
    "FLAG_COPY",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "BodySource",
    "Columns",
    "EncodedFrame",
    "ExtTag",
    "FrameDraft",
    "FrameHeader",
    "FrameView",
    "Record",
    "RunKind",
    "RunName",
    "RunRow",
    "SystemRecord",
    "TermStart",
    "decode_ext",
    "decode_txn",
    "encode_ext",
    "encode_frame",
    "encode_txn",
]
