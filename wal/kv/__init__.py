"""KVBase, the small transactional store of metadata, in memory, on sqlite and in etcd; of the other rooms it imports only `files`.

Files:

* base:               KVBase, the one interface to metadata; Batch, KVStatistics; RootedKV, a part of another KV
* keys:               what a key, a value and a prefix may be, and the order of keys
* watch:              Watch, the changes of a key or prefix in commit order; WatchHub, the watches of one store in this process
* memory:             MemoryKV, for `memory:` logs and for tests
* sqlite:             SqliteKV, the default: the thread that owns the file, and the calls to it
* sqlite_store:       the file and its transactions
* sqlite_operations:  the operations of one transaction, and their SQL
* etcd/:              EtcdKV, with sessions and elections"""

from wal.kv.base import OPERATION_BYTES_MAX, OPERATIONS_MAX, Batch, KVBase, KVStatistics, RootedKV
from wal.kv.memory import MemoryKV
from wal.kv.sqlite import SqliteKV
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
