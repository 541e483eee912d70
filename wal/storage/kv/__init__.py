"""KVBase, the small transactional store of metadata, in memory, on sqlite and in etcd.

A batch of saves and removals is applied as a whole or not at all, and may depend on what it finds. Every key can be watched, in the order
of the commits. `RootedKV` gives a part of a KV to one owner. sqlite runs in a thread of its own, with one transaction for all that waits.
It imports `wal/storage/files`, and for etcd `wal/network`.
"""

from wal.storage.kv.base import OPERATION_BYTES_MAX, OPERATIONS_MAX, KVBase, KVBatch, KVStatistics, RootedKV
from wal.storage.kv.beside import RecordsBeside
from wal.storage.kv.memory import MemoryKV
from wal.storage.kv.sqlite import SqliteKV
from wal.storage.kv.watch import WATCH_BUFFER_MAX, Watch, WatchEvent, WatchKind

__all__ = [
    "OPERATIONS_MAX",
    "OPERATION_BYTES_MAX",
    "WATCH_BUFFER_MAX",
    "KVBase",
    "KVBatch",
    "KVStatistics",
    "MemoryKV",
    "RecordsBeside",
    "RootedKV",
    "SqliteKV",
    "Watch",
    "WatchEvent",
    "WatchKind",
]
