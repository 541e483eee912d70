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
