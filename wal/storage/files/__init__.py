"""The common basis of a log's files: read permissions, locks, the names of open files, and free space.

A writer has a `FileLock` on its directory, and a `HeldDirectory` checks that the names in it still lead to the open files. A `FileAccess`
sets who may read the files. A `SpaceReserve` lets a log truncate on a full disk.
"""

from wal.storage.files.access import FORMAT_NAME, MAP_NAME, META_NAME, PRIVATE, FileAccess
from wal.storage.files.free_space import RESERVE_BYTES, SpaceReserve, free_bytes
from wal.storage.files.held_directory import HeldDirectory, HeldNames
from wal.storage.files.lock import CURSORS_LOCK_NAME, LOCK_NAME, FileLock, LockHolder

__all__ = [
    "CURSORS_LOCK_NAME",
    "FORMAT_NAME",
    "LOCK_NAME",
    "MAP_NAME",
    "META_NAME",
    "PRIVATE",
    "RESERVE_BYTES",
    "FileAccess",
    "FileLock",
    "HeldDirectory",
    "HeldNames",
    "LockHolder",
    "SpaceReserve",
    "free_bytes",
]
