"""Cursors: where readers have got to, kept under a name, by whichever process reads; they pin the log.

Files:

* Pure: cursor, codec, standing (what one is worth now); kept: store (the lock, the order), files, in_kv, memory; desk
  (for callers on a loop)
* service: the cursors of an open log, for callers on its loop
* status: what a saved cursor is worth now, beside the log and its vchannels as they are. Pure
"""

from wal.cursors.codec import decode_cursor, encode_cursor, file_name, file_prefix
from wal.cursors.cursor import CURSOR_NAME_BYTES_MAX, Cursor, CursorInfo, CursorKey, check_cursor
from wal.cursors.files import CursorFiles
from wal.cursors.in_kv import CursorsInKV
from wal.cursors.memory import MemoryCursors
from wal.cursors.service import CursorService, CursorUse
from wal.cursors.status import CursorStatus, LogPlace, LogView, resumable, shown, standing
from wal.cursors.store import CursorStore, DamagedCursor

__all__ = [
    "CURSOR_NAME_BYTES_MAX",
    "Cursor",
    "CursorFiles",
    "CursorInfo",
    "CursorKey",
    "CursorService",
    "CursorStatus",
    "CursorStore",
    "CursorUse",
    "CursorsInKV",
    "DamagedCursor",
    "LogPlace",
    "LogView",
    "MemoryCursors",
    "check_cursor",
    "decode_cursor",
    "encode_cursor",
    "file_name",
    "file_prefix",
    "resumable",
    "shown",
    "standing",
]
