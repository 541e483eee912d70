"""Frames: draft, encode, decode and check. Pure functions over bytes; this room imports only errors.

Files:

* layout      the bytes of a frame: constants, column order, and the header
* draft       the records of the next frame, gathered until it is encoded
* encode      from a draft to bytes
* encode_copies  the tables of frames with the copies of broadcasts
* packed_tables  the tables of a frame as bytes, and the blocks of its body
* decode      from bytes to runs and columns, checked
* tables      the runs and columns of a frame, checked against each other
* lazy_table  the same for a reader that wants few of many runs
* events      the rules of indices and flags
* ext         the optional fields of a record: transaction, idempotency key, broadcast header
"""

from wal.frame.decode import BodySource, Columns, FrameView, RecordColumns, TermStart
from wal.frame.draft import CopyNames, FrameDraft, Payloads, Record, RunName
from wal.frame.encode import EncodedFrame, encode_frame
from wal.frame.ext import ExtTag, decode_ext, decode_key, decode_txn, encode_ext, encode_key, encode_txn
from wal.frame.layout import (
    BLOCK_BYTES_MIN,
    BROADCAST,
    DEFAULT_TYPE,
    FLAG_BODY,
    FLAG_COMMIT,
    FLAG_COPY,
    FORMAT_VERSION,
    HEADER_BYTES,
    KEYED,
    RECOVERED,
    FrameHeader,
    RunKind,
    SystemRecord,
)
from wal.frame.tables import RunRow

__all__ = [
    "BLOCK_BYTES_MIN",
    "BROADCAST",
    "DEFAULT_TYPE",
    "FLAG_BODY",
    "FLAG_COMMIT",
    "FLAG_COPY",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "KEYED",
    "RECOVERED",
    "BodySource",
    "Columns",
    "CopyNames",
    "EncodedFrame",
    "ExtTag",
    "FrameDraft",
    "FrameHeader",
    "FrameView",
    "Payloads",
    "Record",
    "RecordColumns",
    "RunKind",
    "RunName",
    "RunRow",
    "SystemRecord",
    "TermStart",
    "decode_ext",
    "decode_key",
    "decode_txn",
    "encode_ext",
    "encode_frame",
    "encode_key",
    "encode_txn",
]
