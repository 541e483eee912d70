"""The common basis of a log's files: read permissions, locks, the names of open files, and free space.

Files:

* access:          which users of the machine may read a file, and which user owns it
* lock:            FileLock, a flock on a file that only its owner can open; LockHolder, the process that holds one
* held_directory:  HeldNames and HeldDirectory: whether names still lead to the files that are open
* free_space:      the free bytes of a file system, and a reserve of them for a full disk"""

from wal.files.access import FORMAT_NAME, MAP_NAME, PRIVATE, FileAccess
from wal.files.free_space import RESERVE_BYTES, SpaceReserve, free_bytes
from wal.files.held_directory import HeldDirectory, HeldNames
from wal.files.lock import CURSORS_LOCK_NAME, LOCK_NAME, FileLock, LockHolder

__all__ = [
    "CURSORS_LOCK_NAME",
    "FORMAT_NAME",
    "LOCK_NAME",
    "MAP_NAME",
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
