"""Files: what the files of a log have in common: who may read them, locks, the names that open ones stand on, and free space.
* access: which users of the machine may read a file, and whose it is
* free_space: Free space: how many bytes a file system has left for this process
* held_directory: HeldNames and HeldDirectory: the names that something open stands on, and whether they still lead
  to its files
* lock: a flock on a file that nobody but its owner can open, so that nobody else can hold it
* lock_holder: which process holds a lock file, for the text of an error
"""

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
