"""Cursors: saved positions of readers, kept under a name and shared by all processes that read; they hold back retention.

Files:

* cursor:      Cursor, CursorKey, CursorInfo: a saved position and its identity. Pure
* codec:       the bytes of a cursor's file, and its name. Pure
* store:       SavedCursors, the calls that a reader needs; CursorStore, with the lock between saves and truncations
* files:       the cursors of a journal, one file each
* memory:      MemoryCursors, the cursors of one process
* in_kv:       the cursors of a log without a directory, in its metadata
* status:      whether a saved cursor can still be used. Pure
* service:     the cursors of an open log, for callers on its event loop"""

from wal.cursors.codec import decode_cursor, encode_cursor, file_name, file_prefix
from wal.cursors.cursor import CURSOR_NAME_BYTES_MAX, Cursor, CursorInfo, CursorKey, check_cursor
from wal.cursors.files import CursorFiles
from wal.cursors.in_kv import CursorsBesideWriter, CursorsInKV
from wal.cursors.memory import MemoryCursors
from wal.cursors.service import Cursors, CursorService, CursorUse
from wal.cursors.status import CursorStatus, LogRange, LogView, cursor_status, resumable, shown
from wal.cursors.store import CursorStore, DamagedCursor, SavedCursors

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
    "Cursors",
    "CursorsBesideWriter",
    "CursorsInKV",
    "DamagedCursor",
    "LogRange",
    "LogView",
    "MemoryCursors",
    "SavedCursors",
    "check_cursor",
    "cursor_status",
    "decode_cursor",
    "encode_cursor",
    "file_name",
    "file_prefix",
    "resumable",
    "shown",
]
