"""KVBase, the small transactional store of metadata, in memory and on sqlite; knows no other room.

Files:

* base: the one interface to metadata, whatever stores it
* batch: what one call changes, all or nothing
* hub: which watches of one store see which change, and the count of changes
* keys: What a key, a value and a prefix may be, and the order of keys
* rooted: a part of another KV, under a root path of its own
* sqlite_reserve: bytes of the disk that are kept beside a sqlite file, so that a full disk is no dead end for it
* sqlite_store: the KV's file and its transactions, synchronous; belongs to one thread
* statistics: what a KV has done since it was opened. Plain numbers, a copy
* watch: the changes of a key or of a prefix, in the order in which they were committed
"""

from wal.kv.base import OPERATION_BYTES_MAX, OPERATIONS_MAX, KVBase
from wal.kv.batch import Batch
from wal.kv.memory import MemoryKV
from wal.kv.rooted import RootedKV
from wal.kv.sqlite import SqliteKV
from wal.kv.statistics import KVStatistics
from wal.kv.watch import WATCH_BUFFER_MAX, Watch, WatchEvent, WatchKind

__all__ = [
    "OPERATIONS_MAX",
    "OPERATION_BYTES_MAX",
    "WATCH_BUFFER_MAX",
    "Batch",
    "KVBase",
    "KVStatistics",
    "MemoryKV",
    "RootedKV",
    "SqliteKV",
    "Watch",
    "WatchEvent",
    "WatchKind",
]
