"""The memory backend: logs that exist as long as their store, with all guarantees of the other backends except durability.

Files:

* backend:  MemoryBackend, which opens the logs of a store, one writer per term
* log:      MemoryLog, one pchannel, open for writing
* store:    MemoryStore, the frames and checkpoints of all logs
"""

from wal.backends.memory.backend import MemoryBackend
from wal.backends.memory.store import MemoryStore

__all__ = ["MemoryBackend", "MemoryStore"]
