"""Files: what the files of a log have in common: who may read them, locks, the names that open ones stand on, and free space."""

from wal.files.access import PRIVATE, FileAccess
from wal.files.free_space import free_bytes
from wal.files.held_directory import HeldDirectory, HeldNames
from wal.files.lock import FileLock
from wal.files.lock_holder import LockHolder
from wal.files.names import CURSORS_LOCK_NAME, FORMAT_NAME, LOCK_NAME

__all__ = [
    "CURSORS_LOCK_NAME",
    "FORMAT_NAME",
    "LOCK_NAME",
    "PRIVATE",
    "FileAccess",
    "FileLock",
    "HeldDirectory",
    "HeldNames",
    "LockHolder",
    "free_bytes",
]
