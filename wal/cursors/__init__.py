"""Cursors: where readers have got to, kept under a name, by whichever process reads; they pin the log."""

from wal.cursors.codec import decode_cursor, encode_cursor, file_name, file_prefix
from wal.cursors.cursor import CURSOR_NAME_BYTES_MAX, Cursor, CursorInfo, CursorKey, check_cursor
from wal.cursors.desk import CursorDesk, CursorUse
from wal.cursors.files import CursorFiles
from wal.cursors.in_kv import CursorsInKV
from wal.cursors.memory import MemoryCursors
from wal.cursors.standing import LogPlace, LogView, Standing, resumable, shown, standing
from wal.cursors.store import CursorStore, DamagedCursor

__all__ = [
    "CURSOR_NAME_BYTES_MAX",
    "Cursor",
    "CursorDesk",
    "CursorFiles",
    "CursorInfo",
    "CursorKey",
    "CursorStore",
    "CursorUse",
    "CursorsInKV",
    "DamagedCursor",
    "LogPlace",
    "LogView",
    "MemoryCursors",
    "Standing",
    "check_cursor",
    "decode_cursor",
    "encode_cursor",
    "file_name",
    "file_prefix",
    "resumable",
    "shown",
    "standing",
]
