"""Frames: draft, encode, decode, check. Pure functions over bytes; knows no other room.

Files:

* copy_names: the vchannels that a broadcast's copies in a frame are for, and the columns of their runs
* events: the laws of indices and flags, over the columns of a frame
* ext: the optional fields of a record, as tag, length and value
* layout: The bytes of a frame: constants, column order, and the header
* lazy_table: The tables of a frame for a reader that wants few of its many runs: a run is read and checked when it
  is first asked for
* tables: the runs and columns of a frame, checked against each other before anything of them is believed
"""

from wal.frame.copy_names import CopyNames
from wal.frame.decode import BodySource, Columns, FrameView, RecordColumns, TermStart
from wal.frame.draft import FrameDraft, Record, RunName
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
