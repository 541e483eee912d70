"""KVBase, the small transactional store of metadata, in memory and on sqlite; knows no other room."""

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
